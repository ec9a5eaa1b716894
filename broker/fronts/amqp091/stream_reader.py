"""One consumer of a stream, at its client's node.

It asks the stream's owner for records from where it stands, as many as its prefetch has room for, one question at a
time, and hands them to its channel. Its own ring is a proxy's (`broker.queues.ring`) that holds what the channel
has not acknowledged: an acknowledgement gives room and nothing else, and so do reject, nack and the end of the channel.
Where it stands is known here alone, so another owner goes on with the next message and no other.

    chunks   one delivery holds the records of up to CHUNK_COUNT messages, as the owner sent them
    else     each message is a delivery, with its offset as header
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from clusterbroker.broker.amqp.fields import FieldTable
from clusterbroker.broker.amqp.properties import Properties
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.fronts.amqp091.delivery import Ledger
from clusterbroker.broker.fronts.amqp091.subscription import Holder, Subscription
from clusterbroker.broker.queues.handle import CommitPart, QueueHandle
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.subscription import LocalConsumer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.streams.messages import READ, StreamTold
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings

if TYPE_CHECKING:
    from clusterbroker.broker.queues.watch import Watch
    from clusterbroker.broker.streams.streams import Streams

OFFSET: Final = b"\x0fx-stream-offset"
"""The header with a message's offset, as a short string on the wire."""
CHUNK_COUNT: Final = 4096
CHUNK_BYTES: Final = 1 << 20
DELIVERED_COUNT: Final = 512
"""Messages of one answer that become deliveries of their own."""
DELIVERED_BYTES: Final = 256 << 10
HELD_IN_NEED: Final = 1000
"""Messages that a channel holds while the node's memory is low, before its readers get more: what they hold takes
memory here, and a stream may be read by thousands of them, from its beginning, without a publisher whom the alarm
holds up."""


class ReaderClient(Holder, Protocol):
    """What a consumer of a stream asks of its client's session."""

    @property
    def ledger(self) -> Ledger:
        """Of its unacknowledged deliveries."""

    @property
    def prefetch(self) -> int:
        """Unacknowledged messages that a new consumer may hold; 0: no limit."""

    def failed(self, kind: Literal["not_found", "precondition_failed"], text: str) -> None:
        """The consumer cannot read to its end, and the client must not take that for the end."""


