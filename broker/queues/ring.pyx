# A queue's messages in C. tests/model/ring.py is the specification and explains every name. What is here and not there:
#
# A message costs one slot of 24 bytes. Slots stand in blocks of 256 neighbouring seqs (one run of the journal's
# index); a block exists while one of its slots is in use, so an empty queue owns none. `shelves` lists the blocks by
# number, in order, without the blocks that went: one old message and a billion passed ones cost two blocks. A seq is
# found through the block used last, or by a binary search whose first guess is exact unless blocks are missing.
#
# A block of a replicated queue has a byte per slot for who holds it, from the first hand-out to another node on.
# The memory of blocks is in ring_blocks.pxi, what a cluster needs of the ring in ring_cluster.pxi, the hand-out is in ring_dispatch.pxi, that of consumers who
# pass messages over in ring_selection.pxi.
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcpy, memmove, memset

from struct import error as StructError

from clusterbroker.broker.queues.stumble import Stumble, Unfit
from clusterbroker.journal.errors import DamagedRecord
from clusterbroker.journal.queue_state import LAST_DEAD, QueueState
from clusterbroker.journal.record import verify_records
from clusterbroker.journal.record cimport (
    GroupWriter, Message, RecordBuffer, SegmentUse, address_size, held_size, next_record, payload_size, record_view,
    view_message,
)

cdef enum:
    # a slot's state: the low bits of `bits`
    EMPTY = 0
    READY = 1
    UNACKED = 2
    SETTLED = 3
    HELD = 4
    DEAD = 5
    STATE = 7
    # and what else is true of it
    REDELIVERED = 8
    PERSIST = 16
    WRITTEN = 32
    COUNTED = 64  # its delivery count waits for a REQ
    COPIED = 128  # it waits to be written again

cdef enum:
    HEAD_OK = 0
    HEAD_NONE = 1
    HEAD_NOT_LOADED = 2
    HEAD_NOT_RESERVED = 3
    HEAD_EXPIRED = 4
    NO_CREDIT = 5
    LIMIT = 6
    HEAD_NOT_COMMITTED = 7

cdef enum:
    PERSISTENT = 1
    HAS_BCC = 32
    RUN_REDELIVERED = 1
    RUN_LENGTH = 256
    RUN_ENTRY_BYTES = 20
    ENQ_OVERHEAD_BYTES = 56
    RESERVE_FIRST = 64
    RESERVE_MAX = 32768
    LOAD_AHEAD = 4096
    LOAD_BYTES = 8 << 20
    PIECE_BLOCKS = 63
    HEAP_SLACK = 4096
    KEPT_WORDS = 64
    SEQ_BITS = 56
    BUCKET_SEQS = 4096
    HOLDER_MAX = 253
    LINK = 254
    LEASED = 255
    LINK_BITS = 62
    LINK_PREFIX = 107
    LINK_ROWS_MAX = 65535
    LINK_HELD_MAX = 65536
    REDELIVERED_BIT = 0x80
    # record kinds
    ENQ = 1
    SET = 2
    RSV = 3
    REQ = 4
    DEAD_RECORD = 5
    CUT = 6
    ATTR = 7
    EPO = 8

cdef uint64_t NONE = 0xFFFFFFFFFFFFFFFF
cdef int64_t TTL_MS_MAX = 0x7FFFFFFFFFFFFFFF
cdef int64_t ROOM_MAX = 0x7FFFFFFFFFFFFFFF
cdef uint64_t SEQ_MASK = (<uint64_t>1 << SEQ_BITS) - 1

cdef struct slot:
    uint64_t message  # an owned Message; body length << 1 | 1 when it is not in memory
    uint32_t segment
    uint32_t offset
    uint32_t length
    uint8_t bits
    uint8_t priority
    uint16_t delivery_count

cdef struct piece

cdef struct block:
    slot[256] slots  # an EMPTY slot is all zeros
    uint32_t live
    uint32_t dirty
    uint8_t *holders  # of each slot, 0: not held by a node; NULL: none is
    uint16_t *links  # of each slot that the holder LINK has, its row in `link_rows`; NULL: none has been
    piece *home  # the memory in which it stands

cdef struct shelf:
    uint64_t number
    block *place  # NULL: the block went

cdef struct link_row:
    uint64_t link  # 0: the row is free
    uint64_t held
    uint8_t place  # the number of the node where it is attached, 0: at none

cdef packed struct run_entry:
    uint8_t low
    uint8_t priority
    uint8_t flags
    uint8_t delivery_count
    uint32_t segment
    uint32_t offset
    uint32_t length
    uint32_t body_length

cdef slot nothing  # EMPTY for ever


cdef inline uint64_t mixed(uint64_t seq, uint64_t delivery_count, uint64_t mark) noexcept:
    # the model's digest_of
    cdef uint64_t x = (seq * <uint64_t>0x9E3779B97F4A7C15 + delivery_count * <uint64_t>0xC2B2AE3D27D4EB4F
                       + mark * <uint64_t>0x165667B19E3779F9)
    x ^= x >> 32
    x *= <uint64_t>0xD6E8FEB86659FD93
    return x ^ x >> 32


def digest_of(uint64_t seq, uint64_t delivery_count, uint64_t mark) -> int:
    """What one live message adds to its bucket's digest, modulo 2**64."""
    return mixed(seq, delivery_count, mark)


include "ring_blocks.pxi"


# -- a growing array of words, also as a heap -------------------------------------------------------------------

cdef struct words:
    uint64_t *at
    size_t n
    size_t room


cdef int grow(words *v) except -1:
    cdef size_t room = 2 * v.room + 8
    cdef uint64_t *at = <uint64_t *>realloc(v.at, room * sizeof(uint64_t))
    if at == NULL:
        raise MemoryError()
    v.at = at
    v.room = room
    return 0


cdef inline int push(words *v, uint64_t word) except -1:
    if v.n == v.room:
        grow(v)
    v.at[v.n] = word
    v.n += 1
    return 0


cdef void drop(words *v) noexcept:
    free(v.at)
    v.at = NULL
    v.n = v.room = 0


cdef inline void reset(words *v) noexcept:
    v.n = 0
    if v.room > KEPT_WORDS:
        drop(v)


cdef int heap_push(words *heap, uint64_t key) except -1:
    cdef size_t i, parent
    push(heap, key)
    i = heap.n - 1
    while i:
        parent = (i - 1) >> 1
        if heap.at[parent] <= key:
            break
        heap.at[i] = heap.at[parent]
        i = parent
    heap.at[i] = key
    return 0


cdef void heap_pop(words *heap) noexcept:
    cdef size_t i = 0, child
    cdef uint64_t key
    heap.n -= 1
    if heap.n == 0:
        reset(heap)
        return
    key = heap.at[heap.n]
    while True:
        child = 2 * i + 1
        if child >= heap.n:
            break
        if child + 1 < heap.n and heap.at[child + 1] < heap.at[child]:
            child += 1
        if key <= heap.at[child]:
            break
        heap.at[i] = heap.at[child]
        i = child
    heap.at[i] = key


cdef int compare_words(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t *>a)[0], y = (<const uint64_t *>b)[0]
    return (x > y) - (x < y)


cdef int join_ranges(words *ranges) except -1:
    # Sorts pairs (first, last) and joins neighbours. Acknowledgements come in few ascending runs, one for each
    # consumer: a merge sort that starts from the runs it finds.
    cdef size_t n = ranges.n // 2, i, j, k, a, b, out, runs
    cdef uint64_t *source = ranges.at
    cdef uint64_t *target = NULL
    cdef uint64_t *spare = NULL
    cdef bint from_left
    while True:
        runs = out = i = 0
        while i < n:
            runs += 1
            j = i + 1
            while j < n and source[2 * j] >= source[2 * j - 2]:
                j += 1
            if j == n and runs == 1:
                break
            k = j + 1
            while k < n and source[2 * k] >= source[2 * k - 2]:
                k += 1
            if k > n:
                k = n
            if target == NULL:
                target = spare = <uint64_t *>malloc(2 * n * sizeof(uint64_t))
                if spare == NULL:
                    raise MemoryError()
            a, b = i, j
            while a < j or b < k:
                from_left = b >= k or (a < j and source[2 * a] <= source[2 * b])
                if from_left:
                    target[2 * out] = source[2 * a]
                    target[2 * out + 1] = source[2 * a + 1]
                    a += 1
                else:
                    target[2 * out] = source[2 * b]
                    target[2 * out + 1] = source[2 * b + 1]
                    b += 1
                out += 1
            i = k
        if i < n or n == 0:  # one run: sorted
            break
        source, target = target, source
    if source != ranges.at:
        memcpy(ranges.at, source, 2 * n * sizeof(uint64_t))
    free(spare)
    out = 0
    for i in range(1, n):
        if ranges.at[2 * i] == ranges.at[2 * out + 1] + 1:
            ranges.at[2 * out + 1] = ranges.at[2 * i + 1]
        else:
            out += 1
            ranges.at[2 * out] = ranges.at[2 * i]
            ranges.at[2 * out + 1] = ranges.at[2 * i + 1]
    if n:
        ranges.n = 2 * (out + 1)
    return 0


