"""Dead letters of a replicated queue, on their way to queues of any node.

One group commit cannot hold both halves here, so a message dies in four steps, each of which a new owner can take up:

    held      a DEAD record: the message has left the queue's order but not the queue; it has a number
    published once that record is committed, not before (or a new owner would hand the message out and its copy be
              read elsewhere), it is published to its targets, with the queue's name as producer and that number
    answered  every target has committed its copy, or has it already, or refused it
    settled   SET

A new owner starts again at the second step with all that is held: targets that have the number take no second copy
(`producers.Producers`), so there is exactly one per target, however often owners die in between.

Letters go in the order of their numbers, the order in which they died: one whose content is on its way from the disk is
waited for. At most WINDOW copies are under way. What finds no exchange or no queue, and what a full target refuses, is
dropped with the strategy at-most-once, and tried again after 1 s, 2 s, 4 s ... 60 s with at-least-once; others pass it
by, but not by more than DEAD_SPREAD numbers, which is what targets remember. As long as it is not committed that one
has left, it counts as open: the next owner would send it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.dead_lettering.dropped import died_of
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.log import SAFE
from clusterbroker.broker.queues.producers import DEAD_SPREAD
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message

WINDOW: Final = 256
RETRY_FIRST_MS: Final = 1000
RETRY_MAX_MS: Final = 60_000
REASONS: Final[tuple[Reason, ...]] = (
    "rejected", "expired", "maxlen", "delivery_limit", "due", "moved", "answered", "invalid_key", "key_refused",
    "no_capacity", "start_failed", "cancelled", "pool_deleted", "due_unbound",
)  # fmt: skip
"""As DEAD records number them, from 0. New ones go to the end."""
DUE, DUE_UNBOUND = REASONS.index("due"), REASONS.index("due_unbound")


class Dead:
    """One message that is held for its targets."""

    __slots__ = ("dropped_ms", "mark", "message", "number", "reason", "seq", "tries")

    def __init__(self, seq: int, number: int, reason: Reason, mark: int, dropped_ms: int = 0) -> None:
        self.seq = seq
        self.number = number
        self.reason = reason
        self.dropped_ms = dropped_ms  # see DeadLettering.give_up
        self.mark = mark  # of the commit that its DEAD record needs (MessageLog.durable)
        self.message: Message | None = None  # its content, while it stands in the line
        self.tries = 0


class ReplicatedDeadLetters:
    """The dead of one queue and epoch."""

    __slots__ = ("_again", "_due", "_leaving", "_line", "_loading", "_open", "_queue", "_underway", "ended", "left")

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self._open: dict[int, Dead] = {}  # by number, in order: held, or settled and that is not committed
        self._leaving: deque[tuple[int, int]] | tuple[()] = ()  # (number, mark of the commit of its SET) of the settled
        self._due: deque[Dead] | tuple[()] = ()  # not tried yet, in order
        self._again: list[tuple[int, int, Dead]] = []  # heap of those to be tried again: when, number
        self._line: list[Dead] = []  # to be published next, in this order; WINDOW at most
        self._loading: dict[int, Dead] = {}  # of the line, by seq: content on its way from the disk
        self._underway = 0
        self.ended = False
        self.left: Callable[[int], None] = lambda _: None
        """Hears the seq of each that has left for certain, or never will."""

    def __len__(self) -> int:
        return len(self._open)

    def hold(self, seq: int, reason: Reason, dropped_ms: int = 0) -> None:
        """An UNACKED message dies. See `DeadLettering.give_up`; the next owner goes by the reason alone."""
        number = self._queue.ring.hold_dead(seq, REASONS.index(reason))
        self._add(Dead(seq, number, reason, self._mark, dropped_ms))

    def resume(self) -> None:
        """A new owner takes up what the last one left; `turn` is not called before the other copies have it too."""
        for seq, number, reason in self._queue.ring.dead():
            if reason not in (DUE, DUE_UNBOUND):  # they go on otherwise (`delay.due_letters`)
                self._add(Dead(seq, number, REASONS[reason], SAFE))  # it needs no commit of this owner's

    def _add(self, dead: Dead) -> None:
        self._open[dead.number] = dead
        if isinstance(self._due, tuple):
            self._due = deque()
        self._due.append(dead)

    @property
    def _mark(self) -> int:
        """Of the commit that has all that happens now; a queue in memory waits for none."""
        queue = self._queue
        return queue.log.commits if queue.ring.journaled or queue.replicated else SAFE

    def wake_ms(self, now_ms: int) -> int:
        """When something is to be tried again; 0: nothing is. What a turn left though its time has come waits for an
        answer, which brings the next turn."""
        return self._again[0][0] if self._again and self._again[0][0] > now_ms else 0

    def turn(self, now_ms: int) -> None:
        """Publishes what is durable and due."""
        self._go_on()
        while self._leaving and self._queue.log.durable(self._leaving[0][1]):
            self.left(self._open.pop(self._leaving.popleft()[0]).seq)
        while self._again and self._again[0][0] <= now_ms and self._has_room:
            self._stand_in_line(heappop(self._again)[2])
        later: list[Dead] = []
        oldest = next(iter(self._open)) if self._due else 0
        while self._due and self._has_room and self._due[0].number - oldest < DEAD_SPREAD:
            dead = self._due.popleft()
            if self._queue.log.durable(dead.mark):
                self._stand_in_line(dead)
            else:
                later.append(dead)
        if later:
            assert not isinstance(self._due, tuple), "what goes back was in it"
            self._due.extendleft(reversed(later))

    @property
    def _has_room(self) -> bool:
        return self._underway + len(self._line) < WINDOW

    def _stand_in_line(self, dead: Dead) -> None:
        dead.message = self._queue.ring.message(dead.seq)
        self._line.append(dead)
        if dead.message is None:
            self._loading[dead.seq] = dead
            self._queue.host.load(self._queue, [self._queue.ring.location(dead.seq)], self._loaded)
        else:
            self._go_on()  # its answer may come at once, and make room for the next

    def _loaded(self, locations: Sequence[Location], messages: Sequence[Message], asked: Sequence[Location]) -> None:
        if self.ended:
            return
        for where in asked:
            if where not in locations:
                self._unread(where[0])
        for (seq, *_), message in zip(locations, messages, strict=True):
            if (dead := self._loading.pop(seq, None)) is not None:
                dead.message = message
                self._go_on()

    def _unread(self, seq: int) -> None:
        """Its content cannot be read: it stays dead, and no target hears of its number."""
        if (dead := self._loading.pop(seq, None)) is not None:
            self._line.remove(dead)
            self._open.pop(dead.number, None)
            self.left(seq)
            self._go_on()

    def _go_on(self) -> None:
        """Publishes what stands in front, is here, and finds room in this turn."""
        queue, host = self._queue, self._queue.host
        while self._line and (message := self._line[0].message) is not None and not queue.broken:
            if host.effort.spent:
                host.later(queue)
                return
            dead = self._line.pop(0)
            dead.message = None
            try:
                self._publish(dead, message)
            except Exception as error:
                dead.message = message
                self._line.insert(0, dead)
                self._underway -= 1
                host.stumbled(queue, error, dead.seq)

    def _publish(self, dead: Dead, message: Message) -> None:
        ticket = Ticket(dead.number, dead.number, lambda ticket: self._answered(dead, ticket))
        self._underway += 1
        dead.tries += 1
        reason = died_of(self._queue.ring, message, dead.reason, dead.dropped_ms)
        letter = self._queue.letter(dead.seq, message)
        if not self._queue.host.dead_letter_once(self._queue, letter, reason, dead.number, ticket):
            ticket.rejected = True  # no exchange, or no route
        ticket.pass_()

    def _answered(self, dead: Dead, ticket: Ticket) -> None:
        self._underway -= 1
        queue = self._queue
        if self.ended or queue.deleted:
            return
        if ticket.rejected and queue.settings.dead_letter_strategy == "at-least-once":
            pause_ms = min(RETRY_FIRST_MS << min(dead.tries - 1, 16), RETRY_MAX_MS)
            heappush(self._again, (queue.host.now_ms + pause_ms, dead.number, dead))
        else:
            if isinstance(self._leaving, tuple):
                self._leaving = deque()
            self._leaving.append((dead.number, self._mark))
            queue.ring.settle(dead.seq)
        queue.ring.mark()
