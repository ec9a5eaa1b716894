"""Deliveries of a queue to consumers of a channel: the model of `broker.fronts.amqp091.delivery`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clusterbroker.broker.queues.stumble import Unfit
from tests.model.codec import OutBuffer, numbered
from tests.model.ledger import DeliveryLedger, Holder
from tests.model.record import Message
from tests.model.ring_cluster import Ring


class BasicConsumer(Holder):
    """A consumer as `dispatch` sees it: where its messages go and how many more it may hold.

    tag       consumer tag as a short string on the wire (length octet, bytes)
    prefetch  0 = unlimited; ignored when no_ack
    numbered  a header's name as a short string on the wire: each delivery has its seq there, plus `shift`; empty: none
    """

    ledger: Ledger
    __slots__ = ("no_ack", "numbered", "prefetch", "shift", "tag")

    def __init__(
        self,
        ring: Ring,
        ledger: Ledger,
        tag: bytes,
        no_ack: bool,
        prefetch: int,
        priority: int = 0,
        owner: Any = None,
    ) -> None:
        super().__init__(ring, ledger, priority, owner)
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.numbered = b""
        self.shift = 0

    @property
    def has_credit(self) -> bool:
        ledger = self.ledger
        if not self.active or not self.writable or self.delivered >= self.limit:
            return False
        if self.no_ack:
            return True
        return (not self.prefetch or self.unacked < self.prefetch) and (
            not ledger.prefetch or ledger.unacked < ledger.prefetch
        )

    @property
    def room(self) -> int:
        room, ledger = super().room, self.ledger
        if self.no_ack:
            return room
        own = max(0, self.prefetch - self.unacked) if self.prefetch else room
        return min(room, own, max(0, ledger.prefetch - ledger.unacked) if ledger.prefetch else room)

    @property
    def writable(self) -> bool:
        return self.ledger.flowing and self.ledger.out.writable

    @property
    def shared(self) -> bool:
        return bool(self.ledger.prefetch)

    @property
    def flows(self) -> bool:
        return self.active and self.ledger.flowing

    def hand(self, seq: int, message: Message, redelivered: bool, delivery_count: int, now_ms: int) -> bool:
        ledger = self.ledger
        shown = numbered(message, self.numbered, seq + self.shift) if self.numbered else message
        if not ledger.out.fits(shown):
            self.active = False
            raise Unfit(seq, self.owner, f"message {seq}: {too_large(ledger.out, shown)}")
        tag = ledger.skip() if self.no_ack else ledger.add(self, seq, now_ms)
        if not self.no_ack and ledger.took is not None:
            ledger.took(ledger, tag, message)
        ledger.out.deliver(ledger.number, self.tag, tag, redelivered, shown)
        ledger.redelivered += redelivered
        return self.no_ack


def too_large(out: OutBuffer, message: Message) -> str:
    """Why a client's frames cannot carry this message."""
    return f"its content header has {message.header_length} bytes, and the connection's frame_max is {out.frame_max}"


class Ledger(DeliveryLedger):
    """A channel's unacknowledged deliveries by tag, and where they go."""

    __slots__ = ("number", "out")

    def __init__(self, number: int, out: OutBuffer) -> None:
        super().__init__()
        self.number = number
        self.out = out

    def ack(self, acks: Iterable[int]) -> int:
        """Settles the deliveries named by `acks` (tag * 2 + multiple). Returns 0, or the unknown tag + 1."""
        for ack in acks:
            tags = self._tags(ack >> 1, bool(ack & 1))
            if tags is None:
                return (ack >> 1) + 1
            for tag in tags:
                consumer, seq, _ = self._entries.pop(tag)
                self.unacked -= 1
                consumer.unacked -= 1
                consumer.ring.settle(seq)
                consumer.ring.acked += 1
                consumer.ring.mark()
        return 0
