"""The port of the wiring log: propose a command, learn its outcome in log order.

    propose(command, done)     order it; once it is durable and applied, done(applied) is called
    listen(listener)           called for every applied command, whoever proposed it, before its own `done`
    map                        the fold so far; read it freely on the loop's thread

The contract, for the local log and for Raft alike:

1. All calls of listeners and of `done` come on the loop's thread, one after another, in ascending index. 2. A
command is applied and told only when a crash can no longer undo what its answer promises (durability.py says
   which answers promise nothing).
3. `done` may be called before `propose` returns. What is proposed from within a listener or `done` is told
after it. 4. `done` is called exactly once unless the node stops. Besides an answer of the fold it may get an
error that is not
   in the log: a PreconditionFailed for a command that cannot be stored, or a retriable Unavailable; index is
   0 then.
5. When a command is told, the map has it; it may also have what was proposed since from within listeners or
`done`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from . import commands as c
from .errors import Unavailable, WiringError
from .ids import LogIndex
from .state import Applied, ClusterMap
from .view import ClusterView

Done = Callable[[Applied], None]
Listener = Callable[[Applied], None]


class WiringLog(Protocol):
    """What a node needs of the thing that orders its wiring."""

    @property
    def map(self) -> ClusterView:
        """The fold of all that has been applied."""

    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None:
        """Order a command; `done` learns its outcome."""

    def listen(self, listener: Listener) -> None:
        """Call the listener for every command applied from now on."""


class Teller:
    """Tells of applied commands in order, also when those who are told propose again at once."""

    __slots__ = ("_listeners", "_outcomes", "_telling")

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._outcomes: deque[tuple[Applied, Done | None]] = deque()
        self._telling = False

    def listen(self, listener: Listener) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def tell(self, applied: Applied, done: Done | None) -> None:
        """Tell an outcome in its turn: listeners first (only of what is in the log), then `done`.

        An exception of one who is told does not keep the others from being told; the first one is raised at
        the end.
        """
        self._outcomes.append((applied, done))
        if self._telling:
            return
        self._telling = True
        failure: Exception | None = None
        try:
            while self._outcomes:
                outcome, last = self._outcomes.popleft()
                for hear in (*self._listeners, last) if outcome.index else (last,):
                    if hear is None:
                        continue
                    try:
                        hear(outcome)
                    except Exception as error:
                        failure = failure or error
        finally:
            self._telling = False
        if failure is not None:
            raise failure


def unlogged(command: c.AnyCommand, error: WiringError | Unavailable) -> Applied:
    """The outcome of a command that never came into the log."""
    return Applied(LogIndex(0), command, error, None, ())


class MemoryWiringLog:
    """The port in memory, for tests and brokers that keep nothing: applies at once, or by `step()`.

    Commands go through their stored form, so what cannot be stored fails here as it would on a disk.
    """

    __slots__ = ("_map", "_teller", "_waiting", "stepwise", "stored")

    def __init__(self, map_: ClusterMap | None = None, *, stepwise: bool = False, keep: bool = False) -> None:
        """`stepwise`: wait for `step()`; `keep`: remember the log, (index, bytes) each, in `stored`."""
        self._map = map_ if map_ is not None else ClusterMap()
        self._teller = Teller()
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
        self._teller.listen(listener)

    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None:
        """Order a command; see the module's contract."""
        try:
            stored = c.encode(command)
        except WiringError as error:
            self._teller.tell(unlogged(command, error), done)
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
            self._teller.tell(self._map.apply(index, c.decode(stored)), done)
            stepped += 1
        return stepped
