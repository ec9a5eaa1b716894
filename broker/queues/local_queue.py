"""What the node that owns a queue or a stream knows of it, whichever it is.

Both have a log (`log.MessageLog`), a place among the node's turns, and an owner's epochs. What becomes of the messages
is a matter of the kind: a `queue.Queue` hands them to consumers and keeps its limits, a `broker.streams.stream.Stream`
answers readers. Everything that they want from the world they ask of their `Host`; neither reads a clock.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.queues.attributes import MOVED
from clusterbroker.broker.queues.browse import Browse, Browsed
from clusterbroker.broker.queues.handle import IN_USE, NOT_EMPTY, NOT_HELD, CommitPart, Moved, QueueHandle, Taken
from clusterbroker.broker.queues.host import NodeOfQueues
from clusterbroker.broker.queues.link_deliveries import NO_ROOM, STALE, AskedTags, Tagged
from clusterbroker.broker.queues.log import MessageLog
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.subscription import LocalConsumer, Member, Subscriptions, tell_ended
from clusterbroker.broker.queues.ticket import FULL, Ticket
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.queues.link_held import LinkHolding

Row = tuple[Message, "tuple[bytes, int] | None"]
"""With its producer's number, if that gave it one."""


Host = NodeOfQueues["LocalQueue"]


