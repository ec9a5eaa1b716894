# What the compiled ring and codec see of the compiled record module. record_pure.py explains each name.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef class Message:
    cdef readonly bytes address
    cdef readonly bytes payload
    cdef readonly uint32_t header_length
    cdef readonly uint8_t flags
    cdef readonly uint8_t priority
    cdef readonly int64_t time_ms
    cdef readonly int64_t ttl_ms


# The quick way to make a message: no argument tuple, no __init__.
cdef Message make_message(bytes address, bytes payload, uint32_t header_length, uint8_t flags, uint8_t priority,
                          int64_t time_ms, int64_t ttl_ms)


cdef class GroupWriter:
    cdef readonly uint32_t segment
    cdef readonly uint64_t offset
    cdef readonly uint64_t bytes_max
    cdef readonly uint64_t records
    cdef readonly uint64_t size
    cdef uint8_t *data
    cdef uint64_t capacity

    cdef uint64_t put_enqueue(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, Message message,
                              uint16_t delivery_count) except 0
    # ranges: n pairs (first, last)
    cdef int put_settle(self, uint64_t queue_id, uint32_t epoch, const uint64_t *ranges, size_t n,
                        uint8_t cause) except -1
    cdef int put_reserve(self, uint64_t queue_id, uint32_t epoch, uint64_t upto) except -1
    cdef int put_count(self, uint64_t queue_id, uint32_t epoch, uint64_t seq, uint16_t delivery_count) except -1


cdef class SegmentUse:
    cdef int64_t *counts
    cdef size_t slots

    cdef int add_bytes(self, uint32_t segment, uint32_t length) except -1
    cdef int release_bytes(self, uint32_t segment, uint32_t length) except -1
