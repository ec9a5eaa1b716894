"""Sources that are read in order and without taking: a stream from an offset, and a range of leased messages.

A reader is at its client's node, over any owner, and stands in the place of the queue for one consumer. It asks the
queue's owner for what comes next, one question at a time, as much as the consumer has room for. What it has delivered
is outstanding in a ring of its own, as a proxy's: an acknowledgement gives room and nothing else, and so do reject,
requeue and the end of the session. Where it stands is known here alone, so another owner goes on with the next message
and no other.

What is asked for counts as held, so a consumer's limit is never passed. What its session has room for may be less by
the time that the answer arrives, if several consumers share a limit; then it is passed once, by one answer.

    chunks   one delivery holds the records of many messages, as the owner sent them, and limits count chunks
    else     each message is a delivery

A reader with an end cancels its consumer there. Whatever else ends it is an error (`ReadingConsumer.failed`): a client
that took that for the end would lose messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.access.errors import (
    Refusal,
    access_refused,
    internal_error,
    not_found,
    not_implemented,
    precondition_failed,
)
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.queues.handle import GONE, CommitPart, Modification, QueueHandle, Reread
from clusterbroker.broker.queues.lease import READ_ROWS_MAX, LeaseAnswer, Read
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.stumble import Unfit
from clusterbroker.broker.queues.subscription import LocalConsumer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.remote.consumer_link import seq_of, split
from clusterbroker.broker.streams.messages import FIND, READ, StreamTold
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message, verify_records

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization

OFFSET_MAX: Final = 2**61
TIME_MS_MAX: Final = 2**53
"""A later time is as good as this one."""
CHUNK_COUNT: Final = 4096
CHUNK_BYTES: Final = 1 << 20
DELIVERED_COUNT: Final = 512
"""Messages of one answer of a stream's owner that become deliveries of their own."""
DELIVERED_BYTES: Final = 256 << 10
HELD_IN_NEED: Final = 1000
"""Deliveries that a session holds while the node's memory is low, before its readers of streams get more: what they
hold takes memory here, and a stream may be read by thousands of them, from its beginning, without a publisher whom the
alarm holds up."""
EPOCH_MAX: Final = 2**32 - 1
PATIENCE_MS: Final = 60_000
"""So long the owner of a leased queue may take to answer, or to be replaced."""


class ReadingConsumer(LocalConsumer, Protocol):
    """A consumer that a reader delivers to."""

    @property
    def room(self) -> int:
        """So many more it may hold now, its session's limit included; none while its client takes nothing."""

    @property
    def is_limited(self) -> bool:
        """It or its session has a limit."""

    @property
    def session_held(self) -> int:
        """Unacknowledged deliveries of its session."""

    def hand(self, seq: int, message: Message, now_ms: int) -> None:
        """One delivery, beside those that come out of the reader's ring."""

    def failed(self, refusal: Refusal) -> None:
        """The broker cannot go on."""


