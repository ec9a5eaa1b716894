# What the fronts' deliveries see of translations; `tests/model/translation.py` explains each name.
from libc.stdint cimport uint8_t, uint64_t

from clusterbroker.journal.record cimport Message


cdef class Translation:
    cdef readonly uint8_t to
    cdef uint8_t source
    cdef bytes before
    cdef bytes header
    cdef uint8_t *data
    cdef uint64_t size
    cdef uint64_t capacity

    cdef bint knows(self, Message message) noexcept
    cdef Message of(self, Message message)
    cdef Message with_header(self, Message message)
    cdef bytes in_sections(self, const uint8_t *p, uint64_t length)
    cdef bytes in_basic(self, const uint8_t *p, uint64_t length)
    cdef uint8_t *room(self, uint64_t more) except NULL