class Reader:
    """`next` is the offset that comes next; nothing from `end` on; `exact`: nothing is passed over for retention."""

    __slots__ = (
        "_client", "_face", "_streams", "_watch", "asking", "chunks", "deleted", "end", "exact", "life", "next",
        "number", "ring", "subscription",
    )  # fmt: skip

    def __init__(
        self, streams: Streams, face: QueueHandle, client: ReaderClient, tag: str, arguments: Mapping[str, Any]
    ) -> None:
        self._streams = streams
        self._face = face
        self._client = client
        self._watch: Watch | None = None
        self.asking = 0  # the request that is not answered yet; there is one at a time
        self.number = streams.next_reader()
        self.life = face.entity.gap_epoch
        self.deleted = False
        self.next = 0
        self.end = 2**61
        self.exact = self.chunks = False
        self.ring = Ring(face.entity.queue_id, agenda=streams.host.agenda, proxy=True)
        self.ring.owner = self
        self.subscription = Subscription(
            client, client.ledger, self, tag, no_ack=False, exclusive=False,
            prefetch=client.prefetch, priority=0, arguments=arguments,
        )  # fmt: skip
        self.subscription.credit.numbered = OFFSET
        self.subscription.credit.shift = -1

    @property
    def entity(self) -> QueueEntity:
        return self._face.entity

    @property
    def settings(self) -> QueueSettings:
        return self._face.settings

    @property
    def name(self) -> str:
        return self._face.name

    # -- the hand-out

    def turn(self, _: int) -> None:
        """Something was acknowledged, or there is room."""
        self.ring.marked = False
        settled = self.ring.take_settled()
        if settled:
            self.ring.forget(settled)
        self.pump()

    @property
    def _room(self) -> int:
        credit, ledger = self.subscription.credit, self._client.ledger
        if not credit.active or not ledger.flowing or not ledger.out.writable:
            return 0
        if ledger.unacked >= HELD_IN_NEED and self._streams.host.low_on_memory:
            return 0
        room = CHUNK_COUNT if not credit.prefetch else credit.prefetch - credit.unacked
        return min(room, ledger.prefetch - ledger.unacked) if ledger.prefetch else room

    def pump(self) -> None:
        """Asks for what comes next, if there is room for it."""
        if self.deleted or self.asking:
            return
        if self.next >= self.end:
            self._streams.close(self)
            self._client.cancelled(self.subscription)
            return
        room = self._room
        if room <= 0:
            return
        count = CHUNK_COUNT if self.chunks else min(room, DELIVERED_COUNT)
        size = CHUNK_BYTES if self.chunks else DELIVERED_BYTES
        self.asking = self._streams.ask(
            self._face, READ, self._told, reader=self.number, seq=self.next + 1, end=self.end + 1, count_max=count,
            bytes_max=size,
        )  # fmt: skip

    def _told(self, told: StreamTold, records: bytes | memoryview) -> None:
        self.asking = 0
        if self.deleted or not self.subscription.credit.active:
            return
        if self.exact and told.seq - 1 > self.next:
            self._streams.close(self)
            self._client.failed("precondition_failed", gone(self.next, self.entity, told.seq - 1))
            return
        if self.chunks and records:
            self._deliver_chunk(told, records)
        elif records:
            now_ms = self._streams.host.now_ms
            self.ring.receive(self.subscription.credit, records, now_ms)
        self.next = told.next - 1
        self.subscription.flush()
        self.pump()

    def _deliver_chunk(self, told: StreamTold, records: bytes | memoryview) -> None:
        credit, ledger, now_ms = self.subscription.credit, self._client.ledger, self._streams.host.now_ms
        headers: FieldTable = {"x-stream-offset": told.seq - 1, "x-stream-count": told.next - told.seq}
        made = new_message("", self.name, Properties(headers=headers, delivery_mode=2), bytes(records), now_ms)
        self.ring.hold(told.seq)
        ledger.out.deliver(ledger.number, credit.tag, ledger.add(credit, told.seq, now_ms), False, made)
        credit.delivered += 1

    # -- what its channel asks of a queue

    def unsubscribe(self, subscription: LocalConsumer, now_ms: int) -> None:
        """basic.cancel, or the end of the channel."""
        del subscription, now_ms
        self._streams.close(self)

    def limits_changed(self, subscription: LocalConsumer) -> None:
        """basic.qos"""
        del subscription
        self.ring.mark()

    def settle(self, seq: int, held: bool = False) -> None:
        """Nothing leaves a stream by it."""
        del held
        self.ring.settle(seq)
        self.ring.mark()

    def reject(self, seq: int) -> None:
        """As an acknowledgement."""
        self.settle(seq)

    def requeue(self, seq: int, counted: bool) -> None:
        """As an acknowledgement: it can be read again at any time."""
        del counted
        self.settle(seq)

    def preload(self, seqs: Sequence[int], then: Callable[[], None]) -> None:
        """Nothing dies here."""
        del seqs
        then()

    def commit(self, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
        """What a transaction has acknowledged."""
        del ticket, now_ms
        for seq, _ in part.settles:
            self.settle(seq)

    def watch(self, watch: Watch | None) -> None:
        """What is read of a stream is not shown to the firehose."""
        self._watch = watch

    # -- what its node tells

    def changed(self) -> bool:
        """The stream has another owner or life; whether the reader can go on."""
        return self.life == self._face.entity.gap_epoch

    def ended(self) -> None:
        """The stream is gone, or another one by now: its offsets mean other messages."""
        if self.subscription.reads_to_an_end:
            where = f"stream '{self.name}' in vhost '{self.entity.vhost}'"
            self._client.failed(
                "not_found", f"{where} is gone, or has lost messages, before offset {self.end} was reached"
            )
        else:
            self._client.cancelled(self.subscription)


def gone(offset: int, stream: QueueEntity, first: int) -> str:
    """The text for an offset that retention has left behind."""
    return f"offset {offset} of stream '{stream.name}' in vhost '{stream.vhost}' is gone, the first is {first}"
