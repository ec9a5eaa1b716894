"""One queue on the node that owns it: what the ring cannot know.

The ring keeps messages; the queue gives them meaning: limits and what happens to what exceeds them (amqp-rules
5.6), who consumes, when the queue itself ends, and which publisher may be told that its message is safe.

A queue does its work in `turn`, once for each loop turn in which something marked its ring: hand out, expire, trim,
load, answer. Everything that it wants from the world it asks of its `Host`; it reads no clock.

What leaves the queue unconsumed takes one way, `_give_up`: with a dead-letter exchange the message is published
there in the same group commit that settles it here (its slot is HELD or SETTLED until then), so a crash finds it in
one of the two places and never in none.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from clusterbroker.broker.queues import getting
from clusterbroker.broker.queues import ring as rings
from clusterbroker.broker.queues.annotation import Annotation
from clusterbroker.broker.queues.burial import Burial
from clusterbroker.broker.queues.committing import carry_out
from clusterbroker.broker.queues.deadletter import Reason
from clusterbroker.broker.queues.dying import Dying
from clusterbroker.broker.queues.handle import EXCLUSIVE, GONE, IN_USE, NOT_EMPTY, CommitPart, Taken
from clusterbroker.broker.queues.host import Host
from clusterbroker.broker.queues.lease import BROKEN, LeaseAnswer, Word
from clusterbroker.broker.queues.leasing import Leasing, resumed
from clusterbroker.broker.queues.limits import awaits_commit, exceeds, expire, refuse, trim
from clusterbroker.broker.queues.patience import Patience
from clusterbroker.broker.queues.producers import HAD_CONSUMERS, Producers
from clusterbroker.broker.queues.retries import retry_delay_ms
from clusterbroker.broker.queues.states import HEAD_EXPIRED, HEAD_NONE, HEAD_NOT_LOADED, NO_CREDIT
from clusterbroker.broker.queues.stumble import Stumble
from clusterbroker.broker.queues.subscription import Member, Subscription, Subscriptions, tell_ended
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.cluster.entities import Queue as QueueEntity
from clusterbroker.cluster.queue_settings import QueueSettings
from clusterbroker.journal.layout import HAS_BCC, Location
from clusterbroker.journal.record import Message

LOAD_AHEAD: Final = 2048
LOAD_AHEAD_MAX: Final = 16384
"""How many messages of a queue on disk are brought into memory ahead of its consumers: few at first, then more."""

TURN_MS_MAX: Final = 1000
"""A turn that comes so late judges by its own time what has expired, no more by that of what brought it about."""


class Queue:
    """A queue: its entity (what was declared), its settings (policy applied), its ring and its consumers."""

    __slots__ = (
        "_ahead", "_annotation", "_brought", "_came_ms", "_clean", "_dead", "_delayed", "_ended", "_patience",
        "_producers", "_waiting", "aside", "broken", "burial", "commits", "deleted", "entity", "getters",
        "had_consumers", "halted", "host", "last_used_ms", "leasing", "listener", "paused", "ring", "sealed",
        "settings", "subscriptions", "wake_ms",
    )  # fmt: skip

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: rings.Ring, host: Host, now_ms: int) -> None:
        self.entity = entity
        self.ring = ring
        self.host = host
        self.subscriptions = Subscriptions(bool(settings.single_active_consumer))
        self.had_consumers = False
        self.last_used_ms = now_ms
        self.wake_ms = 0
        self.deleted = False
        self._ended = False
        self._brought: list[tuple[list[Location], Callable[[], None]]] = []
        self._came_ms = 0  # when the first message came since the last turn, 0: none has
        self._waiting: deque[tuple[int, Ticket]] | None = None
        self.getters: deque[getting.Getter] | None = None
        self._ahead: list[Location] | None = None  # what is being read from the journal, to be handed out soon
        self._dead: Dying | None = None
        self._delayed: list[tuple[int, int, bool]] | None = None  # heap of (when, seq, counted): waiting to return
        self._annotation = Annotation(ring)
        self._patience = Patience(now_ms)
        self.commits = self._clean = 0  # groups that are durable; the last after which nothing was left to write
        self._producers: Producers | None = None
        self.burial: Burial | None = None  # of a replicated queue while this node owns it
        self.paused = False  # nothing is handed out, expires or is dropped: others have not said what they hold
        self.halted = entity.paused  # an operator has paused it: nothing is handed out, all else goes on
        self.broken = False  # it is set aside, for something raised in its work (`stumble`); then it is paused as well
        self.aside = 0  # messages that are on their way to another queue, and none of a consumer's
        self.listener: Callable[[], None] | None = None  # told after each turn and commit (proxy.serving)
        self.leasing: Leasing | None = None  # for who reads the queue by a lease
        self.sealed: Callable[[], Any] | None = None  # its rows are committed: it takes no more; told after each turn
        ring.owner = self
        ring.annotate = self._annotation.annotate
        self.adopt(settings)

    def adopt(self, settings: QueueSettings) -> None:
        """New settings, by policy or at declaration."""
        self.settings = settings
        self.ring.ttl_ms = -1 if settings.message_ttl_ms is None else settings.message_ttl_ms
        self.ring.keeps = settings.durability != "memory" or self.burial is not None
        self.ring.annotates_redelivered = settings.delivery_limit is not None or settings.queue_type == "quorum"
        self.ring.mark()

    def set_aside(self, broken: bool) -> None:
        """It stumbled, or goes on."""
        self.broken = self.paused = self.ring.paused = broken
        self.ring.mark()

    def halt(self, entity: QueueEntity) -> None:
        """An operator paused it, or resumed it."""
        self.entity, self.halted = entity, entity.paused
        self.ring.mark()

    @property
    def name(self) -> str:
        return self.entity.name

    @property
    def ready(self) -> int:
        return self.ring.ready

    @property
    def ready_bytes(self) -> int:
        """Of bodies, about."""
        return self.ring.ready_bytes

    def message_count(self, now_ms: int) -> int:
        """Ready messages, as queue.declare-ok counts them: without the expired and the given up."""
        self.make_current(now_ms)
        return self.ring.ready

    def make_current(self, now_ms: int) -> None:
        """What a waiting consumer gets, and what has expired, is gone. TTL 0 ends here."""
        self._hand_out(now_ms)
        expire(self, now_ms + 1)

    # -- publishing -------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        """Appends the messages; the ticket, if any, is held until they are committed."""
        self.ring.append(messages)
        self._published(ticket, now_ms, len(messages))

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        """Appends the messages of verified ENQ records, and holds the ticket; returns how many they are."""
        _, count = self.ring.append_records(records, now_ms)
        self._published(ticket, now_ms, count)
        return count

    def _published(self, ticket: Ticket | None, now_ms: int, count: int) -> None:
        self._came_ms = self._came_ms or now_ms
        if ticket is not None:
            self.promise(ticket)
        if self._limited:
            trim(self, now_ms, count)

    def publish_named(
        self, producer: bytes, sequence: int, message: Message, ticket: Ticket | None, now_ms: int
    ) -> None:
        """Appends the message of a producer that numbers its own, unless it is here already; then the ticket is held
        until the original is surely committed."""
        if not self.producers.knows(producer, sequence):
            self.producers.note(producer, sequence, self.ring.journaled and not self.ring.persists(message))
            self.publish((message,), ticket, now_ms)
        elif ticket is not None:
            self.promise(ticket)

    @property
    def producers(self) -> Producers:
        self._producers = self._producers or Producers(self.ring)
        return self._producers

    def promise(self, ticket: Ticket) -> None:
        """Holds the ticket until all that has been published is committed."""
        upto = self.ring.next_seq
        if self.ring.journaled and self.ring.advance() < upto:
            ticket.hold()
            if self._waiting is None:
                self._waiting = deque()
            self._waiting.append((upto, ticket))

    def inherit(self, message: Message) -> None:
        """Takes a dead letter. The queue is trimmed in its own turn: chains of queues must not nest."""
        self.ring.append((message,))
        self._came_ms = self._came_ms or self.host.now_ms

    @property
    def rejects(self) -> bool:
        """Whether each message must be asked for by `accepts` first."""
        return self.settings.overflow != "drop-head" and self._limited

    @property
    def _limited(self) -> bool:
        return self.settings.max_length is not None or self.settings.max_length_bytes is not None

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        """reject-publish: whether there is room for one more, or it is here already; what is refused may die."""
        if named is not None and self.producers.knows(*named):
            return True
        accepted = self.has_room(now_ms)
        if not accepted:
            refuse(self, message, named)
        return accepted

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        """As `accepts`, for all of these messages or none; what is refused is no dead letter."""
        bodies = sum([message.body_length for message in messages[:-1]]) if self.rejects else 0
        return not self.rejects or self.has_room_for(len(messages), bodies, now_ms)

    def has_room_for(self, count: int, bodies_but_last: int, now_ms: int) -> bool:
        """Whether each of so many messages would find room behind those before it: the last may be of any length."""
        return not count or self.has_room(now_ms, count, bodies_but_last + 1)

    def has_room(self, now_ms: int, more: int = 1, more_bytes: int = 1) -> bool:
        """Whether there is room for so much more (amqp-rules 5.6: the length counts ready only)."""
        if exceeds(self, more, more_bytes):
            self.make_room(now_ms)
        return not exceeds(self, more, more_bytes)

    def make_room(self, now_ms: int) -> None:
        """What has expired is gone, and consumers with credit have what is ready."""
        expire(self, now_ms)
        self._hand_out(now_ms)

    # -- giving up --------------------------------------------------------------------------------------------

    def give_up(self, seq: int, message: Message | None, reason: Reason, at_once: bool = False) -> None:
        """An UNACKED message without a ledger leaves the queue."""
        if self.settings.dead_letter_exchange is None:
            self.ring.settle(seq)
        elif self.burial is not None:
            self.burial.hold(seq, reason)
        else:
            self.dying.add(seq, message, reason, at_once)
        self.ring.mark()

    @property
    def dying(self) -> Dying:
        self._dead = self._dead or Dying(self)
        return self._dead

    def reject(self, seq: int, at_once: bool = False) -> None:
        """basic.reject or basic.nack without requeue; `at_once`: in a transaction."""
        if not self.deleted:
            self.give_up(seq, self.ring.message(seq), "rejected", at_once)

    def requeue(self, seq: int, counted: bool) -> None:
        """The message returns to its place; `counted`: the consumer failed at it (replication.md 6.9)."""
        if self.deleted:
            return
        limit = self.settings.delivery_limit
        if counted and limit is not None and self.ring.delivery_count(seq) >= limit:
            self.give_up(seq, self.ring.message(seq), "delivery_limit")
            return
        if self.ring.annotates_redelivered:
            self._annotation.count(seq)
        delay_ms = retry_delay_ms(self.settings, self.ring.delivery_count(seq), counted)
        if delay_ms:
            if self._delayed is None:
                self._delayed = []
            heapq.heappush(self._delayed, (self.host.now_ms + delay_ms, seq, counted))
            self.ring.mark()
        else:
            self.ring.requeue(seq, counted)

    def shown(self, seq: int, message: Message, redelivered: bool, delivery_count: int) -> Message:
        """The message of a basic.get as `dispatch` would show it."""
        if message.flags & HAS_BCC or (redelivered and self.ring.annotates_redelivered):
            return self._annotation.annotate(message, seq, delivery_count)
        return message

    def watch(self, watch: Watch | None) -> None:
        self._annotation.watched(watch)

    def settle(self, seq: int, held: bool = False) -> None:
        if not self.deleted:
            self.ring.settle(seq, held)
            self.ring.mark()

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        """All that happens here stands in the node's next group, which the node's barrier waits for."""
        if not self.deleted:
            carry_out(self, part, ticket, now_ms)

    # -- consuming --------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription, now_ms: int, then: Callable[[str], None]) -> None:
        if self.deleted or self.leased:
            then(GONE if self.deleted else self.leased)
            return
        if self.subscriptions.exclusive or (subscription.exclusive and self.subscriptions):
            then(EXCLUSIVE)
            return
        subscription.order = (now_ms, "", 0)
        self.enlist(subscription, now_ms)
        then("")

    def enlist(self, member: Member, now_ms: int) -> None:
        """A consumer of any node that may stand in line."""
        self.subscriptions.add(member)
        self.last_used_ms = now_ms
        if not self.had_consumers and self.entity.auto_delete and self.burial is not None:
            self.ring.produced(HAD_CONSUMERS, 1)  # the next owner must know
        self.had_consumers = True
        self.ring.mark()

    def strike(self, member: Member, now_ms: int) -> None:
        """It is gone; whether that ends the queue is seen in its turn."""
        self.subscriptions.remove(member)
        self.last_used_ms = now_ms
        self.ring.mark()

    def unsubscribe(self, subscription: Subscription, now_ms: int) -> None:
        """The consumer is gone; what it holds stays with its channel (amqp-rules 5.5: cancel does not requeue)."""
        self.strike(subscription, now_ms)
        if self.entity.auto_delete and not self.subscriptions and not self._ended:
            self._ended = True
            self.host.end(self)

    def limits_changed(self, subscription: Subscription) -> None:
        subscription.credit.ring.mark()

    @property
    def leased(self) -> str:
        """Why nobody may consume: one reader has all of it. Empty: that is not so."""
        return "" if self.leasing is None else self.leasing.of_others

    def tend(self, word: Word, then: Callable[[LeaseAnswer, bytes], None], now_ms: int) -> None:
        self.leasing = self.leasing or Leasing(self)
        try:
            self.leasing.hear(word, then, now_ms)
        except Exception as error:
            self.host.stumbled(self, error)
            then(BROKEN, b"")

    def get(
        self, now_ms: int, then: Callable[[Taken | str | None], None], credit: Any = None, *,
        no_ack: bool = False,  # noqa: ARG002
    ) -> None:  # fmt: skip
        self.last_used_ms = now_ms
        getting.get(self, now_ms, then, credit)

    # -- the queue as a whole ---------------------------------------------------------------------------------

    def touch(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        """amqp-rules 5.6: queue TTL counts disuse, and being declared is use."""
        self.last_used_ms = now_ms
        self.ring.mark()
        self.counts(now_ms, then)

    def counts(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        then(self.message_count(now_ms), len(self.subscriptions))

    def staged(self, now_ms: int, then: Callable[[int, int], None]) -> None:  # noqa: ARG002
        then(self.ring.ready, self.ring.ready_bytes)

    def purge(self, then: Callable[[int], None]) -> None:
        then(self.ring.purge())

    def begin_delete(self, if_unused: bool, if_empty: bool, now_ms: int, then: Callable[[str, int], None]) -> None:
        count = self.message_count(now_ms)
        if if_unused and self.subscriptions:
            then(IN_USE, count)
        elif if_empty and (count or self.aside):
            then(NOT_EMPTY, count)
        else:
            then("", count)

    # -- the turn ---------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Does what is due. The ring's mark is taken off first, so that what happens here may set it again."""
        ring = self.ring
        ring.marked = False
        if self.deleted:
            return
        while self._delayed and self._delayed[0][0] <= now_ms:
            _, seq, counted = heapq.heappop(self._delayed)
            ring.requeue(seq, counted)
        ring.marked = False
        if not self.paused:
            self._serve_all(now_ms)
            if self._dead is not None:
                self._dead.go_on()
        if ring.journaled:
            ring.advance()
            if ring.needs_write:
                self.host.write(self)
        if self._waiting:
            self._answer()
        if self.burial is not None and not self.paused:
            self.burial.turn(now_ms)
            if ring.needs_write:
                self.host.write(self)
        if self.leasing is not None and not self.broken:
            self.leasing.turn(now_ms)
        self._schedule(now_ms)
        if self.listener is not None:
            self.listener()
        if self.sealed is not None:
            self.sealed()

    def _serve_all(self, now_ms: int) -> None:
        """Hands out, expires, trims, and reads ahead."""
        ring = self.ring
        self.subscriptions.settle()
        came_ms, self._came_ms = self._came_ms or now_ms, 0
        # amqp-rules 5.6: with TTL 0 it is now or never, and on a busy machine this turn may come some ms after them
        self._hand_out(min(now_ms, max(came_ms, now_ms - TURN_MS_MAX)))
        expired = expire(self, now_ms)
        if self.getters:
            getting.serve(self, now_ms)
        trim(self, now_ms)
        if ring.ready and ring.wants_load and (self.subscriptions or self.getters or ring.ttl_ms >= 0 or expired):
            self._read_ahead(ring.missing())
            ring.load_ahead = min(2 * ring.load_ahead, LOAD_AHEAD_MAX)  # it is being drained: read further ahead
        elif not self.subscriptions:
            if not ring.loading and ring.head(now_ms) == HEAD_NOT_LOADED:
                ring.load_ahead = 1  # the head alone: only its content tells whether it has a TTL of its own
                self._read_ahead(ring.missing())
            ring.load_ahead = LOAD_AHEAD
        if self.entity.auto_delete and self.had_consumers and not self.subscriptions and not self._ended:
            self._ended = True  # its deletion was refused once, or a consumer of another node was the last
            self.host.end(self)

    def _read_ahead(self, locations: list[Location]) -> None:
        self.ring.loading = True
        self._ahead = locations
        self.host.load(self, locations)

    def _hand_out(self, now_ms: int) -> None:
        credits = self.subscriptions.credits
        if not credits or self.paused or self.halted:
            return
        while True:
            try:
                count, why = rings.dispatch(self.ring, credits, now_ms - 1)
            except Stumble as error:
                self.host.stumbled(self, error, error.seq)
                count, why = 1, HEAD_NONE  # those before it have theirs
            if count:
                for credit in credits:
                    credit.owner.flush()
            self.subscriptions.served(why == NO_CREDIT, now_ms)
            if why != HEAD_EXPIRED or not expire(self, now_ms):
                self.ring.reserve()
                return

    def bring(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        """Calls `then` when these unacknowledged messages are in memory, if a rejection makes them dead letters."""
        dies = not self.deleted and self.settings.dead_letter_exchange is not None
        missing = [seq for seq in seqs if self.ring.message(seq) is None] if dies else []
        if not missing:
            then()
            return
        locations = [self.ring.location(seq) for seq in missing]
        self._brought.append((locations, then))
        self.host.load(self, locations)

    def loaded(
        self, locations: Sequence[Location], messages: Sequence[Message], asked: Sequence[Location] | None = None
    ) -> None:
        """Some came from the journal. Others of `asked` cannot be read, and are held back (broker/node/damages.py)."""
        asked = locations if asked is None else asked
        for place, (wanted, then) in enumerate(self._brought):
            if wanted is asked:
                del self._brought[place]
                if not self.deleted:
                    self.ring.fill(locations, messages)
                then()
                return
        if self.deleted:
            return
        if asked is self._ahead:
            self._ahead = None
            self.ring.loading = False
            self.ring.fill(locations, messages)
            self.ring.mark()
            return
        if asked is not locations and (dying := self.burial or self._dead) is not None:
            for where in asked:
                if where not in locations:
                    dying.unread(where[0])
        if self.burial is not None:
            for (seq, *_), message in zip(locations, messages, strict=True):
                self.burial.loaded(seq, message)
            return
        if self._dead is not None:  # else it was given up under an epoch that has ended
            self._dead.loaded(locations, messages)

    def committed(self, upto: int) -> None:
        """The group commit that held the ring's records up to `upto` is durable."""
        if self.deleted:
            return
        ring = self.ring
        before = ring.committed, ring.reserved_durable
        awaited = awaits_commit(self)
        ring.commit(upto)
        if awaited:  # what the group brought is at the head, and that it waited for it does not count
            self._hand_out(0)
        self.commits += 1
        if not ring.needs_write:
            self._clean = self.commits
        if self.leasing is not None and self.leasing.waits:
            ring.mark()
        if self._waiting:
            self._answer()
        if self.burial is not None and len(self.burial):
            ring.mark()
        if self.listener is not None:
            self.listener()
        # a group that held nothing of this queue (it was patient) must not wake it: the next one would do so again
        if before != (ring.committed, ring.reserved_durable) and (ring.ready or self.getters or ring.needs_write):
            ring.mark()

    def _answer(self) -> None:
        waiting, committed = self._waiting, self.ring.committed
        assert waiting is not None, "called with waiting tickets"
        while waiting and waiting[0][0] <= committed:
            waiting.popleft()[1].pass_()

    def _schedule(self, now_ms: int) -> None:
        """Asks for the turn that is due next. While the queue is paused most of it cannot be done, and to ask for a
        time that is over would keep the node turning for nothing; the end of the pause brings a turn."""
        expired, unused, expires = self.ring.head_expiry_ms() + 1, 0, self.settings.expires_ms
        expired = 0 if expired and (self.paused or self.entity.staging or awaits_commit(self)) else expired
        if expires is not None and not self.subscriptions and not (self._ended or self.paused or self.leased):
            # amqp-rules 5.6: queue TTL counts disuse (no consumers, no redeclare, no get)
            unused = self.last_used_ms + expires
            if unused <= now_ms:
                unused, self._ended = 0, True
                self.host.end(self)
        delayed = self._delayed[0][0] if self._delayed else 0
        again = self.burial.wake_ms(now_ms) if self.burial is not None and not self.paused else 0
        leased = self.leasing.due_ms if self.leasing is not None and not self.paused else 0
        if wishes := [at_ms for at_ms in (expired, unused, delayed, again, leased) if at_ms]:
            self.host.wake(self, min(wishes))

    def survived(self) -> None:
        """The deletion that was asked for was refused; whether it is still due is seen in a later turn."""
        self._ended = False

    def ripe(self, now_ms: int) -> int:
        """The first seq that a group commit may leave out because a consumer is about to acknowledge it; 0: none is."""
        if not self.subscriptions.credits or self.halted:
            return 0
        return self._patience.ripe(self.ring.next_seq, now_ms)

    def durable(self, mark: int) -> bool:
        """Whether all that had happened when `commits` was `mark`, and that the journal had to hear of, is committed.

        A group may have been on its way, written before: then only the next one counts, unless nothing was left.
        """
        return self._clean > mark or self.commits >= mark + 2

    # -- ownership --------------------------------------------------------------------------------------------

    def begin_epoch(self, now_ms: int) -> None:
        """This node owns the replicated queue: its ring is taken over, or new. `proxy.serving` ends the pause."""
        self.paused = self.ring.paused = True
        self.burial = Burial(self)
        self.burial.resume()
        self.had_consumers = HAD_CONSUMERS in self.ring.producers
        self.leasing = resumed(self, self.ring, now_ms)
        self.last_used_ms = now_ms
        self.adopt(self.settings)

    def end_epoch(self) -> None:
        """This node does not own the queue any more; its proxies ask the next owner, and so nobody is answered."""
        if self.burial is not None:
            self.burial.ended = True
        self.burial = self._producers = self._waiting = self.getters = self._dead = self._delayed = self._ahead = None
        self.leasing = None
        self._ended = False
        self.paused = True
        self.ring.loading = False
        self.subscriptions.leave(tuple(self.subscriptions))

    # -- the end ----------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """The queue was deleted: its consumers are cancelled, its publishers answered."""
        self.deleted = True
        members = tuple(self.subscriptions)
        self.subscriptions.leave(members)
        tell_ended(self.host, members)
        if self.burial is not None:
            self.burial.ended = True
        if self.leasing is not None:
            self.leasing.drop()
        if self._dead is not None:
            self._dead.drop()
        for _, ticket in self._waiting or ():
            ticket.pass_()
        self._waiting = None
        for _, then in self.getters or ():
            then(None)
        self.getters = None
        self.ring.destroy()
