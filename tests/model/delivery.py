"""Deliveries of a queue to consumers of a channel, and those that are not acknowledged: the model of
`broker.fronts.amqp091.delivery`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from tests.model.codec import OutBuffer, numbered
from tests.model.record import Message
from tests.model.ring_cluster import Ring
from tests.model.ring_taker import Taker


class BasicConsumer(Taker):
    """A consumer as `dispatch` sees it: where its messages go and how many more it may hold.

    tag       consumer tag as a short string on the wire (length octet, bytes)
    prefetch  0 = unlimited; ignored when no_ack
    numbered  a header's name as a short string on the wire: each delivery has its seq there, plus `shift`; empty: none
    """

    __slots__ = ("ledger", "no_ack", "numbered", "prefetch", "shift", "tag", "unacked")

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
        super().__init__(ring, priority, owner)
        self.ledger = ledger
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.unacked = 0
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
        tag = ledger.skip() if self.no_ack else ledger.add(self, seq, now_ms)
        shown = numbered(message, self.numbered, seq + self.shift) if self.numbered else message
        ledger.out.deliver(ledger.number, self.tag, tag, redelivered, shown)
        ledger.redelivered += redelivered
        return self.no_ack


Entry = tuple[int, BasicConsumer, int]  # delivery tag, consumer, seq


class Ledger:
    """A channel's unacknowledged deliveries by tag: 1, 2, 3 ...

    prefetch  basic.qos global: the limit of all the channel's consumers together, 0 = unlimited
    flowing   False while nothing may be delivered (channel closing)
    skipped, redelivered    totals: deliveries that need no acknowledgement, and those with the flag (not basic.get)
    """

    __slots__ = (
        "_entries", "flowing", "next_tag", "number", "out", "prefetch", "redelivered", "skipped", "unacked",
    )  # fmt: skip

    def __init__(self, number: int, out: OutBuffer) -> None:
        self.number = number
        self.out = out
        self.prefetch = 0
        self.flowing = True
        self.unacked = 0
        self.skipped = self.redelivered = 0
        self.next_tag = 1
        self._entries: OrderedDict[int, tuple[BasicConsumer, int, int]] = OrderedDict()

    def add(self, consumer: BasicConsumer, seq: int, now_ms: int) -> int:
        tag = self.next_tag
        self.next_tag += 1
        self._entries[tag] = (consumer, seq, now_ms)
        self.unacked += 1
        consumer.unacked += 1
        return tag

    def skip(self) -> int:
        """A delivery that needs no acknowledgement still takes a tag."""
        tag = self.next_tag
        self.next_tag += 1
        self.skipped += 1
        return tag

    def _tags(self, tag: int, multiple: bool) -> list[int] | None:
        """amqp-rules 5.5: `multiple` with tag 0 means all; a tag that is not outstanding is an error."""
        if multiple and tag == 0:
            return list(self._entries)
        if tag not in self._entries:
            return None
        if not multiple:
            return [tag]
        tags = []
        for known in self._entries:
            if known > tag:
                break
            tags.append(known)
        return tags

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

    def collect(self, tag: int, multiple: bool) -> list[Entry] | None:
        """Takes the deliveries out without settling them, in tag order; None when the tag is unknown."""
        tags = self._tags(tag, multiple)
        if tags is None:
            return None
        return [self._collect(known) for known in tags]

    def _collect(self, tag: int) -> Entry:
        consumer, seq, _ = self._entries.pop(tag)
        self.unacked -= 1
        consumer.unacked -= 1
        return tag, consumer, seq

    def restore(self, entries: Iterable[Entry], now_ms: int) -> None:
        """Puts collected deliveries back (a transaction was rolled back)."""
        for tag, consumer, seq in entries:
            assert tag < self.next_tag, "a delivery is put back under its own tag"
            assert tag not in self._entries, "a delivery is put back once"
            self._entries[tag] = (consumer, seq, now_ms)
            self.unacked += 1
            consumer.unacked += 1
        self._entries = OrderedDict(sorted(self._entries.items()))

    def drain(self) -> list[Entry]:
        """Takes all out, in tag order: the channel ends or recovers."""
        return [self._collect(tag) for tag in list(self._entries)]

    def drain_of(self, consumer: BasicConsumer) -> list[Entry]:
        """Takes all deliveries of one consumer out, in tag order."""
        tags = [tag for tag, (holder, _, _) in self._entries.items() if holder is consumer]
        return [self._collect(tag) for tag in tags]

    def held(self) -> list[tuple[int, BasicConsumer]]:
        """(delivery time in ms of its oldest delivery, consumer) of each that holds one, oldest first."""
        found: dict[int, tuple[int, BasicConsumer]] = {}
        for consumer, _, at_ms in self._entries.values():
            found.setdefault(id(consumer), (at_ms, consumer))
        return list(found.values())

    def oldest(self) -> tuple[int, BasicConsumer, int] | None:
        """(delivery time in ms, consumer, tag) of the oldest unacknowledged delivery."""
        for tag, (consumer, _, at_ms) in self._entries.items():
            return at_ms, consumer, tag
        return None
