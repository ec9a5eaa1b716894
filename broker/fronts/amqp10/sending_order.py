"""What one session sends to queues goes to them in the order of the session, also behind a transaction that takes more
than one turn to hand out its parts (`access.together`): its queues are asked, what settles is committed, bodies are
read. Otherwise a later message would be in a queue before an earlier one; and of a producer that numbers its messages
the queue would take the earlier number for known, and drop a message that is accepted.

    discharge, transfer   carried out at once, or behind what waits
    posting               is staged, and waits for nothing: its discharge does
    rollback, declare     change no queue

Bounds: while anything waits the session's senders get no credit, and its incoming window is not opened; with more than
WAITING_BYTES_MAX the connection is not read. Other sessions go on: no order between sessions is promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp10.ports import SessionCore

WAITING_BYTES_MAX: Final = 1 << 20
_NOTHING: Final[deque[tuple[int, Callable[[], None]]]] = deque(maxlen=0)
"""Of a session in which nothing waits: there may be very many. It stays empty."""


class SendingOrder:
    """Of one session."""

    __slots__ = ("_bytes", "_goes_on", "_session", "_waiting", "is_held")

    def __init__(self, session: SessionCore) -> None:
        self._session = session
        self._waiting = _NOTHING
        self._bytes = 0
        self._goes_on = False
        self.is_held = False
        """A transaction has not handed out all its parts: whatever comes has to wait."""

    @property
    def waits(self) -> bool:
        """Something waits."""
        return bool(self._waiting)

    @property
    def is_busy(self) -> bool:
        """What comes now has to wait."""
        return self.is_held or bool(self._waiting)

    @property
    def is_full(self) -> bool:
        return self._bytes > WAITING_BYTES_MAX

    def enter(self, step: Callable[[], None], size: int = 0) -> None:
        """Calls `step` in its order, perhaps now. `size`: bytes that it keeps."""
        if not self.is_busy:
            step()
            return
        if self._waiting is _NOTHING:
            self._waiting = deque()
        self._waiting.append((size, step))
        self._bytes += size

    def hold(self) -> None:
        """Until `release` everything waits that comes later."""
        assert not self.is_held, "one transaction after another hands out its parts"
        self.is_held = True

    def release(self) -> None:
        """What waits goes on, until something holds it again."""
        self.is_held = False
        if self._goes_on or not self._waiting:
            return
        self._goes_on = True
        while self._waiting and not self.is_held:
            size, step = self._waiting.popleft()
            self._bytes -= size
            try:
                step()
            except Exception as error:
                self._session.connection.crashed(error)
        self._goes_on = False
        if not self._waiting:
            self._waiting = _NOTHING
            self._session.eased()
