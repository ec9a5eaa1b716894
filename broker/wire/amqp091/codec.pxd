# What the compiled ring sees of the codec. tests/model/codec.py explains each name.
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from clusterbroker.journal.record cimport Message


cdef object remade(bytes address, bytes payload, uint32_t length, uint8_t more_flags, int64_t now_ms)
cdef Message with_number(Message message, bytes name, int64_t number)


cdef class OutBuffer:
    cdef public uint32_t frame_max
    cdef readonly uint64_t size
    cdef public uint64_t size_max
    cdef public bint paused
    # storage is private to codec.pyx: a bytes object of `capacity` bytes that nobody else has seen yet, NULL
    # while nothing waits; `data` is where its bytes are
    cdef PyObject *store
    cdef uint8_t *data
    cdef uint64_t capacity
    cdef uint64_t first_capacity

    cdef bint can_write(self) noexcept
    cdef bint takes(self, Message message) noexcept
    cdef int put_deliver(self, uint16_t channel, bytes consumer_tag, uint64_t tag, bint redelivered,
                         Message message) except -1
    cdef uint8_t *room(self, uint64_t length) except NULL
    cdef int put_frame(self, uint8_t kind, uint16_t channel, bytes payload) except -1
    cdef uint8_t *open_content(self, uint16_t channel, uint64_t method_length, Message message) except NULL
    cdef void close_content(self, uint8_t *at, uint16_t channel, Message message) noexcept
    cdef int outcome(self, uint16_t channel, uint16_t method, uint64_t tag, bint multiple) except -1


cdef class Acked:
    cdef public uint16_t channel
    # delivery tag * 2 + multiple, `count` of them
    cdef uint64_t *values
    cdef size_t count
    cdef size_t capacity

    cdef int put(self, uint64_t tag, bint multiple) except -1
