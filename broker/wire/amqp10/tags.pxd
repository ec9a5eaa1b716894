# What the compiled codec sees of delivery-tags. tests/model/tags10.py explains each name.
from libc.stdint cimport uint8_t, uint64_t


cdef class Tags:
    # of each its length, and its bytes
    cdef uint8_t *data
    cdef uint64_t size
    cdef uint64_t capacity
    cdef Py_ssize_t count

    cdef int put(self, const uint8_t *tag, uint64_t length) except -1
    cdef list listed(self)
