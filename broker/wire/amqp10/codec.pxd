# What the compiled front sees of the codec. tests/model/codec10.py explains each name.
from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef class Disposed:
    cdef readonly uint16_t channel
    cdef readonly uint8_t outcome
    cdef readonly bint settled
    # pairs (first, last) of delivery ids, `count` of them
    cdef uint32_t *ids
    cdef size_t count
    cdef size_t capacity

    cdef int put(self, uint32_t first, uint32_t last) except -1
