"""Messages that a reader has by a lease: what the specification of the ring says of them (`broker.queues.leasing`).

They are UNACKED, at the holder LEASED, who is no node. So they are neither ready nor expire, limits pass over them,
`settle_held` and `requeue_held` end it, and an owner that loses its queue has them READY again, as all its messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterbroker.broker.queues.states import LEASED, READY, UNACKED
from clusterbroker.journal.layout import ENQ_OVERHEAD_BYTES, HAS_BCC, Location
from tests.model.record import Message, RecordBuffer
from tests.model.ring_local import LocalRing


class LeasedRing(LocalRing):
    """A queue's messages; see `ring`."""

    __slots__ = ()

    def lease(self, first: int, end: int, count_max: int, bytes_max: int, least: int = 0) -> tuple[int, int, int]:
        """Leases what is ready of first to end - 1, in the order of the seqs, until it is `count_max` messages or
        `bytes_max` bytes of bodies, but `least` messages whatever they weigh; one that somebody else has ends it
        before. They may be shown from now on, so the right to hand them out is asked for.

        Returns the seq behind the last one (`first`: none was), how many, and bytes.
        """
        upto, count, size = first, 0, 0
        for seq in range(first, min(end, self.next_seq)):
            slot = self._slots.get(seq)
            if slot is None or slot.state not in (READY, UNACKED):
                continue
            if slot.state == UNACKED:
                break
            if count >= count_max or (count >= least and size + slot.body_length > bytes_max):
                break
            slot.state = UNACKED
            slot.holder = LEASED
            self._held[LEASED] = self._held.get(LEASED, 0) + 1
            self.ready -= 1
            self.ready_bytes -= slot.body_length
            self.unacked += 1
            upto, count, size = seq + 1, count + 1, size + slot.body_length
        if count and self.logged and self.reserved < upto - 1:
            self._reserve_past(upto - 1)
            self.mark()
        return upto, count, size

    def read_leased(
        self, first: int, end: int, count_max: int, bytes_max: int, found: Mapping[int, Message]
    ) -> tuple[bytes, int, list[Location]]:
        """ENQ records of what is leased of first to end - 1, as a consumer may see them, out of memory or `found`: at
        most `count_max`, and about `bytes_max` bytes, at least one; and the seq behind the last one (`end`: that was
        all). Instead of these the places of those that must be read from the disk before, if there are such."""
        buffer = RecordBuffer()
        absent: list[Location] = []
        count = size = 0
        for seq in range(first, min(end, self.next_seq)):
            slot = self._slots.get(seq)
            if slot is None or slot.holder != LEASED:
                continue
            message = slot.message or found.get(seq)
            if message is None:
                length = slot.length
            else:
                length = ENQ_OVERHEAD_BYTES + len(message.address) + len(message.payload)
            if count >= count_max or (count and size + length > bytes_max):
                end = seq
                break
            count, size = count + 1, size + length
            if message is None:
                absent.append((seq, slot.segment, slot.offset, slot.length))
            elif not absent:
                looked_at = message.flags & HAS_BCC or (slot.redelivered and self.annotates_redelivered)
                if self.annotate is not None and looked_at:
                    message = self.annotate(message, seq, slot.delivery_count, None, slot.redelivered)
                buffer.enqueue(self.queue_id, self.epoch, seq, message, slot.delivery_count, slot.redelivered)
        if absent:
            return b"", first, absent
        return buffer.take(), end, []
