"""Answers to commits, held for as long as rows of earlier epochs are on their way.

What is committed is safe, and its rows are moved afterwards, at about the rate at which rows can be staged or below. A
producer that is answered at once goes on staging, and what is committed and not moved would grow for as long as it
does. So it is answered when what it committed before is where it belongs: it stages one epoch while the one before
is moved. The commit itself waits for nothing, and its answer HOLD_MS at most, for a target may be full or without an
owner for days.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from clusterbroker.cluster.wiring.view import ClusterView

HOLD_MS: Final = 5000
Key = tuple[str, str]


class Host(Protocol):
    """The node."""

    @property
    def map(self) -> ClusterView:
        """The wiring that this node has applied."""

    @property
    def now_ms(self) -> int:
        """Time of what is being handled, wall clock."""


class _Answer:
    """Somebody waits to hear that an epoch is committed; `tell` is None when that was told."""

    __slots__ = ("epoch", "tell", "until_ms")

    def __init__(self, until_ms: int, epoch: int, tell: Callable[[], None]) -> None:
        self.until_ms = until_ms
        self.epoch = epoch
        self.tell: Callable[[], None] | None = tell

    def told(self) -> None:
        tell, self.tell = self.tell, None
        if tell is not None:
            tell()


class Pace:
    """Of the answers of one node; a producer is a pair of its vhost and name.

    Both lines are in the order of asking, so who is late is the first of all and of its producer. Epochs of a producer
    rise in it, since they are committed so: who may be told stands before who may not.
    """

    def __init__(self, node: Host) -> None:
        self._node = node
        self._held: dict[Key, deque[_Answer]] = {}
        self.line: deque[tuple[Key, _Answer]] = deque()
        """All that are held, and some that were told; empty: `next_wake_ms` tells of no time."""

    def hold(self, producer: Key, epoch: int, tell: Callable[[], None]) -> None:
        """Calls `tell` when no rows of earlier epochs are on their way, or it is late."""
        if not self._node.map.moves_before(*producer, epoch):
            tell()
            return
        answer = _Answer(self._node.now_ms + HOLD_MS, epoch, tell)
        self._held.setdefault(producer, deque()).append(answer)
        self.line.append((producer, answer))

    def moved(self, producer: Key) -> None:
        """A segment of this producer is gone."""
        while (held := self._held.get(producer)) and not self._node.map.moves_before(*producer, held[0].epoch):
            self._tell_first(producer)

    def _tell_first(self, producer: Key) -> None:
        held = self._held[producer]
        first = held.popleft()
        if not held:
            del self._held[producer]
        first.told()

    @property
    def next_wake_ms(self) -> int | None:
        """When `turn` has something to do."""
        while self.line and self.line[0][1].tell is None:
            self.line.popleft()
        return self.line[0][1].until_ms if self.line else None

    def turn(self, now_ms: int) -> None:
        """Tells those that have waited for long enough."""
        while (wake_ms := self.next_wake_ms) is not None and wake_ms <= now_ms:
            producer, late = self.line.popleft()
            assert self._held[producer][0] is late, "who has waited for longest is the first of its producer"
            self._tell_first(producer)
