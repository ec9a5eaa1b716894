# What the compiled ring sees of the compiled codec. codec_pure.py explains each name.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from journal.record_fast cimport Message


cdef class OutBuffer:
    cdef public uint32_t frame_max
    cdef readonly uint64_t size
    cdef public uint64_t size_max
    cdef public bint paused
    # storage is private to codec_fast.pyx
    cdef uint8_t *data
    cdef uint64_t capacity
    cdef bytes store

    cdef bint can_write(self) noexcept
    cdef int put_deliver(self, uint16_t channel, bytes consumer_tag, uint64_t tag, bint redelivered,
                         Message message) except -1
