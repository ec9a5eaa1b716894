"""A queue behind frames to its owner: sessions of this node hold it in place of the `Queue`.

Theory. The proxy keeps everything that its owner does not have for certain: publishes until they are committed
(`Backlog`), settlements of deliveries until they are committed (`Settlements`), consumers (`Line`), questions until
they are answered, and in its ring every message that is outstanding at this node. With these it can attach to any
owner at any time:

    DETACHED  --Attach(gen)-->  ASKED  --Attached(gen)-->  ATTACHED        new epoch, link lost, lease regained,
        ^                         |                            |           a delivery that cannot be kept, Detach
        +-------------------------+----------------------------+

Every attachment has a new `gen`; frames of an older one are dropped. An Attach carries everything that the owner
needs at once (consumers, outstanding messages, settlements). The rest follows its answer: publishes that the owner
does not have, in order, and questions. Nothing is ever sent to an owner outside of an attachment.

The queue works in `turn`, when something marked its ring: the calls of a turn are sent in one go. Without an owner
(offline) everything waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from clusterbroker.broker.queues.handle import GONE, CommitPart, Modification, Taken
from clusterbroker.broker.queues.lease import GONE as LOST
from clusterbroker.broker.queues.lease import LeaseAnswer, LeaseRequest
from clusterbroker.broker.queues.link_deliveries import Tagged
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.subscription import LocalConsumer, tell_ended
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.broker.remote.backlog import Backlog, Committing, Named, Numbered
from clusterbroker.broker.remote.consumer_link import Line, no_place_for, seq_of, split
from clusterbroker.broker.remote.host import ProxyHost
from clusterbroker.broker.remote.link_side import NO_LINKS, NONE_GONE, KnowsLinks, LinksHere, LinkSide
from clusterbroker.broker.remote.messages import (
    ASK_COUNTS,
    ASK_DELETE,
    ASK_GET,
    ASK_LEASE,
    ASK_PURGE,
    ASK_TOUCH,
    SETTLE_REJECT,
    SETTLE_REQUEUE,
    SETTLE_REQUEUE_COUNTED,
    Answer,
    Attached,
    AttachedQueue,
    Cancel,
    Cancelled,
    Consume,
    Consuming,
    Published,
    Range,
    Settle,
    Settled,
)
from clusterbroker.broker.remote.outbox import Outbox
from clusterbroker.broker.remote.questions import Question, Questions, Then
from clusterbroker.broker.remote.settlements import Settlements
from clusterbroker.broker.remote.unhanded import unhanded
from clusterbroker.broker.streams.strip_bcc import unblinded
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.journal.ranges import merged
from clusterbroker.journal.record import Message, read_records, verify_records
from clusterbroker.replication.errors import BadMessage


class Others(KnowsLinks, Protocol):
    """All queues elsewhere of a node, as one of them sees them."""

    @property
    def host(self) -> ProxyHost:
        """The node."""

    def next_consumer(self) -> int:
        """A number for a consumer."""

    def want_attach(self, queue: RemoteQueue) -> None:
        """The queue has something to say, or not, and no attachment in which to say it."""

    def delayed(self, queue: RemoteQueue) -> None:
        """It has publishes for which its owner's window has no room."""

    def held(self, queue: RemoteQueue) -> None:
        """It has publishes that were too much for this turn."""

    def shares(self, line: Line, queue: RemoteQueue) -> None:
        """The consumer stands under a channel-wide limit, which acknowledgements for other queues raise."""

    def relieved(self, line: Line) -> None:
        """It does no longer."""

    def took(self, queue: RemoteQueue, size: int) -> None:
        """So many bytes wait for its owner."""

    def gave(self, queue: RemoteQueue, size: int) -> None:
        """So many bytes wait no longer."""


