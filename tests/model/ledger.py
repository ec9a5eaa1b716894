"""A channel's unacknowledged deliveries, consumers here and elsewhere, and the hand-out to them: the specification,
as `ring` explains it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from clusterbroker.broker.queues.states import HEAD_NONE, HEAD_NOT_COMMITTED, HEAD_OK, HOLDER_MAX, LIMIT, NO_CREDIT
from clusterbroker.journal.layout import HAS_BCC
from tests.model.codec import OutBuffer, numbered
from tests.model.record import Message, RecordBuffer
from tests.model.ring_cluster import Ring


class Consumer:
    """A consumer as `dispatch` sees it: where its messages go and how many more it may hold.

    tag       consumer tag as a short string on the wire (length octet, bytes)
    prefetch  0 = unlimited; ignored when no_ack
    active    False while it must get nothing (cancelled, or waiting as a single active consumer)
    numbered  a header's name as a short string on the wire: each delivery has its seq there, plus `shift`; empty: none
    """

    __slots__ = (
        "active",
        "delivered",
        "ledger",
        "no_ack",
        "numbered",
        "owner",
        "prefetch",
        "priority",
        "ring",
        "shift",
        "tag",
        "unacked",
    )

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
        self.ring = ring
        self.ledger = ledger
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.priority = priority
        self.owner = owner
        self.active = True
        self.unacked = 0
        self.delivered = 0
        self.numbered = b""
        self.shift = 0

    def shown(self, seq: int, message: Message) -> Message:
        """As this consumer sees it."""
        return numbered(message, self.numbered, seq + self.shift) if self.numbered else message

    @property
    def has_credit(self) -> bool:
        ledger = self.ledger
        if not self.active or not ledger.flowing or not ledger.out.writable:
            return False
        if self.no_ack:
            return True
        return (not self.prefetch or self.unacked < self.prefetch) and (
            not ledger.prefetch or ledger.unacked < ledger.prefetch
        )

    def hand(self, seq: int, message: Message, redelivered: bool, _delivery_count: int, now_ms: int) -> None:
        ledger = self.ledger
        tag = ledger.skip() if self.no_ack else ledger.add(self, seq, now_ms)
        ledger.out.deliver(ledger.number, self.tag, tag, redelivered, self.shown(seq, message))
        self.delivered += 1
        ledger.redelivered += redelivered
        if self.no_ack:
            self.ring.handed_no_ack += 1
            self.ring.settle(seq)


class RemoteConsumer:
    """A node that takes messages for one of its consumers, as `dispatch` sees it at the queue's owner.

    holder     the node's number, 1 to 254: the ring remembers who has what
    no_ack     its node will acknowledge for it
    limit      `delivered` may rise to it
    out        ENQ records as the consumer shall see them; full at its `size_max`
    unacked    raised with each delivery, corrected by who hears from the node
    """

    __slots__ = ("active", "delivered", "holder", "limit", "no_ack", "out", "owner", "priority", "ring", "unacked")

    def __init__(self, ring: Ring, holder: int, priority: int = 0, owner: Any = None) -> None:
        if not 1 <= holder <= HOLDER_MAX:
            raise ValueError("holders are 1 to 254")
        self.ring = ring
        self.holder = holder
        self.priority = priority
        self.owner = owner
        self.active = True
        self.no_ack = False
        self.limit = 0
        self.delivered = 0
        self.unacked = 0
        self.out = RecordBuffer()

    @property
    def has_credit(self) -> bool:
        return self.active and self.delivered < self.limit and self.out.size < self.out.size_max

    def hand(self, seq: int, message: Message, redelivered: bool, delivery_count: int, _now_ms: int) -> None:
        ring = self.ring
        self.out.enqueue(ring.queue_id, ring.epoch, seq, message, delivery_count, redelivered)
        ring.give(seq, self.holder)
        self.delivered += 1
        self.unacked += 1
        ring.handed_no_ack += self.no_ack
        ring.auto_acks += self.no_ack


Taker = Consumer | RemoteConsumer
Entry = tuple[int, Consumer, int]  # delivery tag, consumer, seq


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
        self._entries: OrderedDict[int, tuple[Consumer, int, int]] = OrderedDict()

    def add(self, consumer: Consumer, seq: int, now_ms: int) -> int:
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

    def drain_of(self, consumer: Consumer) -> list[Entry]:
        """Takes all deliveries of one consumer out, in tag order."""
        tags = [tag for tag, (holder, _, _) in self._entries.items() if holder is consumer]
        return [self._collect(tag) for tag in tags]

    def held(self) -> list[tuple[int, Consumer]]:
        """(delivery time in ms of its oldest delivery, consumer) of each that holds one, oldest first."""
        found: dict[int, tuple[int, Consumer]] = {}
        for consumer, _, at_ms in self._entries.values():
            found.setdefault(id(consumer), (at_ms, consumer))
        return list(found.values())

    def oldest(self) -> tuple[int, Consumer, int] | None:
        """(delivery time in ms, consumer, tag) of the oldest unacknowledged delivery."""
        for tag, (consumer, _, at_ms) in self._entries.items():
            return at_ms, consumer, tag
        return None


def dispatch(ring: Ring, consumers: Sequence[Taker], now_ms: int, limit: int = 1 << 30) -> tuple[int, int]:
    """Hands ready messages to consumers with credit (`consumers`: highest priority first).

    Returns (how many, why it stopped): HEAD_NONE, HEAD_NOT_LOADED, HEAD_NOT_RESERVED, HEAD_NOT_COMMITTED,
    HEAD_EXPIRED, NO_CREDIT or LIMIT. Who waits for a commit asks for the reservation, so that both come together.
    """
    count, why = _hand_out(ring, consumers, now_ms, limit)
    ring.handed += count
    return count, why


def _hand_out(ring: Ring, consumers: Sequence[Taker], now_ms: int, limit: int) -> tuple[int, int]:
    count = 0
    while True:
        if count >= limit:
            return count, LIMIT
        consumer, turn = _choose(ring, consumers)
        if consumer is None:
            return count, NO_CREDIT if ring.ready else HEAD_NONE
        head = ring.head(now_ms)
        if head != HEAD_OK:
            if head == HEAD_NOT_COMMITTED and not ring.paused and not ring.replica:
                ring.reserve()
            return count, head
        ring.turn = turn  # only now: who was chosen in vain stays next
        seq, message, redelivered, delivery_count = ring.take()
        looked_at = ring.annotates_all or message.flags & HAS_BCC or (redelivered and ring.annotates_redelivered)
        if ring.annotate is not None and looked_at:
            try:
                message = ring.annotate(message, seq, delivery_count, consumer, redelivered)
            except BaseException:
                ring.requeue(seq, False)  # it returns to its place before the queue hears of that
                raise
        consumer.hand(seq, message, redelivered, delivery_count, now_ms)
        count += 1


def _choose(ring: Ring, consumers: Sequence[Taker]) -> tuple[Taker | None, int]:
    """The next consumer with credit, and the `turn` after it."""
    start = 0
    while start < len(consumers):
        end = start
        while end < len(consumers) and consumers[end].priority == consumers[start].priority:
            end += 1
        width = end - start
        for step in range(width):
            place = (ring.turn + step) % width
            if consumers[start + place].has_credit:
                return consumers[start + place], place + 1
        start = end
    return None, ring.turn
