# Part of ring.pyx: messages that a link holds over its connections; tests/model/ring_links.py is the specification.
#
# A block that has such messages has a row number per slot beside its holders: `link_rows` says which link a row is of.

cdef int make_links(LocalRing ring) except -1:
    # of the hot block
    if ring.hot.links == NULL:
        ring.hot.links = <uint16_t *>calloc(256, sizeof(uint16_t))
        if ring.hot.links == NULL:
            raise MemoryError()
    return 0


cdef int touch_bucket(LocalRing ring, uint16_t row, uint64_t seq) except -1:
    # what the log says of the bucket of seq is not so any more
    cdef uint64_t key = seq // LINK_BITS
    cdef size_t n = ring.link_dirty.n
    if n and ring.link_dirty.at[n - 1] == key and ring.link_dirty.at[n - 2] == row:
        return 0
    push(&ring.link_dirty, row)
    push(&ring.link_dirty, key)
    return 0


cdef int hold_for_link(LocalRing ring, uint64_t seq, uint16_t row) except -1:
    # an unacknowledged message, whose block is hot, is that link's
    ring.set_holder(seq, LINK)
    make_links(ring)
    ring.hot.links[seq & 255] = row
    ring.link_rows[row].held += 1
    touch_bucket(ring, row, seq)
    return 0


cdef int unlink_held(LocalRing ring, uint64_t seq) except -1:
    # the block of seq is hot, the holder LINK: it is at no link any more
    cdef uint16_t row = ring.hot.links[seq & 255]
    if row:
        ring.link_rows[row].held -= 1
        touch_bucket(ring, row, seq)
        ring.hot.links[seq & 255] = 0
    return 0


cdef int assign(Ring ring, uint64_t seq, uint16_t row) except -1:
    # handed out to a link: the next group says so, and that it may have been seen
    hold_for_link(ring, seq, row)
    ring.link_presses = True
    if ring.logged() and seq > ring.reserved:
        ring.reserve_past(seq)
    ring.set_mark()
    return 0


cdef uint64_t link_bits(LocalRing ring, uint16_t row, uint64_t bucket) noexcept:
    cdef uint64_t first = bucket * LINK_BITS, bits = 0
    cdef uint64_t i
    cdef block *place
    for i in range(<uint64_t>LINK_BITS):
        place = ring.find_block((first + i) >> 8)
        if (place != NULL and place.links != NULL and place.links[(first + i) & 255] == row
                and place.holders[(first + i) & 255] == LINK):
            bits |= <uint64_t>1 << i
    return bits


cdef bytes link_name(uint64_t link, uint64_t bucket):
    cdef uint8_t[17] name
    cdef int i
    name[0] = LINK_PREFIX
    for i in range(8):
        name[1 + i] = <uint8_t>(link >> (56 - 8 * i))
        name[9 + i] = <uint8_t>(bucket >> (56 - 8 * i))
    return PyBytes_FromStringAndSize(<char *>name, 17)


cdef int write_links(LocalRing ring, GroupWriter writer) except -1:
    # the names of all buckets in which something has changed since the last group
    cdef size_t i
    cdef uint64_t bits, bucket
    cdef uint16_t row
    cdef dict attributes
    ring.link_presses = False
    if not ring.link_dirty.n:
        return 0
    attributes = ring.made_state().attributes
    for i in range(0, ring.link_dirty.n, 2):
        row, bucket = <uint16_t>ring.link_dirty.at[i], ring.link_dirty.at[i + 1]
        bits = link_bits(ring, row, bucket)
        name = link_name(ring.link_rows[row].link, bucket)
        if attributes.get(name, 0) != bits:
            ring.known_state.set_attribute(name, bits)
            writer.set_attribute(ring.queue_id, ring.epoch, name, bits)
    for i in range(0, ring.link_dirty.n, 2):
        free_row(ring, <uint16_t>ring.link_dirty.at[i])
    reset(&ring.link_dirty)
    return 0


cdef int free_row(LocalRing ring, uint16_t row) except -1:
    # a link that holds nothing here and is not attached needs none
    if ring.link_rows[row].link and not ring.link_rows[row].held and not ring.link_rows[row].place:
        del ring.row_of_link[ring.link_rows[row].link]
        ring.link_rows[row].link = 0
    return 0