class RangeReader:
    """Messages from `next` to before `end` (seqs of a lease, offsets of a stream). `consumer`: None before it has
    subscribed and after its end."""

    __slots__ = ("_node", "_queue", "chunks", "consumer", "end", "next", "ring")
    NUMBER: str
    """The header of a chunk with the number of its first message."""
    SHIFT = 0
    """A message's seq in the reader's ring less its number."""

    def __init__(self, access: Authorization, queue: QueueHandle, start: int, end: int, *, chunks: bool) -> None:
        self._node = access.node
        self._queue = queue
        self.next = start
        self.end = end
        self.chunks = chunks
        self.consumer: ReadingConsumer | None = None
        self.ring = Ring(queue.entity.queue_id, agenda=access.node.agenda, owner=self, proxy=True)

    @property
    def entity(self) -> QueueEntity:
        return self._queue.entity

    @property
    def settings(self) -> QueueSettings:
        return self._queue.settings

    @property
    def name(self) -> str:
        return self._queue.name

    @property
    def deleted(self) -> bool:
        return self._queue.deleted

    @property
    def reads_to_an_end(self) -> bool:
        """The broker cancels its consumer when that has had everything."""
        return self.end < OFFSET_MAX

    def check(self, consumer: ReadingConsumer) -> None:
        """Raises Refusal for a consumer that cannot read this."""
        raise NotImplementedError

    def subscribe(self, consumer: ReadingConsumer, now_ms: int, then: Callable[[str | Refusal], None]) -> None:
        """As `QueueHandle.subscribe`; a Refusal is an answer too."""
        raise NotImplementedError

    def pump(self, now_ms: int) -> None:
        """Asks for what comes next, if there is room for it and no question open."""
        raise NotImplementedError

    def overdue(self, now_ms: int) -> bool:
        """Ends a consumer whose owner does not answer. Asked about twice a second; True: never again."""
        return True

    def unsubscribe(self, consumer: LocalConsumer, now_ms: int) -> None:
        consumer.credit.active = False
        self.consumer = None

    def limits_changed(self, consumer: LocalConsumer) -> None:
        self.ring.mark()

    def _finish(self, refusal: Refusal | None = None) -> None:
        """The end was reached, or the reader cannot go on."""
        consumer = self.consumer
        if consumer is None:
            return
        self.unsubscribe(consumer, self._node.now_ms)
        if refusal is None:
            consumer.ended()
        else:
            consumer.failed(refusal)

    def turn(self, now_ms: int) -> None:
        """Something was acknowledged, or the client takes deliveries again."""
        self.ring.marked = False
        self.ring.forget(self.ring.take_settled())
        self.pump(now_ms)

    def _deliver(self, first: int, count: int, records: bytes | memoryview, now_ms: int) -> None:
        """`count` records, of which the first has this seq."""
        consumer = self.consumer
        assert consumer is not None, "records are asked for a consumer"
        if not self.chunks:
            _, _, stumbles, _ = self.ring.receive(consumer.credit, records, now_ms)
            for error in stumbles:
                consumer.flush()
                if isinstance(error, Unfit):
                    error.end()
                else:
                    self._finish(internal_error(f"{error} of queue '{self.name}' cannot be read: {error.__cause__}"))
        elif consumer.credit.active and self.ring.hold(first):
            about = Properties(headers={self.NUMBER: first - self.SHIFT, "x-stream-count": count}, delivery_mode=2)
            consumer.hand(first, new_message("", self.name, about, bytes(records), now_ms), now_ms)
        consumer.flush()

    # -- what a session does with deliveries

    def settle(self, seq: int, held: bool = False) -> None:
        self.ring.settle(seq, held)
        self.ring.mark()

    def reject(self, seq: int, change: bytes = b"") -> None:
        self.settle(seq)

    def requeue(self, seq: int, counted: bool) -> None:
        self.settle(seq)

    def modify(self, seq: int, modification: Modification) -> None:
        self.settle(seq)

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        then()

    def reread(self, seqs: Sequence[int], then: Reread) -> None:
        then({}, len(seqs))

    is_elsewhere = False

    def judge(self, part: CommitPart, now_ms: int, then: Callable[[str], None]) -> None:
        then("")

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        for one in part.settles:
            self.settle(one.seq)