class RemoteQueue(LinkSide):
    """The handle (`broker.queues.handle`) of one queue at a node that does not own it."""

    __slots__ = (
        "_backlog", "_busy", "_by_subscription", "_cancels", "_gone_links", "_lines", "_links",
        "_questions", "_settlements", "_watch", "attached", "deleted", "entity", "gen", "node", "outbox", "ready",
        "ring", "settings",
    )  # fmt: skip

    def __init__(self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: Others) -> None:
        self.entity = entity
        self.settings = settings
        self.ring = ring
        self.node: Others = node
        self.gen = 1
        self.attached = False
        self.deleted = False
        self.ready = 0
        self.outbox: Outbox | None = None
        """To the present owner; None: there is none."""
        self._lines: dict[int, Line] = {}
        self._busy: dict[Line, None] = {}  # those whose credit may change without a delivery
        self._by_subscription: dict[LocalConsumer, Line] = {}
        self._cancels: list[int] = []  # consumers whose end the owner does not know in this attachment
        self._backlog = Backlog(entity.name)
        self._settlements = Settlements()
        self._questions = Questions()
        self._watch: Watch | None = None
        self._gone_links: frozenset[int] = NONE_GONE
        self._links: LinksHere = NO_LINKS
        ring.owner = self

    def __repr__(self) -> str:
        return f"<RemoteQueue {self.name} at {self.entity.owner} epoch {self.entity.epoch} gen {self.gen}>"

    @property
    def name(self) -> str:
        return self.entity.name

    @property
    def backlog_bytes(self) -> int:
        """Of publishes that its owner has not called committed."""
        return self._backlog.size

    # -- publishing -------------------------------------------------------------------------------------------

    @property
    def away(self) -> bool:
        return self.outbox is None

    @property
    def rejects(self) -> bool:
        """The owner decides about each message, so each needs a ticket of its own."""
        settings = self.settings
        limited = settings.max_length is not None or settings.max_length_bytes is not None
        return limited and settings.overflow != "drop-head"

    def accepts(self, message: Message, now_ms: int, named: Named | None = None) -> bool:
        return True

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        return True

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        self.take(messages, ticket)

    def take(
        self, messages: Sequence[Message], ticket: Ticket | None, tagged: Tagged | None = None,
        commit: Committing | None = None, named: Numbered | None = None,
    ) -> None:  # fmt: skip
        if self.deleted:
            self._refuse_late(ticket)
        elif messages:
            shown = unblinded(messages) if self.settings.queue_type == STREAM else messages
            self.node.took(self, self._backlog.publish(shown, ticket, named, commit, tagged))
            if commit is not None or named is not None or not (self.attached and self._backlog.holds_back):
                self.ring.mark()

    def publish_numbered(
        self, producer: bytes, numbers: Sequence[int], messages: Sequence[Message], ticket: Ticket | None, now_ms: int
    ) -> None:
        self.take(messages, ticket, named=(producer, numbers))

    def accept_dead_letter(self, message: Message) -> None:
        self.publish((message,), None, 0)

    # -- consuming --------------------------------------------------------------------------------------------

    def subscribe(self, subscription: LocalConsumer, now_ms: int, then: Callable[[str], None]) -> None:
        if why := GONE if self.deleted else no_place_for(self._lines.values(), subscription):
            then(why)
            return
        line = Line(self.node.next_consumer(), subscription, now_ms, then)
        self._lines[line.number] = self._by_subscription[subscription] = line
        self._busy[line] = None
        self.ring.mark()

    def unsubscribe(self, subscription: LocalConsumer, now_ms: int) -> None:
        if (line := self._by_subscription.get(subscription)) is not None:
            self._end(line)

    def limits_changed(self, subscription: LocalConsumer) -> None:
        if (line := self._by_subscription.get(subscription)) is not None:
            line.take_back()
            self._busy[line] = None
            self.ring.mark()

    def _end(self, line: Line) -> None:
        """What waits for the channel returns; what the channel holds stays there."""
        del self._lines[line.number], self._by_subscription[line.subscription]
        self._busy.pop(line, None)
        self.node.relieved(line)
        line.subscription.credit.active = False
        if line.told:
            self._cancels.append(line.number)
        self._gone_links = self.give_up(line)

    def get(self, now_ms: int, then: Callable[[Taken | str | None], None], *, no_ack: bool = False) -> None:
        def answered(answer: Answer, payload: memoryview) -> None:
            self.ready = answer.count
            taken: Taken | str | None = answer.refused or None
            if payload:
                seq, message, delivery_count, redelivered = read_records(payload)[0]
                if self.is_in_doubt((seq,)):
                    self._ask(ASK_GET, answered, no_ack=no_ack)
                    return
                self._settlements.came_again((seq,))
                if self.ring.hold(seq, delivery_count):
                    taken = seq, message, redelivered, delivery_count
                else:
                    self._settlements.add(seq, SETTLE_REQUEUE)
                    self.ring.mark()
            then(taken)

        self._ask(ASK_GET, answered, no_ack=no_ack)

    def lease(self, request: LeaseRequest, then: Callable[[LeaseAnswer, bytes], None], now_ms: int) -> None:
        self._ask(ASK_LEASE, lambda answer, records: then(answer.lease or LOST, bytes(records)), word=request)

    def shown(self, seq: int, message: Message, redelivered: bool, delivery_count: int) -> Message:
        return message  # the owner has changed in it what a consumer shall see

    def watch(self, watch: Watch | None) -> None:
        self._watch = watch

    def settle(self, seq: int, held: bool = False) -> None:
        if not self.deleted:
            self.ring.settle(seq, held)
            self.ring.mark()

    def reject(self, seq: int, change: bytes = b"") -> None:
        self._give_back(seq, SETTLE_REJECT, change=change)

    def requeue(self, seq: int, counted: bool) -> None:
        self._give_back(seq, SETTLE_REQUEUE_COUNTED if counted else SETTLE_REQUEUE)

    def modify(self, seq: int, modification: Modification) -> None:
        self._give_back(seq, SETTLE_REQUEUE_COUNTED if modification[0] else SETTLE_REQUEUE, *modification[1:])

    def _give_back(self, seq: int, outcome: int, link: str = "", change: bytes = b"") -> None:
        if self.deleted:
            return
        self._backlog.leave((seq,))
        count = self.ring.release(seq)
        if count >= 0:
            self._settlements.add(seq, outcome, count if outcome == SETTLE_REQUEUE_COUNTED else 0, link, change)
            self.ring.mark()

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        then()

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        if self.deleted:
            self._refuse_late(ticket)
        elif part.publishes:
            self._commit(part, ticket)
        else:  # settlements alone are told, and told again, in one frame
            self._settle_part(part, ticket)
            self.ring.mark()

    def _commit(self, part: CommitPart, ticket: Ticket) -> None:
        """Until the owner has answered, the settled messages are outstanding here as before. What is returned goes back
        at once, whatever becomes of the rest: no record says that a message is ready. It may come again before the
        answer does, perhaps to this node, so that must not find it outstanding here."""
        messages: list[Message] = []
        named: dict[int, Named] = {}
        for some, name in part.publishes:
            if name is not None:
                named[len(messages)] = name
            messages.extend(some)
        staged = [one for one in part.settles if one.outcome != "requeue"]
        for one in part.settles:
            if one.outcome == "requeue":
                self._give_back(one.seq, SETTLE_REQUEUE)

        def answered(refused: bool) -> None:
            for one in staged:
                if self.deleted or one.seq in commit.left or self.is_kept((one.seq,), one.link):
                    continue  # what its client says of it now changes nothing, or counts
                if not refused:
                    self.ring.release(one.seq)
                elif self._let_go(one.seq):
                    self._settlements.add(one.seq, self.returned_by(one.link))
            self.ring.mark()

        self.take(messages, ticket, commit=(commit := Committing(staged, named, answered, part.moved, part.judged)))

    # -- the queue as a whole ---------------------------------------------------------------------------------

    def touch(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        self._ask(ASK_TOUCH, lambda answer, _: self._counted(answer, then))

    def counts(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        self._ask(ASK_COUNTS, lambda answer, _: self._counted(answer, then))

    def _counted(self, answer: Answer, then: Callable[[int, int], None]) -> None:
        self.ready = answer.count
        then(answer.count, answer.consumers)

    def staged(self, now_ms: int, then: Callable[[int, int], None]) -> None:
        self._ask(ASK_COUNTS, lambda answer, _: then(answer.count, answer.bytes))

    def purge(self, then: Callable[[int], None]) -> None:
        self._ask(ASK_PURGE, lambda answer, _: then(answer.count))

    def begin_delete(
        self, if_unused: bool, if_empty: bool, now_ms: int, then: Callable[[str, int], None], *,
        if_settled: bool = False,
    ) -> None:  # fmt: skip
        if self.entity.owner is None and not if_unused and not if_empty:
            then("", 0)  # nobody is there to be asked, and there is nothing to ask
            return
        self._ask(
            ASK_DELETE, lambda answer, _: then(answer.refused, answer.count), if_unused=if_unused, if_empty=if_empty,
            if_settled=if_settled,
        )  # fmt: skip

    def _begin_links(self) -> None:
        self._links = LinksHere()

    def ownerless(self) -> None:
        """It has lost its owner, and there is no other: who deletes it without conditions need not wait for one."""
        for question in self._questions.take_deletions():
            question.then(Answer(self.entity.queue_id, self.gen, 0), memoryview(b""))

    def _ask(self, what: int, then: Then, **more: Any) -> None:
        """`more`: fields of `Question`."""
        if self.deleted:
            then(Answer(self.entity.queue_id, self.gen, 0), memoryview(b""))
            return
        self._questions.ask(Question(what, self._backlog.next_number, self.node.host.now_ms, then, **more))
        self.ring.mark()

    def adopt(self, settings: QueueSettings) -> None:
        self.settings = settings

    def halt(self, entity: QueueEntity) -> None:
        """An operator paused it, or resumed it."""
        self.entity = entity
        self._busy.update(dict.fromkeys(self._lines.values()))
        self.ring.mark()

    # -- attaching --------------------------------------------------------------------------------------------

    def gather(self) -> None:
        """What was settled since the last call becomes settlements."""
        self._settlements.gather(self.ring.take_settled())

    def speaks(self) -> bool:
        """Whether there is anything that an owner must know."""
        self.gather()
        return bool(self._lines or self._backlog or self._settlements or self._questions or self.ring.unacked)

    def is_used(self) -> bool:
        """Whether clients of this node wait for something of it, as far as that can be seen at a glance."""
        return bool(self._lines or self._backlog or self._questions or self.ring.unacked)

    def outstanding(self) -> list[Range]:
        """What clients of this node hold, and what waits for room in their channels."""
        surplus = [seq_of(record) for line in self._lines.values() for record in line.surplus]
        held: list[Range] = self.ring.outstanding()
        return merged((*held, *((seq, seq) for seq in surplus))) if surplus else held

    def detach(self) -> None:
        """Nothing that was said in this attachment is certain any more, and nothing more of it is heard."""
        self.gen += 1
        self.attached = False
        self._backlog.detached(self.outbox)
        self._settlements.detached()
        self._questions.detached()
        self._cancels.clear()
        self._busy.update(dict.fromkeys(self._lines.values()))
        for line in self._lines.values():
            line.attach()
        self._gone_links = NONE_GONE  # what comes of this attachment is dropped

    def attachment(self) -> AttachedQueue:
        """All that this node has to do with the queue, for a new attachment (`detach` came before).

        A consumer whose first answer is awaited is no fact yet: it asks with the attachment, so that an owner that has
        taken it does not think it gone (an auto-delete queue would end), and one that is new judges all of them alike.
        """
        self.gather()
        return AttachedQueue(
            queue_id=self.entity.queue_id,
            epoch=self.entity.epoch,
            gen=self.gen,
            consumers=tuple(line.head() for line in self._lines.values() if line.then is None),
            outstanding=tuple(self.outstanding()),
            settlements=self._settlements.tell(everything=True),
            next_number=self._backlog.next_number,
            asking=tuple(line.head() for line in self._lines.values() if line.then is not None),
            sent=self._backlog.sent,
            links=self.silent_links(),
        )

    def on_attached(self, message: Attached) -> None:
        if (message.epoch, message.gen) != (self.entity.epoch, self.gen) or self.attached:
            return
        assert self.outbox is not None, "an attachment has an owner"
        if message.accepted >= self._backlog.next_number:
            raise BadMessage(f"{message.accepted} publishes were accepted of {self._backlog.next_number - 1}")
        self.attached = True
        self._backlog.attached(message.accepted, self.outbox)
        self.ring.mark()

    # -- the turn ---------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Tells the owner what came since the last turn."""
        self.ring.marked = False
        if self.deleted:
            return
        if self.drop_questions(now_ms):
            self.node.attach_again(self)  # the owner must not carry out what nobody waits for
        for line in tuple(self._busy):
            if line.surplus:
                self._pour(line, now_ms)
        outbox = self.outbox
        if outbox is None:
            return
        if not self.attached:
            self.node.want_attach(self)  # the rest is said once that is answered
            return
        queue_id, epoch, gen = self.entity.queue_id, self.entity.epoch, self.gen
        if self._questions or not self._backlog.holds_back:  # who asks wants to count what he has published
            self._backlog.send(outbox, queue_id, epoch, gen)
        if self._backlog.next_to_send < self._backlog.next_number:
            if outbox.spent:
                self.node.held(self)
            elif not outbox.open:
                self.node.delayed(self)
        self.gather()
        untold = self._settlements.tell()
        if untold:
            outbox.say(Settle(queue_id, epoch, gen, untold))
        for consumer in self._cancels:  # before the new ones: one of them may have been exclusive
            outbox.say(Cancel(queue_id, epoch, gen, consumer))
        self._cancels.clear()
        for line in self._busy:
            if not line.told:
                outbox.say(Consume(queue_id, epoch, gen, line.head()))
        # who publishes and then asks, counts his own, unless the owner has an alarm: that may last
        sent, come = self._backlog.next_to_send, self._links.came_back
        for ask in self._questions.tell(queue_id, epoch, gen, sent, outbox.shut, come):
            outbox.say(ask)
        self._grant(outbox)

    def _grant(self, outbox: Outbox) -> None:
        for line in tuple(self._busy):
            upto = line.upto()
            if line.owes_credit(upto):
                line.granted, line.falls = upto, False
                outbox.grant((self.entity.queue_id, self.gen, line.number, upto, line.held))
            if line.subscription.credit.shared:
                self.node.shares(line, self)
            if line.rests:
                del self._busy[line]

    # -- what the owner says ----------------------------------------------------------------------------------

    def on_published(self, message: Published) -> None:
        if message.gen != self.gen or not self.attached:
            return
        assert self.outbox is not None, "an attachment has an owner"
        self.node.gave(self, self._backlog.published(message.upto, message.refused, self.outbox))
        if self._backlog.next_to_send < self._backlog.next_number:
            self.ring.mark()

    def on_consuming(self, message: Consuming) -> None:
        line = self._lines.get(message.consumer)
        if message.gen != self.gen or line is None:
            return
        then = line.answered(message.active)
        if message.refused:
            line.told = False  # the owner knows that it is not there
            self._end(line)
            if then is None:
                line.subscription.ended()
        if then is not None:
            then(message.refused)

    def on_cancelled(self, message: Cancelled) -> None:
        line = self._lines.get(message.consumer)
        if message.gen != self.gen or line is None:
            return
        line.told = False
        self._end(line)
        line.ended()

    def on_deliver(self, epoch: int, gen: int, consumer: int, data: memoryview, now_ms: int) -> None:
        """Messages for a consumer. Of an older attachment: dropped, for the owner knows that they did not arrive. For a
        consumer that is gone (its Cancel crossed them): returned at once, uncounted."""
        if (epoch, gen) != (self.entity.epoch, self.gen) or not self.attached or self.deleted:
            return
        line = self._lines.get(consumer)
        if line is None or line.fell or line.surplus or self.entity.paused or line.subscription.credit.shared:
            verify_records(data, self.entity.queue_id, self.entity.epoch)  # `receive` does it, but not at once
        if self._settlements.watches_returns:
            seqs = [seq_of(record) for record in split(data)]
            if self.is_in_doubt(seqs):
                return
            self._settlements.came_again(seqs)
        if line is None:
            for record in split(data):
                self._settlements.add(seq_of(record), self.returned_of(consumer))
            self.ring.mark()
            return
        self._busy[line] = None
        if not line.fell and not line.surplus and not line.subscription.credit.shared and not self.entity.paused:
            line.measure(self._receive(line, data, now_ms), len(data))
            line.check_credit()
            return
        records = list(split(data))
        line.measure(len(records), len(data))
        line.check_credit()
        if excess := min(line.excess(), len(records)):
            for record in records[-excess:]:
                self._settlements.add(seq_of(record), SETTLE_REQUEUE)
            del records[-excess:]
            self.ring.mark()
        line.surplus.extend(records)
        self._pour(line, now_ms)

    def _pour(self, line: Line, now_ms: int) -> None:
        """Gives the channel as much as it may hold; nothing while the queue is paused, though it was on its way."""
        count = 0 if self.entity.paused else min(line.room, len(line.surplus))
        if count:
            self._receive(line, b"".join(line.surplus.popleft() for _ in range(count)), now_ms)

    def _receive(self, line: Line, data: bytes | memoryview, now_ms: int) -> int:
        """How many messages came: as many as its owner has counted."""
        if self._watch is not None and self._watch.wants(data):
            count, refused, stumbles, void = line.show(self._watch, self.ring, data, now_ms)
        else:
            count, refused, stumbles, void = self.ring.receive(line.subscription.credit, bytes(data), now_ms)
        line.subscription.flush()
        self._settlements.add_ranges(refused, line.returned)  # its channel is closing
        self._settlements.add_ranges(void, SETTLE_REQUEUE)
        unhanded(self, self.node.host, stumbles)
        self.ring.mark()
        return count

    def on_settled(self, message: Settled) -> None:
        if message.gen == self.gen and not self.deleted:
            if acknowledged := self._settlements.settled(message.id, message.void, self.name):
                self.ring.forget(acknowledged)
            if message.void:
                self._may_come_again()

    def on_answer(self, message: Answer, payload: memoryview) -> None:
        """Of an older attachment: dropped; it was asked again."""
        if message.gen == self.gen and self.attached:
            # what cannot be read must not take the question with it
            verify_records(payload, self.entity.queue_id, self.entity.epoch)
            then = self._questions.answered(message.request)
            if then is not None:
                then(message, payload)

    # -- the end ----------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """The queue was deleted: its consumers are cancelled, its publishers and all questions answered."""
        self.deleted = True
        lines, self._lines = self._lines, {}
        self._by_subscription.clear()
        self._busy.clear()
        for line in lines.values():
            self.node.relieved(line)
            line.subscription.credit.active = False
        tell_ended(self.node.host, tuple(lines.values()))
        self.node.gave(self, self._backlog.drop(self.outbox, self.entity.ends_unasked))
        self.gather()
        self.ring.forget(self._settlements.drop())
        for question in self._questions.drop():
            question.then(Answer(self.entity.queue_id, self.gen, 0), memoryview(b""))
        self.ring.destroy()