cdef uint16_t row_for(LocalRing ring, uint64_t link) except 0:
    cdef size_t row, room
    cdef link_row *grown
    found = ring.row_of_link.get(link)
    if found is not None:
        return <uint16_t>found
    for row in range(1, ring.link_room):
        if not ring.link_rows[row].link:
            break
    else:
        row = max(<size_t>1, ring.link_room)
        if row >= LINK_ROWS_MAX:
            raise OverflowError(f"queue {ring.queue_id} has deliveries at {LINK_ROWS_MAX - 1} links, the most there are")
        room = min(2 * ring.link_room + 4, <size_t>LINK_ROWS_MAX)
        grown = <link_row *>realloc(ring.link_rows, room * sizeof(link_row))
        if grown == NULL:
            raise MemoryError()
        memset(&grown[ring.link_room], 0, (room - ring.link_room) * sizeof(link_row))
        ring.link_rows = grown
        ring.link_room = room
    ring.link_rows[row].link = link
    ring.row_of_link[link] = row
    return <uint16_t>row


cdef void forget_links(LocalRing ring) noexcept:
    free(ring.link_rows)
    ring.link_rows = NULL
    ring.link_room = 0
    drop(&ring.link_dirty)
    ring.link_presses = ring.links_wait = False


cdef uint64_t next_theirs(LocalRing ring, uint64_t seq, uint64_t end, uint8_t holder, bint nodes) noexcept:
    # the first of seq .. end - 1 that a link holds which is attached at that node, and with `nodes` that the node holds
    cdef block *place
    cdef uint64_t stop
    while seq < end:
        place = ring.find_block(seq >> 8)
        if place == NULL:
            seq = ring.skip(seq, end)
            continue
        stop = min((seq | 255) + 1, end)
        if place.holders != NULL:
            while seq < stop:
                if is_held(ring, place, seq, holder) and (nodes or place.holders[seq & 255] == LINK):
                    return seq
                seq += 1
        seq = stop
    return NONE


cdef bint is_held(LocalRing ring, block *place, uint64_t seq, uint8_t holder) noexcept:
    # by that node, or by a link that is attached there
    cdef uint8_t found = place.holders[seq & 255]
    if found == holder:
        return True
    return found == LINK and ring.link_rows[place.links[seq & 255]].place == holder


