# Which runs the messages of a segment belong to, and parts of a run of one stream; tests/model/walk.py is the
# specification. The walk needs no interpreter lock, so a segment of 64 MiB does not hold up the event loop; only what it
# found is made into objects.
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcmp, memcpy, memset

from clusterbroker.journal.record cimport group_view, prove_group, prove_record, record_view

from clusterbroker.journal.record import DamagedRecord, scan_group

cdef enum:
    ENQ = 1
    RUN_BITS = 8
    RECENT = 256  # queues whose latest range is at hand; more of them cost memory, not correctness

cdef enum verdict:
    WALKED
    DAMAGED
    NO_MEMORY

cdef struct seqs:
    uint64_t queue_id
    uint64_t first  # of blocks, inclusive
    uint64_t last

cdef struct findings:
    seqs *ranges
    size_t count
    size_t capacity
    size_t[RECENT] recent  # 1 + the place in `ranges` of the latest of one of the queues that share this number


cdef bint note(findings *found, uint64_t queue_id, uint64_t block) noexcept nogil:
    # False when there is no memory.
    cdef size_t number = (queue_id ^ queue_id >> 8) % RECENT, place = found.recent[number], capacity
    cdef seqs *latest
    if place:
        latest = found.ranges + place - 1
        if latest.queue_id == queue_id and latest.first <= block <= latest.last + 1:
            latest.last = max(latest.last, block)
            return True
    if found.count == found.capacity:
        capacity = max(found.capacity * 2, <size_t>64)
        latest = <seqs *>realloc(found.ranges, capacity * sizeof(seqs))
        if latest == NULL:
            return False
        found.ranges = latest
        found.capacity = capacity
    latest = found.ranges + found.count
    latest.queue_id = queue_id
    latest.first = latest.last = block
    found.count += 1
    found.recent[number] = found.count
    return True


cdef verdict walk(const uint8_t *data, int64_t at, int64_t size, int64_t *end, findings *found) noexcept nogil:
    # `end` is where the walk ended, or the group that is damaged.
    cdef group_view group
    cdef record_view record
    cdef int64_t first = at, stop
    cdef uint32_t k
    while True:
        end[0] = at
        if memcmp(data + at, b"\0\0\0\0", min(size - at, <int64_t>4)) == 0:
            return WALKED
        if not prove_group(data, at, size, &group):
            # a header that is cut off by the end of `data` is damage only when it is the first
            return WALKED if at > first and size - at < 32 else DAMAGED
        stop = at + group.length
        if stop > size:
            return WALKED if at > first else DAMAGED
        at += 32
        for k in range(group.records):
            if not prove_record(data, at, stop, &record):
                return DAMAGED
            if record.kind == ENQ and not note(found, record.queue_id, record.seq >> RUN_BITS):
                return NO_MEMORY
            at = record.next
        if at != stop:
            return DAMAGED


cdef int ascending(const void *a, const void *b) noexcept nogil:
    cdef const seqs *left = <const seqs *>a
    cdef const seqs *right = <const seqs *>b
    if left.queue_id != right.queue_id:
        return 1 if left.queue_id > right.queue_id else -1
    if left.first != right.first:
        return 1 if left.first > right.first else -1
    return 0


cdef size_t merge(seqs *ranges, size_t count) noexcept nogil:
    # Ascending, what touches or overlaps made one; how many are left.
    cdef size_t i, left = 1
    if count == 0:
        return 0
    qsort(ranges, count, sizeof(seqs), ascending)
    for i in range(1, count):
        if ranges[i].queue_id == ranges[left - 1].queue_id and ranges[i].first <= ranges[left - 1].last + 1:
            ranges[left - 1].last = max(ranges[left - 1].last, ranges[i].last)
        else:
            ranges[left] = ranges[i]
            left += 1
    return left