class StreamReader(RangeReader):
    """A stream from `start` on: an offset, "first", "last" (chunk) or "next"; or from the first message that is not
    older than `since_ms` on. `exact`: nothing is passed over for retention. `wanted`: the messages that it is shown,
    each under its offset."""

    __slots__ = ("_exact", "_life", "_since_ms", "_start", "_waits", "_wanted", "asking", "number")
    NUMBER, SHIFT = "x-stream-offset", 1

    def __init__(
        self, access: Authorization, queue: QueueHandle, start: int | str = "next", end: int = OFFSET_MAX, *,
        since_ms: int | None = None, exact: bool = False, chunks: bool = False, wanted: Filter | None = None,
    ) -> None:  # fmt: skip
        super().__init__(access, queue, 0, end, chunks=chunks)
        self._wanted = b"" if wanted is None else wanted.wire
        self._start = start
        self._since_ms = -1 if since_ms is None else min(since_ms, TIME_MS_MAX)
        self._exact = exact
        self._life = queue.entity.gap_epoch
        self.asking = 0  # the question that is not answered yet
        self._waits: tuple[int, Callable[[], None]] | None = None  # for an offset
        self.number = self._node.streams.next_reader()

    @property
    def _where(self) -> str:
        return f"stream '{self.name}' in vhost '{self.entity.vhost}'"

    def check(self, consumer: ReadingConsumer) -> None:
        if consumer.no_ack:
            raise not_implemented(f"automatic acknowledgement not supported by {self._where}")
        if consumer.exclusive:
            raise access_refused(f"exclusive consumers are not supported by {self._where}")
        if not consumer.is_limited:
            raise precondition_failed(f"consumer prefetch count is not set for {self._where}")

    def subscribe(self, consumer: ReadingConsumer, now_ms: int, then: Callable[[str | Refusal], None]) -> None:
        """The owner is asked where the stream begins and ends; without an answer the stream is GONE."""
        self.consumer = consumer

        def found(told: StreamTold, _: bytes | memoryview) -> None:
            if self.consumer is None:
                then("")  # and nothing follows
                return
            first, newest, start = told.lowest - 1, told.next - 1, self._start
            if self._since_ms >= 0:
                self.next = told.seq - 1
            elif isinstance(start, str):
                self.next = {"first": first, "next": newest}.get(start, max(first, newest - CHUNK_COUNT))
            elif self._exact and start < first:
                self.unsubscribe(consumer, now_ms)
                then(self._gone(start, first))
                return
            else:
                self.next = max(start, first)
            self._node.streams.open(self)
            then("")

        self._node.streams.ask(self._queue, FIND, found, lambda: then(GONE), since_ms=self._since_ms)

    def unsubscribe(self, consumer: LocalConsumer, now_ms: int) -> None:
        super().unsubscribe(consumer, now_ms)
        self._node.streams.close(self)

    def pump(self, now_ms: int) -> None:
        consumer = self.consumer
        if consumer is None or self.asking:
            return
        if self.next >= self.end:
            self._finish()
            return
        room = consumer.room
        if room <= 0 or (consumer.session_held >= HELD_IN_NEED and self._node.low_on_memory):
            return
        count = CHUNK_COUNT if self.chunks else min(room, DELIVERED_COUNT)
        size = CHUNK_BYTES if self.chunks else DELIVERED_BYTES
        self.asking = self._node.streams.ask(
            self._queue, READ, self._came, reader=self.number, seq=self.next + 1, end=self.end + 1, count_max=count,
            bytes_max=size, filter=self._wanted,
        )  # fmt: skip

    def _came(self, told: StreamTold, records: bytes | memoryview) -> None:
        self.asking = 0
        consumer, now_ms = self.consumer, self._node.now_ms
        if consumer is None or not consumer.credit.active:
            return
        if self._exact and told.seq - 1 > self.next:
            self._finish(self._gone(self.next, told.seq - 1))
            return
        upto, left = told.next, max(0, consumer.credit.limit - consumer.credit.delivered)
        if records and not self.chunks and upto - told.seq > left:
            found = list(islice(split(memoryview(records)), left + 1))
            if len(found) > left:  # credit was taken back since it was asked for: the rest is read again
                upto, records = seq_of(found[left]), b"".join(found[:left])
        if records:
            self._deliver(told.seq, upto - told.seq, records, now_ms)
        self.next = upto - 1
        self._has_read()
        self.pump(now_ms)

    def when_read(self, then: Callable[[], None]) -> None:
        """Calls `then`, in place of an earlier one, when the consumer has had all that the stream has by now."""

        def found(told: StreamTold, _: bytes | memoryview) -> None:
            self._waits = (told.next - 1, then)
            self._has_read()

        self._node.streams.ask(self._queue, FIND, found)

    def _has_read(self) -> None:
        if self._waits is not None and self.next >= self._waits[0] and self.consumer is not None:
            (_, then), self._waits = self._waits, None
            then()

    def _gone(self, offset: int, first: int) -> Refusal:
        return precondition_failed(f"offset {offset} of {self._where} is gone, the first is {first}")

    # -- events of its node (`broker.streams.streams.Reader`)

    def changed(self) -> bool:
        return self._life == self.entity.gap_epoch

    def ended(self) -> None:
        text = f"{self._where} is gone, or has lost messages, before offset {self.end} was reached"
        self._finish(not_found(text) if self.reads_to_an_end else None)


