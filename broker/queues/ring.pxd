# What whoever delivers sees of the compiled ring: the class to derive consumers from, and how they settle.
from libc.stdint cimport int64_t, uint16_t, uint64_t

from clusterbroker.journal.record cimport Message


cdef class Taker:
    cdef readonly object ring  # a Ring
    cdef public bint active
    cdef public int64_t priority
    cdef public object owner
    cdef public uint64_t delivered
    # link credit: `delivered` may rise to it (AMQP 1.0, 2.6.7: delivery-count + link-credit, without its wrap)
    cdef public uint64_t limit
    # what it takes of the queue (a `Selection`); None: all, in order
    cdef public object selection

    # whether it may be handed one more message
    cdef bint credit(self) noexcept
    # whether it may be handed anything at all, though it have no credit
    cdef bint flows(self) noexcept
    # how many more it may be handed, whatever its socket takes
    cdef int64_t space(self) noexcept
    # takes a message, which is valid for the call; 1: it is settled with that
    cdef int hand(self, uint64_t seq, Message message, bint redelivered, uint16_t delivery_count,
                  int64_t now_ms) except -1


# The first of rows[low:end] whose number is not below `number`; `end`: none. A row begins with its number (u64). Numbers
# rise by one at least, which bounds the place on both sides: without missing numbers the bounds meet.
cdef inline size_t row_from(const void *rows, size_t row_bytes, size_t low, size_t end, uint64_t number) noexcept:
    cdef const char *at = <const char *>rows
    cdef size_t high = end, middle
    cdef uint64_t first, last
    if low == end:
        return end
    high -= 1
    first = (<const uint64_t *>(at + low * row_bytes))[0]
    last = (<const uint64_t *>(at + high * row_bytes))[0]
    if number <= first:
        return low
    if number > last:
        return end
    middle = high
    if number - first < high - low:
        high = low + (number - first)
    if last - number < middle - low:
        low = middle - (last - number)
    while low < high:
        middle = (low + high) >> 1
        if (<const uint64_t *>(at + middle * row_bytes))[0] < number:
            low = middle + 1
        else:
            high = middle
    return low


# a message that the taker was handed is settled
cdef int acknowledge(Taker taker, uint64_t seq) except -1