def walk_groups(data, int64_t at, int64_t base=0) -> tuple:
    """Proves the groups from data[at] on; (end, [(queue id, first seq, last seq)])."""
    cdef Py_buffer view
    cdef findings found
    cdef int64_t end = at
    cdef verdict said
    cdef size_t i, count = 0
    memset(&found, 0, sizeof(findings))
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if not 0 <= at <= view.len:
            raise ValueError(f"byte {at} is not one of {view.len}")
        with nogil:
            said = walk(<const uint8_t *>view.buf, at, view.len, &end, &found)
            if said == WALKED:
                count = merge(found.ranges, found.count)
        if said == NO_MEMORY:
            raise MemoryError()
        if said == DAMAGED:
            scan_group(data, end, base)
            raise DamagedRecord(base + end, "a group is not what was written")
        return end, [
            (found.ranges[i].queue_id, found.ranges[i].first << RUN_BITS, (found.ranges[i].last << RUN_BITS) | 255)
            for i in range(count)
        ]
    finally:
        free(found.ranges)
        PyBuffer_Release(&view)


# -- streams -----------------------------------------------------------------------------------------------------

cdef packed struct enq_start:
    uint32_t length
    uint32_t crc
    uint8_t kind
    uint8_t flags
    uint8_t priority
    uint8_t format
    uint32_t epoch
    uint64_t queue_id
    uint64_t seq
    int64_t time_ms


def prove_run(data, uint64_t queue_id, uint64_t first) -> tuple:
    """(next seq, time of the first message in ms, time of the latest)."""
    cdef Py_buffer view
    cdef record_view record
    cdef enq_start head
    cdef int64_t at = 0, first_ms = 0, last_ms = 0
    cdef uint64_t seq = first
    cdef bint sound = True
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        with nogil:
            while at < view.len:
                sound = (prove_record(<const uint8_t *>view.buf, at, view.len, &record) and record.kind == ENQ
                         and record.queue_id == queue_id and record.seq == seq and record.next <= view.len)
                if not sound:
                    break
                memcpy(&head, <const uint8_t *>view.buf + at, sizeof(enq_start))
                if seq == first:
                    first_ms = last_ms = head.time_ms
                last_ms = max(last_ms, head.time_ms)
                seq += 1
                at = record.next
    finally:
        PyBuffer_Release(&view)
    if not sound:
        raise DamagedRecord(at, f"not message {seq} of queue {queue_id}")
    if seq == first:
        raise DamagedRecord(0, f"no message {first} of queue {queue_id}")
    return seq, first_ms, last_ms


def take_records(data, uint64_t queue_id, uint64_t first, uint64_t end, uint64_t count_max, int64_t bytes_max,
                 int64_t since_ms=-1) -> tuple:
    """(offset, end, first seq, next seq) of a part of a run."""
    cdef Py_buffer view
    cdef record_view record
    cdef enq_start head
    cdef const uint8_t *start
    cdef int64_t at = 0, begin = 0, stop = 0, after
    cdef uint64_t first_seq = 0, next_seq = 0
    cdef bint sound = True
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t *>view.buf
        with nogil:
            while view.len - at >= 32:
                memset(&head, 0, sizeof(enq_start))
                memcpy(&head, start + at, <size_t>min(<int64_t>sizeof(enq_start), <int64_t>view.len - at))
                after = at + ((<int64_t>head.length + 7) & ~<int64_t>7)
                if head.length < 32 or head.kind != ENQ or head.queue_id != queue_id:
                    sound = False
                    break
                if after > view.len or head.seq >= end:
                    break
                if not next_seq and (head.seq < first or (since_ms >= 0 and head.time_ms < since_ms)):
                    at = after
                    continue
                if next_seq and (head.seq != next_seq or head.seq - first_seq >= count_max
                                 or after - begin > bytes_max):
                    break
                if not prove_record(start, at, after, &record):
                    sound = False
                    break
                if not next_seq:
                    begin, first_seq = at, head.seq
                at = stop = after
                next_seq = head.seq + 1
    finally:
        PyBuffer_Release(&view)
    if not sound:
        raise DamagedRecord(at, f"not a message of queue {queue_id}")
    if not next_seq:
        return at, at, 0, 0
    return begin, stop, first_seq, next_seq
