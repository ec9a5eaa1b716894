"""Commands that end something of this node (an attach, a connection): each is ordered until the metadata log takes it.

    ordered --answered--> over
            --no majority, or no room--> late --AGAIN_MS later, or before the next attach is ordered--> ordered

Who asks for an end hears when it was tried: the end itself is heard as a change of the map.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.map import Applied

    class EndingNode(Protocol):
        """The node."""

        now_ms: int

        def propose(self, command: c.AnyCommand, done: Callable[[Applied], None]) -> None: ...


AGAIN_MS: Final = 1000
End: TypeAlias = c.SuspendLink | c.ForgetLink | c.ReleaseContainer | c.RemoveConnection


class _Late(NamedTuple):
    due_ms: int
    command: End
    more: Callable[[], bool]


def _nothing_more() -> bool:
    return False


class Ends:
    """Of one node."""

    __slots__ = ("_late", "_node")

    def __init__(self, node: EndingNode) -> None:
        self._node = node
        self._late: deque[_Late] = deque()  # by their times

    def order(
        self, command: End, tried: Callable[[], None] = lambda: None, more: Callable[[], bool] = _nothing_more
    ) -> None:
        """`tried` is called once, when that was tried. `more`: whether the same command has something left to end,
        of which one command ends only so much."""

        def done(applied: Applied) -> None:
            if isinstance(applied.error, Unavailable):
                self._late.append(_Late(self._node.now_ms + AGAIN_MS, command, more))
                tried()
            elif applied.ok and more():
                self._node.propose(command, done)
            else:
                tried()

        self._node.propose(command, done)

    def hurry(self) -> None:
        """What is late is ordered now: before something that has to find it ended."""
        late, self._late = self._late, deque()
        for one in late:
            self.order(one.command, more=one.more)

    @property
    def next_ms(self) -> int | None:
        """When `turn` is due; None: nothing is late."""
        return self._late[0].due_ms if self._late else None

    def turn(self, now_ms: int) -> None:
        while self._late and self._late[0].due_ms <= now_ms:
            one = self._late.popleft()
            self.order(one.command, more=one.more)
