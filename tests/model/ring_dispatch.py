"""The hand-out of a ring's messages, and consumers at other nodes: as `ring` explains it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterbroker.broker.queues.states import (
    HEAD_NONE,
    HEAD_NOT_COMMITTED,
    HEAD_NOT_RESERVED,
    HEAD_OK,
    HOLDER_MAX,
    LIMIT,
    LINK,
    NO_CREDIT,
)
from clusterbroker.journal.layout import HAS_BCC
from tests.model.record import Message, RecordBuffer
from tests.model.ring_cluster import Ring
from tests.model.ring_links import HELD_MAX
from tests.model.ring_taker import Taker


class RemoteConsumer(Taker):
    """A node that takes messages for one of its consumers, as `dispatch` sees it at the queue's owner.

    holder     the node's number, 1 to 253: the ring remembers who has what
    link       who has it instead, over connections and owners (`ring_links`), while that is at this node; 0: nobody
    no_ack     its node will acknowledge for it
    limit      0 until its node grants some
    out        ENQ records as the consumer shall see them; full at its `size_max`
    unacked    raised with each delivery, corrected by who hears from the node
    """

    __slots__ = ("holder", "link", "no_ack", "out", "unacked")

    def __init__(self, ring: Ring, holder: int, priority: int = 0, owner: Any = None, link: int = 0) -> None:
        if not 1 <= holder <= HOLDER_MAX:
            raise ValueError("holders are 1 to 253")
        if link:
            ring.attach_link(link, holder)
        super().__init__(ring, priority, owner)
        self.holder = holder
        self.link = link
        self.no_ack = False
        self.limit = 0
        self.unacked = 0
        self.out = RecordBuffer()

    @property
    def has_credit(self) -> bool:
        flows = self.active and self.delivered < self.limit and self.out.size < self.out.size_max
        ring = self.ring
        if self.link and (
            ring.links_wait or ring.link_place(self.link) != self.holder or ring.held_by(LINK) >= HELD_MAX
        ):
            return False
        return flows

    def hand(self, seq: int, message: Message, redelivered: bool, delivery_count: int, now_ms: int) -> bool:
        ring = self.ring
        self.out.enqueue(ring.queue_id, ring.epoch, seq, message, delivery_count, redelivered)
        if self.link:
            ring.assign(seq, self.link)
        else:
            ring.give(seq, self.holder)
        self.unacked += 1
        ring.handed_no_ack += self.no_ack
        ring.auto_acks += self.no_ack
        return False


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
        if head != HEAD_OK and not waits_for_group(consumer, head):
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
        if consumer.hand(seq, message, redelivered, delivery_count, now_ms):
            ring.handed_no_ack += 1
            ring.settle(seq)
        consumer.delivered += 1
        count += 1


def waits_for_group(consumer: Taker, head: int) -> bool:
    """Whether it may be assigned what nobody may be shown before the next group is committed: it is sent after that."""
    if consumer.ring.paused or consumer.ring.replica:
        return False
    return (
        head in (HEAD_NOT_COMMITTED, HEAD_NOT_RESERVED) and isinstance(consumer, RemoteConsumer) and consumer.link > 0
    )


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
