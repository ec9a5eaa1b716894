"""Questions of remote queues to a queue's owner: single messages, counts, purge, deletion check.

Questions wait until the queue is open (`owned_queue`). Those that count wait until all earlier publishes are
committed, at most COUNT_PATIENCE_MS: a client that publishes and asks sees its messages; a queue that cannot commit
answers with its committed messages. After a new attach a proxy asks again, and its earlier questions are forgotten,
except purges, which one owner carries out once. (A new owner purges again: then the answer counts the rest.) The
message of a get with a lost answer is held by nobody, returns to its place, and is the next one that is got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from clusterbroker.broker.queues.handle import IN_USE, NOT_EMPTY, NOT_HELD
from clusterbroker.broker.queues.lease import Acquire, LeaseAnswer
from clusterbroker.broker.queues.link_deliveries import STALE, AskedTags
from clusterbroker.broker.queues.link_held import HeldMessages, LinkAttach
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.log import SAFE
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import RemoteConsumer
from clusterbroker.broker.queues.ticket import FULL
from clusterbroker.broker.remote.attachment import Attachment
from clusterbroker.broker.remote.host import OwnedQueueHost
from clusterbroker.broker.remote.messages import (
    ASK_BROWSE,
    ASK_COUNTS,
    ASK_DELETE,
    ASK_FORGET,
    ASK_GET,
    ASK_HELD,
    ASK_JUDGE,
    ASK_LEASE,
    ASK_PURGE,
    ASK_READ,
    ASK_TAGS,
    ASK_TOUCH,
    Answer,
    Ask,
)
from clusterbroker.broker.remote.settling import Settling
from clusterbroker.journal.record import Message, RecordBuffer

COUNT_PATIENCE_MS: Final = 1000
PURGES_MAX: Final = 256
"""So many purges of one node are remembered."""


class Asked(NamedTuple):
    """A question that is not answered yet."""

    attachment: Attachment
    ask: Ask
    seq: int
    """What was published before it."""
    due_ms: int


class AskedQueue(Protocol):
    """What questions need of the owned queue."""

    queue: LocalQueue
    host: OwnedQueueHost
    settling: Settling

    @property
    def answers(self) -> bool:
        """Whether every member has attached, the first sync is complete, and the queue is not frozen."""

    def judges(self, attachment: Attachment) -> bool:
        """Whether what a node publishes and settles is judged as it comes."""

    def touch(self) -> None:
        """Asks for a turn of the owned queue."""

    def doom(self, now_ms: int) -> None:
        """The asker was told that the queue may be deleted."""


class Asking:
    """The open questions to one queue."""

    __slots__ = ("_asked", "_gets", "_owned", "_purges")

    def __init__(self, owned: AskedQueue) -> None:
        self._owned = owned
        self._asked: list[Asked] = []  # few, and mostly none
        self._gets: dict[RemoteConsumer, Attachment] = {}  # they stand in the queue, waiting for its head
        self._purges: list[
            tuple[Attachment, Ask, int, int]
        ] = []  # and what was forgotten; waiting for a commit: count, mark

    def forget(self, attachment: Attachment) -> None:
        self._asked = [one for one in self._asked if one.attachment is not attachment]
        self._purges = [one for one in self._purges if one[0] is not attachment]
        for credit in [credit for credit, asker in self._gets.items() if asker is attachment]:
            del self._gets[credit]
            credit.limit = 0  # what it took now no attach would ever return

    def ask(self, attachment: Attachment, ask: Ask) -> None:
        ring = self._owned.queue.ring
        if ask.request in attachment.purged:  # it was carried out, and the answer was lost with a link
            self._purges.append((attachment, ask, *attachment.purged[ask.request]))
            self._owned.touch()
            return
        due_ms = self._owned.host.now_ms + COUNT_PATIENCE_MS
        self._asked.append(Asked(attachment, ask, ring.next_seq if ring.journaled else 0, due_ms))
        self._owned.touch()

    def turn(self, now_ms: int) -> None:
        """Answers what can be answered."""
        queue = self._owned.queue
        for _ in range(len(self._asked)):
            if not self._owned.answers:
                break  # perhaps the one before was a deletion
            asked = self._asked.pop(0)
            counts = asked.ask.what in (ASK_COUNTS, ASK_TOUCH, ASK_DELETE) or isinstance(asked.ask.word, Acquire)
            if counts and queue.ring.advance() < asked.seq and now_ms < asked.due_ms:
                self._asked.append(asked)
                queue.host.wake(queue, asked.due_ms)
            elif asked.ask.what == ASK_TAGS and not (queue.log.synced and queue.ring.advance() >= asked.seq):
                self._asked.append(asked)  # never before its commit, however long that takes
            elif asked.ask.what == ASK_HELD and not self._knows_outcomes(asked.attachment):
                self._asked.append(asked)
            else:
                self._answer(asked.attachment, asked.ask, now_ms)
        while self._purges and queue.log.durable(self._purges[0][3]):
            attachment, ask, count, _ = self._purges.pop(0)
            self._say(attachment, Answer(queue.entity.queue_id, attachment.gen, ask.request, count))

    def _knows_outcomes(self, attachment: Attachment) -> bool:
        """Whether what a node has said before it asks is judged, and it has heard so. It must have before it hears what
        a link holds: of those that were void the link may hold messages, which its ring would forget when their clients
        have them again. Nor is the link at that node before, for then all of it would count for what the link holds.

        What was passed over (behind a refusal, by a queue that is set aside, while a body is read) comes again with the
        next attachment, and so does the question."""
        return self._owned.judges(attachment) and attachment.told_settled >= attachment.settlement

    def _say(self, attachment: Attachment, answer: Answer, payload: bytes = b"") -> None:
        self._owned.host.send(attachment.node, answer, (payload,) if payload else ())

    def _answer(self, attachment: Attachment, ask: Ask, now_ms: int) -> None:
        queue = self._owned.queue
        if ask.what == ASK_GET:
            self._get(attachment, ask, now_ms)
            return
        if ask.what == ASK_LEASE:
            self._tend(attachment, ask, now_ms)
            return
        if ask.what == ASK_BROWSE:
            self._browse(attachment, ask, now_ms)
            return
        if ask.what == ASK_READ:
            self._read(attachment, ask)
            return
        if ask.what == ASK_HELD:
            self._tell_held(attachment, ask)
            return
        if ask.what == ASK_JUDGE:
            self._judge(attachment, ask, now_ms)
            return
        if ask.what == ASK_TAGS:
            self._tell_tags(attachment, ask)
            return
        if ask.what == ASK_FORGET:
            assert ask.tags is not None, "who forgets a link's deliveries says which"
            asked = AskedTags(*ask.tags)
            queue.forget_tags(asked.link, asked.upto, list(asked.tags))
            mark = queue.log.commits if queue.ring.needs_write else SAFE
            self._purges.append((attachment, ask, 0, mark))
            return
        if ask.what == ASK_PURGE:
            count = queue.ring.purge()
            mark = queue.log.commits if count and queue.ring.needs_write else SAFE
            self._purges.append((attachment, ask, count, mark))
            attachment.purged[ask.request] = count, mark
            if len(attachment.purged) > PURGES_MAX:
                del attachment.purged[next(iter(attachment.purged))]
            return
        if ask.what == ASK_TOUCH:
            queue.last_used_ms = now_ms
            queue.ring.mark()
        queue.message_count(now_ms)
        count, consumers = self._ready, len(queue.subscriptions)
        member = attachment.members.get(ask.consumer)
        if member is not None and member.assigned:  # on its way, when its group is committed
            count = max(1, count)
        elif member is not None and queue.is_dry(member):
            count = 0
        refused = ""
        if ask.what == ASK_DELETE:
            # what is not committed yet, however long that takes, will be confirmed: it counts here; and so does what an
            # operator moves elsewhere, for it may come back
            filled = ask.if_empty and (queue.ready or queue.aside or (ask.if_settled and queue.ring.unacked))
            refused = IN_USE if ask.if_unused and consumers else NOT_EMPTY if filled else ""
        size = queue.ring.ready_bytes if queue.entity.staging else 0
        answer = Answer(queue.entity.queue_id, attachment.gen, ask.request, count, consumers, refused, bytes=size)
        self._say(attachment, answer)
        if ask.what == ASK_DELETE and not refused:
            self._owned.doom(now_ms)

    def _read(self, attachment: Attachment, ask: Ask) -> None:
        """What the proxy's clients hold, again."""
        queue, gen = self._owned.queue, attachment.gen
        seqs = [seq for first, last in ask.ranges for seq in range(first, last + 1)]

        def read(messages: Mapping[int, Message], count: int) -> None:
            if not attachment.attached or attachment.gen != gen:
                return  # it is asked again
            records, entity = RecordBuffer(), queue.entity
            for seq, message in messages.items():
                records.enqueue(entity.queue_id, entity.epoch, seq, message, 0, True)
            self._say(attachment, Answer(entity.queue_id, gen, ask.request, count), records.take())

        queue.reread(seqs, read)

    def _tell_held(self, attachment: Attachment, ask: Ask) -> None:
        """What a link holds, whose client is at the proxy's node from now on."""
        assert ask.link is not None, "a question about what a link holds says which link"
        queue, gen, link = self._owned.queue, attachment.gen, LinkAttach(*ask.link)

        def told(held: Sequence[HeldMessages] | str) -> None:
            if attachment.attached and attachment.gen == gen:  # otherwise it is asked again
                refused, found = (held, []) if isinstance(held, str) else ("", list(held))
                kept = [one[:3] for one in found if not one.withdrawn]
                withdrawn = tuple((one.first, one.last) for one in found if one.withdrawn)
                answer = Answer(
                    queue.entity.queue_id, gen, ask.request, refused=refused, held=kept, withdrawn=withdrawn
                )
                self._say(attachment, answer)

        if not isinstance(queue, Queue):
            told([])
            return
        if not queue.admit_link(link):
            attachment.place(link.link)  # what it says of them counts
        queue.held_by(link, told)

    def _judge(self, attachment: Attachment, ask: Ask, now_ms: int) -> None:
        """Whether a transaction's part would be refused now."""
        queue, (count, bodies) = self._owned.queue, self._new_of(ask)
        refused = ""
        if not self._owned.settling.holds_all(attachment, ((0, ask.ranges),), ask.links):
            refused = NOT_HELD
        elif count and queue.rejects and not queue.has_room_for(count, bodies, now_ms):
            refused = FULL
        else:
            queue.expects_part()
        self._say(attachment, Answer(queue.entity.queue_id, attachment.gen, ask.request, refused=refused))

    def _new_of(self, ask: Ask) -> tuple[int, int]:
        """`Ask.publishes` of those messages that are not here, by their producers' numbers."""
        (count, bodies), knows = ask.publishes, self._owned.queue.log.producers.knows
        sizes = {place: size for _, numbers in ask.numbered for place, _, size in numbers}
        known = {
            place for producer, numbers in ask.numbered for place, number, _ in numbers if knows(producer, number)
        }  # fmt: skip
        bodies -= sum(sizes[place] for place in known if place != count - 1)
        if count - 1 in known:  # another one is the last of them
            last = next((place for place in range(count - 1, -1, -1) if place not in known), -1)
            bodies -= sizes.get(last, 0)
        return count - len(known), bodies

    def _tell_tags(self, attachment: Attachment, ask: Ask) -> None:
        assert ask.tags is not None, "a question about a link's deliveries says which"
        queue, asked = self._owned.queue, AskedTags(*ask.tags)
        since = queue.host.recovery.since(queue, asked.link, asked.attach)
        answer = Answer(
            queue.entity.queue_id, attachment.gen, ask.request, refused="" if since else STALE,
            tags=queue.log.deliveries.answer(asked, since) if since else [],
        )  # fmt: skip
        self._say(attachment, answer)

    def _tend(self, attachment: Attachment, ask: Ask, now_ms: int) -> None:
        queue, gen = self._owned.queue, attachment.gen

        def heard(told: LeaseAnswer, records: bytes) -> None:
            if attachment.attached and attachment.gen == gen:  # otherwise it is asked again
                self._say(attachment, Answer(queue.entity.queue_id, gen, ask.request, lease=told), records)

        assert ask.word is not None, "a question about a lease says what"
        queue.lease(ask.word, heard, now_ms)

    def _browse(self, attachment: Attachment, ask: Ask, now_ms: int) -> None:
        queue, gen = self._owned.queue, attachment.gen

        def browsed(seq: int, records: bytes) -> None:
            if attachment.attached and attachment.gen == gen:  # otherwise it is asked again
                self._say(attachment, Answer(queue.entity.queue_id, gen, ask.request, next=seq), records)

        assert ask.browse is not None, "a browser says what it wants"
        queue.browse(ask.browse, browsed, now_ms)

    @property
    def _ready(self) -> int:
        """Ready and committed: what is not committed yet is not in the queue for anybody but its publisher."""
        ready, ring = self._owned.queue.ready, self._owned.queue.ring
        return max(0, ready - (ring.next_seq - ring.committed)) if ring.replicated else ready

    def _get(self, attachment: Attachment, ask: Ask, now_ms: int) -> None:
        queue = self._owned.queue
        credit = RemoteConsumer(queue.ring, attachment.holder, 0, None)
        credit.limit = 1
        self._gets[credit] = attachment
        gen = attachment.gen

        def taken(refused: object) -> None:
            self._gets.pop(credit, None)
            queue.ring.handed -= credit.delivered  # it is no consumer's
            if ask.no_ack:
                queue.ring.got_no_ack += credit.delivered
                queue.ring.auto_acks += credit.delivered
            else:
                queue.ring.got += credit.delivered
            queue.ring.got_empty += not credit.delivered
            why = refused if isinstance(refused, str) else ""
            if not attachment.attached or attachment.gen != gen:
                return  # it is asked again; what was taken returns, for the next attach does not list it
            answer = Answer(queue.entity.queue_id, gen, ask.request, self._ready, len(queue.subscriptions), why)
            self._say(attachment, answer, credit.out.take())

        queue.get(now_ms, taken, credit)