cdef class LinkedRing(LeasedRing):
    """A queue's messages."""

    def attach_link(self, uint64_t link, uint8_t place) -> None:
        """The link is at that node from now on; 0: at none."""
        cdef uint16_t row
        if not link:
            raise ValueError("links have numbers above 0")
        if not place and link not in self.row_of_link:
            return
        row = row_for(self, link)
        self.link_rows[row].place = place
        if not self.link_dirty.n:  # else the next group does it, which may have to name the link
            free_row(self, row)

    def link_place(self, uint64_t link) -> int:
        row = self.row_of_link.get(link)
        return 0 if row is None else self.link_rows[<uint16_t>row].place

    def links(self) -> dict:
        """Link -> how many messages it holds, of those that hold some."""
        return {link: self.link_rows[<uint16_t>row].held for link, row in self.row_of_link.items()
                if self.link_rows[<uint16_t>row].held}

    def restore_links(self) -> int:
        """What the log says that links hold is at them again; returns how many messages that are."""
        cdef uint64_t count = 0, seq, bits, i
        cdef uint16_t row
        cdef slot *s
        if self.known_state is None:
            return 0
        for name, value in list(self.known_state.attributes.items()):
            if len(name) != 17 or name[0] != LINK_PREFIX:
                continue
            row = row_for(self, int.from_bytes(name[1:9]))
            seq = <uint64_t>int.from_bytes(name[9:]) * LINK_BITS
            bits = value
            for i in range(<uint64_t>LINK_BITS):
                if not bits >> i & 1:
                    continue
                s = self.find(seq + i)
                if s.bits & STATE != READY:
                    continue
                set_state(s, UNACKED)
                self.ready -= 1
                self.ready_bytes -= body_bytes(s)
                if not in_memory(s):
                    self.absent -= 1
                self.unacked += 1
                hold_for_link(self, seq + i, row)
                count += 1
            touch_bucket(self, row, seq)  # of what has left the log need not speak any more
        return count

    def held_by_link(self, uint64_t link, uint64_t first, size_t count_max, uint64_t last=NONE) -> list:
        """(seq, delivery count, redelivered) of what the link holds from `first` on, up to `last`."""
        cdef list found = []
        cdef uint16_t row
        cdef uint64_t seq = max(first, <uint64_t>1), stop, end = min(last, self.next_seq - 1) + 1
        cdef block *place
        cdef slot *s
        known = self.row_of_link.get(link)
        if known is None:
            return found
        row = <uint16_t>known
        if not self.link_rows[row].held:
            return found
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            if place.links == NULL:
                seq = stop
                continue
            while seq < stop:
                if place.links[seq & 255] == row and place.holders[seq & 255] == LINK:
                    s = &place.slots[seq & 255]
                    found.append((seq, s.delivery_count, s.bits & REDELIVERED != 0))
                    if <size_t>len(found) >= count_max:
                        return found
                seq += 1
        return found

    def take_linked(self, uint64_t first, uint64_t last, uint8_t holder) -> list:
        """As `release_link`, of all links that are attached at that node."""
        cdef list taken = []
        cdef uint64_t end = min(last, self.next_seq) + 1
        cdef uint64_t seq
        if self.held_counts == NULL or not self.held_counts[LINK]:
            return taken
        seq = next_theirs(self, first, end, holder, False)
        while seq != NONE:
            self.let_go(seq)
            taken.append(seq)
            seq = next_theirs(self, seq + 1, end, holder, False)
        if taken:
            self.link_presses = True
            self.set_mark()
        return taken

    def release_link(self, uint64_t link, uint64_t first, uint64_t last) -> list:
        """The link holds none of first to last any more; they stay unacknowledged, at nobody, until who calls returns
        them (`requeue`) when the group that says so is committed. Returns their seqs."""
        cdef list released = [seq for seq, _, _ in self.held_by_link(link, first, <size_t>-1 >> 1, last)]
        cdef uint64_t seq
        for seq in released:
            self.find(seq)
            self.let_go(seq)
        if released:
            self.link_presses = True
            self.set_mark()
        return released

    def read_held(self, uint64_t link, seqs, uint64_t bytes_max, dict found not None) -> tuple:
        """ENQ records of those seqs that the link holds, or what has to be read before."""
        cdef RecordBuffer buffer = RecordBuffer()
        cdef list absent = []
        cdef uint64_t seq, size = 0
        cdef size_t count = 0
        cdef slot *s
        cdef Message message
        cdef uint16_t row
        known = self.row_of_link.get(link)
        if known is None:
            return b"", len(seqs), absent
        row = <uint16_t>known
        for seq in seqs:
            s = self.find(seq)
            if (s.bits & STATE != UNACKED or self.hot.links == NULL or self.hot.links[seq & 255] != row
                    or self.hot.holders[seq & 255] != LINK):
                count += 1
                continue
            message = <Message><PyObject *>s.message if in_memory(s) else <Message?>found[seq] if seq in found else None
            if size and size + s.length > bytes_max:
                break
            if message is None:
                size += s.length
                absent.append((seq, s.segment, s.offset, s.length))
            elif not absent:
                size += record_bytes(message)
                if self.annotate is not None and (
                    message.flags & HAS_BCC or self.annotates_all
                    or (s.bits & REDELIVERED and self.annotates_redelivered)
                ):
                    message = <Message?>self.annotate(message, seq, s.delivery_count, None, s.bits & REDELIVERED != 0)
                    s = self.find(seq)
                buffer.put(self.queue_id, self.epoch, seq, message, s.delivery_count, s.bits & REDELIVERED != 0)
            count += 1
        if absent:
            return b"", 0, absent
        return buffer.take(), count, []

    def deliver_held(self, Taker taker not None, data, int64_t now_ms) -> tuple:
        """Hands records of messages that links hold to a consumer of this node, which takes output; those that
        have left are passed over. Returns how many it was handed, and how many there were."""
        cdef Py_buffer view
        cdef record_view r
        cdef Message message = None
        cdef uint64_t count = 0, there = 0
        if not taker.flows():
            raise AssertionError("a consumer is handed what it was asked whether it takes")
        r.next = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while next_record(<const uint8_t *>view.buf, view.len, &r, False):
                there += 1
                if (self.find_block(r.seq >> 8) == NULL or self.hot.holders == NULL
                        or self.hot.holders[r.seq & 255] != LINK):
                    continue
                message = view_message(&r, message)
                if taker.hand(r.seq, message, r.flags & REDELIVERED_BIT != 0, r.delivery_count, now_ms):
                    self.settle_seq(r.seq, False)
                taker.delivered += 1
                count += 1
            return count, there
        finally:
            PyBuffer_Release(&view)