class LocalQueue(QueueHandle):
    """Entity (what was declared), settings (policy applied) and log. A handle that answers at once.

    ring        of the log
    paused      nothing is handed out, expires or is dropped: others have not said what they hold
    halted      an operator has paused it: nothing is handed out, all else goes on
    broken      something raised in its work, and it is set aside (`stumble`); then it is paused as well
    replicated  this node owns it in an epoch, and others have copies
    aside       messages that are on their way to another queue, and none of a consumer's
    listener    called after each turn and commit (`remote.owned_queue`)
    sealed      its rows are committed, and it takes no more; called after each turn
    rest_at     `Ring.counted_at_rest` at the last sample, if nothing but that can change its row; 0 from a turn on
                (`server.counting`)
    wake_ms     of the host (`node.wakes`)
    """

    __slots__ = (
        "aside", "broken", "deleted", "entity", "halted", "host", "last_used_ms", "listener", "log", "paused",
        "replicated", "rest_at", "ring", "sealed", "settings", "subscriptions", "wake_ms",
    )  # fmt: skip
    deleted: bool
    entity: QueueEntity
    ring: Ring
    settings: QueueSettings

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, host: Host, now_ms: int) -> None:
        self.entity = entity
        self.settings = settings
        self.log = MessageLog(ring)
        self.ring = ring
        self.host = host
        self.subscriptions = Subscriptions(bool(settings.single_active_consumer))
        self.last_used_ms = now_ms
        self.wake_ms = self.aside = 0
        self.deleted = self.paused = self.broken = self.replicated = False
        self.halted = entity.paused
        self.listener: Callable[[], None] | None = None
        self.sealed: Callable[[], Any] | None = None
        self.rest_at = 0
        ring.owner = self

    def adopt(self, settings: QueueSettings) -> None:
        """New settings, by policy or at declaration."""
        self.settings = settings
        self.ring.keeps = settings.durability != "memory" or self.replicated
        self.ring.mark()

    def set_aside(self, broken: bool) -> None:
        """It stumbled, or goes on."""
        self.broken = self.paused = self.ring.paused = broken
        self.ring.mark()

    def halt(self, entity: QueueEntity) -> None:
        """An operator paused it, or resumed it."""
        self.entity, self.halted = entity, entity.paused
        self.ring.mark()

    def link_ended(self, name: str) -> None:
        """A recoverable link is no more that is known here by this name (`link_held.link_name`)."""

    def sweep_links(self, names: Callable[[], Iterable[str]]) -> None:
        """Nothing is kept of links that are none of these."""

    @property
    def holding(self) -> LinkHolding | None:
        """What recoverable links hold of it; None: nothing, and none has since it is here."""
        return None

    @property
    def away(self) -> bool:
        return self.broken

    def put_back(self, seq: int) -> None:
        """What an operator had set aside returns as it was."""
        self.ring.put_back(seq)

    @property
    def name(self) -> str:
        return self.entity.name

    @property
    def place(self) -> str:
        """For operators."""
        return f"queue '{self.entity.name}' in vhost '{self.entity.vhost}'"

    @property
    def ready(self) -> int:
        return self.ring.ready

    @property
    def ready_bytes(self) -> int:
        """Of bodies, about."""
        return self.ring.ready_bytes

    @abstractmethod
    def message_count(self, now_ms: int) -> int:
        """Ready messages, as queue.declare-ok counts them: without the expired and the given up."""

    # -- publishing -------------------------------------------------------------------------------------------

    @abstractmethod
    def has_room(self, now_ms: int, more: int = 1, more_bytes: int = 1) -> bool:
        """Whether there is room for so much more (amqp-rules 5.6: the length counts ready only)."""

    @abstractmethod
    def has_room_for(self, count: int, bodies_but_last: int, now_ms: int) -> bool:
        """Whether each of so many messages would find room behind those before it: the last may be of any length."""

    @property
    @abstractmethod
    def kills(self) -> bool:
        """reject-publish-dlx: what is refused for want of room is a dead letter."""

    @abstractmethod
    def kill(self, message: Message) -> None:
        """A message dies before it was ready. Only where `kills`."""

    @abstractmethod
    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        """Appends the messages of ENQ records, which another node has sent, and holds the ticket; how many they are."""

    def publish_numbered(
        self, producer: bytes, numbers: Sequence[int], messages: Sequence[Message], ticket: Ticket | None, now_ms: int
    ) -> None:
        """Appends those messages that are not here already; the ticket is held until all of them, the originals of the
        others too, are surely committed."""
        fleeting = self.are_fleeting(messages)
        if fleeting and len(messages) > 1:  # one of them is, perhaps: each number follows its own message
            for number, message in zip(numbers, messages, strict=True):
                self.publish_numbered(producer, (number,), (message,), ticket, now_ms)
            return
        new = self.log.producers.note_new(producer, numbers, fleeting)
        if new:
            self.publish(messages if len(new) == len(numbers) else [messages[place] for place in new], ticket, now_ms)
        elif ticket is not None:
            self.log.promise(ticket)

    def are_fleeting(self, messages: Sequence[Message], /) -> bool:
        """Whether one of them would never come to the log, which remembers others."""
        return self.ring.journaled and not self.ring.persists_all(messages)

    def keeps_times_of(self, _: bytes) -> bool:
        """Whether messages of this producer (empty: of none) keep the time that they came with, of the node that took
        them or of the queue in which they were, and do not get the owner's."""
        return False

    def kill_named(self, producer: bytes, sequence: int, message: Message, ticket: Ticket) -> None:
        """A dead letter finds no room, where `kills`: it was dead already, and goes on to the next targets. Refused, it
        would come again. It is not here yet."""
        self.log.producers.note(producer, sequence)
        self.kill(message)
        self.log.promise(ticket)

    def refuses_tagged(self, tagged: Tagged) -> str:
        """Why nothing of this link is taken now; empty: it is."""
        if not self.host.recovery.since(self, tagged.link, tagged.attach):
            return STALE
        return "" if self.log.deliveries.has_room(tagged.tags) else NO_ROOM

    def publish_tagged(self, tagged: Tagged, messages: Sequence[Message], ticket: Ticket, now_ms: int) -> None:
        if why := self.refuses_tagged(tagged):
            ticket.reject(self.name, why)
            return
        places = self.new_of(tagged)
        new = messages if places is None else [messages[place] for place in places]
        if new and not self.takes(new, now_ms):
            ticket.reject(self.name)
            return
        self.log.deliveries.note(tagged, places)
        if new:
            self.publish(new, ticket, now_ms)
        else:
            self.log.promise(ticket)

    def new_of(self, tagged: Tagged) -> list[int] | None:
        """As `LinkDeliveries.new`."""
        return self.log.deliveries.new(tagged, self.host.recovery.since(self, tagged.link, tagged.attach))

    def known_tags(self, asked: AskedTags, then: Callable[[list[bytes] | str], None]) -> None:
        def committed(_: Ticket) -> None:
            since = self.host.recovery.since(self, asked.link, asked.attach)
            then(self.log.deliveries.answer(asked, since) if since else STALE)

        ticket = Ticket(0, 0, committed)
        self.log.promise(ticket)
        ticket.pass_()

    def forget_tags(self, link: int, upto: int, tags: list[bytes], then: Callable[[], None] = lambda: None) -> None:
        if not self.deleted:
            self.log.deliveries.forget(link, upto, tags)
            self.log.when_durable(then)
        else:
            then()

    # -- transactions: all that belongs together, or nothing --------------------------------------------------
    #
    # Rows of a committed segment come in ascending order of their seqs there, with gaps for rows of other queues, and
    # each part is taken as a whole. So one number per segment says what is here (`attributes.MOVED`); it goes when the
    # map has no such segment any more. A part of a segment that is gone was sent by somebody who has not heard: all of
    # its rows came before, or it would still be there. These names have no bound: there are as many as segments.

    is_elsewhere = False

    @property
    def is_ending(self) -> bool:
        """It takes nothing any more, not even a part that it was asked about."""
        return False

    def expects_part(self) -> None:
        """It was asked about a part, and has said yes: the part may come within JUDGED_MS (`access.together`)."""

    def judge(self, part: CommitPart, now_ms: int, then: Callable[[str], None]) -> None:
        if self.deleted:
            then("")
        elif self._not_held(part):
            then(NOT_HELD)
        elif self.takes([message for message, _ in self.new_rows(part)], now_ms):
            self.expects_part()
            then("")
        else:
            then(FULL)

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        """All that happens here stands in the node's next group, which the node's barrier waits for. What is refused is
        refused whole."""
        if self.deleted:
            if self.entity.ends_unasked:
                ticket.reject(self.name)
            return
        if part.moved is not None:
            self._take_rows(part, part.moved, ticket, now_ms)
            return
        if void := self._not_held(part):
            part.void |= void
            ticket.reject(self.name, NOT_HELD)
            if part.publishes or part.judged:
                self._return(part)
                return
        new = self.new_rows(part)
        if (part.judged and not self.is_ending) or self.takes([message for message, _ in new], now_ms):
            self._carry_out(part, ticket, now_ms)
            if self.log.unfinished:  # of what was settled or returned just now, or before
                ticket.hold()
                self.log.when_durable(ticket.pass_)
        else:
            ticket.rejected = True
            for _, named in new:
                if named is not None:
                    self.log.producers.refuse(*named)
            self._return(part)

    def refuse_numbers(self, named: Sequence[tuple[bytes, int]], then: Callable[[], None]) -> None:
        if self.deleted:
            then()
            return
        producers = self.log.producers
        for name in named:
            if not producers.knows(*name):
                producers.refuse(*name)
        self.log.when_durable(then)

    def _carry_out(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        for messages, named in part.publishes:
            if named is None:
                self.publish(messages, ticket, now_ms)
            else:
                self.publish_numbered(named[0], named[1:], messages, ticket, now_ms)

    def is_repeat(self, _: Message) -> bool:
        """Whether it would not be stored, for what is here; it needs no room."""
        return False

    def replacing(self, _: Iterable[int] = ()) -> None:
        """What a transaction publishes next takes the place of these, which it settles behind it; none: it is over."""

    def _not_held(self, _: CommitPart) -> set[int]:
        """Seqs of what it settles, and its clients do not hold any more."""
        return set()

    @abstractmethod
    def _return(self, part: CommitPart) -> None:
        """The part is refused: what it would have settled returns."""

    def _take_rows(self, part: CommitPart, moved: Moved, ticket: Ticket, now_ms: int) -> None:
        """Publishes what is new of the rows of a segment, all of it or, when there is no room, nothing."""
        if len(part.publishes) == 1 and part.publishes[0][1] is None and not self.known_rows(moved):
            messages = part.publishes[0][0]  # as a rule
            if self.takes(messages, now_ms):
                self.note_moved(moved)
                self.publish(messages, ticket, now_ms)
            else:
                ticket.rejected = True
            return
        rows = self.new_rows(part)
        if self.takes([message for message, _ in rows], now_ms):
            self.put_rows(moved, rows, ticket, now_ms)
        else:
            ticket.rejected = True

    def known_rows(self, moved: Moved) -> int:
        """How many of these rows are here already: they are the first ones."""
        if not self.host.moves(moved.segment):
            return len(moved.seqs)
        return bisect_left(moved.seqs, self.ring.attributes.get(MOVED.name(moved.segment), 0))

    def note_moved(self, moved: Moved) -> None:
        """They are appended in this turn."""
        self.ring.set_attribute(MOVED.name(moved.segment), moved.seqs[-1] + 1)
        self.host.keeps(self, moved.segment)

    def moved_segments(self) -> list[int]:
        """Segments of which it knows what it has."""
        return [segment_id for segment_id, _ in MOVED.of(self.ring.attributes)]

    def forget_moved(self, segment_id: int) -> None:
        """The segment is gone."""
        name = MOVED.name(segment_id)
        if not self.deleted and name in self.ring.attributes:
            self.ring.set_attribute(name, 0)

    def new_rows(self, part: CommitPart) -> list[Row]:
        """Those of the part that are not here: neither by their segment nor by their producers' numbers."""
        skip, known = 0 if part.moved is None else self.known_rows(part.moved), self.log.producers.knows
        rows = [(message, named) for messages, named in part.publishes for message in messages]
        return [(message, named) for message, named in rows[skip:] if named is None or not known(*named)]

    def put_rows(self, moved: Moved, rows: Sequence[Row], ticket: Ticket, now_ms: int) -> None:
        """Appends those rows of a part that are new; the ticket is held until all of the part is committed."""
        if not rows:
            self.log.promise(ticket)
            return
        self.note_moved(moved)
        if all(named is None for _, named in rows):
            self.publish([message for message, _ in rows], ticket, now_ms)
            return
        for message, named in rows:
            if named is None:
                self.publish((message,), ticket, now_ms)
            else:
                self.publish_numbered(named[0], named[1:], (message,), ticket, now_ms)

    # -- commits ----------------------------------------------------------------------------------------------

    def committed(self, upto: int) -> None:
        """The group commit that held the ring's records up to `upto` is durable."""
        if self.deleted:
            return
        ring = self.ring
        before = ring.committed, ring.reserved_durable
        self._advance(upto)
        self.log.group_ended()
        if self.listener is not None:
            self.listener()
        # a group that held nothing of this log (it was patient) must not wake it: the next one would do so again
        advanced = before != (ring.committed, ring.reserved_durable)
        if (advanced and (ring.ready or ring.needs_write)) or self._wants_turn(advanced):
            ring.mark()

    @abstractmethod
    def _advance(self, upto: int) -> None:
        """The ring is told, and what that allows is done."""

    @abstractmethod
    def _wants_turn(self, advanced: bool) -> bool:
        """Whether a commit leaves something to do besides what is ready or unwritten; `advanced`: it held something of
        this log."""

    @abstractmethod
    def ripe(self, now_ms: int) -> int:
        """The first seq that a group commit may leave out because a consumer is about to acknowledge it; 0: none is."""

    def copy(self, seqs: Sequence[tuple[int, int]], bytes_max: int, then: Callable[[bytes], None]) -> None:
        """Records for another copy, committed or not, of the first of those seqs that live (`replication.ports`)."""
        ring = self.ring
        wanted, absent = ring.copies_of(seqs, bytes_max)

        def loaded(messages: Sequence[Message]) -> None:
            found = {location[0]: message for location, message in zip(absent, messages, strict=True)}
            then(ring.encode_emitted(wanted, found))

        if absent:
            self.host.fetch(self, absent, loaded)
        else:
            loaded(())

    # -- the turn ---------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Does what is due. The ring's mark is taken off first, so that what happens here may set it again."""
        ring = self.ring
        ring.marked = False
        self.rest_at = 0
        if self.deleted:
            return
        self._serve(now_ms)
        if ring.journaled:
            ring.advance()
            if ring.needs_write:
                self.host.write(self)
        if self.log.waiting:
            self.log.answer()
        self._follow(now_ms)
        if self.listener is not None:
            self.listener()
        if self.sealed is not None:
            self.sealed()

    @abstractmethod
    def _serve(self, now_ms: int) -> None:
        """What may append or settle."""

    @abstractmethod
    def _follow(self, now_ms: int) -> None:
        """What waits for commits; asks for the turn that is due next."""

    # -- consumers --------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def leased(self) -> str:
        """Why nobody may consume: one reader has all of it. Empty: that is not so."""

    @abstractmethod
    def get(
        self, now_ms: int, then: Callable[[Taken | str | None], None], credit: Any = None, *, no_ack: bool = False
    ) -> None:
        """See `QueueHandle`; with `credit`, a Taker, the message is delivered to that, and `then` hears None."""

    @abstractmethod
    def browse(self, browse: Browse, then: Browsed, now_ms: int) -> None:
        """See `QueueHandle`."""

    @abstractmethod
    def shown(self, seq: int, message: Message, redelivered: bool, delivery_count: int) -> Message:
        """See `QueueHandle`."""

    def letter(self, seq: int, message: Message) -> Message:  # noqa: ARG002
        """A message that dies, as its letter is made of it. `seq` 0 or less: it was never in the queue."""
        return message

    def add_consumer(self, member: Member, now_ms: int) -> None:
        """Of any node."""
        self.subscriptions.add(member)
        self.last_used_ms = now_ms
        self.ring.mark()

    def remove_consumer(self, member: Member, now_ms: int) -> None:
        """It is gone; whether that ends the queue is seen in its turn."""
        self.subscriptions.remove(member)
        self.last_used_ms = now_ms
        self.ring.mark()

    def unsubscribe(self, subscription: LocalConsumer, now_ms: int) -> None:
        """The consumer is gone; what it holds stays with its channel (amqp-rules 5.5: cancel does not requeue)."""
        self.remove_consumer(subscription, now_ms)

    def limits_changed(self, subscription: LocalConsumer) -> None:
        subscription.credit.ring.mark()

    def settle(self, seq: int, held: bool = False) -> None:
        if not self.deleted:
            self.ring.settle(seq, held)
            self.ring.mark()

    def remove(self, seq: int) -> None:
        """An operator takes a message out that is ready, or held back."""
        self.ring.settle(seq)

    @abstractmethod
    def reject(self, seq: int, change: bytes = b"", *, at_once: bool = False) -> None:
        """basic.reject or basic.nack without requeue; `at_once`: in a transaction."""

    # -- as a whole -------------------------------------------------------------------------------------------

    def touch(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        """amqp-rules 5.6: queue TTL counts disuse, and being declared is use."""
        self.last_used_ms = now_ms
        self.ring.mark()
        self.counts(now_ms, then)

    def counts(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        then(self.message_count(now_ms), len(self.subscriptions))

    def is_dry(self, _: Member) -> bool:
        """Whether a consumer that passes messages over has seen all that is here."""
        return False

    def ready_for(self, consumer: Member, now_ms: int, then: Callable[[int, int], None]) -> None:
        """See `QueueHandle`."""
        count = self.message_count(now_ms)
        then(0 if self.is_dry(consumer) else count, len(self.subscriptions))

    def staged(self, _: int, then: Callable[[int, int], None]) -> None:
        then(self.ring.ready, self.ring.ready_bytes)

    def purge(self, then: Callable[[int], None]) -> None:
        then(self.ring.purge())

    def begin_delete(
        self, if_unused: bool, if_empty: bool, now_ms: int, then: Callable[[str, int], None], *,
        if_settled: bool = False,
    ) -> None:  # fmt: skip
        count = self.message_count(now_ms)
        if if_unused and self.subscriptions:
            then(IN_USE, count)
        elif if_empty and (count or self.aside or (if_settled and self.ring.unacked)):
            then(NOT_EMPTY, count)
        else:
            then("", count)

    # -- ownership, and the end -------------------------------------------------------------------------------

    def begin_epoch(self, now_ms: int) -> None:
        """This node owns the replicated log: its ring is taken over, or new. `remote.owned_queue` ends the pause."""
        self.paused = self.ring.paused = self.replicated = True
        self.last_used_ms = now_ms
        self.adopt(self.settings)

    def end_epoch(self) -> None:
        """This node does not own the log any more; its remote queues ask the next owner, and so nobody is answered."""
        self.log.end_epoch()
        self.replicated = False
        self.paused = True
        self.ring.loading = False
        self.subscriptions.leave(tuple(self.subscriptions))

    @abstractmethod
    def survived(self) -> None:
        """The deletion that was asked for was refused; whether it is still due is seen in a later turn."""

    def drop(self) -> None:
        """It was deleted: its consumers are cancelled, its publishers answered."""
        self.deleted = True
        members = tuple(self.subscriptions)
        self.subscriptions.leave(members)
        tell_ended(self.host, members)
        self._release()
        self.ring.destroy()

    @abstractmethod
    def _release(self) -> None:
        """Whoever waits is answered."""
