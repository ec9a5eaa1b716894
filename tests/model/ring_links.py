"""Messages that a link holds over its connections: what the specification of the ring says of them.

A recoverable link of AMQP 1.0 (its receiver at a client, the queue its source) outlives its connection, its client's
node and the queue's owner, and so does what it holds. Such a message is UNACKED at the holder LINK, who is no node, and
the ring knows which link it is.

*In the log.* The attribute LINK_PREFIX + link + bucket has bit i while the link holds seq LINK_BITS * bucket + i. It is
written with the group in which that changes: a hand-out presses, for it may be sent only when that group is committed
(`groups_committed`); what a settlement changes follows the SET. So a bit whose message is gone means nothing.
A message that nobody may be shown yet, as it is not committed or not reserved, may be assigned to a link all the same:
the group that says so has what it lacks.

*At a node.* An attached link has a place: the node where its client is. Settlements of that node count for it.

*What returns* must not be handed to anybody else before the log knows that the link has it no more: `release_link` and
`take_linked` leave it UNACKED at nobody, and who calls returns it when their group is committed. Until then
(`links_wait`) links are handed nothing: what is newer would come before it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clusterbroker.broker.queues.states import LINK, READY, UNACKED
from clusterbroker.journal.layout import ENQ_OVERHEAD_BYTES, HAS_BCC, Location
from tests.model.record import Message, RecordBuffer, read_records
from tests.model.ring_leases import LeasedRing
from tests.model.ring_local import LINK_BITS, LINK_PREFIX, _Slot

HELD_MAX: Final = 65_536
"""Messages of one queue that links hold."""
ROWS_MAX: Final = 65_534
"""Links of one ring."""
_NAME: Final = struct.Struct(">cQQ")


class LinkedRing(LeasedRing):
    """A queue's messages; see `ring`."""

    __slots__ = ()

    def attach_link(self, link: int, place: int) -> None:
        """The link is at that node from now on; 0: at none."""
        if not link:
            raise ValueError("links have numbers above 0")
        if place:
            self._link_places[link] = place
        else:
            self._link_places.pop(link, None)

    def link_place(self, link: int) -> int:
        return self._link_places.get(link, 0)

    def links(self) -> dict[int, int]:
        """Link -> how many messages it holds, of those that hold some."""
        held: dict[int, int] = {}
        for slot in self._slots.values():
            if slot.link:
                held[slot.link] = held.get(slot.link, 0) + 1
        return held

    def _hold_for_link(self, seq: int, link: int) -> None:
        slot = self._slots[seq]
        self._let_go(slot)
        slot.holder, slot.link = LINK, link
        self._held[LINK] = self._held.get(LINK, 0) + 1
        self._touch_bucket(link, seq)

    def assign(self, seq: int, link: int) -> None:
        """Handed out to a link: the next group says so, and that it may have been seen."""
        self._hold_for_link(seq, link)
        self._link_presses = True
        if self.logged and seq > self.reserved:
            self._reserve_past(seq)
        self.mark()

    def restore_links(self) -> int:
        """What the log says that links hold is at them again; returns how many messages that are. What else it says of
        their buckets is corrected with the next group."""
        count = 0
        for name, bits in list(self.attributes.items()) if self._state is not None else []:
            if len(name) != _NAME.size or name[:1] != LINK_PREFIX:
                continue
            _, link, bucket = _NAME.unpack(name)
            for i in range(LINK_BITS):
                slot = self._slots.get(bucket * LINK_BITS + i)
                if bits >> i & 1 and slot is not None and slot.state == READY:
                    slot.state = UNACKED
                    self.ready -= 1
                    self.ready_bytes -= slot.body_length
                    self.unacked += 1
                    self._hold_for_link(bucket * LINK_BITS + i, link)
                    count += 1
            self._touch_bucket(link, bucket * LINK_BITS)
        return count

    def _of_link(self, link: int, first: int = 0) -> list[tuple[int, _Slot]]:
        return [(seq, slot) for seq, slot in sorted(self._slots.items()) if slot.link == link and seq >= first]

    def held_by_link(self, link: int, first: int, count_max: int, last: int = 2**64 - 1) -> list[tuple[int, int, bool]]:
        """(seq, delivery count, redelivered) of what the link holds from `first` to `last`, `count_max` of them."""
        held = [(seq, slot.delivery_count, slot.redelivered) for seq, slot in self._of_link(link, first) if seq <= last]
        return held[:count_max]

    def _unlink(self, seqs: Sequence[int]) -> list[int]:
        for seq in seqs:
            self._let_go(self._slots[seq])
        if seqs:
            self._link_presses = True
            self.mark()
        return list(seqs)

    def release_link(self, link: int, first: int, last: int) -> list[int]:
        """The link holds none of first to last any more; they stay unacknowledged, at nobody, until who calls returns
        them (`requeue`) when the group that says so is committed. Returns their seqs."""
        return self._unlink([seq for seq, _ in self._of_link(link, first) if seq <= last])

    def take_linked(self, first: int, last: int, holder: int) -> list[int]:
        """As `release_link`, of all links that are attached at that node."""
        return self._unlink(
            [
                seq for seq, slot in sorted(self._slots.items())
                if slot.link and first <= seq <= last and self.link_place(slot.link) == holder
            ]
        )  # fmt: skip

    def read_held(
        self, link: int, seqs: Sequence[int], bytes_max: int, found: Mapping[int, Message]
    ) -> tuple[bytes, int, list[Location]]:
        """ENQ records of those seqs that the link holds, as a consumer may see them, out of memory or `found`: about
        `bytes_max` bytes, at least one; and how many of the seqs that covers. Instead of these the places of those that
        must be read from the disk before, if there are such."""
        buffer = RecordBuffer()
        absent: list[Location] = []
        count = size = 0
        if link not in self._link_places and link not in self.links():
            return b"", len(seqs), absent
        for seq in seqs:
            slot = self._slots.get(seq)
            if slot is None or slot.link != link:
                count += 1
                continue
            message = slot.message or found.get(seq)
            if size and size + slot.length > bytes_max:
                break
            if message is None:
                size += slot.length
                absent.append((seq, slot.segment, slot.offset, slot.length))
            elif not absent:
                size += ENQ_OVERHEAD_BYTES + len(message.address) + len(message.payload) + 7 & ~7
                again = slot.redelivered and self.annotates_redelivered
                if self.annotate is not None and (message.flags & HAS_BCC or self.annotates_all or again):
                    message = self.annotate(message, seq, slot.delivery_count, None, slot.redelivered)
                buffer.enqueue(self.queue_id, self.epoch, seq, message, slot.delivery_count, slot.redelivered)
            count += 1
        if absent:
            return b"", 0, absent
        return buffer.take(), count, []

    def deliver_held(self, taker: Any, data: bytes | bytearray | memoryview, now_ms: int) -> tuple[int, int]:
        """Hands records of messages that links hold to a consumer of this node, which takes output; those that
        have left are passed over. Returns how many it was handed, and how many there were."""
        assert taker.flows, "a consumer is handed what it was asked whether it takes"
        records = read_records(data)
        count = 0
        for seq, message, delivery_count, redelivered in records:
            slot = self._slots.get(seq)
            if slot is None or slot.holder != LINK:
                continue
            if taker.hand(seq, message, redelivered, delivery_count, now_ms):
                self.settle(seq)
            taker.delivered += 1
            count += 1
        return count, len(records)
