# Messages that wait, in the order of (due time, seq). tests/model/due_index.py is the specification.
#
# A fold of a queue's log: each ENQ of a delayed message adds a row, and each end of one leaves a row that is void, which
# its owner knows when it comes to the top, and says before (`void`), so that void rows stay few. A binary heap of 16 bytes a row; `room` halves as it empties.
cimport cython
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport bsearch, free, qsort, realloc

cdef struct row:
    int64_t due_ms
    uint64_t seq

cdef enum:
    ROOM_LEAST = 64
    VOIDS_LEAST = 1024


cdef inline bint before(row *a, row *b) noexcept nogil:
    return a.due_ms < b.due_ms or (a.due_ms == b.due_ms and a.seq < b.seq)


cdef inline bint comes_before(row *a, row *chosen) noexcept nogil:
    # `chosen` is negated
    return a.due_ms < -chosen.due_ms or (a.due_ms == -chosen.due_ms and a.seq < ~chosen.seq)


cdef int by_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t one = (<const uint64_t *>a)[0], other = (<const uint64_t *>b)[0]
    return (one > other) - (one < other)


@cython.final
cdef class DueIndex:
    """Rows (due_ms, seq) of one queue."""

    cdef row *rows
    cdef uint64_t *voids
    cdef size_t void_count
    cdef size_t void_room
    cdef size_t count
    cdef size_t room

    def __dealloc__(self):
        free(self.rows)
        free(self.voids)

    def __len__(self) -> int:
        return self.count

    cdef int resize(self, size_t room) except -1:
        cdef row *rows = <row *>realloc(self.rows, room * sizeof(row))
        if rows == NULL:
            raise MemoryError()
        self.rows = rows
        self.room = room
        return 0

    def reserve(self, size_t count) -> None:
        """So many rows will come: their place is taken at once. As it grows it is copied, and leaves holes."""
        if count > self.room:
            self.resize(count)

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
        self.count -= 1
        if self.count:
            self.sink(0, self.rows[self.count])

    cdef void sink(self, size_t at, row sunk) noexcept:
        # puts `sunk` at a free place, or below it
        cdef size_t child
        while True:
            child = 2 * at + 1
            if child >= self.count:
                break
            if child + 1 < self.count and before(&self.rows[child + 1], &self.rows[child]):
                child += 1
            if not before(&self.rows[child], &sunk):
                break
            self.rows[at] = self.rows[child]
            at = child
        self.rows[at] = sunk

    def clear(self) -> None:
        """Nothing waits any more."""
        free(self.rows)
        free(self.voids)
        self.rows = NULL
        self.voids = NULL
        self.count = self.room = self.void_count = self.void_room = 0

    def void(self, uint64_t seq) -> None:
        """The message of a row has left before its time. Rows of such go when they are a quarter of all, and
        VOIDS_LEAST at least."""
        cdef uint64_t *voids
        if self.void_count == self.void_room:
            self.void_room = max(<size_t>ROOM_LEAST, 2 * self.void_room)
            voids = <uint64_t *>realloc(self.voids, self.void_room * sizeof(uint64_t))
            if voids == NULL:
                raise MemoryError()
            self.voids = voids
        self.voids[self.void_count] = seq
        self.void_count += 1
        if self.void_count >= VOIDS_LEAST and self.void_count >= self.count // 4:
            self.sift_out()

    cdef void sift_out(self) noexcept:
        cdef size_t i, kept = 0
        cdef size_t at
        qsort(self.voids, self.void_count, sizeof(uint64_t), by_seq)
        for i in range(self.count):
            if bsearch(&self.rows[i].seq, self.voids, self.void_count, sizeof(uint64_t), by_seq) == NULL:
                self.rows[kept] = self.rows[i]
                kept += 1
        self.count = kept
        self.void_count = 0
        at = kept // 2
        while at:
            at -= 1
            self.sink(at, self.rows[at])

    def within(self, int64_t first_ms, int64_t last_ms, size_t most) -> list:
        """(due_ms, seq) of the first `most` rows that are due in this span, in order; the index stays. Rows behind those
        that were found, and what stands below them in the heap, are not looked at."""
        cdef DueIndex chosen = DueIndex()  # a heap with the last one first: its rows are negated
        cdef size_t[128] stack
        cdef size_t top = 0, at
        cdef row *r
        cdef list found = []
        if not self.count or not most:
            return found
        stack[0] = 0
        top = 1
        while top:
            top -= 1
            at = stack[top]
            r = &self.rows[at]
            if r.due_ms > last_ms:
                continue
            if chosen.count == most and not comes_before(r, &chosen.rows[0]):
                continue
            if r.due_ms >= first_ms:
                if chosen.count == most:
                    chosen.drop_first()
                chosen.add(-r.due_ms, ~r.seq)
            if 2 * at + 2 < self.count:
                stack[top] = 2 * at + 2
                top += 1
            if 2 * at + 1 < self.count:
                stack[top] = 2 * at + 1
                top += 1
        while chosen.count:
            found.append((-chosen.rows[0].due_ms, ~chosen.rows[0].seq))
            chosen.drop_first()
        found.reverse()
        return found
