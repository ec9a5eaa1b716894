# Part of ring.pyx: messages that a reader has by a lease; tests/model/ring_leases.py is the specification.

cdef class LeasedRing(ChangedRing):
    """A queue's messages."""

    def lease(self, uint64_t first, uint64_t end, uint64_t count_max, uint64_t bytes_max,
              uint64_t least=0) -> tuple:
        """Leases what is ready of first to end - 1, until it is enough."""
        cdef uint64_t seq = first, upto = first, count = 0, size = 0, stop
        cdef block *place
        cdef slot *s
        cdef uint8_t state
        cdef bint full = False
        end = min(end, self.next_seq)
        while seq < end and not full:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                s = &place.slots[seq & 255]
                state = s.bits & STATE
                if state == UNACKED or (
                    state == READY and (count >= count_max or (count >= least and size + body_bytes(s) > bytes_max))
                ):
                    full = True
                    break
                if state == READY:
                    set_state(s, UNACKED)
                    self.set_holder(seq, LEASED)
                    if not in_memory(s):
                        self.absent -= 1
                    self.ready -= 1
                    self.ready_bytes -= body_bytes(s)
                    self.unacked += 1
                    upto = seq + 1
                    count += 1
                    size += body_bytes(s)
                seq += 1
        if count and self.logged() and self.reserved < upto - 1:
            self.reserve_past(upto - 1)
            self.set_mark()
        return upto, count, size

    def read_leased(self, uint64_t first, uint64_t end, uint64_t count_max, uint64_t bytes_max,
                    dict found not None) -> tuple:
        """ENQ records of what is leased of first to end - 1, or what has to be read before."""
        cdef RecordBuffer buffer = RecordBuffer()
        cdef list absent = []
        cdef uint64_t seq = first, last = min(end, self.next_seq), stop, count = 0, size = 0, length
        cdef block *place
        cdef slot *s
        cdef Message message
        cdef bint redelivered
        while seq < last:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, last)
                continue
            stop = min((seq | 255) + 1, last)
            while seq < stop:
                if place.holders == NULL or place.holders[seq & 255] != LEASED:
                    seq += 1
                    continue
                s = &place.slots[seq & 255]
                message = None
                if in_memory(s):
                    message = <Message><PyObject *>s.message
                elif found:
                    message = found.get(seq)
                if message is None:
                    length = s.length
                else:
                    length = ENQ_OVERHEAD_BYTES + address_size(message) + payload_size(message)
                if count >= count_max or (count and size + length > bytes_max):
                    last = end = seq
                    break
                count += 1
                size += length
                if message is None:
                    absent.append((seq, s.segment, s.offset, s.length))
                elif not absent:
                    redelivered = s.bits & REDELIVERED != 0
                    if self.annotate is not None and (
                        message.flags & HAS_BCC or (redelivered and self.annotates_redelivered)
                    ):
                        answer = self.annotate(message, seq, s.delivery_count, None, redelivered)
                        if type(answer) is not Message:
                            raise TypeError(f"annotate returned {type(answer).__name__}, not a message")
                        message = <Message>answer
                        place = self.find_block(seq >> 8)
                        s = &place.slots[seq & 255]
                    buffer.put(self.queue_id, self.epoch, seq, message, s.delivery_count, redelivered)
                seq += 1
        if absent:
            return b"", first, absent
        return buffer.take(), end, []