cdef list pairs_of(words *ranges):
    # (first, last), sorted and joined
    cdef size_t i
    join_ranges(ranges)
    return [(ranges.at[i], ranges.at[i + 1]) for i in range(0, ranges.n, 2)]


# -- slots -------------------------------------------------------------------------------------------------------

# A slot's message is looked at as it lies there: passed on as an object it would be counted and let go of again, and each
# count would wait for the one before.
cdef extern from "Python.h":
    void uncount "Py_DECREF" (PyObject *held) noexcept


cdef inline uint64_t enqueued_bytes(slot *s) noexcept:
    return ENQ_OVERHEAD_BYTES + held_size(<PyObject *>(<Message><PyObject *>s.message).address) + payload_bytes(s)


cdef inline uint64_t slot_bytes(slot *s) noexcept:
    return (enqueued_bytes(s) + 7) & ~<uint64_t>7


cdef inline uint64_t record_bytes(Message message):
    return (ENQ_OVERHEAD_BYTES + address_size(message) + payload_size(message) + 7) & ~<uint64_t>7


cdef inline bint in_memory(slot *s) noexcept:
    return s.message & 1 == 0


cdef inline size_t payload_bytes(slot *s) noexcept:
    return held_size(<PyObject *>(<Message><PyObject *>s.message).payload)


cdef inline uint64_t body_bytes(slot *s) noexcept:
    if s.message & 1:
        return s.message >> 1
    return payload_bytes(s) - (<Message><PyObject *>s.message).header_length


cdef inline void set_state(slot *s, uint8_t state) noexcept:
    s.bits = (s.bits & ~<uint8_t>STATE) | state


cdef inline uint64_t heap_key(slot *s, uint64_t seq) noexcept:
    return <uint64_t>(255 - s.priority) << SEQ_BITS | seq



cdef struct spot:
    uint64_t seq
    uint32_t segment
    uint32_t offset
    uint32_t length
    uint32_t unused


@cython.final
cdef class Places:
    """What `Ring.missing` names: a sequence of (seq, segment, offset, length), without an object for each.

    As a buffer it is an array of u64, u32, u32, u32, u32 (the last without meaning), which the journal reads directly.
    """

    cdef spot *at
    cdef size_t count
    cdef size_t room

    def __dealloc__(self):
        free(self.at)

    cdef int add(self, uint64_t seq, uint32_t segment, uint32_t offset, uint32_t length) except -1:
        cdef spot *grown
        if self.count == self.room:
            grown = <spot *>realloc(self.at, max(<size_t>16, 2 * self.room) * sizeof(spot))
            if grown == NULL:
                raise MemoryError()
            self.at = grown
            self.room = max(<size_t>16, 2 * self.room)
        self.at[self.count] = spot(seq, segment, offset, length, 0)
        self.count += 1
        return 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, Py_ssize_t index) -> tuple:
        if index < 0:
            index += self.count
        if index < 0 or <size_t>index >= self.count:
            raise IndexError(index)
        return self.at[index].seq, self.at[index].segment, self.at[index].offset, self.at[index].length

    def __eq__(self, other) -> bool:
        return list(self) == list(other)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if flags & PyBUF_WRITABLE:
            raise BufferError("places are read only")
        view.obj = self
        view.buf = self.at
        view.len = self.count * sizeof(spot)
        view.readonly = 1
        view.itemsize = 1
        view.format = NULL
        view.ndim = 1
        view.shape = NULL
        view.strides = NULL
        view.suboffsets = NULL
        view.internal = NULL


