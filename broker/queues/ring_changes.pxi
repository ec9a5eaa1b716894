# Part of ring.pyx: a message that is changed in its place, and what is looked at out of order.

cdef class ChangedRing(LocalRing):
    """The part of a ring that changes messages, and loads them wherever they stand."""

    def replace(self, uint64_t seq, Message message not None) -> bool:
        """An unacknowledged message gets another header; it is written again under its seq, and every copy of the queue
        takes that in its place. False: it is not unacknowledged."""
        cdef slot *s = self.find(seq)
        cdef size_t size = payload_size(message)
        if self.proxy or self.replica or self.past is not None:
            raise AssertionError("the owner of a queue changes its messages")
        if s.bits & STATE != UNACKED:
            return False
        if size - message.header_length != body_bytes(s):
            raise AssertionError("a message keeps its body")
        if in_memory(s):
            self.resident_bytes -= payload_bytes(s)
            uncount(<PyObject *>s.message)
        else:
            self.resident += 1
        Py_INCREF(message)
        s.message = <uint64_t><PyObject *>message
        self.resident_bytes += size
        self.longest = max(self.longest, size + address_size(message))
        if s.bits & WRITTEN and not s.bits & COPIED:
            push(&self.copies, seq)
            s.bits |= COPIED
            self.copied += 1
        self.set_mark()
        return True

    def missing_from(self, uint64_t seq, size_t count_max, uint64_t bytes_max) -> Places:
        """Places of the next ready messages from `seq` on that are on disk only, without one in memory between them."""
        cdef Places found = Places()
        cdef uint64_t size = 0
        cdef slot *s
        while seq < self.next_seq and found.count < count_max and size < bytes_max:
            if self.find_block(seq >> 8) == NULL:
                seq = self.skip(seq, self.next_seq)
                continue
            s = self.find(seq)
            if s.bits & STATE == READY:
                if in_memory(s):
                    break
                found.add(seq, s.segment, s.offset, s.length)
                size += s.length
            seq += 1
        return found


cdef bint is_moving(LocalRing ring, uint64_t seq) noexcept:
    # it was written again, and its new place does not count yet: the old one has what it was before
    cdef size_t place = row_from(ring.moving.at, sizeof(uint64_t), 0, ring.moving.n, seq)
    return place < ring.moving.n and ring.moving.at[place] == seq


cdef void unmove(LocalRing ring, uint64_t seq) noexcept:
    # a later record has the message: the place of an earlier one means nothing any more
    cdef size_t i
    for i in range(0, ring.moves.n, 3):
        if ring.moves.at[i] == seq:
            ring.moves.at[i] = 0


cdef int tidy_heap(LocalRing ring) except -1:
    # messages that were taken from its midst have left their keys behind, and got others when they returned
    cdef size_t i, n = 0
    cdef uint64_t key
    qsort(ring.heap.at, ring.heap.n, sizeof(uint64_t), compare_words)
    for i in range(ring.heap.n):
        key = ring.heap.at[i]
        if (n == 0 or ring.heap.at[n - 1] != key) and ring.find(key & SEQ_MASK).bits & STATE == READY:
            ring.heap.at[n] = key
            n += 1
    ring.heap.n = n
    return 0
