"""The way of a queue's messages to its consumers, and back.

The head may have to be loaded, committed or reserved before anybody gets it. Whoever asks for one message (basic.get)
stands in line until that is known; consumers that wait with credit come first. What has expired is at the head, or
stands behind what has not, so the hand-out gives it up as it meets it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from clusterbroker.broker.content.changes import with_change
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.annotation import Annotation, Handed
from clusterbroker.broker.queues.attributes import EXCLUDED, RETRIES_MAX, RETRY
from clusterbroker.broker.queues.dead_lettering.dead_lettering import DeadLettering
from clusterbroker.broker.queues.handle import Modification, Taken
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.patience import Patience
from clusterbroker.broker.queues.retries import retry_delay_ms
from clusterbroker.broker.queues.selecting import LOAD_BYTES, LOAD_COUNT, LOOK_MAX, Selecting
from clusterbroker.broker.queues.states import (
    HEAD_EXPIRED,
    HEAD_NONE,
    HEAD_NOT_COMMITTED,
    HEAD_NOT_LOADED,
    HEAD_NOT_RESERVED,
    HEAD_OK,
    LIMIT,
    NO_CREDIT,
)
from clusterbroker.broker.queues.stumble import Stumble, Unfit
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.broker.queues.sweeping import Sweeping, sweeping_of
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.journal.layout import HAS_BCC, Location
from clusterbroker.journal.record import Message

LOAD_AHEAD: Final = 2048
LOAD_AHEAD_MAX: Final = 16384
"""How many messages of a queue on disk are brought into memory ahead of its consumers: few at first, then more."""
TURN_MS_MAX: Final = 1000
"""A turn that comes so late judges by its own time what has expired, no more by that of what brought it about."""

Getter = tuple[Any, Callable[[Taken | str | None], None]]
"""A RemoteConsumer or None, and who hears of it."""


class Dispatch:
    """Of one queue.

    came_ms  when the first message came since the last turn, 0: none has
    delayed  heap of (when, seq, counted): messages that wait to return
    """

    selects_by: ClassVar[type[Selecting]] = Selecting
    __slots__ = (
        "_ahead", "_annotation", "_dead_letters", "_getters", "_patience", "_queue", "came_ms", "delayed", "selecting",
        "sweeping",
    )  # fmt: skip

    def __init__(self, queue: LocalQueue, dead_letters: DeadLettering, now_ms: int) -> None:
        self._queue = queue
        self._dead_letters = dead_letters
        self.came_ms = 0
        self._getters: deque[Getter] | None = None
        self._ahead: list[Location] | None = None  # what is being read from the journal, to be handed out soon
        self.delayed: list[tuple[int, int, bool]] | None = None
        self._annotation = Annotation(queue.ring)
        self._patience = Patience(now_ms)
        self.selecting: Selecting | None = None
        self.sweeping = sweeping_of(queue.entity, queue.ring)
        queue.ring.annotate = self._annotation.annotate

    # -- out --------------------------------------------------------------------------------------------------

    def serve(self, now_ms: int) -> bool:
        """A turn: consumers, what has expired, those who ask for one message. Whether any expired."""
        self._queue.subscriptions.settle()
        came_ms, self.came_ms = self.came_ms or now_ms, 0
        # amqp-rules 5.6: with TTL 0 it is now or never, and on a busy machine this turn may come some ms after them
        self.hand_out(min(now_ms, max(came_ms, now_ms - TURN_MS_MAX)))
        expired = self.expire(now_ms)
        while self._getters:
            credit, then = self._getters[0]
            answer, known = self._take(credit, now_ms)
            if not known:
                break
            self._getters.popleft()
            then(answer)
        return expired

    def hand_out(self, now_ms: int) -> None:
        """Consumers with credit have what is ready."""
        queue = self._queue
        if self.sweeping is not None:
            self._sweep(self.sweeping)
        credits = queue.subscriptions.credits
        if not credits or queue.paused or queue.halted:
            return
        while True:
            try:
                count, why = self._hand(credits, now_ms - 1)
            except Stumble as error:
                queue.host.stumbled(queue, error, error.seq)
                count, why = 1, HEAD_NONE  # those before it have theirs
            except Unfit as unfit:
                queue.requeue(unfit.seq, counted=True)
                queue.host.soon(unfit.end)  # others are served when it has gone
                count, why = 1, HEAD_NONE
            if count:
                for credit in credits:
                    credit.owner.flush()
            queue.subscriptions.served(why == NO_CREDIT, now_ms)
            if why != HEAD_EXPIRED or not self.expire(now_ms):
                queue.ring.reserve()
                return

    def _sweep(self, sweeping: Sweeping) -> None:
        """What the queue does not keep leaves it."""
        queue = self._queue
        absent, waits = sweeping.turn()
        if absent and not queue.ring.loading:
            self._load(queue.ring.missing_from(absent, LOAD_COUNT, LOAD_BYTES))
        if waits:
            queue.host.later(queue)

    def _hand(self, credits: list[Any], now_ms: int) -> tuple[int, int]:
        """As `dispatch`."""
        if self._queue.subscriptions.selects:
            return self._select(credits, now_ms)
        return rings.dispatch(self._queue.ring, credits, now_ms)

    def _select(self, credits: list[Any], now_ms: int, look_max: int = LOOK_MAX) -> tuple[int, int]:
        """As `dispatch`, of consumers some of whom pass messages over."""
        queue, selecting = self._queue, self.selecting
        assert selecting is not None, "who passes messages over came by it"
        try:
            count, why, absent = rings.dispatch_selected(queue.ring, credits, now_ms, look_max)
        finally:
            selecting.rest()
        if absent and not queue.ring.loading:
            self._load(selecting.missing(absent))
        if why == LIMIT:
            queue.host.later(queue)
        return count, why

    def consumer_came(self, member: Member) -> None:
        """A consumer is about to stand in the line."""
        if member.filter is not None:
            self.select()
        if self.selecting is not None:
            self.selecting.came(member)

    def expire(self, now_ms: int) -> bool:
        """Gives up what has expired at the head; whether there was anything. Of very many some wait for the next
        turn."""
        queue, expired = self._queue, False
        if queue.paused or queue.entity.staging:
            return False
        # a message with TTL 0 may still be handed out in the ms that brought it (amqp-rules 5.6): hence "- 1"
        while queue.ring.head(now_ms - 1) == HEAD_EXPIRED and not self.awaits_commit:
            if queue.host.effort.spent:
                queue.host.later(queue)
                return False
            seq, message, _ = queue.ring.pop_head()
            self._dead_letters.give_up(seq, message, "expired")
            queue.host.effort.popped()
            expired = True
        return expired

    def make_current(self, now_ms: int) -> None:
        """What a waiting consumer gets, and what has expired, is gone. TTL 0 ends here."""
        self.hand_out(now_ms)
        self.expire(now_ms + 1)

    @property
    def awaits_commit(self) -> bool:
        """Whether the head has joined a replicated queue in this epoch, and nothing but its commit keeps it from a
        consumer who waits for it: in a queue of one node it would be gone by now, so it does not expire. All that was
        committed before has left then, but for a queue with priorities, where this is never said."""
        queue, ring = self._queue, self._queue.ring
        if not queue.replicated or queue.paused or queue.halted or ring.max_priority or not ring.ready:
            return False
        return (
            ring.head(0) == HEAD_NOT_COMMITTED
            and ring.committed >= ring.epochs[-1][1]
            and any(credit.has_credit for credit in queue.subscriptions.credits)
        )

    def ripe(self, now_ms: int) -> int:
        """See `LocalQueue.ripe`."""
        if not self._queue.subscriptions.credits or self._queue.halted:
            return 0
        return self._patience.ripe(self._queue.ring.next_seq, now_ms)

    # -- one message ------------------------------------------------------------------------------------------

    def get(self, now_ms: int, then: Callable[[Taken | str | None], None], credit: Any) -> None:
        """Calls `then` with the head, UNACKED, or None, or with why there is none for anybody; later when the head must
        be loaded first. With `credit` the head is delivered to it instead, and `then` is called with None."""
        if not self._getters:
            answer, known = self._take(credit, now_ms)
            if known:
                self._queue.ring.mark()  # the next head may have a time to expire
                then(answer)
                return
            self._getters = deque()
        self._getters.append((credit, then))
        self._queue.ring.mark()

    def _take(self, credit: Any, now_ms: int) -> tuple[Taken | str | None, bool]:
        """The answer, and whether it is known."""
        queue = self._queue
        if queue.paused:
            return None, queue.broken
        if queue.leased:
            return queue.leased, True
        self.make_current(now_ms)
        ring = queue.ring
        head = HEAD_NONE if queue.halted else ring.head(now_ms)
        if head == HEAD_OK and credit is not None:
            turn = ring.turn
            rings.dispatch(ring, [credit], now_ms, 1)
            ring.turn = turn
            return None, True
        if head == HEAD_OK:
            seq, message, _, delivery_count = taken = ring.take()
            if self._annotation.handed is not None:
                self._annotation.handed(seq, message, delivery_count, None)
            return taken, True
        if head == HEAD_NONE:
            return None, True
        if head in (HEAD_NOT_RESERVED, HEAD_NOT_COMMITTED):
            ring.reserve()
        return None, False

    @property
    def is_asked(self) -> bool:
        """Somebody waits for one message."""
        return bool(self._getters)

    # -- from the disk ----------------------------------------------------------------------------------------

    def read_ahead(self, now_ms: int, expired: bool) -> None:
        """Loads what is handed out or expires next."""
        queue, ring = self._queue, self._queue.ring
        takes_head = bool(queue.subscriptions) and (not queue.subscriptions.selects or queue.subscriptions.in_order)
        if ring.ready and ring.wants_load and (takes_head or self._getters or ring.ttl_ms >= 0 or expired):
            self._load(ring.missing())
            ring.load_ahead = min(2 * ring.load_ahead, LOAD_AHEAD_MAX)  # it is being drained: read further ahead
        elif not takes_head:
            if not ring.loading and ring.head(now_ms) == HEAD_NOT_LOADED:
                ring.load_ahead = 1  # the head alone: only its content tells whether it has a TTL of its own
                self._load(ring.missing())
            ring.load_ahead = LOAD_AHEAD

    def _load(self, locations: list[Location]) -> None:
        self._queue.ring.loading = True
        self._ahead = locations
        self._queue.host.load(self._queue, locations, self._loaded)

    def _loaded(self, locations: Sequence[Location], messages: Sequence[Message], asked: Sequence[Location]) -> None:
        if asked is self._ahead and not self._queue.deleted:
            self._ahead = None
            self._queue.ring.loading = False
            self._queue.ring.fill(locations, messages)
            self._queue.ring.mark()

    # -- back -------------------------------------------------------------------------------------------------

    def requeue(self, seq: int, counted: bool) -> None:
        """See `LocalQueue.requeue`: at once, later, or not at all."""
        queue, limit = self._queue, self._queue.settings.delivery_limit
        if counted and limit is not None and queue.ring.delivery_count(seq) >= limit:
            self._dead_letters.give_up(seq, queue.ring.message(seq), "delivery_limit")
            return
        if queue.ring.annotates_redelivered:
            self._annotation.count(seq)
        delay_ms = retry_delay_ms(queue.settings, queue.ring.delivery_count(seq), counted)
        if delay_ms:
            self._delay(queue.host.now_ms + delay_ms, seq, counted)
            if (queue.ring.journaled or queue.replicated) and len(self.delayed or ()) <= RETRIES_MAX:
                queue.ring.set_attribute(RETRY.name(seq), (queue.host.now_ms + delay_ms) << 1 | counted)
        else:
            queue.ring.requeue(seq, counted)

    def exclude(self, seqs: Iterable[int], link: str, lasting: bool = False) -> None:
        """The link never gets these messages again; `lasting`: another owner knows it as well."""
        self.select().exclude(seqs, link, lasting)

    def select(self) -> Selecting:
        """Messages are passed over from now on."""
        if self.selecting is None:
            self.selecting = self.selects_by(self._queue, self.sweeping)
        return self.selecting

    def restore(self) -> None:
        """What the log knows of who passes messages over goes on."""
        if self.sweeping is not None:
            self.sweeping.begin()
        if self._queue.ring.has_attributes and EXCLUDED.names(self._queue.ring.attributes):
            self.select().restore()

    def modify(self, seq: int, modification: Modification) -> None:
        """See `QueueHandle.modify`."""
        if modification.link:
            self.exclude((seq,), modification.link)
        if not modification.change:
            self.requeue(seq, modification.counted)
            return
        self._change(seq, modification.change, lambda: self.requeue(seq, modification.counted))

    def reject(self, seq: int, change: bytes, at_once: bool = False) -> None:
        """Leaves the queue; a dead letter of it is annotated. The log has the annotations before: the next owner may be
        the one that publishes the letter."""

        def die() -> None:
            self._dead_letters.give_up(seq, self._queue.ring.message(seq), "rejected", at_once)

        if self._queue.settings.dead_letter_exchange is None:
            die()
        else:
            self._change(seq, change, die)

    def _change(self, seq: int, change: bytes, then: Callable[[], None]) -> None:
        """Annotates an unacknowledged message in its place, if it can be read."""
        queue = self._queue
        message, epoch = queue.ring.message(seq), queue.ring.epoch

        def found(messages: Sequence[Message]) -> None:
            if queue.ring.epoch != epoch or not queue.ring.living(seq, seq, 1):
                return  # another epoch gave it to others
            changed = with_change(messages[0], change) if messages else None
            if changed is not None:
                queue.ring.replace(seq, changed)
            then()

        if message is not None:
            found((message,))
            return
        log = queue.log
        begun = log.begin()  # nobody is told that it is committed before it has happened

        def read(messages: Sequence[Message]) -> None:
            try:
                found(messages)
            finally:
                log.finish(begun)
                queue.ring.mark()

        queue.host.fetch(queue, [queue.ring.location(seq)], read, lambda: read(()))

    def _delay(self, at_ms: int, seq: int, counted: bool) -> None:
        if self.delayed is None:
            self.delayed = []
        heapq.heappush(self.delayed, (at_ms, seq, counted))
        self._queue.ring.mark()

    def end_delays(self, now_ms: int) -> None:
        """What was to return by now returns."""
        ring = self._queue.ring
        while self.delayed and self.delayed[0][0] <= now_ms:
            _, seq, counted = heapq.heappop(self.delayed)
            ring.requeue(seq, counted)
            if ring.has_attributes and RETRY.name(seq) in ring.attributes:
                ring.set_attribute(RETRY.name(seq), 0)

    def resume_delays(self) -> None:
        """This owner begins with what waits to return, as the log has it."""
        ring = self._queue.ring
        for seq, until in RETRY.of(ring.attributes):
            if ring.set_aside(seq):
                self._delay(until >> 1, seq, bool(until & 1))
            else:
                ring.set_attribute(RETRY.name(seq), 0)

    @property
    def due_ms(self) -> int:
        """When the head expires, or something returns; 0: never, or not while the log stands still."""
        queue = self._queue
        due = queue.ring.head_expiry_ms() + 1
        if due and (queue.paused or queue.entity.staging or self.awaits_commit):
            due = 0
        if self.delayed and not 0 < due < self.delayed[0][0]:
            due = self.delayed[0][0]
        return due

    # -- who looks --------------------------------------------------------------------------------------------

    def shown(self, seq: int, message: Message, redelivered: bool, delivery_count: int) -> Message:
        """The message of a basic.get as a consumer would see it."""
        if message.flags & HAS_BCC or (redelivered and self._queue.ring.annotates_redelivered):
            return self._annotation.annotate(message, seq, delivery_count)
        return message

    def watch(self, watch: Watch | None) -> None:
        """Who looks at what consumers of this node get from now on; None: nobody."""
        self._annotation.watched(watch)

    def tell(self, handed: Handed | None) -> None:
        """Who hears of each message that is handed out, and to whom; None: nobody."""
        self._annotation.tell(handed)

    # -- the end ----------------------------------------------------------------------------------------------

    def end_epoch(self) -> None:
        """Nobody is answered, and nothing returns."""
        self._getters = self._ahead = self.delayed = self.selecting = None

    def drop(self) -> None:
        """The queue is deleted."""
        getters, self._getters = self._getters, None
        for _, then in getters or ():
            then(None)