class LeaseReader(RangeReader):
    """Messages `first` to before `end` of a queue, which are leased by the name `lease`."""

    __slots__ = ("_asked_ms", "_lease", "_then")
    NUMBER = "x-queue-seq"

    def __init__(
        self, access: Authorization, queue: QueueHandle, lease: str, first: int, end: int, *, chunks: bool = False
    ) -> None:
        super().__init__(access, queue, first, end, chunks=chunks)
        self._lease = lease
        self._asked_ms: int | None = None  # since when an answer is awaited; None: none is
        self._then: Callable[[str | Refusal], None] | None = None  # until the first answer

    @property
    def _where(self) -> str:
        return f"queue '{self.name}' in vhost '{self.entity.vhost}'"

    def check(self, consumer: ReadingConsumer) -> None:
        if consumer.no_ack:
            raise not_implemented(f"no_ack of a lease on {self._where}")
        if not consumer.limit:
            raise precondition_failed(f"consumer prefetch count is not set for the lease on {self._where}")
        if consumer.exclusive:
            raise access_refused(f"a lease on {self._where} is exclusive by itself")

    def subscribe(self, consumer: ReadingConsumer, now_ms: int, then: Callable[[str | Refusal], None]) -> None:
        """Answered with the first messages."""
        self.consumer, self._then = consumer, then
        self._ask(consumer, now_ms)

    def pump(self, now_ms: int) -> None:
        consumer = self.consumer
        if consumer is None or self._asked_ms is not None:
            return
        if self.next >= self.end:
            self._finish()
        elif self._room(consumer):
            self._ask(consumer, now_ms)

    def overdue(self, now_ms: int) -> bool:
        if self.consumer is None:
            return True
        if self._asked_ms is None or now_ms - self._asked_ms < PATIENCE_MS:
            return False
        self._refused(LeaseAnswer(503, f"timed out waiting for the owner of {self._where}"))
        return True

    def _room(self, consumer: ReadingConsumer) -> int:
        """How many messages are worth asking for now: none before half of the limit is free."""
        if not self.chunks and consumer.limit - consumer.held < (consumer.limit + 1) // 2:
            return 0
        room = max(0, min(consumer.room, READ_ROWS_MAX))
        return READ_ROWS_MAX if self.chunks and room else room

    def _ask(self, consumer: ReadingConsumer, now_ms: int) -> None:
        self._asked_ms = now_ms
        request = Read(self._lease, self.next, self.end, max(1, self._room(consumer)))
        self._queue.lease(request, lambda answer, records: self._came(now_ms, answer, records), now_ms)

    def _came(self, asked_ms: int, answer: LeaseAnswer, records: bytes) -> None:
        if self._asked_ms != asked_ms:
            return
        self._asked_ms = None
        meant = answer.start == self.next and (self.next < answer.end <= self.end or self.next >= self.end)
        if not answer.code and not meant:
            answer = LeaseAnswer(503, "the owner of the queue has answered what was not asked")
        if answer.code:
            self._refused(answer)
            return
        if self._then is not None:
            then, self._then = self._then, None
            then("")
        if self.consumer is None:
            return  # it is not wanted any more
        if records:
            count = verify_records(records, self.ring.queue_id, EPOCH_MAX) if self.chunks else 0
            self._deliver(answer.start, count, records, asked_ms)
        self.next = answer.end
        self.ring.mark()

    def _refused(self, answer: LeaseAnswer) -> None:
        refusal = (not_found if answer.code in (404, 503) else precondition_failed)(answer.reason)
        self._asked_ms = None
        if self._then is None:
            self._finish(refusal)
        else:
            then, self._then, self.consumer = self._then, None, None
            then(refusal)