cdef class LocalRing:
    """The messages of one queue at their owner. All its C methods are final: no table of them."""

    cdef readonly uint64_t queue_id
    cdef readonly bint journaled
    cdef readonly uint8_t max_priority
    cdef readonly SegmentUse use
    cdef public list agenda
    cdef public object owner
    cdef public object annotate
    cdef public bint annotates_all
    cdef public bint annotates_redelivered
    cdef public uint32_t epoch
    cdef public bint marked
    cdef public bint loading
    cdef public bint keeps
    cdef public uint64_t load_ahead
    cdef readonly bint destroyed
    cdef public int64_t ttl_ms
    cdef public uint64_t turn
    cdef public uint64_t passed_over
    cdef readonly uint64_t ready
    cdef readonly uint64_t unacked
    cdef readonly int64_t ready_bytes
    cdef readonly int64_t resident_bytes
    cdef readonly uint64_t resident
    cdef readonly uint64_t fleeting
    cdef public int64_t resident_bytes_max
    cdef readonly uint64_t next_seq
    cdef readonly uint64_t committed
    cdef readonly uint64_t reserved
    cdef readonly uint64_t reserved_durable
    cdef uint64_t reserved_written
    cdef uint64_t reserve_from
    cdef uint64_t reserve_step
    cdef uint64_t cursor
    cdef uint64_t unwritten
    cdef uint64_t longest  # address and payload of those that no group has passed, or more
    cdef public bint replicated
    cdef public bint paused
    cdef readonly bint replica
    cdef readonly bint proxy
    cdef bint is_volatile

    # totals since this node owns the queue, for operators.
    cdef public uint64_t published
    cdef public uint64_t handed
    cdef public uint64_t handed_no_ack
    cdef public uint64_t redelivered
    cdef public uint64_t acked
    cdef public uint64_t auto_acks
    cdef public uint64_t got
    cdef public uint64_t got_no_ack
    cdef public uint64_t got_empty
    cdef readonly uint64_t disk_reads
    cdef readonly uint64_t disk_writes

    cdef public object past  # of a stream
    cdef uint64_t trimmed  # a stream: all up to it is gone, SET unlogged

    cdef uint64_t absent  # ready messages that are on disk only
    cdef uint64_t loaded_to  # from the cursor to here none of them is absent
    cdef uint64_t held  # slots in that state
    cdef uint64_t counted  # slots with COUNTED
    cdef uint64_t copied  # slots with COPIED

    cdef words heap  # (255 - priority) << 56 | seq of ready messages that the cursor will not meet
    cdef words settled  # pairs (first, last)
    cdef words inflight
    cdef words counts  # pairs (seq, the delivery count that the log knows), in the order in which they were COUNTED
    cdef words copies  # seqs, in the order in which they were COPIED
    cdef words moves  # triples seq, segment << 32 | offset, length
    cdef words moving  # the seqs of these, ascending
    cdef uint64_t returned  # the lowest seq that has returned since a selecting dispatch looked, NONE: none has
    cdef words dirty  # numbers of blocks, gone or marked dirty

    cdef object known_state  # QueueState, None while there is nothing to say
    cdef list epochs_before  # as the log knows them, while it has to hear more
    cdef dict unsaid  # the values that the log knows of attributes whose ATTR is unlogged
    cdef dict dying  # seqs, DEAD unlogged
    cdef dict buried  # seq -> mark of the dead whose SET is unlogged
    cdef uint64_t *held_counts  # by holder, NULL: none
    cdef link_row *link_rows  # the first of them is nobody's
    cdef size_t link_room
    cdef dict row_of_link
    cdef words link_dirty  # pairs (row, bucket) of which the log has to hear
    cdef bint link_presses  # somebody waits for that
    cdef public bint links_wait  # what links had returns with a group to come: they are handed nothing newer before it
    cdef readonly uint64_t groups  # so many were written, and so many of them are committed
    cdef readonly uint64_t groups_committed

    cdef shelf *shelves
    cdef size_t shelf_first
    cdef size_t shelf_end
    cdef size_t shelf_room
    cdef size_t shelf_holes
    cdef uint64_t hot_number
    cdef block *hot

    def __cinit__(self):
        self.hot_number = NONE

    def __init__(self, uint64_t queue_id, bint journaled=False, uint8_t max_priority=0, SegmentUse use=None,
                 list agenda=None, owner=None, bint proxy=False, bint replica=False):
        self.queue_id = queue_id
        self.proxy = proxy
        self.replica = self.replicated = replica
        self.unsaid = {}
        self.dying = {}
        self.buried = {}
        self.row_of_link = {}
        self.journaled = journaled
        self.max_priority = max_priority
        self.use = use
        self.agenda = agenda
        self.owner = owner
        self.epoch = 1
        self.load_ahead = LOAD_AHEAD
        self.keeps = True
        self.ttl_ms = -1
        self.resident_bytes_max = 8 << 20
        self.next_seq = self.committed = self.cursor = self.unwritten = self.reserve_from = 1
        self.reserve_step = RESERVE_FIRST
        self.returned = NONE

    def __dealloc__(self):
        self.free_blocks()
        self.drop_words()
        free(self.held_counts)
        forget_links(self)

    @cython.final
    cdef void drop_words(self) noexcept:
        drop(&self.heap)
        drop(&self.settled)
        drop(&self.inflight)
        drop(&self.counts)
        drop(&self.copies)
        drop(&self.moves)
        drop(&self.moving)
        drop(&self.dirty)

    # -- blocks -----------------------------------------------------------------------------------------------

    @cython.final
    cdef size_t shelf_at(self, uint64_t number) noexcept:
        # the first shelf whose number is not lower
        return row_from(self.shelves, sizeof(shelf), self.shelf_first, self.shelf_end, number)

    @cython.final
    cdef block *seek_block(self, uint64_t number) noexcept:
        cdef size_t i = self.shelf_at(number)
        if i == self.shelf_end or self.shelves[i].number != number or self.shelves[i].place == NULL:
            return NULL
        self.hot_number = number
        self.hot = self.shelves[i].place
        return self.hot

    @cython.final
    cdef inline block *find_block(self, uint64_t number) noexcept:
        if number == self.hot_number:
            return self.hot
        return self.seek_block(number)

    @cython.final
    cdef inline slot *find(self, uint64_t seq) noexcept:
        # the slot of seq, `nothing` when its block does not exist; `hot` is its block afterwards
        cdef block *found = self.find_block(seq >> 8)
        if found == NULL:
            return &nothing
        return &found.slots[seq & 255]

    @cython.final
    cdef block *add_block(self, uint64_t number) except NULL:
        cdef block *made
        cdef shelf *grown
        cdef size_t i, out, room
        if self.shelf_end == self.shelf_room:
            if self.shelf_room and 2 * (self.shelf_first + self.shelf_holes) >= self.shelf_room:
                out = 0
                for i in range(self.shelf_first, self.shelf_end):
                    if self.shelves[i].place != NULL:
                        self.shelves[out] = self.shelves[i]
                        out += 1
                self.shelf_first = self.shelf_holes = 0
                self.shelf_end = out
            else:
                room = 2 * self.shelf_room + 4
                grown = <shelf *>realloc(self.shelves, room * sizeof(shelf))
                if grown == NULL:
                    raise MemoryError()
                self.shelves = grown
                self.shelf_room = room
        made = new_block()
        i = self.shelf_at(number)
        if i < self.shelf_end and self.shelves[i].number == number:
            self.shelf_holes -= 1
        else:
            memmove(&self.shelves[i + 1], &self.shelves[i], (self.shelf_end - i) * sizeof(shelf))
            self.shelf_end += 1
            self.shelves[i].number = number
        self.shelves[i].place = made
        self.hot_number = number
        self.hot = made
        return made

    @cython.final
    cdef void drop_hot_block(self) noexcept:
        cdef size_t i = self.shelf_at(self.hot_number)
        old_block(self.hot)
        self.shelves[i].place = NULL
        self.hot_number = NONE
        self.shelf_holes += 1
        while self.shelf_first < self.shelf_end and self.shelves[self.shelf_first].place == NULL:
            self.shelf_first += 1
            self.shelf_holes -= 1
        while self.shelf_end > self.shelf_first and self.shelves[self.shelf_end - 1].place == NULL:
            self.shelf_end -= 1
            self.shelf_holes -= 1
        if self.shelf_first == self.shelf_end:
            self.shelf_first = self.shelf_end = 0
            if self.shelf_room > 4:
                free(self.shelves)
                self.shelves = NULL
                self.shelf_room = 0

    @cython.final
    cdef uint64_t skip(self, uint64_t seq, uint64_t end) noexcept:
        # the block of seq does not exist: the first seq of the next one, at most `end`
        cdef size_t i = self.shelf_at(seq >> 8)
        while i < self.shelf_end and self.shelves[i].place == NULL:
            i += 1
        if i == self.shelf_end:
            return end
        return min(self.shelves[i].number << 8, end)

    @cython.final
    cdef inline bint clear(self, slot *s) noexcept:
        # s was just found, so its block is hot; True when the block is gone
        memset(s, 0, sizeof(slot))
        self.hot.live -= 1
        if self.hot.live:
            return False
        self.drop_hot_block()
        return True

    @cython.final
    cdef void free_blocks(self) noexcept:
        cdef size_t i, k
        cdef block *place
        for i in range(self.shelf_first, self.shelf_end):
            place = self.shelves[i].place
            if place == NULL:
                continue
            for k in range(256):
                if place.slots[k].bits and in_memory(&place.slots[k]):
                    uncount(<PyObject *>place.slots[k].message)
            memset(place.slots, 0, sizeof(place.slots))
            old_block(place)
        free(self.shelves)
        self.shelves = NULL
        self.shelf_first = self.shelf_end = self.shelf_room = self.shelf_holes = 0
        self.hot_number = NONE

    @cython.final
    cdef inline int mark_dirty(self) except -1:
        # the hot block
        if not self.hot.dirty:
            self.hot.dirty = True
            if self.dirty.n == 0 or self.dirty.at[self.dirty.n - 1] != self.hot_number:
                push(&self.dirty, self.hot_number)
        return 0

    # -- joining ----------------------------------------------------------------------------------------------

    @cython.final
    cdef inline bint goes_to_log(self, Message message) noexcept:
        return (
            (message.flags & PERSISTENT or self.past is not None) and self.journaled and self.keeps
        ) or self.replicated

    @cython.final
    cdef inline int put(self, Message message) except -1:
        cdef uint64_t seq = self.next_seq
        cdef size_t size = payload_size(message)
        cdef block *place
        cdef slot *s
        if self.max_priority:
            heap_push(&self.heap, <uint64_t>(255 - min(message.priority, self.max_priority)) << SEQ_BITS | seq)
        place = self.find_block(seq >> 8)
        if place == NULL:
            place = self.add_block(seq >> 8)
        s = &place.slots[seq & 255]
        Py_INCREF(message)
        s.message = <uint64_t><PyObject *>message
        s.priority = min(message.priority, self.max_priority)
        s.bits = READY
        if self.goes_to_log(message):
            s.bits |= PERSIST
        else:
            self.fleeting += 1
        place.live += 1
        if size + address_size(message) > self.longest or self.unwritten == seq:
            self.longest = size + address_size(message)
        self.next_seq = seq + 1
        self.ready += 1
        self.ready_bytes += size - message.header_length
        self.resident_bytes += size
        self.resident += 1
        return 0

    def persists(self, Message message not None) -> bool:
        """Whether a message that is appended now goes to the log."""
        return self.goes_to_log(message)

    def persists_all(self, messages) -> bool:
        """As `persists`, of each of them."""
        if self.replicated:
            return True
        for message in messages:
            if not self.goes_to_log(<Message?>message):
                return False
        return True

    def append(self, messages) -> int:
        """Gives the messages the next seqs; returns `next_seq` after them."""
        cdef uint64_t before = self.next_seq
        for message in messages:
            if type(message) is not Message:
                raise TypeError(f"a compiled ring holds compiled messages, not {type(message).__name__}")
            self.put(<Message>message)
        self.published += self.next_seq - before
        if self.max_priority:
            self.cursor = self.next_seq
        self.set_mark()
        return self.next_seq

    @cython.final
    cdef inline int set_mark(self) except -1:
        if not self.marked and self.agenda is not None:
            self.marked = True
            self.agenda.append(self.owner)
        return 0

    def mark(self) -> None:
        self.set_mark()

    # -- the head ---------------------------------------------------------------------------------------------

    @cython.final
    cdef inline uint64_t head_seq(self) noexcept:
        # the seq of the next ready message, 0 when there is none
        cdef uint64_t seq
        while self.heap.n:
            seq = self.heap.at[0] & SEQ_MASK
            if self.find(seq).bits & STATE == READY:  # returned messages stand before the cursor
                return seq
            heap_pop(&self.heap)
        return self.cursor_seq()

    @cython.final
    cdef uint64_t cursor_seq(self) noexcept:
        cdef uint64_t seq = self.cursor, end = self.next_seq, stop
        cdef block *place
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                if place.slots[seq & 255].bits & STATE == READY:
                    self.cursor = seq
                    return seq
                seq += 1
        self.cursor = seq
        return 0

    @cython.final
    cdef inline int64_t expiry(self, Message message) noexcept:
        # amqp-rules 5.6: the effective TTL is the lower of the queue's and the message's
        cdef int64_t ttl = message.ttl_ms
        if self.ttl_ms >= 0 and (ttl < 0 or self.ttl_ms < ttl):
            ttl = self.ttl_ms
        if ttl < 0 or (message.time_ms > 0 and ttl > TTL_MS_MAX - message.time_ms):
            return -1  # beyond what a clock can say
        return message.time_ms + ttl

    @cython.final
    cdef inline bint may_hand_out(self, uint64_t seq) noexcept:
        return seq <= self.reserved_durable or self.reserve_from <= seq <= self.reserved_written

    @cython.final
    cdef inline int head_at(self, uint64_t seq, slot *s, int64_t now_ms) noexcept:
        if not in_memory(s):
            return HEAD_NOT_LOADED
        if self.ttl_ms >= 0 or (<Message><PyObject *>s.message).ttl_ms >= 0:
            if 0 <= self.expiry(<Message><PyObject *>s.message) <= now_ms:
                return HEAD_EXPIRED
        if self.replicated:
            if seq >= self.committed:
                return HEAD_NOT_COMMITTED
            if seq > self.reserved_durable:
                return HEAD_NOT_RESERVED
        elif s.bits & WRITTEN and not self.may_hand_out(seq):
            return HEAD_NOT_RESERVED
        return HEAD_OK

    def head(self, int64_t now_ms) -> int:
        """What stands at the head: HEAD_OK, HEAD_NONE, HEAD_NOT_LOADED, HEAD_NOT_RESERVED, HEAD_EXPIRED or
        HEAD_NOT_COMMITTED."""
        cdef uint64_t seq
        if self.paused or self.replica:
            return HEAD_NOT_COMMITTED if self.ready else HEAD_NONE
        seq = self.head_seq()
        return self.head_at(seq, self.find(seq), now_ms) if seq else HEAD_NONE

    def head_place(self) -> int:
        return self.head_seq()

    def head_message(self):
        """What stands at the head, if it is in memory."""
        cdef uint64_t seq = self.head_seq()
        cdef slot *s = self.find(seq)
        return <Message><PyObject *>s.message if seq and in_memory(s) else None

    def head_expiry_ms(self) -> int:
        """Wall clock at which the head expires; -1 when it does not, or is not in memory."""
        cdef uint64_t seq = self.head_seq()
        cdef slot *s = self.find(seq)
        if not seq or not in_memory(s):
            return -1
        return self.expiry(<Message><PyObject *>s.message)

    def expiry_ms(self, Message message) -> int:
        """Wall clock at which the message expires in this queue; -1: it does not."""
        return self.expiry(message)

    @cython.final
    cdef void reserve_past(self, uint64_t seq) noexcept:
        self.reserved = max(seq, self.reserved) + self.reserve_step
        self.reserve_step = min(self.reserve_step * 2, <uint64_t>RESERVE_MAX)

    def reserve(self) -> None:
        """Asks for the right to hand out more; the next group carries it."""
        self.ask_reserve()

    @cython.final
    cdef int ask_reserve(self) except -1:
        cdef uint64_t seq
        if not self.logged() or self.destroyed:
            return 0
        seq = self.head_seq()
        if not self.replicated and not self.keeps and (not seq or not self.find(seq).bits & WRITTEN):
            return 0  # what is not kept needs no reservation
        if not seq:
            seq = self.next_seq
        if seq + self.reserve_step // 2 > self.reserved:
            self.reserve_past(seq)
            self.set_mark()
        return 0

    @cython.final
    cdef inline bint logged(self) noexcept:
        # records are written, to the journal or to other nodes
        return self.journaled or self.replicated

    @cython.final
    cdef inline void leave_head(self, uint64_t seq, slot *s) noexcept:
        if self.heap.n and self.heap.at[0] & SEQ_MASK == seq:
            heap_pop(&self.heap)
        elif seq == self.cursor:
            self.cursor += 1
        set_state(s, UNACKED)
        self.ready -= 1
        self.unacked += 1
        self.ready_bytes -= body_bytes(s)

    @cython.final
    cdef inline int hand_out(self, uint64_t seq, slot *s) except -1:
        self.leave_head(seq, s)
        if self.replicated:
            if seq + self.reserve_step // 2 > self.reserved:  # early, so that a hand-out in full flow does not wait
                self.reserve_past(seq)
                self.set_mark()
        elif s.bits & (PERSIST | WRITTEN) == PERSIST and seq > self.reserved:
            self.reserve_past(seq)
        return 0

    @cython.final
    cdef inline void relieve(self, uint64_t seq, slot *s) noexcept:
        # a message that was handed out may leave memory
        if s.bits & WRITTEN and seq < self.committed and self.resident_bytes > self.resident_bytes_max:
            self.page_out(seq, s)

    def take(self) -> tuple:
        """Hands out the head (`head` said HEAD_OK): seq, message, redelivered, delivery count."""
        cdef uint64_t seq = self.head_seq()
        cdef slot *s = self.find(seq)
        if not seq:
            raise KeyError(seq)
        if not in_memory(s):
            raise AssertionError("a message is loaded before it is handed out")
        message = <object><PyObject *>s.message
        self.hand_out(seq, s)
        self.relieve(seq, s)
        self.redelivered += s.bits & REDELIVERED != 0
        return seq, message, s.bits & REDELIVERED != 0, s.delivery_count

    # -- leaving ----------------------------------------------------------------------------------------------

    @cython.final
    cdef int settle_seq(self, uint64_t seq, bint held) except -1:
        cdef slot *s = self.find(seq)
        cdef uint8_t state = s.bits & STATE
        cdef uint64_t bytes_left
        cdef size_t n
        if state == UNACKED:
            self.unacked -= 1
            if self.held_counts != NULL:
                self.let_go(seq)
        elif state == READY:
            self.ready -= 1
            self.ready_bytes -= body_bytes(s)
            if not in_memory(s):
                self.absent -= 1
        elif self.destroyed:
            return 0
        elif state == DEAD:
            self.bury(seq)
        elif state == EMPTY:
            raise KeyError(seq)
        else:
            raise AssertionError(f"message {seq} of queue {self.queue_id} is settled once")
        if not s.bits & PERSIST:
            self.fleeting -= 1
        if in_memory(s):
            bytes_left = body_bytes(s)
            self.resident_bytes -= payload_bytes(s)
            self.resident -= 1
            uncount(<PyObject *>s.message)
            s.message = bytes_left << 1 | 1
        if s.bits & (WRITTEN | COUNTED | COPIED):
            if s.bits & COUNTED:
                self.counted -= 1
            if s.bits & COPIED:
                self.copied -= 1
            s.bits = (s.bits & ~<uint8_t>(STATE | COUNTED | COPIED)) | SETTLED
            n = self.settled.n
            if n and self.settled.at[n - 1] + 1 == seq:
                self.settled.at[n - 1] = seq
            else:
                push(&self.settled, seq)
                push(&self.settled, seq)
        elif held and s.bits & PERSIST:
            set_state(s, HELD)
            self.held += 1
        else:
            self.clear(s)
        return 0

    def settle(self, uint64_t seq, bint held=False) -> None:
        """The message leaves the queue; `held`: as one half of something atomic (see HELD)."""
        self.settle_seq(seq, held)

    def requeue(self, uint64_t seq, bint counted) -> int:
        """An unacknowledged message returns to its old place; returns its delivery count."""
        cdef slot *s = self.find(seq)
        if s.bits & STATE != UNACKED:
            if self.destroyed:
                return 0
            if s.bits & STATE == EMPTY:
                raise KeyError(seq)
            raise AssertionError(f"only an unacknowledged message returns, {seq} of {self.queue_id} is not")
        if self.proxy:
            raise AssertionError("what a proxy holds returns at its owner")
        if self.held_counts != NULL:
            self.let_go(seq)
        self.returned = min(self.returned, seq)
        if seq < self.cursor:
            if self.heap.n > 2 * self.ready + HEAP_SLACK:
                tidy_heap(self)
            heap_push(&self.heap, heap_key(s, seq))
        elif not in_memory(s):  # after a failover the cursor stands before what was held
            self.loaded_to = min(self.loaded_to, seq)
        set_state(s, READY)
        s.bits |= REDELIVERED
        if counted:
            if s.bits & WRITTEN:
                if not s.bits & COUNTED:
                    push(&self.counts, seq)
                    push(&self.counts, s.delivery_count)
                    s.bits |= COUNTED
                    self.counted += 1
                self.mark_dirty()
            if s.delivery_count < 0xFFFF:
                s.delivery_count += 1
        self.unacked -= 1
        self.ready += 1
        self.ready_bytes += body_bytes(s)
        if not in_memory(s):
            self.absent += 1
        self.set_mark()
        return s.delivery_count

    def pop_head(self) -> tuple:
        """Takes the head out without handing it out: seq, message if in memory, delivery count."""
        cdef uint64_t seq = self.head_seq()
        cdef slot *s = self.find(seq)
        if not seq:
            raise AssertionError("there is a head")
        self.leave_head(seq, s)
        if in_memory(s):
            return seq, <object><PyObject *>s.message, s.delivery_count
        self.absent -= 1
        return seq, None, s.delivery_count

    def purge(self) -> int:
        """Settles all that is ready; returns how many."""
        cdef uint64_t count = 0, seq
        cdef slot *s
        while True:
            seq = self.head_seq()
            if not seq:
                break
            s = self.find(seq)
            if not in_memory(s):
                self.absent -= 1
            self.leave_head(seq, s)
            self.settle_seq(seq, False)
            count += 1
        if count:
            self.set_mark()
        return count

    @cython.final
    cdef slot *known(self, uint64_t seq) except NULL:
        cdef slot *s = self.find(seq)
        if not s.bits:
            raise KeyError(seq)
        return s

    def message(self, uint64_t seq):
        """The message, None when it is on disk only."""
        cdef slot *s = self.known(seq)
        return <object><PyObject *>s.message if in_memory(s) else None

    def location(self, uint64_t seq) -> tuple:
        cdef slot *s = self.known(seq)
        if not s.bits & WRITTEN:
            raise AssertionError(f"message {seq} of queue {self.queue_id} is on disk")
        return seq, s.segment, s.offset, s.length

    def delivery_count(self, uint64_t seq) -> int:
        return self.known(seq).delivery_count

    # -- the journal ------------------------------------------------------------------------------------------

    @property
    def needs_write(self) -> bool:
        return self.logged() and (self.settled.n != 0 or self.counted != 0 or self.trimmed != 0
                                  or self.link_dirty.n != 0 or self.presses())

    @property
    def counted_at_rest(self) -> int:
        """1 and all that was counted, while no message is ready, unacknowledged or in memory: as long as it is the same
        nothing has happened. 0: there are some."""
        if self.ready or self.unacked or self.resident:
            return 0
        return (1 + self.next_seq + self.published + self.handed + self.handed_no_ack + self.redelivered + self.acked + self.got
                + self.got_no_ack + self.got_empty + self.disk_reads + self.disk_writes)

    @property
    def urgent(self) -> bool:
        """Somebody waits for what `write` would add: a publisher for its confirm, a consumer for its messages."""
        return self.logged() and self.presses()

    @cython.final
    cdef inline bint presses(self) noexcept:
        return (
            self.unwritten < self.next_seq
            or self.copied != 0
            or self.reserved > self.reserved_written
            or len(self.dying) != 0
            or len(self.unsaid) != 0
            or self.epochs_before is not None
            or self.link_presses
        )

    @property
    def unwritten_bytes(self) -> int:
        """At most so many bytes `write` will add to a group."""
        cdef size_t i
        cdef uint64_t seq = self.unwritten, stop, records = 0
        cdef block *place
        cdef slot *s
        while seq < self.next_seq:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, self.next_seq)
                continue
            stop = min((seq | 255) + 1, self.next_seq)
            for seq in range(seq, stop):
                s = &place.slots[seq & 255]
                if s.bits & PERSIST and s.bits & STATE in (READY, UNACKED, DEAD) and in_memory(s):
                    records += slot_bytes(s)
            seq = stop
        for i in range(self.copies.n):
            s = self.find(self.copies.at[i])
            if s.bits & COPIED and in_memory(s):
                records += slot_bytes(s)
        for name in self.unsaid:
            records += 48 + len(name)
        if self.epochs_before is not None:
            records += 32 * len(self.known_state.epochs)
        return 192 + records + 56 * (self.settled.n // 2 + self.counted + len(self.dying)) + 36 * self.link_dirty.n

    @property
    def unwritten_most(self) -> int:
        """A bound of `unwritten_bytes`, found without a look at each message."""
        if self.copied or self.unsaid or self.epochs_before is not None:
            return self.unwritten_bytes
        return (
            192 + min(self.next_seq - self.unwritten, self.resident) * (ENQ_OVERHEAD_BYTES + self.longest + 7)
            + 56 * (self.settled.n // 2 + self.counted + len(self.dying)) + 36 * self.link_dirty.n
        )

    def write(self, GroupWriter writer not None, uint64_t upto=0) -> int:
        """Puts what the journal has not heard into the group, messages below `upto`."""
        cdef size_t i
        cdef uint64_t seq, offset
        cdef slot *s
        if self.proxy:
            raise AssertionError("a proxy has no log")
        if self.replicated or self.unsaid or self.link_presses:
            upto = 0
        self.groups += 1
        if self.epochs_before is not None:
            for epoch, first_seq in self.known_state.epochs:
                if (epoch, first_seq) not in self.epochs_before:
                    writer.begin_epoch(self.queue_id, epoch, first_seq)
            self.epochs_before = None
        if self.reserved > self.reserved_written:
            writer.put_reserve(self.queue_id, self.epoch, self.reserved)
            self.reserved_written = self.reserved
            self.reserve_from = self.unwritten
        for i in range(self.copies.n):
            seq = self.copies.at[i]
            s = self.find(seq)
            if not s.bits & COPIED:
                continue
            s.bits &= ~<uint8_t>COPIED
            offset = writer.put_enqueue(self.queue_id, self.epoch if self.known_state is None else self.epoch_of(seq),
                                        seq, <Message><PyObject *>s.message, s.delivery_count)
            push(&self.moves, seq)
            push(&self.moves, <uint64_t>writer.segment << 32 | offset)
            push(&self.moves, enqueued_bytes(s))
            push(&self.moving, seq)
        if self.moving.n:
            qsort(self.moving.at, self.moving.n, sizeof(uint64_t), compare_words)
        self.copied = 0
        reset(&self.copies)
        self.write_new(writer, min(upto, self.next_seq) if upto else self.next_seq)
        if self.unsaid and LAST_DEAD in self.unsaid:
            number = self.unsaid.pop(LAST_DEAD)
            for dead_seq in self.dying:
                mark = self.known_state.dead[dead_seq]
                writer.put_dead(self.queue_id, self.epoch, dead_seq, mark)
                number = mark >> 8
            self.dying.clear()
            self.known_state.set_attribute(LAST_DEAD, number)
        if self.settled.n:
            join_ranges(&self.settled)
            writer.put_settle(self.queue_id, self.epoch, self.settled.at, self.settled.n // 2, 0)
            if self.replicated:  # a checkpoint before the commit leaves them out
                for i in range(0, self.settled.n, 2):
                    for seq in range(self.settled.at[i] >> 8, (self.settled.at[i + 1] >> 8) + 1):
                        if self.find_block(seq) != NULL:
                            self.mark_dirty()
            if self.inflight.n:
                for i in range(self.settled.n):
                    push(&self.inflight, self.settled.at[i])
                reset(&self.settled)
            else:
                self.settled, self.inflight = self.inflight, self.settled
        if self.trimmed:
            writer.settle(self.queue_id, self.epoch, [(1, self.trimmed)])
            self.past.drop(1, self.trimmed)
            self.trimmed = 0
        for i in range(0, self.counts.n, 2):
            seq = self.counts.at[i]
            s = self.find(seq)
            if s.bits & COUNTED:
                s.bits &= ~<uint8_t>COUNTED
                writer.put_count(self.queue_id, self.epoch, seq, s.delivery_count)
        self.counted = 0
        reset(&self.counts)
        if self.buried:
            self.buried.clear()
        if self.unsaid:
            for name in self.unsaid:
                writer.set_attribute(self.queue_id, self.epoch, name, self.known_state.attributes.get(name, 0))
            self.unsaid.clear()
        write_links(self, writer)
        return self.unwritten

    @cython.final
    cdef int write_new(self, GroupWriter writer, uint64_t end) except -1:
        cdef uint64_t seq = self.unwritten, stop, written = 0, length, count = 0
        cdef block *place
        cdef slot *s
        cdef Message message
        cdef uint8_t state
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            for seq in range(seq, stop):
                s = &place.slots[seq & 255]
                state = s.bits & STATE
                if not s.bits & PERSIST or (state != READY and state != UNACKED and state != DEAD):
                    continue
                if not in_memory(s):
                    raise AssertionError("an unwritten message is in memory")
                message = <Message><PyObject *>s.message
                s.offset = <uint32_t>writer.put_enqueue(self.queue_id, self.epoch, seq, message, s.delivery_count)
                s.segment = writer.segment
                length = ENQ_OVERHEAD_BYTES + address_size(message) + payload_size(message)
                s.length = <uint32_t>length
                s.bits |= WRITTEN
                count += 1
                self.mark_dirty()
                if self.use is not None:
                    if written + length > 0xFFFFFFFF:
                        self.use.add_bytes(writer.segment, <uint32_t>written)
                        written = 0
                    written += length
            seq = stop
        if written:
            self.use.add_bytes(writer.segment, <uint32_t>written)
        if self.journaled:
            self.disk_writes += count
        self.unwritten = max(self.unwritten, end)
        return 0

    def commit(self, uint64_t upto) -> None:
        """The group that `write` returned `upto` for is durable. At most one group of a ring is in flight."""
        if upto > self.unwritten:
            raise AssertionError("only what was written becomes durable")
        if self.replica:
            self.commit_moves()
            return
        self.groups_committed = self.groups
        if self.held or self.resident_bytes > self.resident_bytes_max:
            self.pass_over(upto)
        self.committed = max(self.committed, upto)
        self.reserved_durable = self.reserved_written
        self.commit_moves()
        self.commit_settled()
        self.advance_committed()

    def moved(self) -> None:
        """The group that `write` returned from is durable here."""
        self.commit_moves()

    @cython.final
    cdef int commit_moves(self) except -1:
        cdef uint64_t seq
        cdef size_t i
        cdef slot *s
        reset(&self.moving)
        for i in range(0, self.moves.n, 3):
            seq = self.moves.at[i]
            s = self.find(seq)
            if not s.bits:
                continue
            if self.use is not None:
                self.use.add_bytes(<uint32_t>(self.moves.at[i + 1] >> 32), <uint32_t>self.moves.at[i + 2])
                self.use.release_bytes(s.segment, s.length)
            s.segment = <uint32_t>(self.moves.at[i + 1] >> 32)
            s.offset = <uint32_t>self.moves.at[i + 1]
            s.length = <uint32_t>self.moves.at[i + 2]
            self.mark_dirty()
            if in_memory(s) and self.resident_bytes > self.resident_bytes_max:
                self.page_out(seq, s)
        reset(&self.moves)
        return 0

    @cython.final
    cdef int pass_over(self, uint64_t upto) except -1:
        # decides the slots in [committed, upto)
        cdef uint64_t seq = self.committed, stop
        cdef block *place
        cdef slot *s
        while seq < upto:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, upto)
                continue
            stop = min((seq | 255) + 1, upto)
            while seq < stop:
                s = &place.slots[seq & 255]
                if s.bits & STATE == HELD:
                    self.held -= 1
                    if self.clear(s):
                        break
                elif s.bits & WRITTEN and in_memory(s) and self.resident_bytes > self.resident_bytes_max:
                    self.page_out(seq, s)
                seq += 1
            seq = stop
        return 0

    @cython.final
    cdef int commit_settled(self) except -1:
        cdef uint64_t seq, released = 0
        cdef uint32_t segment = 0
        cdef size_t i
        cdef slot *s
        for i in range(0, self.inflight.n, 2):
            seq = self.inflight.at[i]
            while seq <= self.inflight.at[i + 1]:
                s = self.find(seq)
                if s.bits & STATE != SETTLED:
                    raise AssertionError("a SET record names settled messages")
                self.mark_dirty()
                if self.use is not None:
                    if s.segment != segment or released + s.length > 0xFFFFFFFF:
                        if released:
                            self.use.release_bytes(segment, <uint32_t>released)
                        segment = s.segment
                        released = 0
                    released += s.length
                self.clear(s)
                seq += 1
        if released:
            self.use.release_bytes(segment, <uint32_t>released)
        reset(&self.inflight)
        return 0

    @cython.final
    cdef void advance_committed(self) noexcept:
        cdef uint64_t seq = self.committed, end = self.next_seq, stop
        cdef block *place
        if not self.logged():
            self.committed = self.unwritten = end
            return
        while seq < end:
            place = self.find_block(seq >> 8)
            if place == NULL:
                seq = self.skip(seq, end)
                continue
            stop = min((seq | 255) + 1, end)
            while seq < stop:
                if place.slots[seq & 255].bits & PERSIST:
                    self.committed = seq
                    return
                seq += 1
        self.committed = seq

    def advance(self) -> int:
        """Moves `committed` over what needs no disk: transient messages, and those acknowledged unwritten."""
        self.advance_committed()
        return self.committed

    def rewrite(self, uint64_t seq, uint32_t segment, uint32_t offset, Message message not None) -> bool:
        """Copy forward: writes the message again if it still lives at (segment, offset); False when it does not."""
        cdef slot *s = self.find(seq)
        cdef uint8_t state = s.bits & STATE
        if (state != READY and state != UNACKED and state != DEAD) or not s.bits & WRITTEN or self.past is not None:
            return False
        if s.segment != segment or s.offset != offset:
            return False
        if s.bits & COPIED:
            return True
        push(&self.copies, seq)
        self.page_in(s, message)
        s.bits |= COPIED
        self.copied += 1
        self.set_mark()
        return True

    # -- paging -----------------------------------------------------------------------------------------------

    @cython.final
    cdef void page_out(self, uint64_t seq, slot *s) noexcept:
        # a written message that is in memory
        cdef uint64_t bytes_left
        if s.bits & COPIED or self.is_volatile or (self.moving.n and is_moving(self, seq)):
            return
        bytes_left = body_bytes(s)
        self.resident_bytes -= payload_bytes(s)
        self.resident -= 1
        uncount(<PyObject *>s.message)
        s.message = bytes_left << 1 | 1
        if s.bits & STATE == READY:
            self.absent += 1
            self.loaded_to = min(self.loaded_to, seq)

    @cython.final
    cdef int page_in(self, slot *s, Message message) except -1:
        cdef size_t size = payload_size(message)
        if in_memory(s):
            return 0
        if size - message.header_length != body_bytes(s):
            raise AssertionError("a message comes back as it left")
        Py_INCREF(message)
        s.message = <uint64_t><PyObject *>message
        self.resident_bytes += size
        self.resident += 1
        if s.bits & STATE == READY:
            self.absent -= 1
        return 0

    @property
    def wants_load(self) -> bool:
        """The messages in memory ahead of the head run low while more stand on disk."""
        if self.loading or not self.journaled or not self.absent:
            return False
        return self.find_missing(1, 1, self.load_ahead // 2).count != 0

    def missing(self) -> Places:
        """Places of the next ready messages that are on disk only: at most `load_ahead`, about LOAD_BYTES."""
        return self.find_missing(self.load_ahead, LOAD_BYTES, self.load_ahead)

    @cython.final
    cdef Places find_missing(self, size_t count_max, uint64_t bytes_max, uint64_t look_max):
        cdef Places found = Places()
        cdef uint64_t size = 0, left = look_max, seq, end
        cdef bint unbroken = True
        cdef slot *s
        self.head_seq()
        self.cursor_seq()
        if self.heap.n and self.find_returned(found, &size, &left, count_max, bytes_max):
            return found
        end = min(self.next_seq, self.cursor + left)
        seq = max(self.cursor, self.loaded_to)
        while seq < end:
            if self.find_block(seq >> 8) == NULL:
                seq = self.skip(seq, end)
                continue
            s = self.find(seq)
            if s.bits & STATE == READY and not in_memory(s):
                if unbroken:
                    self.loaded_to = seq
                    unbroken = False
                found.add(seq, s.segment, s.offset, s.length)
                size += s.length
                if found.count >= count_max or size >= bytes_max:
                    return found
            seq += 1
        if unbroken:
            self.loaded_to = max(self.loaded_to, end)
        return found

    @cython.final
    cdef bint find_returned(self, Places found, uint64_t *size, uint64_t *left, size_t count_max,
                            uint64_t bytes_max) except -1:
        # The heap in order, without popping it: a second heap holds the places in the first one whose parents were
        # looked at, ordered by the keys there.
        cdef words places
        cdef uint64_t key, seq
        cdef size_t i, place, child, parent
        cdef slot *s
        memset(&places, 0, sizeof(words))
        try:
            push(&places, 0)
            while places.n and left[0]:
                place = places.at[0]
                key = self.heap.at[place]
                # the root is replaced by the last and sinks
                places.n -= 1
                if places.n:
                    i = 0
                    parent = places.at[places.n]
                    while True:
                        child = 2 * i + 1
                        if child >= places.n:
                            break
                        if (child + 1 < places.n
                                and self.heap.at[places.at[child + 1]] < self.heap.at[places.at[child]]):
                            child += 1
                        if self.heap.at[parent] <= self.heap.at[places.at[child]]:
                            break
                        places.at[i] = places.at[child]
                        i = child
                    places.at[i] = parent
                for child in range(2 * place + 1, min(2 * place + 3, self.heap.n)):
                    push(&places, child)
                    i = places.n - 1
                    while i:
                        parent = (i - 1) >> 1
                        if self.heap.at[places.at[parent]] <= self.heap.at[child]:
                            break
                        places.at[i] = places.at[parent]
                        i = parent
                    places.at[i] = child
                seq = key & SEQ_MASK
                s = self.find(seq)
                if s.bits & STATE != READY:
                    continue
                left[0] -= 1
                if in_memory(s):
                    continue
                found.add(seq, s.segment, s.offset, s.length)
                size[0] += s.length
                if found.count >= count_max or size[0] >= bytes_max:
                    return True
            return False
        finally:
            drop(&places)

    def fill(self, locations, messages) -> None:
        """Brings back messages that `missing` named; those that left meanwhile are passed over."""
        cdef slot *s
        cdef uint8_t state
        cdef Places places
        cdef size_t i = 0
        self.disk_reads += <size_t>len(messages)
        if type(locations) is Places:
            places = <Places>locations
            if places.count != <size_t>len(messages):
                raise ValueError("as many messages as places")
            for message in messages:
                if type(message) is not Message:
                    raise TypeError(f"a compiled ring holds compiled messages, not {type(message).__name__}")
                s = self.find(places.at[i].seq)
                state = s.bits & STATE
                if state == READY or state == UNACKED or state == DEAD:
                    self.page_in(s, <Message>message)
                i += 1
            return
        for location, message in zip(locations, messages, strict=True):
            if type(message) is not Message:
                raise TypeError(f"a compiled ring holds compiled messages, not {type(message).__name__}")
            s = self.find(location[0])
            state = s.bits & STATE
            if state == READY or state == UNACKED or state == DEAD:
                self.page_in(s, <Message>message)

    # -- streams ----------------------------------------------------------------------------------------------

    def trim(self, uint64_t last) -> None:
        """All of the past up to `last` is gone; the next group says so."""
        if self.past is None:
            raise AssertionError("only a stream has a past")
        self.trimmed = max(self.trimmed, last)
        self.set_mark()

    def move_out(self) -> list:
        """What is written leaves the ring, and is the past from now on."""
        cdef list parts = [], places = None
        cdef uint64_t first = 0, next_seq = 0, seq, at = 0, size = 0, number
        cdef uint32_t segment = 0
        cdef size_t i = self.shelf_first, k
        cdef block *place
        cdef slot *s
        while i < self.shelf_end:
            place = self.shelves[i].place
            if place == NULL:
                i += 1
                continue
            number = self.shelves[i].number
            self.hot_number = number
            self.hot = place
            for k in range(256):
                s = &place.slots[k]
                seq = number << 8 | k
                if s.bits & STATE != READY or not s.bits & WRITTEN or not (self.replica or seq < self.committed):
                    continue
                if places is None or seq != next_seq:
                    if places is not None:
                        places.append((segment, at, size))
                        parts.append((first, next_seq, places))
                    first, places, size = seq, [], 0
                    segment, at = s.segment, s.offset
                elif s.segment != segment or s.offset != at + size:
                    places.append((segment, at, size))
                    segment, at, size = s.segment, s.offset, 0
                size += (s.length + 7) & ~<uint64_t>7
                next_seq = seq + 1
                if s.bits & COPIED:
                    self.copied -= 1
                self.ready -= 1
                self.ready_bytes -= body_bytes(s)
                if in_memory(s):
                    self.resident_bytes -= payload_bytes(s)
                    self.resident -= 1
                    uncount(<PyObject *>s.message)
                else:
                    self.absent -= 1
                if self.use is not None:
                    self.use.release_bytes(s.segment, s.length)
                self.mark_dirty()
                if self.clear(s):
                    break
            i = max(i + 1, self.shelf_first)
        if places is not None:
            places.append((segment, at, size))
            parts.append((first, next_seq, places))
        return parts

    # -- checkpoint and recovery ------------------------------------------------------------------------------

    def dirty_runs(self) -> list:
        """(first seq, run bytes) of every run that changed since the last call; empty bytes: delete it."""
        cdef words numbers = self.dirty
        cdef uint64_t number
        cdef size_t i
        cdef list runs = []
        if self.is_volatile:
            self.dirty.n = 0
            for i in range(self.shelf_first, self.shelf_end):
                if self.shelves[i].place != NULL:
                    self.shelves[i].place.dirty = 0
            return runs
        memset(&self.dirty, 0, sizeof(words))
        try:
            if numbers.n:
                qsort(numbers.at, numbers.n, sizeof(uint64_t), compare_words)
            for i in range(numbers.n):
                number = numbers.at[i]
                if i and numbers.at[i - 1] == number:
                    continue
                runs.append((number << 8, self.pack_run(number)))
        finally:
            drop(&numbers)
        return runs

    @cython.final
    cdef bytes pack_run(self, uint64_t number):
        cdef run_entry[256] entries
        cdef run_entry *entry
        cdef block *place = self.find_block(number)
        cdef slot *s
        cdef size_t n = 0, k
        cdef bint keep = False
        if place == NULL:
            return b""
        for k in range(256):
            s = &place.slots[k]
            if not s.bits & WRITTEN:
                continue
            if not self.replicated:
                if (number << 8 | k) >= self.committed:
                    keep = True
                    continue
            elif s.bits & STATE == SETTLED and self.in_flight(number << 8 | k):
                keep = True
                continue
            entry = &entries[n]
            n += 1
            entry.low = <uint8_t>k
            entry.priority = s.priority
            entry.flags = RUN_REDELIVERED if s.bits & REDELIVERED else 0
            entry.delivery_count = min(s.delivery_count, 255)
            entry.segment = s.segment
            entry.offset = s.offset
            entry.length = s.length
            entry.body_length = <uint32_t>body_bytes(s)
            if s.bits & STATE == SETTLED:
                keep = True
        place.dirty = False
        if keep:
            self.mark_dirty()
        return PyBytes_FromStringAndSize(<char *>entries, n * RUN_ENTRY_BYTES)

    def restore_run(self, uint64_t first_seq, run) -> None:
        cdef Py_buffer view
        cdef run_entry entry
        cdef Py_ssize_t at
        PyObject_GetBuffer(run, &view, PyBUF_SIMPLE)
        try:
            if view.len % RUN_ENTRY_BYTES:
                raise StructError(f"iterative unpacking requires a buffer of a multiple of {RUN_ENTRY_BYTES} bytes")
            for at in range(0, view.len, RUN_ENTRY_BYTES):
                memcpy(&entry, <char *>view.buf + at, RUN_ENTRY_BYTES)
                self.restore_slot(first_seq + entry.low, entry.segment, entry.offset, entry.length, entry.body_length,
                                  entry.priority, entry.delivery_count)
                if entry.flags & RUN_REDELIVERED:
                    self.find(first_seq + entry.low).bits |= REDELIVERED
        finally:
            PyBuffer_Release(&view)

    def restore(self, uint64_t seq, uint32_t segment, uint32_t offset, uint32_t length, uint64_t body_length,
                uint8_t priority, uint16_t delivery_count) -> None:
        """An ENQ from the index or the tail of the log. A later place of the same seq replaces the earlier."""
        self.restore_slot(seq, segment, offset, length, body_length, priority, delivery_count)

    @cython.final
    cdef int restore_slot(self, uint64_t seq, uint32_t segment, uint32_t offset, uint32_t length,
                          uint64_t body_length, uint8_t priority, uint16_t delivery_count) except -1:
        cdef block *place = self.find_block(seq >> 8)
        cdef slot *s
        if place == NULL:
            place = self.add_block(seq >> 8)
        s = &place.slots[seq & 255]
        if not s.bits:
            place.live += 1
        elif self.use is not None:
            self.use.release_bytes(s.segment, s.length)
        s.message = body_length << 1 | 1
        s.segment = segment
        s.offset = offset
        s.length = length
        s.bits = (s.bits & REDELIVERED) | READY | PERSIST | WRITTEN
        if self.known_state is not None and self.known_state.dead and seq in self.known_state.dead:
            set_state(s, DEAD)
        s.priority = min(priority, self.max_priority)
        s.delivery_count = delivery_count
        if self.use is not None:
            self.use.add_bytes(segment, length)
        self.mark_dirty()
        self.next_seq = max(self.next_seq, seq + 1)
        return 0

    def restore_settled(self, ranges) -> None:
        cdef uint64_t seq, end, stop
        cdef block *place
        cdef slot *s
        for first, last in ranges:
            if self.past is not None:
                self.past.drop(first, last)
            if self.known_state is not None and self.known_state.dead:
                self.known_state.settled(first, last)
            seq = first
            end = <uint64_t>last + 1
            while seq < end:
                place = self.find_block(seq >> 8)
                if place == NULL:
                    seq = self.skip(seq, end)
                    continue
                stop = min((seq | 255) + 1, end)
                while seq < stop:
                    s = &place.slots[seq & 255]
                    seq += 1
                    if not s.bits:
                        continue
                    if self.use is not None:
                        self.use.release_bytes(s.segment, s.length)
                    self.mark_dirty()
                    if self.clear(s):
                        break
                seq = stop

    def restore_count(self, uint64_t seq, uint16_t delivery_count) -> None:
        cdef slot *s = self.find(seq)
        if s.bits:
            s.delivery_count = delivery_count
            s.bits |= REDELIVERED
            self.mark_dirty()

    def restore_end(self, uint64_t next_seq, uint64_t reserved) -> None:
        """The log is folded. All up to `reserved` (D_prev, replication.md 6.4) may have been handed out before."""
        cdef size_t i, k
        cdef uint64_t seq
        cdef block *place
        cdef slot *s
        self.next_seq = max(self.next_seq, next_seq, reserved + 1)
        self.committed = self.unwritten = self.cursor = self.next_seq
        self.reserved = self.reserved_written = self.reserved_durable = reserved
        self.ready = self.absent = self.ready_bytes = 0  # a replica's, which died or were cut, were taken off before
        for i in range(self.shelf_first, self.shelf_end):
            place = self.shelves[i].place
            if place == NULL:
                continue
            for k in range(256):
                s = &place.slots[k]
                if s.bits & STATE != READY:
                    continue
                seq = self.shelves[i].number << 8 | k
                self.ready += 1
                self.absent += 1
                self.ready_bytes += body_bytes(s)
                if seq <= reserved:
                    s.bits |= REDELIVERED
                if self.max_priority:
                    heap_push(&self.heap, heap_key(s, seq))
                else:
                    self.cursor = min(self.cursor, seq)

    def destroy(self) -> None:
        """The queue is deleted: gives back its segments' bytes. What still returns to the spent ring is passed over."""
        cdef size_t i, k
        cdef block *place
        cdef slot *s
        if self.use is not None:
            for i in range(self.shelf_first, self.shelf_end):
                place = self.shelves[i].place
                if place == NULL:
                    continue
                for k in range(256):
                    s = &place.slots[k]
                    if s.bits & WRITTEN:
                        self.use.release_bytes(s.segment, s.length)
        self.destroyed = True
        self.free_blocks()
        self.drop_words()
        self.ready = self.unacked = self.absent = self.held = self.counted = self.copied = 0
        self.ready_bytes = self.resident_bytes = 0
        self.resident = self.fleeting = 0
        self.unwritten = self.next_seq
        self.reserved_written = self.reserved
        self.trimmed = 0
        self.known_state = self.epochs_before = None
        self.unsaid.clear()
        self.dying.clear()
        self.buried.clear()
        self.row_of_link.clear()
        forget_links(self)
        free(self.held_counts)
        self.held_counts = NULL

    # -- what a cluster's rings need everywhere; see ring_cluster.pxi ------------------------------------------

    @cython.final
    cdef object made_state(self):
        if self.known_state is None:
            self.known_state = QueueState()
        return self.known_state

    @property
    def state(self):
        return self.made_state()

    @property
    def epochs(self) -> list:
        """(epoch, its first seq), ascending."""
        return self.made_state().epochs

    @property
    def has_attributes(self) -> bool:
        return self.known_state is not None and bool(self.known_state.attributes)

    @property
    def attributes(self) -> dict:
        return self.made_state().attributes

    @property
    def volatile(self) -> bool:
        """Durability "memory" of a replicated queue: records go to other nodes only, bodies stay in memory."""
        return self.is_volatile

    @volatile.setter
    def volatile(self, bint volatile):
        if self.shelf_first != self.shelf_end:
            raise AssertionError("a ring is volatile from its beginning")
        self.is_volatile = volatile
        if volatile:
            self.use = None

    def epoch_of(self, uint64_t seq) -> int:
        """The epoch of a message's record; the ring's own where no epoch was begun."""
        if self.known_state is not None:
            for epoch, first_seq in reversed(self.known_state.epochs):
                if first_seq <= seq:
                    return epoch
        return self.epoch

    @cython.final
    cdef int bury(self, uint64_t seq) except -1:
        # a dead message leaves; the log learns of it with the SET
        mark = self.known_state.dead.pop(seq)
        if seq in self.dying:
            del self.dying[seq]
        else:
            self.buried[seq] = mark
        return 0

    @cython.final
    cdef int let_go(self, uint64_t seq) except -1:
        # the block of seq is hot
        cdef uint8_t holder
        if self.hot.holders == NULL:
            return 0
        holder = self.hot.holders[seq & 255]
        if holder:
            if holder == LINK:
                unlink_held(self, seq)
            self.held_counts[holder] -= 1
            self.hot.holders[seq & 255] = 0
        return 0

    @cython.final
    cdef inline int set_holder(self, uint64_t seq, uint8_t holder) except -1:
        # the block of seq is hot
        if self.hot.holders == NULL or self.held_counts == NULL:
            self.make_holders()
        if self.hot.holders[seq & 255]:
            self.let_go(seq)
        self.hot.holders[seq & 255] = holder
        self.held_counts[holder] += 1
        return 0

    @cython.final
    cdef int make_holders(self) except -1:
        if self.held_counts == NULL:
            self.held_counts = <uint64_t *>calloc(256, sizeof(uint64_t))
            if self.held_counts == NULL:
                raise MemoryError()
        if self.hot.holders == NULL:
            self.hot.holders = <uint8_t *>calloc(256, 1)
            if self.hot.holders == NULL:
                raise MemoryError()
        return 0

    @cython.final
    cdef bint in_flight(self, uint64_t seq) noexcept:
        # whether the SET of seq is in a group; the ranges of one group are sorted
        cdef size_t low = 0, high = self.inflight.n // 2, middle
        while low < high:
            middle = (low + high) >> 1
            if self.inflight.at[2 * middle + 1] < seq:
                low = middle + 1
            else:
                high = middle
        return low < self.inflight.n // 2 and self.inflight.at[2 * low] <= seq


include "ring_changes.pxi"
include "ring_leases.pxi"
include "ring_links.pxi"
include "ring_cluster.pxi"
include "ring_dispatch.pxi"
include "ring_selection.pxi"
