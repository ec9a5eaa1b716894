# Part of ring.pyx: what a cluster needs of a ring; tests/model/ring_cluster.py is the specification.

@cython.final
cdef class Ring(LinkedRing):
    """The messages of one queue."""

    oldest_first = False

    # -- owner: epochs, attributes, the dead --------------------------------------------------------------------------

    def begin_epoch(self, uint32_t epoch) -> None:
        """This node owns the queue in `epoch`: what is written from now on is of it. Known already: nothing."""
        epochs = self.made_state().epochs
        if epochs and epochs[len(epochs) - 1][0] >= epoch:
            self.epoch = epochs[len(epochs) - 1][0]
            return
        if self.epochs_before is None:
            self.epochs_before = list(epochs)
        known = bool(epochs)
        if not known and self.unwritten > 1:
            self.known_state.began(min(self.epoch, epoch), 1)
            known = True
        if self.epoch < epoch or not known:
            self.known_state.began(epoch, self.unwritten)
        self.epoch = epoch
        self.set_mark()

    def set_attribute(self, bytes name not None, uint64_t upto, bint marks=True) -> None:
        """An attribute of the log (`attributes`); 0 takes it out."""
        self.unsaid[name] = self.unsaid.pop(name, self.made_state().attributes.get(name, 0))
        self.known_state.set_attribute(name, upto)
        if marks:
            self.set_mark()

    def note_deliveries(self, bytes prefix not None, uint64_t first, list tags not None, dict index not None) -> int:
        """Sets the attributes prefix + tag to first, first + 1 ...; `index` has the tag of each value. Returns the bytes
        of the tags that are new."""
        cdef uint64_t value = first, added = 0
        cdef bytes tag, name
        cdef dict attributes = self.made_state().attributes
        for tag in tags:
            name = prefix + tag
            before = attributes.pop(name, 0)
            if before:
                index.pop(before, None)
            else:
                added += len(tag)
            self.unsaid[name] = self.unsaid.pop(name, before)
            attributes[name] = value
            index[value] = tag
            value += 1
        self.set_mark()
        return added

    def forget_deliveries(self, bytes prefix not None, uint64_t upto, list tags not None, dict index not None) -> int:
        """Takes out those of the attributes prefix + tag whose value is not above `upto`, and their values. Returns the
        bytes of their tags."""
        cdef bytes tag, name
        cdef uint64_t taken = 0
        cdef dict attributes = self.made_state().attributes
        for tag in tags:
            name = prefix + tag
            before = attributes.get(name, 0)
            if before and <uint64_t>before <= upto:
                index.pop(before, None)
                self.unsaid[name] = self.unsaid.pop(name, before)
                del attributes[name]
                taken += len(tag)
        self.set_mark()
        return taken

    def append_records(self, data, int64_t now_ms) -> tuple:
        """Appends the messages of ENQ records that `verify_records` has passed."""
        cdef Py_buffer view
        cdef record_view record
        cdef Message message = None
        cdef uint64_t before = self.next_seq
        record.next = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while next_record(<const uint8_t *>view.buf, view.len, &record, False):
                record.time_ms = now_ms
                message = view_message(&record, message)
                self.put(message)
        finally:
            PyBuffer_Release(&view)
        self.published += self.next_seq - before
        if self.max_priority:
            self.cursor = self.next_seq
        self.set_mark()
        return self.next_seq, self.next_seq - before

    def hold_dead(self, uint64_t seq, uint8_t reason) -> int:
        """An unacknowledged message is held for its dead-letter targets until it is settled; returns its number."""
        cdef slot *s = self.known(seq)
        if s.bits & STATE != UNACKED:
            raise AssertionError(f"only an unacknowledged message dies, {seq} of {self.queue_id} does not")
        known = self.made_state().attributes.get(LAST_DEAD, 0)
        self.unsaid.setdefault(LAST_DEAD, known)
        if self.held_counts != NULL:
            self.let_go(seq)
        set_state(s, DEAD)
        self.unacked -= 1
        self.known_state.died(seq, known + 1 << 8 | reason)
        self.dying[seq] = None
        self.set_mark()
        return known + 1

    def hold_all_dead(self, list seqs not None, uint8_t reason) -> int:
        """As `hold_dead`, of several in this order; returns the number of the first."""
        cdef slot *s
        cdef uint64_t known = self.made_state().attributes.get(LAST_DEAD, 0), number = known
        cdef dict marks = self.known_state.dead
        for seq in seqs:
            s = self.known(seq)
            if s.bits & STATE != UNACKED:
                raise AssertionError(f"only an unacknowledged message dies, {seq} of {self.queue_id} does not")
            if self.held_counts != NULL:
                self.let_go(seq)
            set_state(s, DEAD)
            self.unacked -= 1
            number += 1
            marks[seq] = number << 8 | reason
            self.dying[seq] = None
        if number > known:
            self.unsaid.setdefault(LAST_DEAD, known)
            self.known_state.attributes[LAST_DEAD] = number
            self.set_mark()
        return known + 1

    def settle_all(self, list seqs not None) -> None:
        """As `settle`, of several."""
        for seq in seqs:
            self.settle_seq(seq, False)

    def dead(self) -> list:
        """(seq, number, reason) of what is held for dead-letter targets, in the order of the numbers."""
        if self.known_state is None:
            return []
        marks = sorted([(mark, seq) for seq, mark in self.known_state.dead.items()])
        return [(seq, mark >> 8, mark & 255) for mark, seq in marks]

    # -- owner: who holds what ---------------------------------------------------------------------------------------

    def give(self, uint64_t seq, int holder) -> None:
        """An unacknowledged message is at that node from now on."""
        cdef slot *s = self.known(seq)
        if s.bits & STATE != UNACKED:
            raise AssertionError(f"only a message that was handed out is held, {seq} of {self.queue_id} is not")
        if not 1 <= holder <= HOLDER_MAX:
            raise AssertionError("holders are 1 to 253")
        self.set_holder(seq, holder)

    def held_by(self, uint8_t holder) -> int:
        return 0 if self.held_counts == NULL else self.held_counts[holder]

    cdef uint64_t next_held(self, uint64_t seq, uint64_t end, uint8_t holder) noexcept:
        # the first of seq .. end - 1 that is held there, NONE without
        cdef block *place
        cdef uint64_t stop
        if self.held_counts == NULL or self.held_counts[holder] == 0:
            return NONE
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            if place.holders != NULL:
                while seq < stop:
                    if place.holders[seq & 255] == holder:
                        return seq
                    seq += 1
            seq = stop
        return NONE

    cdef inline uint64_t next_of(self, uint64_t seq, uint64_t end, uint8_t holder) noexcept:
        # also what it has as the place of a link
        if self.held_counts == NULL or self.held_counts[LINK] == 0 or holder > HOLDER_MAX:
            return self.next_held(seq, end, holder)
        return next_theirs(self, seq, end, holder, True)

    def count_held(self, uint64_t first, uint64_t last, uint8_t holder) -> int:
        """How many of first to last that node may settle."""
        cdef uint64_t count = 0, end = min(last, NONE - 1) + 1
        cdef uint64_t seq = self.next_of(first, end, holder)
        while seq != NONE:
            count += 1
            seq = self.next_of(seq + 1, end, holder)
        return count

    def settle_held(self, uint64_t first, uint64_t last, uint8_t holder) -> int:
        """Settles what that node holds of first to last; returns how many."""
        cdef uint64_t count = 0, own, end = min(last, NONE - 1) + 1
        cdef uint64_t seq = self.next_of(first, end, holder)
        while seq != NONE:
            self.settle_seq(seq, False)
            count += 1
            seq = self.next_of(seq + 1, end, holder)
        if count:
            own = min(count, self.auto_acks)
            self.auto_acks -= own
            self.acked += count - own
            self.set_mark()
        return count

    def requeue_held(self, uint64_t first, uint64_t last, uint8_t holder, bint counted) -> int:
        cdef uint64_t count = 0, end = min(last, NONE - 1) + 1
        cdef uint64_t seq = self.next_held(first, end, holder)
        while seq != NONE:
            self.requeue(seq, counted)
            count += 1
            seq = self.next_held(seq + 1, end, holder)
        return count

    def requeue_all_held(self, uint8_t holder) -> int:
        """The node is gone, or said that it has nothing."""
        return self.requeue_held(0, self.next_seq, holder, False)

    def take_held(self, uint64_t first, uint64_t last, uint8_t holder) -> list:
        """The seqs that the node really held; they are the caller's now, unacknowledged and at no node."""
        cdef list taken = []
        cdef uint64_t end = min(last, NONE - 1) + 1
        cdef uint64_t seq = self.next_of(first, end, holder)
        while seq != NONE:
            self.let_go(seq)
            taken.append(seq)
            seq = self.next_of(seq + 1, end, holder)
        return taken

    def adopt(self, uint64_t first, uint64_t last, int holder) -> int:
        """After a take-over: ready messages that the node has been handed before are there again."""
        cdef uint64_t seq = first, end = min(last, self.next_seq - 1) + 1, stop, count = 0
        cdef block *place
        cdef slot *s
        if not 1 <= holder <= HOLDER_MAX:
            raise AssertionError("holders are 1 to 253")
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                s = &place.slots[seq & 255]
                if s.bits & STATE == READY:
                    set_state(s, UNACKED)
                    self.ready -= 1
                    self.ready_bytes -= body_bytes(s)
                    if not in_memory(s):
                        self.absent -= 1
                    self.unacked += 1
                    self.set_holder(seq, holder)
                    count += 1
                seq += 1
        return count

    # -- owner: what an operator does with single messages -----------------------------------------------------------

    def living(self, uint64_t first, uint64_t last, size_t count_max) -> list:
        """(seq, state, redelivered, delivery count, holder) of what is READY, UNACKED or DEAD."""
        cdef uint64_t seq = first, end = min(last, self.next_seq - 1) + 1, stop
        cdef block *place
        cdef slot *s
        cdef uint8_t state
        cdef list found = []
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                s = &place.slots[seq & 255]
                state = s.bits & STATE
                if state == READY or state == UNACKED or state == DEAD:
                    found.append((seq, state, s.bits & REDELIVERED != 0, s.delivery_count,
                                  0 if place.holders == NULL else place.holders[seq & 255]))
                    if <size_t>len(found) >= count_max:
                        return found
                seq += 1
        return found

    def waiting(self, uint64_t first, uint64_t last, size_t count_max, uint64_t bytes_max) -> tuple:
        """What is READY from `first` on: (where to go on; seqs and messages that are in memory; locations of others), at
        most `count_max`, and until the records of others are `bytes_max`."""
        cdef uint64_t seq = first, end = min(last, self.next_seq - 1) + 1, stop, size = 0
        cdef block *place
        cdef slot *s
        cdef list seqs = [], here = [], absent = []
        while seq < end and <size_t>(len(seqs) + len(absent)) < count_max and size < bytes_max:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop and <size_t>(len(seqs) + len(absent)) < count_max and size < bytes_max:
                s = &place.slots[seq & 255]
                if s.bits & STATE == READY:
                    if in_memory(s):
                        seqs.append(seq)
                        here.append(<object><PyObject *>s.message)
                    else:
                        absent.append((seq, s.segment, s.offset, s.length))
                        size += s.length
                seq += 1
        return min(seq, end), seqs, here, absent

    def all_ready(self, list seqs not None) -> bool:
        """Whether each of these messages is READY."""
        for seq in seqs:
            if self.find(seq).bits & STATE != READY:
                return False
        return True

    def set_aside(self, uint64_t seq) -> bool:
        """A ready message becomes unacknowledged, at no node and in no ledger; False: it is not ready."""
        cdef slot *s = self.find(seq)
        if s.bits & STATE != READY:
            return False
        set_state(s, UNACKED)
        self.ready -= 1
        self.ready_bytes -= body_bytes(s)
        if not in_memory(s):
            self.absent -= 1
        self.unacked += 1
        return True

    def set_all_aside(self, list seqs not None) -> tuple:
        """As `set_aside`, of several: (seqs and messages of those that were ready, None for one that is on the disk
        only; the seqs of others)."""
        cdef list aside = [], messages = [], others = []
        cdef slot *s
        for seq in seqs:
            if not self.set_aside(seq):
                others.append(seq)
                continue
            s = self.find(seq)
            aside.append(seq)
            messages.append(<object><PyObject *>s.message if in_memory(s) else None)
        return aside, messages, others

    def put_back(self, uint64_t seq) -> None:
        """What was set aside returns to its place as it was: nobody has seen it."""
        cdef bint seen = self.known(seq).bits & REDELIVERED != 0
        self.requeue(seq, False)
        if not seen:
            self.find(seq).bits &= ~<uint8_t>REDELIVERED

    # -- the emitted state -------------------------------------------------------------------------------------------

    def emitted_end(self) -> int:
        """The first seq that no group has passed."""
        return self.unwritten

    def emitted_reserved(self) -> int:
        return self.reserved_written

    def emitted_attributes(self) -> dict:
        return self.emitted_state().attributes

    cdef object emitted_state(self):
        state = QueueState()
        known = self.known_state
        if known is not None:
            state.epochs = list(known.epochs if self.epochs_before is None else self.epochs_before)
            state.attributes = dict(known.attributes)
            state.dead = self.emitted_marks()
        for name, upto in self.unsaid.items():
            state.set_attribute(name, upto)
        return state

    cdef dict emitted_marks(self):
        # the dead of the emitted state: a bucket is asked for them, and there may be very many attributes
        cdef dict dead = {}
        if self.known_state is not None:
            dead = {seq: mark for seq, mark in self.known_state.dead.items() if seq not in self.dying}
            dead.update(self.buried)
        return dead

    cdef inline bint is_emitted(self, slot *s, uint64_t seq) noexcept:
        cdef uint8_t state = s.bits & STATE
        if not s.bits & WRITTEN:
            return False
        if state == SETTLED and self.is_volatile:
            return False  # its body is gone: a copy that lacks it lacks nothing, and its SET finds nothing there
        return state != SETTLED or self.inflight.n == 0 or not self.in_flight(seq)

    cdef dict emitted_before(self):
        # seq -> the delivery count that the log knows, where it is not the slot's
        cdef dict found = {}
        cdef size_t i
        for i in range(0, self.counts.n, 2):
            found.setdefault(self.counts.at[i], self.counts.at[i + 1])
        return found

    cdef list emitted_of(self, uint64_t bucket):
        # (seq, delivery count, mark) of what lives in the bucket
        cdef list found = []
        cdef dict before = self.emitted_before(), dead = self.emitted_marks()
        cdef uint64_t seq = bucket * BUCKET_SEQS, end = seq + BUCKET_SEQS, stop
        cdef block *place
        cdef slot *s
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = (seq | 255) + 1
            while seq < stop:
                s = &place.slots[seq & 255]
                if self.is_emitted(s, seq):
                    found.append((seq, before.get(seq, s.delivery_count) if before else s.delivery_count,
                                  dead.get(seq, 0) if dead else 0))
                seq += 1
        return found

    def emitted_buckets(self) -> list:
        """(number, digest) of every bucket in which something lives, ascending."""
        cdef list found = []
        cdef dict before = self.emitted_before(), dead = self.emitted_marks()
        cdef bint plain = not before and not dead
        cdef size_t i, k
        cdef uint64_t number = NONE, digest = 0, seq
        cdef bint any_live = False
        cdef block *place
        cdef slot *s
        for i in range(self.shelf_first, self.shelf_end):
            place = self.shelves[i].place
            if place == NULL:
                continue
            if self.shelves[i].number * 256 // BUCKET_SEQS != number:
                if any_live:
                    found.append((number, digest))
                number = self.shelves[i].number * 256 // BUCKET_SEQS
                digest = 0
                any_live = False
            for k in range(256):
                s = &place.slots[k]
                seq = self.shelves[i].number << 8 | k
                if not self.is_emitted(s, seq):
                    continue
                any_live = True
                if plain:
                    digest += mixed(seq, s.delivery_count, 0)
                else:
                    digest += mixed(seq, before.get(seq, s.delivery_count), dead.get(seq, 0))
        if any_live:
            found.append((number, digest))
        return found

    def emitted_live(self, uint64_t bucket) -> list:
        cdef list ranges = []
        cdef uint64_t seq = bucket * BUCKET_SEQS, end = seq + BUCKET_SEQS, first = 0
        cdef block *place
        cdef bint open_range = False, live
        while seq < end:
            place = self.find_block(seq >> 8)
            live = place != NULL and self.is_emitted(&place.slots[seq & 255], seq)
            if live and not open_range:
                first = seq
            elif open_range and not live:
                ranges.append((first, seq - 1))
            open_range = live
            seq = seq + 1 if place != NULL else (seq | 255) + 1
        if open_range:
            ranges.append((first, end - 1))
        return ranges

    def live(self, uint64_t bucket) -> list:
        return self.emitted_live(bucket)

    def copies_of(self, ranges, uint64_t bytes_max) -> tuple:
        """Seqs out of `ranges` until `bytes_max` is reached, at least one; and the locations of those on disk only."""
        cdef list seqs = [], absent = []
        cdef uint64_t seq, last, size = 0
        cdef slot *s
        for begin, end in ranges:
            seq, last = begin, end
            while seq <= last:
                s = self.known(seq)
                size += s.length
                if seqs and size > bytes_max:
                    return seqs, absent
                seqs.append(seq)
                if not in_memory(s):
                    absent.append((seq, s.segment, s.offset, s.length))
                seq += 1
        return seqs, absent

    def encode_emitted(self, seqs, dict found not None) -> bytes:
        """ENQ records of those seqs that live in the emitted state, out of memory or `found`; each with the epoch that
        gave its seq. What left meanwhile is left out."""
        cdef RecordBuffer buffer = RecordBuffer()
        cdef uint64_t seq, first = 1, end = 0  # of the seqs that `epoch` gave
        cdef uint32_t epoch = 0
        cdef block *place
        cdef slot *s
        for seq in seqs:
            place = self.find_block(seq >> 8)
            s = NULL if place == NULL else &place.slots[seq & 255]
            if s == NULL or not self.is_emitted(s, seq):
                continue
            message = <object><PyObject *>s.message if in_memory(s) else found.get(seq)
            if message is not None:
                if not first <= seq < end:
                    epoch = self.epoch_around(seq, &first, &end)
                buffer.put(self.queue_id, epoch, seq, <Message?>message, s.delivery_count, False)
        return buffer.take()

    cdef uint32_t epoch_around(self, uint64_t seq, uint64_t *first, uint64_t *end) except? 0:
        # `epoch_of(seq)`, and the seqs from `first` to before `end`, which have the same one
        first[0] = 0
        end[0] = NONE
        if self.known_state is not None:
            for epoch, first_seq in reversed(self.known_state.epochs):
                if first_seq <= seq:
                    first[0] = first_seq
                    return epoch
                end[0] = first_seq
        return self.epoch

    def emitted_counts(self, uint64_t bucket) -> list:
        """(seq, delivery count) where it is not 0."""
        cdef list found = []
        cdef dict before = self.emitted_before()
        cdef uint64_t seq = bucket * BUCKET_SEQS, end = seq + BUCKET_SEQS, stop
        cdef bint plain = not before
        cdef block *place
        cdef slot *s
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = (seq | 255) + 1
            while seq < stop:
                s = &place.slots[seq & 255]
                if (s.delivery_count or not plain) and self.is_emitted(s, seq):
                    count = s.delivery_count if plain else before.get(seq, s.delivery_count)
                    if count:
                        found.append((seq, count))
                seq += 1
        return found

    def emitted_dead(self, uint64_t bucket) -> list:
        """(seq, mark): what `GroupWriter.dead` writes and `restore_dead` takes."""
        if not self.buried and (self.known_state is None or not self.known_state.dead):
            return []  # so it is with nearly every queue, and no message of the bucket is looked at
        return [(seq, mark) for seq, _, mark in self.emitted_of(bucket) if mark]

    def checkpoint_meta(self) -> dict:
        """What a checkpoint writes down besides the runs."""
        if self.replicated:
            meta = {"next_seq": self.unwritten, "reserved": self.reserved_written, "epoch": self.epoch}
        else:
            meta = {"next_seq": self.next_seq, "reserved": self.reserved_durable, "epoch": self.epoch}
        if self.replicated or self.known_state is not None:
            self.emitted_state().into(meta)
        return meta

    # -- from owner to replica and back ------------------------------------------------------------------------------

    def step_down(self) -> None:
        """The queue is another node's: back to the emitted state, as a replica. Safe in any state."""
        cdef size_t i, k
        cdef uint64_t seq
        cdef block *place
        cdef slot *s
        cdef dict before, dead
        cdef set there
        if self.replica or self.destroyed:
            return
        self.commit_moves()
        state = self.emitted_state()
        before = self.emitted_before()
        dead = state.dead
        there = set()
        self.ready = self.unacked = self.absent = self.held = self.counted = self.copied = 0
        self.ready_bytes = self.resident_bytes = 0
        self.resident = self.fleeting = 0
        for i in range(self.shelf_first, self.shelf_end):
            place = self.shelves[i].place
            if place == NULL:
                continue
            free(place.holders)
            free(place.links)
            place.holders = NULL
            place.links = NULL
            for k in range(256):
                s = &place.slots[k]
                if not s.bits:
                    continue
                seq = self.shelves[i].number << 8 | k
                if not self.is_emitted(s, seq):
                    if in_memory(s):
                        uncount(<PyObject *>s.message)
                    if s.bits & WRITTEN:
                        if self.use is not None:
                            self.use.release_bytes(s.segment, s.length)
                        self.soil(place, self.shelves[i].number)
                    memset(s, 0, sizeof(slot))
                    place.live -= 1
                    continue
                if in_memory(s):
                    if self.is_volatile:
                        self.resident_bytes += payload_bytes(s)
                        self.resident += 1
                    else:
                        self.unload(s)
                if before and seq in before:
                    s.delivery_count = before[seq]
                s.bits = (s.bits & REDELIVERED) | PERSIST | WRITTEN
                if dead and seq in dead:
                    set_state(s, DEAD)
                    there.add(seq)
                    continue
                set_state(s, READY)
                self.ready += 1
                self.ready_bytes += body_bytes(s)
                if not in_memory(s):
                    self.absent += 1
        self.drop_empty_blocks()
        state.dead = {seq: mark for seq, mark in dead.items() if seq in there}
        self.known_state = state
        drop(&self.heap)
        drop(&self.settled)
        drop(&self.inflight)
        drop(&self.counts)
        drop(&self.copies)
        self.dying.clear()
        self.buried.clear()
        self.unsaid.clear()
        self.row_of_link.clear()
        forget_links(self)
        free(self.held_counts)
        self.held_counts = NULL
        self.epochs_before = None
        self.trimmed = 0
        self.next_seq = self.unwritten
        self.reserved = self.reserved_durable = self.reserved_written
        self.paused = False
        self.replica = self.replicated = True
        self.follow()

    cdef inline void unload(self, slot *s) noexcept:
        # the content leaves memory, whatever the reason
        cdef uint64_t bytes_left = body_bytes(s)
        uncount(<PyObject *>s.message)
        s.message = bytes_left << 1 | 1

    cdef int soil(self, block *place, uint64_t number) except -1:
        # marks a block dirty that need not be hot
        if not place.dirty:
            place.dirty = True
            push(&self.dirty, number)
        return 0

    cdef int drop_empty_blocks(self) except -1:
        cdef size_t i = self.shelf_first
        while i < self.shelf_end:
            if self.shelves[i].place != NULL and self.shelves[i].place.live == 0:
                self.hot_number = self.shelves[i].number
                self.hot = self.shelves[i].place
                self.drop_hot_block()
            i = max(i + 1, self.shelf_first)
        return 0

    cdef inline void follow(self) noexcept:
        self.committed = self.unwritten = self.cursor = self.next_seq
        self.loaded_to = 0

    def take_over(self, uint32_t epoch, bint seen = False) -> None:
        """The queue is this node's from `epoch` on."""
        cdef size_t i, k
        cdef uint64_t seq, lowest = NONE
        cdef block *place
        cdef slot *s
        self.step_down()
        self.published = self.handed = self.handed_no_ack = self.redelivered = self.acked = self.auto_acks = 0
        self.got = self.got_no_ack = self.got_empty = self.disk_reads = self.disk_writes = 0
        self.replica = False
        self.paused = True
        if seen:
            self.reserved = max(self.reserved, self.next_seq - 1)
        self.next_seq = max(self.next_seq, self.reserved + 1)
        self.unwritten = self.next_seq
        self.reserve_step = RESERVE_FIRST
        for i in range(self.shelf_first, self.shelf_end):
            place = self.shelves[i].place
            if place == NULL:
                continue
            for k in range(256):
                s = &place.slots[k]
                if not s.bits:
                    continue
                seq = self.shelves[i].number << 8 | k
                lowest = min(lowest, seq)
                if seq <= self.reserved:
                    s.bits |= REDELIVERED
                if self.max_priority and s.bits & STATE == READY:
                    heap_push(&self.heap, heap_key(s, seq))
        self.committed = min(lowest, self.next_seq)
        self.cursor = self.next_seq if self.max_priority else self.committed
        self.loaded_to = 0
        self.begin_epoch(epoch)
        self.set_mark()

    # -- replica -----------------------------------------------------------------------------------------------------

    def fold(self, data, uint32_t segment, uint64_t offset) -> None:
        """Takes over what the owner wrote, now in the own journal at (segment, offset)."""
        cdef Py_buffer view
        cdef record_view r
        cdef uint64_t added = 0
        cdef uint64_t[2] pair
        cdef uint32_t k
        if not self.replica:
            raise AssertionError(f"queue {self.queue_id} is not a replica here")
        r.next = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while next_record(<const uint8_t *>view.buf, view.len, &r, False):
                if r.queue_id != self.queue_id:
                    raise DamagedRecord(r.at, f"a record of queue {r.queue_id}, not of {self.queue_id}")
                if r.kind == ENQ:
                    self.fold_message(&r, segment, offset)
                    added += r.length
                    if added > 0x7FFFFFFF:
                        self.account(segment, &added)
                elif r.kind == SET:
                    self.account(segment, &added)
                    for k in range(r.body_length):
                        memcpy(pair, r.body + 16 * k, 16)
                        if self.past is not None:
                            self.past.drop(pair[0], pair[1])
                        self.drop_range(pair[0], pair[1])
                elif r.kind == RSV:
                    self.reserved_written = max(self.reserved_written, r.seq)
                    self.reserved = self.reserved_durable = self.reserved_written
                elif r.kind == REQ:
                    self.restore_count(r.seq, r.delivery_count)
                elif r.kind == DEAD_RECORD:
                    self.restore_dead(r.seq, r.value)
                elif r.kind == CUT:
                    self.account(segment, &added)
                    self.cut(r.seq)
                elif r.kind == ATTR:
                    self.restore_attribute(PyBytes_FromStringAndSize(<const char *>r.body, r.body_length), r.value)
                elif r.kind == EPO:
                    self.restore_epoch(r.epoch, r.seq)
        finally:
            self.account(segment, &added)
            PyBuffer_Release(&view)
        self.follow()

    cdef int account(self, uint32_t segment, uint64_t *added) except -1:
        if added[0] and self.use is not None:
            self.use.add_bytes(segment, <uint32_t>added[0])
        added[0] = 0
        return 0

    cdef int fold_message(self, record_view *r, uint32_t segment, uint64_t offset) except -1:
        cdef uint64_t seq = r.seq
        cdef block *place = self.find_block(seq >> 8)
        cdef slot *s
        cdef Message message
        cdef uint8_t state
        if place == NULL:
            place = self.add_block(seq >> 8)
        s = &place.slots[seq & 255]
        if not s.bits:
            place.live += 1
            state = READY
            if self.known_state is not None and self.known_state.dead and seq in self.known_state.dead:
                state = DEAD
            else:
                self.ready += 1
                self.ready_bytes += r.body_length
                self.absent += 1
        else:  # it moved
            if self.use is not None:
                self.use.release_bytes(s.segment, s.length)
            state = s.bits & STATE
            if s.bits & COPIED:
                self.copied -= 1
            unmove(self, seq)
            if in_memory(s):
                self.resident_bytes -= payload_bytes(s)
                self.resident -= 1
                self.unload(s)
                if state == READY:
                    self.absent += 1
        s.message = <uint64_t>r.body_length << 1 | 1
        s.segment = segment
        s.offset = <uint32_t>(offset + <uint64_t>r.at)
        s.length = r.length
        s.bits = (s.bits & REDELIVERED) | state | PERSIST | WRITTEN
        s.priority = min(r.priority, self.max_priority)
        s.delivery_count = r.delivery_count
        if self.is_volatile:
            message = view_message(r, None)
            Py_INCREF(message)
            s.message = <uint64_t><PyObject *>message
            self.resident_bytes += payload_bytes(s)
            self.resident += 1
            if state == READY:
                self.absent -= 1
        self.mark_dirty()
        if seq >= self.next_seq:
            self.next_seq = seq + 1
        return 0

    cdef bint remove(self, uint64_t seq, slot *s) except -1:
        # a written message leaves a replica, or a ring that is being restored; its block is hot. True: the block went.
        if s.bits & COPIED:
            self.copied -= 1
        if in_memory(s):
            self.resident_bytes -= payload_bytes(s)
            self.resident -= 1
            self.unload(s)
            if s.bits & STATE == READY and self.replica:
                self.absent += 1
        if s.bits & STATE == READY and self.replica:
            self.ready -= 1
            self.ready_bytes -= body_bytes(s)
            self.absent -= 1
        if self.use is not None:
            self.use.release_bytes(s.segment, s.length)
        self.mark_dirty()
        return self.clear(s)

    cdef int drop_range(self, uint64_t first, uint64_t last) except -1:
        cdef uint64_t seq = first, end = min(last, NONE - 1) + 1, stop
        cdef block *place
        cdef slot *s
        if self.known_state is not None and self.known_state.dead:
            self.known_state.settled(first, last)
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                s = &place.slots[seq & 255]
                seq += 1
                if s.bits and self.remove(seq - 1, s):
                    break
            seq = stop
        return 0

    def drop(self, ranges) -> None:
        """These are gone; the caller has the SET record written."""
        if not self.replica:
            raise AssertionError(f"queue {self.queue_id} is not a replica here")
        for first, last in ranges:
            if self.past is not None:
                self.past.drop(first, last)
            self.drop_range(first, last)

    def cut(self, uint64_t from_seq) -> None:
        """Everything from there on is gone, and the seqs will be used anew."""
        cdef size_t i, n = 0
        if self.past is not None:
            self.past.cut(from_seq)
        self.drop_range(from_seq, NONE)
        for i in range(0, self.moves.n, 3):
            if self.moves.at[i] < from_seq:
                self.moves.at[n] = self.moves.at[i]
                self.moves.at[n + 1] = self.moves.at[i + 1]
                self.moves.at[n + 2] = self.moves.at[i + 2]
                n += 3
        self.moves.n = n
        n = 0
        for i in range(self.copies.n):
            if self.copies.at[i] < from_seq:
                self.copies.at[n] = self.copies.at[i]
                n += 1
        self.copies.n = n
        self.next_seq = min(self.next_seq, from_seq)
        self.made_state().cut(from_seq)
        if self.replica:
            self.follow()

    # -- replica and recovery: what the log says besides messages ----------------------------------------------------

    def restore_state(self, state) -> None:
        """Replaces epochs, attributes and the dead set, before the runs (recovery) or at the offer of a sync."""
        cdef slot *s
        for seq in self.made_state().dead:
            if seq not in state.dead:
                s = self.find(seq)
                if s.bits & STATE == DEAD:
                    set_state(s, READY)
                    if self.replica:
                        self.ready += 1
                        self.ready_bytes += body_bytes(s)
                        if not in_memory(s):
                            self.absent += 1
        fresh = QueueState()
        fresh.epochs = list(state.epochs)
        fresh.attributes = dict(state.attributes)
        fresh.dead = dict(state.dead)
        self.known_state = fresh
        for seq in fresh.dead:
            self.die(seq)
        if fresh.epochs:
            self.epoch = fresh.epochs[len(fresh.epochs) - 1][0]

    cdef int die(self, uint64_t seq) except -1:
        cdef slot *s = self.find(seq)
        if s.bits & STATE == READY:
            set_state(s, DEAD)
            if self.replica:
                self.ready -= 1
                self.ready_bytes -= body_bytes(s)
                if not in_memory(s):
                    self.absent -= 1
        return 0

    def restore_dead(self, uint64_t seq, uint64_t mark) -> None:
        """A DEAD record. Of a message that is not here its number is remembered all the same."""
        self.made_state().died(seq, mark)
        if self.find(seq).bits:
            self.die(seq)
        else:
            del self.known_state.dead[seq]

    def restore_attribute(self, bytes name not None, uint64_t upto) -> None:
        # as QueueState.set_attribute: copies hear of two names for each delivery of a recoverable link
        cdef dict attributes = self.made_state().attributes
        attributes.pop(name, None)
        if upto:
            attributes[name] = upto

    def restore_epoch(self, uint32_t epoch, uint64_t first_seq) -> None:
        self.made_state().began(epoch, first_seq)
        self.epoch = epoch
        self.next_seq = max(self.next_seq, first_seq)

    # -- proxy -------------------------------------------------------------------------------------------------------

    def receive(self, Taker taker not None, data, int64_t now_ms) -> tuple:
        """Hands the records of a Deliver to a consumer of this node. Raises DamagedRecord before anything is taken.
        Returns how many records there were, ranges that it may not get, the Stumble or Unfit of one that it cannot: held
        here, and ranges that were settled here before, and forgotten nowhere yet: nobody has these. What is outstanding
        here already is passed over, and counted (`passed_over`)."""
        cdef Py_buffer view
        cdef record_view r
        cdef bint flows = taker.flows()
        cdef Message message = None
        cdef uint64_t count = 0, handed = 0
        cdef words refused, before
        cdef slot *s
        cdef list stumbles = []
        if not self.proxy:
            raise AssertionError("only a proxy receives")
        verify_records(data, self.queue_id, 0xFFFFFFFF, True)
        memset(&refused, 0, sizeof(words))
        memset(&before, 0, sizeof(words))
        r.next = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while True:
                try:
                    while next_record(<const uint8_t *>view.buf, view.len, &r, False):
                        count += 1
                        s = self.find(r.seq)
                        if s.bits:
                            if s.bits & STATE == SETTLED:
                                push(&before, r.seq)
                                push(&before, r.seq)
                            else:
                                self.passed_over += 1
                            continue
                        if not flows:
                            push(&refused, r.seq)
                            push(&refused, r.seq)
                            continue
                        self.hold_seq(r.seq, r.delivery_count)
                        message = view_message(&r, message)
                        if taker.hand(r.seq, message, r.flags & REDELIVERED_BIT != 0, r.delivery_count, now_ms):
                            self.settle_seq(r.seq, False)
                        taker.delivered += 1
                        handed += 1
                    break
                except (Stumble, Unfit) as error:
                    stumbles.append(error)
                    flows = False
            if handed:
                self.set_mark()
            return count, pairs_of(&refused), stumbles, pairs_of(&before)
        finally:
            drop(&refused)
            drop(&before)
            PyBuffer_Release(&view)

    cdef bint hold_seq(self, uint64_t seq, uint16_t delivery_count) except -1:
        cdef block *place = self.find_block(seq >> 8)
        cdef slot *s
        if place == NULL:
            place = self.add_block(seq >> 8)
        s = &place.slots[seq & 255]
        if s.bits:
            return False
        s.bits = UNACKED | PERSIST | WRITTEN
        s.message = 1
        s.delivery_count = delivery_count
        place.live += 1
        self.unacked += 1
        return True

    def hold(self, uint64_t seq, uint16_t delivery_count=0) -> bool:
        """The message is outstanding here (basic.get), with that delivery count; False when it was before."""
        if not self.proxy:
            raise AssertionError("only a proxy holds without content")
        return self.hold_seq(seq, delivery_count)

    def take_settled(self) -> list:
        """What consumers have settled since the last call. `forget` it when the owner has answered."""
        if not self.proxy:
            raise AssertionError("an owner writes what is settled")
        taken = pairs_of(&self.settled)
        reset(&self.settled)
        return taken

    def forget(self, ranges) -> None:
        """The owner knows that these are settled."""
        if not self.proxy:
            raise AssertionError("only a proxy forgets")
        for first, last in ranges:
            self.forget_range(first, last)

    cdef int forget_range(self, uint64_t first, uint64_t last) except -1:
        cdef uint64_t seq = first, end = min(last, NONE - 1) + 1, stop
        cdef block *place
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                seq += 1
                if place.slots[(seq - 1) & 255].bits & STATE == SETTLED and self.clear(&place.slots[(seq - 1) & 255]):
                    break
            seq = stop
        return 0

    def release(self, uint64_t seq) -> int:
        """An unacknowledged message is no more outstanding here; returns the delivery count that it came with, -1 when
        it was not here."""
        cdef slot *s = self.find(seq)
        cdef uint16_t delivery_count = s.delivery_count
        if not self.proxy:
            raise AssertionError("only a proxy releases")
        if s.bits & STATE != UNACKED:
            return -1
        self.clear(s)
        self.unacked -= 1
        return delivery_count

    def outstanding(self) -> list:
        cdef size_t i, k
        cdef words found
        cdef uint64_t seq
        cdef block *place
        if not self.proxy:
            raise AssertionError("what is outstanding elsewhere is held")
        memset(&found, 0, sizeof(words))
        try:
            for i in range(self.shelf_first, self.shelf_end):
                place = self.shelves[i].place
                if place == NULL:
                    continue
                for k in range(256):
                    if place.slots[k].bits & STATE == UNACKED:
                        seq = self.shelves[i].number << 8 | k
                        if found.n and found.at[found.n - 1] + 1 == seq:
                            found.at[found.n - 1] = seq
                        else:
                            push(&found, seq)
                            push(&found, seq)
            return pairs_of(&found)
        finally:
            drop(&found)
