"""Deliveries of a queue to receivers' links: the model of `broker.fronts.amqp10.delivery`."""

from __future__ import annotations

import struct
from typing import Any, Final

from clusterbroker.broker.content.sections import Parts
from clusterbroker.broker.wire.amqp10.performatives import Header, Transfer, composed
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, decode_all, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.model.codec import OutBuffer
from tests.model.codec10 import Disposed
from tests.model.ledger import DeliveryLedger, Entry, Holder
from tests.model.record import Message
from tests.model.ring_cluster import Ring

IDS: Final = 1 << 32
FRAME_HEAD: Final = 8
TRANSFER_MAX: Final = 64
"""Bytes that a frame keeps for its performative."""


class SessionLedger(DeliveryLedger):
    """A session's unsettled outgoing deliveries by tag, and where they go. Delivery n has tag n, and the id n - 1,
    modulo 2^32, on the wire.

    window             transfer frames that the peer still takes
    next_outgoing_id   of the next transfer frame (2.5.6)
    own                deliveries that came from no queue, among `skipped`
    is_cut             deliveries wait for the window to go on; none begins before they have ended
    """

    def __init__(self, channel: int, out: OutBuffer) -> None:
        super().__init__()
        self.channel = channel
        self.out = out
        self.window = 0
        self.next_outgoing_id = 0
        self.own = 0
        self._waiting: list[tuple[int, bytes, int, bool, bool, bytes, bytes | None]] = []

    @property
    def is_cut(self) -> bool:
        return bool(self._waiting)

    def _tags_of(self, first_id: int, last_id: int) -> list[int]:
        """Outstanding ones of these ids; ids wrap (RFC 1982)."""
        newest = self.next_tag - 1

        def tag_of(delivery_id: int) -> int:
            ahead = (delivery_id - (newest - 1)) % IDS
            tag = newest + (ahead if ahead < IDS // 2 else ahead - IDS)
            return max(0, tag)

        first, last = tag_of(first_id), tag_of(last_id)
        return [tag for tag in self._entries if first <= tag <= last]

    def settle(self, event: Disposed) -> int:
        """Those of the event's ids that are unsettled are accepted; how many. Others mean nothing (2.6.12)."""
        before = self.unacked
        for first, last in event.ranges:
            for tag in self._tags_of(first, last):
                _, consumer, seq = self._collect(tag)
                consumer.ring.settle(seq)
                consumer.ring.acked += 1
                consumer.ring.mark()
        return before - self.unacked

    def take(self, first_id: int, last_id: int) -> list[Entry]:
        """Takes those of these ids that are unsettled out without settling them, in the order of their tags."""
        return [self._collect(tag) for tag in self._tags_of(first_id, last_id)]

    def send(self, handle: int, content: bytes) -> None:
        """A delivery that comes from no queue, settled."""
        tag = self.next_tag
        self.next_tag += 1
        self.skipped += 1
        self.own += 1
        self.put(handle, content, tag, True, ((tag - 1) % IDS).to_bytes(4, "big"))

    def resend(
        self, consumer: LinkConsumer, seq: int, content: bytes, state: bytes | None, settled: bool, now_ms: int
    ) -> None:
        """A delivery of before, under its tag: resumed with `state` (none: new), or `settled` with it."""
        if settled:
            tag = self.skip()
            self.own += 1
        else:
            tag = self.add(consumer, seq, now_ms)
            self.redelivered += 1
        consumer.delivered += 1
        self.put(consumer.handle, content, tag, settled, consumer.tag_of(seq), state)

    def interrupt(self, handle: int) -> None:
        """The link is detached: what waits of its deliveries is not sent."""
        self._waiting = [one for one in self._waiting if one[0] != handle]
        self.go_on()

    def put(
        self, handle: int, content: bytes, tag: int, settled: bool, name: bytes, state: bytes | None = None
    ) -> None:
        """Frames of a delivery, as far as the window reaches; the rest waits, behind what waits already. `name`: its
        delivery-tag."""
        self._waiting.append((handle, content, tag, settled, True, name, state))
        self.go_on()

    def go_on(self) -> None:
        """What waits goes on, as far as the window reaches."""
        most = self.out.frame_max - FRAME_HEAD - TRANSFER_MAX
        while self._waiting and self.window:
            handle, content, tag, settled, first, name, state = self._waiting.pop(0)
            part, content = content[:most], content[most:]
            delivery_id = (tag - 1) % IDS
            transfer = Transfer(handle=handle, more=bool(content))
            if first:
                transfer.delivery_id, transfer.settled, transfer.message_format = delivery_id, settled, 0
                transfer.delivery_tag = name
                if state is not None:
                    transfer.state, transfer.resume = composed(decode_all(state)), True
            body = transfer.encoded() + part
            self.out.raw(struct.pack(">IBBH", FRAME_HEAD + len(body), 2, 0, self.channel) + body)
            self.window -= 1
            self.next_outgoing_id += 1
            if content:
                self._waiting.insert(0, (handle, content, tag, settled, False, name, state))


class LinkConsumer(Holder):
    """A receiver's link as `dispatch` sees it.

    settled    deliveries are sent settled: they need no disposition
    gap        of the queue's messages, in tags: their seq and this
    numbered   a symbol on the wire: each delivery has an annotation of this name with its seq plus `shift`; empty: none
    """

    def __init__(
        self, ring: Ring, ledger: SessionLedger, handle: int, settled: bool, priority: int = 0, owner: Any = None
    ) -> None:
        super().__init__(ring, ledger, priority, owner)
        self.session = ledger
        self.handle = handle
        self.settled = settled
        self.gap = 0
        self.limit = 0
        self.numbered = b""
        self.shift = 0

    def move(self, ledger: SessionLedger, handle: int, settled: bool) -> None:
        """The link goes on in another session, or waits in none; what it holds was taken out of its ledger."""
        assert not self.unacked, "a link that moves leaves nothing in its ledger"
        self.session = self.ledger = ledger
        self.handle, self.settled = handle, settled

    def tag_of(self, seq: int) -> bytes:
        """The delivery-tag of a message of the queue."""
        return seq.to_bytes(8, "big") + self.gap.to_bytes(2, "big")

    @property
    def writable(self) -> bool:
        session = self.session
        return session.flowing and session.window > 0 and not session.is_cut and session.out.writable

    @property
    def room(self) -> int:
        return 0 if self.session.is_cut else min(super().room, self.session.window)

    @property
    def shared(self) -> bool:
        return self.session.window < self.limit - min(self.delivered, self.limit)

    @property
    def has_credit(self) -> bool:
        return self.active and self.writable and self.delivered < self.limit

    @property
    def flows(self) -> bool:
        return self.active and self.session.flowing

    def hand(self, seq: int, message: Message, redelivered: bool, delivery_count: int, now_ms: int) -> bool:
        session = self.session
        tag = session.skip() if self.settled else session.add(self, seq, now_ms)
        if not self.settled and session.took is not None:
            session.took(session, tag, message)
        self._write(message, tag, seq, redelivered, delivery_count, now_ms)
        session.redelivered += redelivered
        return self.settled

    def deliver(self, seq: int, message: Message, now_ms: int) -> None:
        """A message of a reader that stands in a queue's place."""
        self._write(message, self.session.add(self, seq, now_ms), seq, False, 0, now_ms)
        self.delivered += 1

    def _write(self, message: Message, tag: int, seq: int, redelivered: bool, delivery_count: int, now_ms: int) -> None:
        content = self._content(message, seq, redelivered, delivery_count, now_ms)
        self.session.put(self.handle, content, tag, self.settled, self.tag_of(seq))

    def content(self, seq: int, message: Message, delivery_count: int, now_ms: int) -> bytes:
        """The sections of a message that was handed out before, as they are written now."""
        return self._content(message, seq, True, delivery_count, now_ms)

    def _content(self, message: Message, seq: int, redelivered: bool, delivery_count: int, now_ms: int) -> bytes:
        parts = Parts(message.header)
        left = None
        if message.ttl_ms >= 0:
            left = max(0, min(message.ttl_ms - max(0, now_ms - message.time_ms), IDS - 1))
        header = Header(
            durable=message.persistent, priority=message.priority, ttl=left, first_acquirer=not redelivered,
            delivery_count=delivery_count,
        )  # fmt: skip
        length = message.address[0]
        annotations = {
            **(parts.annotations or {}),
            Symbol("x-exchange"): message.address[1 : 1 + length].decode(),
            Symbol("x-routing-key"): message.address[2 + length :].decode(),
        }
        if self.numbered:
            annotations[Symbol(self.numbered[2:].decode())] = UInt64(seq + self.shift)
        parts.header, parts.annotations = None, None
        return header.encoded() + encode(Described(UInt64(0x72), annotations)) + parts.encoded() + message.body
