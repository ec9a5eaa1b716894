"""Moves the messages of one queue: what came in, what is to be done next. Nothing here waits.

    ASKING      basic.consume is sent: up to `window` messages are on their way
    LOOKING     nothing came for a while: the source is asked how many messages are ready, while it may hand out more
    CLOSING     enough came, or the source has no more: basic.cancel is sent, and its answer ends the window
    DRAINING    waits until all that came is confirmed by the destination
    SETTLING    basic.ack of all, and basic.qos behind it: its answer shows that the source has taken the ack
    NOTING      the ledger is told that nothing of the window can come again
    RESTING     until `wake_s`: the rate
    OVER        ended: see `why`

Why the source is asked before a window is closed that is not full. A quorum queue of RabbitMQ that is cancelled while
deliveries are on their way to us takes these back, and may hand out what is behind them first: out of order. Behind a
full window nothing is on its way. Behind the answer to a question nothing is either, but for what was published since:
the queue sends deliveries and answers in one order. So a window into which messages flow is as large as what came in
WINDOW_S, and fills; one that does not is closed in a moment of quiet. An empty window stays open, and is closed when
nothing was ready twice, EMPTY_S apart; a third look behind its end shows that nothing was taken back. Nothing is taken
by a look.

Why a window is closed before it is acknowledged. The source hands out what was not acknowledged again, flagged as
redelivered. An ack without an answer may have been taken or not; if new messages were handed out meanwhile, these came
back flagged as well, and one with the same content could not be told from its acknowledged twin. So nothing is handed
out while an ack is on its way, and what comes back flagged is the window, or none of it (but see `ledger` for a source
that crashes). Each number stands in the
ledger before its message is published (`Record`, and `recorded` is its answer), so it is known after any interruption.

`Plain` movers have no ledger: a foreign destination knows no numbers, so a message that comes again is doubled. Their
windows stay open, and are acknowledged as they are confirmed; not with an end (`Plan.most`), for the source sends one
more for each that is acknowledged.

Events are methods, each with the time in s where it matters; each returns effects, to be carried out in their order.
Those that nobody asked for, and more messages than were asked for, raise Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from clusterbroker.broker.bridges.confirms import Confirms
from clusterbroker.broker.bridges.errors import Malformed
from clusterbroker.broker.bridges.ledger import (
    QUIET_WINDOWS,
    RUN_LEAST,
    Known,
    Recognition,
    State,
    closed,
    dropped,
    window,
)
from clusterbroker.broker.bridges.rewriting import Parcel

LINGER_S: Final = 0.05
"""A window is closed when nothing came for so long."""
WINDOW_S: Final = 1.0
"""A window is closed so long after its first message, so that a queue with a slow trickle is acknowledged as well: in
the first moment in which nothing is ready,"""
WINDOW_S_MAX: Final = 2.0
"""or after so long, whatever flows."""
EMPTY_S: Final = 0.25
"""An empty window is looked at after so long, and again, at first."""
EMPTY_S_MAX: Final = 2.0
EMPTY_LOOKS: Final = 2
"""So many looks in a row show an empty queue: one alone may be the answer of a queue that has no time (RabbitMQ)."""
PACE_S: Final = 0.2
"""With a rate, a window has about as many messages as may go in this time."""


class Phase(Enum):
    """See the module."""

    RESTING = "resting"
    ASKING = "asking"
    CLOSING = "closing"
    DRAINING = "draining"
    SETTLING = "settling"
    NOTING = "noting"
    LOOKING = "looking"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Consume:
    """basic.qos with this prefetch count, then basic.consume."""

    count: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """basic.cancel."""


@dataclass(frozen=True, slots=True)
class Record:
    """Bodies for the ledger; `recorded` when they are durable. None: nothing new, only the order matters."""

    bodies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Frames for the destination."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Settle:
    """basic.ack of all up to this delivery tag; with `sync` a basic.qos behind it."""

    tag: int
    sync: bool


@dataclass(frozen=True, slots=True)
class Look:
    """How many messages are ready?"""


@dataclass(frozen=True, slots=True)
class End:
    """The mover is over."""


Effect = Consume | Cancel | Record | Publish | Settle | Look | End


@dataclass(frozen=True, slots=True)
class Plan:
    """How one queue is moved."""

    window: int = 10_000
    """messages that are handed out and not acknowledged, at most"""
    follow: bool = False
    """go on when the queue is empty"""
    rate_per_s: float = 0.0
    """at most; 0: as fast as it goes"""
    most: int = 0
    """ends after so many messages; 0: no end"""


class Mover:
    """One queue, between one channel at its source and one at its destination. A lost connection ends it: the next
    one begins with the state of the ledger."""

    def __init__(self, plan: Plan, state: State | None) -> None:
        """`state`: None for a plain mover."""
        self.phase = Phase.RESTING
        self.wake_s = 0.0
        """In RESTING: when to go on."""
        self.again = 0
        """Recognised: published before the interruption, or known by then."""
        self.doubtful = 0
        """Redelivered and not recognised while something could come again: perhaps published twice."""
        self._plan = plan
        self._counted = state is not None
        self._first = self._next = state.next if state is not None else 1
        self._recognised: list[Known] = []  # in this window
        self._recognition = Recognition(*((state.window, state.last_session) if state is not None else ((),)))
        self._came = 0  # delivery tags of the source are 1, 2, ...
        self._size = plan.window
        self._count = 0  # of the window
        self._quiet = True  # nothing flagged came in it
        self._quiet_windows = 0
        self._published = 0  # confirms of the destination are 1, 2, ...
        self._confirms = Confirms()
        self._settled = 0
        self._records: list[Parcel | None] = []  # waiting for the ledger; None: a close
        self._unweighed: list[Parcel] = []  # the first of a session, until there are enough to recognise a run
        self._window_came = 0
        self._opened_s = self._last_s = 0.0
        self._empty_s = EMPTY_S
        self._empty_looks = 0
        self._looked_came = 0  # of the window, when the look began
        self._looked_s = -inf
        self._open = False  # the source may hand out
        self._due_s = 0.0

    @property
    def moved(self) -> int:
        """Confirmed by the destination."""
        return self._confirms.upto

    @property
    def held(self) -> int:
        """Messages that came and are not confirmed by the destination."""
        return self._came - self.moved

    # -- time -------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> list[Effect]:
        """Time has passed."""
        if self.phase is Phase.RESTING and now_s >= self.wake_s:
            return self._ask(now_s)
        if self.phase is not Phase.ASKING or now_s < self.due_s:
            return []
        if not self._counted and self._settled < self._came:
            return self._close() if self._plan.most else self._settle_confirmed()
        self.phase, self._looked_came, self._looked_s = Phase.LOOKING, self._window_came, now_s
        return [Look()]

    @property
    def due_s(self) -> float:
        """When `tick` has something to do at the latest, if nothing else comes."""
        if self.phase is Phase.RESTING:
            return self.wake_s
        if self.phase is not Phase.ASKING:
            return inf
        if self._is_empty:
            if self._settled < self.moved:
                return self._last_s + LINGER_S
            # who follows leaves the window open for what will come; what is not confirmed yet comes by itself
            waits = self._plan.follow and self._recognition.is_over
            return inf if waits or self._settled < self._came else self._last_s + self._empty_s
        return min(self._last_s + LINGER_S, max(self._opened_s + WINDOW_S, self._looked_s + LINGER_S))

    @property
    def _is_empty(self) -> bool:
        """Nothing of the window waits for its end: a plain one is acknowledged while it is open."""
        return self._window_came == 0 or not self._counted

    def _ask(self, now_s: float) -> list[Effect]:
        plan, count = self._plan, self._size
        if plan.rate_per_s:
            count = max(1, min(count, int(plan.rate_per_s * PACE_S)))
        if plan.most:
            count = min(count, plan.most - self._came)
        self.phase = Phase.ASKING
        self._window_came = 0
        self._opened_s = self._last_s = inf  # until the source has begun
        self._open, self._empty_looks = True, 0
        self._due_s = max(self._due_s, now_s)  # what was not used of the rate is not made up for
        self._count = count
        return [Consume(count)]

    def _close(self) -> list[Effect]:
        effects = self._record()
        self.phase = Phase.CLOSING
        return [*effects, Cancel()]

    # -- the source -------------------------------------------------------------------------------------------

    def begun(self, now_s: float) -> list[Effect]:
        """The answer to Consume: messages are on their way, if there are any."""
        if self.phase is Phase.ASKING and not self._window_came:
            self._opened_s = self._last_s = now_s
        return []

    def delivered(self, parcel: Parcel, now_s: float) -> list[Effect]:
        """Messages came."""
        self._expects(Phase.ASKING, Phase.CLOSING, *((Phase.LOOKING,) if self._open else ()))
        if self._came + parcel.count - self._settled > self._count:
            raise Malformed(f"more messages than the {self._count} that were asked for")
        if not self._window_came:
            self._opened_s = now_s
        self._came += parcel.count
        self._window_came += parcel.count
        self._last_s = now_s
        self._empty_s, self._empty_looks = EMPTY_S, 0
        effects: list[Effect] = []
        if self._counted:
            self._unweighed.append(parcel)
            if self.phase is Phase.CLOSING or not self._waits_for_more():
                effects += self._record()
        else:
            effects += self._publish(parcel)
        enough = self._window_came >= self._count
        if enough and self._counted and now_s < self._opened_s + WINDOW_S / 2:
            self._size = min(2 * self._size, self._plan.window)
        if enough and self.phase is not Phase.CLOSING and (self._counted or self._plan.rate_per_s or self._plan.most):
            effects += self._close()
        return effects

    def _expects(self, *phases: Phase) -> None:
        """A source says only what it was asked for. Raises Malformed."""
        if self.phase not in phases:
            raise Malformed(f"an answer that nobody waits for, while {self.phase.value}")

    def _waits_for_more(self) -> bool:
        """Whether the first messages that came again are too few to be weighed: a socket may give one alone. What comes
        next, or the end of the window, decides."""
        flagged = any(any(parcel.flagged) for parcel in self._unweighed)
        return flagged and self._recognition.weighs and sum(parcel.count for parcel in self._unweighed) < RUN_LEAST

    def _record(self) -> list[Effect]:
        """What came gets its numbers."""
        parcels, self._unweighed = self._unweighed, []
        if any(any(parcel.flagged) for parcel in parcels) and not self._recognition.is_over:
            prints = b"".join(parcel.prints for parcel in parcels)
            self._recognition.weigh([prints[at : at + 8] for at in range(0, len(prints), 8)])
        effects: list[Effect] = []
        for parcel in parcels:
            self._records.append(parcel)
            effects.append(Record(self._numbered(parcel)))
        return effects

    def _numbered(self, parcel: Parcel) -> tuple[bytes, ...]:
        """Gives the messages their numbers; what the ledger has to know of it."""
        bodies = self._number(parcel)
        if self._recognition.dropped:
            # or a twin of what is gone, if it is given back, would get its number
            self._recognition.dropped = False
            bodies = (dropped(self._first, sorted((*self._recognition.known, *self._recognised))), *bodies)
        return bodies

    def _number(self, parcel: Parcel) -> tuple[bytes, ...]:
        first = self._next
        marks = bytes(
            priority << 1 & 0xFE | flag for priority, flag in zip(parcel.priorities, parcel.flagged, strict=True)
        ) if any(parcel.priorities) else parcel.flagged  # fmt: skip
        flagged = any(parcel.flagged)
        self._quiet = not flagged and self._quiet
        if not flagged:
            self._recognition.new(min(parcel.priorities))
        if self._recognition.is_over or not flagged:
            parcel.number(first)
            self._next += parcel.count
            return (window(first, marks, parcel.prints),)
        numbers: list[int] = []
        new_marks, new_prints = bytearray(), bytearray()
        for place, mark in enumerate(marks):
            print_ = parcel.prints[8 * place : 8 * place + 8]
            known = self._recognition.known_as(mark, print_)
            if known is None:
                self.doubtful += mark & 1 and not self._recognition.is_over
                numbers.append(self._next)
                self._next += 1
                new_marks.append(mark)
                new_prints += print_
            else:
                self.again += 1
                self._recognised.append(known)
                numbers.append(known.number)
        parcel.number_each(numbers)
        return (window(first, bytes(new_marks), bytes(new_prints)),) if new_marks else ()

    def cancelled(self, now_s: float) -> list[Effect]:
        """The answer to Cancel."""
        self._expects(Phase.CLOSING)
        self._open = False
        if not self._window_came:
            self.phase = Phase.LOOKING
            return [Look()]
        self.phase = Phase.DRAINING
        return self._drained(now_s)

    def depth(self, ready: int, now_s: float) -> list[Effect]:
        """The answer to Look. One that comes late, as the window was full meanwhile, says nothing."""
        if self.phase is not Phase.LOOKING:
            return []
        if not self._open:
            return self._ask(now_s) if ready else self._end()
        self.phase = Phase.ASKING
        if not self._is_empty:
            open_s, is_quiet = now_s - self._opened_s, not ready and self._window_came == self._looked_came
            if is_quiet or open_s >= WINDOW_S_MAX:
                if open_s >= WINDOW_S:  # what comes in this time fills the next one
                    self._size = max(1, int(self._window_came * WINDOW_S / open_s))
                return self._close()
            self._last_s = now_s
            return []
        if self._settled < self._came:
            return []
        self._last_s = now_s
        if ready:
            self._empty_looks = 0
            self._empty_s = min(2 * self._empty_s, EMPTY_S_MAX)
            return []
        self._empty_looks += 1
        if self._empty_looks < EMPTY_LOOKS:
            return []
        self._recognition.end()
        if self._plan.follow:
            return []
        self._window_came = 0  # of a plain one: all of it is acknowledged
        return self._close()

    def synced(self, now_s: float) -> list[Effect]:
        """The answer behind Settle: the source has taken the ack."""
        self._expects(Phase.SETTLING)
        if not self._counted:
            return self._go_on(now_s)
        self.phase = Phase.NOTING
        self._quiet_windows += self._quiet
        self._quiet = True
        if self._quiet_windows >= QUIET_WINDOWS:
            self._recognition.end()
        self._records.append(None)
        self._recognised.clear()
        self._recognition.dropped = False
        return [Record((closed(self._next, self._recognition.known),))]

    # -- the ledger -------------------------------------------------------------------------------------------

    def recorded(self, now_s: float) -> list[Effect]:
        """The oldest Record is durable."""
        parcel = self._records.pop(0)
        if parcel is not None:
            return self._publish(parcel)
        assert self.phase is Phase.NOTING, "a window is closed once"
        return self._go_on(now_s)

    def _publish(self, parcel: Parcel) -> list[Effect]:
        self._published += parcel.count
        return [Publish(parcel)]

    # -- the destination --------------------------------------------------------------------------------------

    def confirmed(self, tag: int, multiple: bool, now_s: float) -> list[Effect]:
        """basic.ack of the destination. Raises Malformed, see `Confirms`."""
        self._confirms.take(tag, multiple, self._published)
        if self.phase is Phase.DRAINING:
            return self._drained(now_s)
        if self._counted or self._plan.most or self.phase is not Phase.ASKING:
            return []
        return self._settle_confirmed() if 2 * (self.moved - self._settled) >= self._count else []

    def _drained(self, now_s: float) -> list[Effect]:
        if self._records or self.moved < self._published:
            return []
        assert self._published == self._came, "all that came was published"
        if self._settled == self._came:
            return self._go_on(now_s)
        self.phase = Phase.SETTLING
        self._settled = self._came
        return [Settle(self._came, sync=True)]

    def _settle_confirmed(self) -> list[Effect]:
        if self.moved == self._settled:
            return []
        self._settled = self.moved
        return [Settle(self._settled, sync=False)]

    def _go_on(self, now_s: float) -> list[Effect]:
        """A window is done."""
        plan = self._plan
        if plan.most and self._came >= plan.most:
            return self._end()
        if plan.rate_per_s:
            self._due_s += self._window_came / plan.rate_per_s
            if self._due_s > now_s:
                self.phase, self.wake_s = Phase.RESTING, self._due_s
                return []
        return self._ask(now_s)

    def _end(self) -> list[Effect]:
        self.phase = Phase.OVER
        return [End()]
