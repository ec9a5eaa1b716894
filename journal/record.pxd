# What ring and codec see of the record module. tests/model/record.py explains each name.
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "Python.h":
    size_t held_size "PyBytes_GET_SIZE" (PyObject *held) noexcept
    uint8_t *held_start "(uint8_t *)PyBytes_AS_STRING" (PyObject *held) noexcept


cdef class Message:
    cdef readonly bytes address
    cdef readonly bytes payload
    cdef readonly uint32_t header_length
    cdef readonly uint8_t flags
    cdef readonly uint8_t priority
    cdef readonly uint8_t format
    cdef readonly int64_t time_ms
    cdef readonly int64_t ttl_ms


# A message holds its bytes: a look at them counts no reference. All messages of a publisher share one address, and each
# count would wait for the one before.
cdef inline size_t address_size(Message message) noexcept:
    return held_size(<PyObject *>message.address)


cdef inline size_t payload_size(Message message) noexcept:
    return held_size(<PyObject *>message.payload)


cdef inline const uint8_t *address_start(Message message) noexcept:
    return held_start(<PyObject *>message.address)


cdef inline const uint8_t *payload_start(Message message) noexcept:
    return held_start(<PyObject *>message.payload)


# The quick way to make a message: no argument tuple, no __init__.
cdef Message make_message(bytes address, bytes payload, uint32_t header_length, uint8_t flags, uint8_t priority,
                          int64_t time_ms, int64_t ttl_ms, uint8_t format)


cdef class GroupWriter:
    cdef readonly uint32_t segment
    cdef readonly uint64_t offset
    cdef readonly uint64_t bytes_max
    cdef readonly uint64_t records
    cdef readonly uint64_t size
    cdef uint64_t expected
    cdef bytearray group
    cdef uint8_t *data
    cdef uint64_t capacity

    cdef uint64_t put_enqueue(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message,
                              uint16_t delivery_count) except 0
    # ranges: n pairs (first, last)
    cdef int put_settle(self, uint64_t queue_id, uint32_t epoch, const uint64_t *ranges, size_t n,
                        uint8_t cause) except -1
    cdef int put_reserve(self, uint64_t queue_id, uint32_t epoch, uint64_t upto) except -1
    cdef int put_count(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint16_t delivery_count) except -1
    # mark: number << 8 | reason
    cdef int put_dead(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint64_t mark) except -1


cdef class RecordBuffer:
    cdef public uint64_t size_max
    cdef readonly uint64_t size
    cdef readonly uint64_t count
    cdef GroupWriter writer

    cdef int put(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message, uint16_t delivery_count,
                 bint redelivered) except -1


# One record of a span from another node, as `next_record` finds it; `kind` is 0 at the end.
cdef struct record_view:
    uint8_t kind
    uint8_t flags
    uint8_t priority
    uint8_t format  # ENQ
    uint32_t epoch
    uint64_t queue_id
    uint64_t seq
    uint64_t value  # DEAD: mark, ATTR: upto
    int64_t at  # where it stands in the span
    int64_t next  # where the next one does
    uint32_t length
    uint32_t body_length  # ENQ: of the message; SET: ranges; ATTR: bytes of the attribute's name
    uint32_t header_length
    uint16_t address_length
    uint16_t delivery_count
    int64_t time_ms
    int64_t ttl_ms
    const uint8_t *body  # ENQ: address | header | body; SET: pairs of u64; ATTR: the attribute's name

# Reads the record at view.next of data[:end], which is never left; `proved` asks for the checksum too.
cdef int next_record(const uint8_t *data, int64_t end, record_view *view, bint proved) except -1

# A group's header, as far as the walk over a segment needs it.
cdef struct group_view:
    int64_t length
    uint32_t records

# Whether a group's header stands at data[at], whole and as it was written; its records are not looked at.
cdef bint prove_group(const uint8_t *data, int64_t at, int64_t end, group_view *view) noexcept nogil

# Whether the record at data[at], which ends before `end`, is what was written, its padding included. Fills in `kind`,
# `queue_id`, `seq` and `next`. Who wants to know what is wrong asks scan_group, which says it in words.
cdef bint prove_record(const uint8_t *data, int64_t at, int64_t end, record_view *view) noexcept nogil

# The message of an ENQ record; `before`: one whose address is shared when it is the same.
cdef Message view_message(record_view *view, Message before)


cdef class SegmentUse:
    cdef int64_t *counts
    cdef size_t slots

    cdef int add_bytes(self, uint32_t segment, uint32_t length) except -1
    cdef int release_bytes(self, uint32_t segment, uint32_t length) except -1
