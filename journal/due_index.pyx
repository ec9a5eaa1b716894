# Messages that wait, in the order of (due time, seq). tests/model/due_index.py is the specification.
#
# A fold of a queue's log: each ENQ of a delayed message adds a row, and each end of one leaves a row that is void, which
# its owner knows when it comes to the top. A binary heap of 16 bytes a row; `room` halves as it empties.
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, realloc

cdef struct row:
    int64_t due_ms
    uint64_t seq

cdef enum:
    ROOM_LEAST = 64


cdef inline bint before(row *a, row *b) noexcept nogil:
    return a.due_ms < b.due_ms or (a.due_ms == b.due_ms and a.seq < b.seq)


@cython.final
cdef class DueIndex:
    """Rows (due_ms, seq) of one queue."""

    cdef row *rows
    cdef size_t count
    cdef size_t room

    def __dealloc__(self):
        free(self.rows)

    def __len__(self) -> int:
        return self.count

    cdef int resize(self, size_t room) except -1:
        cdef row *rows = <row *>realloc(self.rows, room * sizeof(row))
        if rows == NULL:
            raise MemoryError()
        self.rows = rows
        self.room = room
        return 0

    def add(self, int64_t due_ms, uint64_t seq) -> None:
        """A message waits."""
        cdef size_t at = self.count, parent
        cdef row added
        added.due_ms = due_ms
        added.seq = seq
        if at == self.room:
            self.resize(max(<size_t>ROOM_LEAST, self.room + self.room // 2))
        self.count += 1
        while at:
            parent = (at - 1) >> 1
            if not before(&added, &self.rows[parent]):
                break
            self.rows[at] = self.rows[parent]
            at = parent
        self.rows[at] = added

    @property
    def first_ms(self) -> int:
        """The earliest due time; -1: nothing waits."""
        return self.rows[0].due_ms if self.count else -1

    def take(self, int64_t now_ms, size_t most) -> list:
        """Takes out the seqs of at most so many rows that are due by now, in order."""
        cdef list seqs = []
        while self.count and most and self.rows[0].due_ms <= now_ms:
            seqs.append(self.rows[0].seq)
            self.drop_first()
            most -= 1
        if self.room > ROOM_LEAST and self.count < self.room // 4:
            self.resize(max(<size_t>ROOM_LEAST, self.room // 2))
        return seqs

    cdef void drop_first(self) noexcept:
        cdef size_t at = 0, child
        cdef row last
        self.count -= 1
        if not self.count:
            return
        last = self.rows[self.count]
        while True:
            child = 2 * at + 1
            if child >= self.count:
                break
            if child + 1 < self.count and before(&self.rows[child + 1], &self.rows[child]):
                child += 1
            if not before(&self.rows[child], &last):
                break
            self.rows[at] = self.rows[child]
            at = child
        self.rows[at] = last

    def clear(self) -> None:
        """Nothing waits any more."""
        free(self.rows)
        self.rows = NULL
        self.count = self.room = 0

    def within(self, int64_t first_ms, int64_t last_ms, size_t most) -> list:
        """(due_ms, seq) of the first `most` rows that are due in this span, in order; the index stays. A selection
        over all rows: an operator's question."""
        cdef DueIndex chosen = DueIndex()
        cdef size_t i
        cdef list found = []
        for i in range(self.count):
            if first_ms <= self.rows[i].due_ms <= last_ms:
                chosen.add(self.rows[i].due_ms, self.rows[i].seq)
        while chosen.count and most:
            found.append((chosen.rows[0].due_ms, chosen.rows[0].seq))
            chosen.drop_first()
            most -= 1
        return found
