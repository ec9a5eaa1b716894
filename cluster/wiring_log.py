"""The port of the wiring log: propose a command, learn its outcome in log order.

    propose(command, done)     order it; once it is durable and applied, done(applied) is called
    listen(listener)           called for every applied command, whoever proposed it, before its own `done`
    map                        the fold so far; read it freely on the loop's thread

The contract, for the local log and for Raft alike:

1. All calls of listeners and of `done` come on the loop's thread, one after another, in ascending index.
2. A command is applied and its outcome handed out only when a crash can no longer undo what its answer promises
   (durability.py has the answers that promise nothing).
3. `done` may be called before `propose` returns. The outcome of a command that a listener or `done` proposes comes
   after theirs.
4. `done` is called exactly once unless the node stops. Besides an answer of the fold it may get an error that is not in
   the log: a PreconditionFailed for a command that cannot be stored, or a retriable Unavailable; index is 0 then.
5. When listeners and `done` are called, the map has the command; it may also have what they have proposed since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from .errors import Unavailable, WiringError
from .ids import LogIndex
from .wiring import commands as c
from .wiring.map import Applied, ClusterMap
from .wiring.view import ClusterView

Done = Callable[[Applied], None]
Listener = Callable[[Applied], None]
SNAPSHOT_EVERY: Final = 10_000


def snapshot_is_due(length: int, every: int, map_: ClusterView) -> bool:
    """Whether a log that has grown so long behind its last snapshot needs another one.

    It is longer than `every`, and than the map: so the cost of snapshots for each command stays constant.
    """
    return length > every and length > map_.entities


class WiringLog(Protocol):
    """What a node needs of the thing that orders its wiring."""

    @property
    def map(self) -> ClusterView:
        """The fold of all that has been applied."""

    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None:
        """Order a command; `done` learns its outcome."""

    def listen(self, listener: Listener) -> None:
        """Call the listener for every command applied from now on."""


class Notifier:
    """Hands out outcomes in order, also when a listener proposes again at once."""

    __slots__ = ("_listeners", "_notifying", "_outcomes")

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._outcomes: deque[tuple[Applied, Done | None]] = deque()
        self._notifying = False

    def listen(self, listener: Listener) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def notify(self, applied: Applied, done: Done | None) -> None:
        """Hand out an outcome in its turn: to listeners first (only if it is in the log), then to `done`.

        An exception of one of them keeps no other from its turn; the first one is raised at the end.
        """
        self._outcomes.append((applied, done))
        if self._notifying:
            return
        self._notifying = True
        failure: Exception | None = None
        try:
            while self._outcomes:
                outcome, last = self._outcomes.popleft()
                for callback in (*self._listeners, last) if outcome.index else (last,):
                    if callback is None:
                        continue
                    try:
                        callback(outcome)
                    except Exception as error:
                        failure = failure or error
        finally:
            self._notifying = False
        if failure is not None:
            raise failure


def unlogged(command: c.AnyCommand, error: WiringError | Unavailable) -> Applied:
    """The outcome of a command that never came into the log."""
    return Applied(LogIndex(0), command, error, None, ())


class MemoryWiringLog:
    """The port in memory, for tests and brokers that keep nothing: applies at once, or by `step()`.

    Commands go through their stored form, so what cannot be stored fails here as it would on a disk.
    """

    __slots__ = ("_map", "_notifier", "_waiting", "stepwise", "stored")

    def __init__(self, map_: ClusterMap | None = None, *, stepwise: bool = False, keep: bool = False) -> None:
        """`stepwise`: wait for `step()`; `keep`: remember the log, (index, bytes) each, in `stored`."""
        self._map = map_ if map_ is not None else ClusterMap()
        self._notifier = Notifier()
        self._waiting: deque[tuple[bytes, Done | None]] = deque()
        self.stepwise = stepwise
        self.stored: list[tuple[LogIndex, bytes]] | None = [] if keep else None

    @property
    def map(self) -> ClusterView:
        """The fold of all that has been applied."""
        return self._map

    @property
    def pending(self) -> int:
        """How many proposals wait for a step."""
        return len(self._waiting)

    def listen(self, listener: Listener) -> None:
        """Call the listener for every command applied from now on."""
        self._notifier.listen(listener)

    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None:
        """Order a command; see the module's contract."""
        try:
            stored = c.encode(command)
        except WiringError as error:
            self._notifier.notify(unlogged(command, error), done)
            return
        self._waiting.append((stored, done))
        if not self.stepwise:
            self.step()

    def step(self, count: int = 1) -> int:
        """Apply up to `count` waiting commands; returns how many."""
        stepped = 0
        while self._waiting and stepped < count:
            stored, done = self._waiting.popleft()
            index = LogIndex(self._map.applied + 1)
            if self.stored is not None:
                self.stored.append((index, stored))
            self._notifier.notify(self._map.apply(index, c.decode(stored)), done)
            stepped += 1
        return stepped
