# What a session holds of deliveries that are not settled; `tests/model/ledger.py` explains each name.
#
# Deliveries are kept by tag as a ring keeps messages by seq: in an array, found by a search whose first guess is exact
# unless entries are missing.
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc

from clusterbroker.broker.queues.ring cimport Taker, acknowledge, row_from

cdef uint64_t NONE = 0xFFFFFFFFFFFFFFFF


cdef class Holder(Taker):
    """A consumer whose deliveries stand in a ledger."""

    def __init__(self, ring, DeliveryLedger ledger not None, int64_t priority=0, owner=None):
        Taker.__init__(self, ring, priority, owner)
        self.ledger = ledger


cdef int compare_deliveries(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const delivery *>a).tag, y = (<const delivery *>b).tag
    return (x > y) - (x < y)


cdef class DeliveryLedger:
    """A session's unacknowledged deliveries by tag.

    Entries stand in tag order in entries[first:end], the first and the last of them alive. A consumer with a
    delivery here is kept alive by `sole` or `holders`, where the garbage collector sees it; entries borrow.
    """

    def __init__(self):
        self.flowing = True
        self.next_tag = 1

    def __dealloc__(self):
        free(self.entries)

    cdef int hold(self, Holder consumer) except -1:
        if self.sole is None:
            self.sole = consumer
            consumer.place = 1
            return 0
        if self.holders is None:
            self.holders = []
        self.holders.append(consumer)
        consumer.place = len(self.holders) + 1
        return 0

    cdef int let_go(self, Holder consumer) except -1:
        cdef size_t place = consumer.place
        cdef Holder last
        consumer.place = 0
        if place == 1:
            self.sole = None
            return 0
        last = self.holders.pop()
        if last is not consumer:
            self.holders[<Py_ssize_t>place - 2] = last
            last.place = place
        return 0

    cdef int make_room(self) except -1:
        cdef size_t i, out = 0, room
        cdef delivery *grown
        if self.room and 2 * self.unacked <= self.room:
            for i in range(self.first, self.end):
                if self.entries[i].consumer != NULL:
                    self.entries[out] = self.entries[i]
                    out += 1
            self.first = 0
            self.end = out
            if self.room <= 256 or 8 * out > self.room:
                return 0
            room = self.room // 2
        else:
            room = max(2 * self.room, <size_t>8)
        grown = <delivery *>realloc(self.entries, room * sizeof(delivery))
        if grown == NULL:
            raise MemoryError()
        self.entries = grown
        self.room = room
        return 0

    cdef uint64_t put(self, Holder consumer, uint64_t seq, int64_t now_ms) except 0:
        cdef uint64_t tag = self.next_tag
        cdef delivery *entry
        if self.end == self.room:
            self.make_room()
        if consumer.place == 0:
            self.hold(consumer)
        entry = &self.entries[self.end]
        entry.tag = tag
        entry.seq = seq
        entry.at_ms = now_ms
        entry.consumer = <PyObject *>consumer
        self.end += 1
        self.next_tag = tag + 1
        self.unacked += 1
        consumer.unacked += 1
        return tag

    def add(self, Holder consumer not None, uint64_t seq, int64_t now_ms) -> int:
        return self.put(consumer, seq, now_ms)

    def skip(self) -> int:
        """A delivery that needs no acknowledgement still takes a tag."""
        self.next_tag += 1
        self.skipped += 1
        return self.next_tag - 1

    cdef delivery *find(self, uint64_t tag) noexcept:
        # NULL when the tag is not outstanding
        cdef size_t at = row_from(self.entries, sizeof(delivery), self.first, self.end, tag)
        cdef delivery *entry
        if at == self.end:
            return NULL
        entry = &self.entries[at]
        return entry if entry.tag == tag and entry.consumer != NULL else NULL

    def holds(self, uint64_t tag) -> bool:
        return self.find(tag) != NULL

    cdef void remove(self, delivery *entry) noexcept:
        entry.consumer = NULL
        self.unacked -= 1
        while self.first < self.end and self.entries[self.first].consumer == NULL:
            self.first += 1
        while self.end > self.first and self.entries[self.end - 1].consumer == NULL:
            self.end -= 1
        if self.first == self.end:
            self.first = self.end = 0
            if self.room > 256:
                free(self.entries)
                self.entries = NULL
                self.room = 0

    cdef int settle_entry(self, delivery *entry) except -1:
        cdef Holder consumer = <Holder>entry.consumer
        cdef uint64_t seq = entry.seq
        self.remove(entry)
        consumer.unacked -= 1
        acknowledge(consumer, seq)
        if consumer.unacked == 0:
            self.let_go(consumer)
        return 0

    cdef tuple collect_entry(self, delivery *entry):
        cdef Holder consumer = <Holder>entry.consumer
        cdef uint64_t seq = entry.seq, tag = entry.tag
        self.remove(entry)
        consumer.unacked -= 1
        if consumer.unacked == 0:
            self.let_go(consumer)
        return tag, consumer, seq

    def collect(self, uint64_t tag, bint multiple):
        """Takes the deliveries out without settling them, in tag order; None when the tag is unknown."""
        cdef list taken
        cdef delivery *entry
        if multiple and tag == 0:
            return self.drain()
        entry = self.find(tag)
        if entry == NULL:
            return None
        if not multiple:
            return [self.collect_entry(entry)]
        taken = []
        while self.first < self.end and self.entries[self.first].tag <= tag:
            taken.append(self.collect_entry(&self.entries[self.first]))
        return taken

    def drain(self) -> list:
        """Takes all out, in tag order: the channel ends or recovers."""
        cdef list taken = []
        while self.first < self.end:
            taken.append(self.collect_entry(&self.entries[self.first]))
        return taken

    def restore(self, entries, int64_t now_ms) -> None:
        """Puts collected deliveries back (a transaction was rolled back)."""
        cdef list back = list(entries)
        cdef size_t n = 0, i, room = max(self.unacked + len(back), <size_t>8)
        cdef Holder consumer
        cdef delivery *merged = <delivery *>malloc(room * sizeof(delivery))
        if merged == NULL:
            raise MemoryError()
        try:
            for i in range(self.first, self.end):
                if self.entries[i].consumer != NULL:
                    merged[n] = self.entries[i]
                    n += 1
            for tag, consumer, seq in back:
                merged[n] = delivery(tag, seq, now_ms, <PyObject *>consumer)
                n += 1
            qsort(merged, n, sizeof(delivery), compare_deliveries)
            for i in range(n):
                if merged[i].tag >= self.next_tag:
                    raise AssertionError("a delivery is put back under its own tag")
                if i and merged[i].tag == merged[i - 1].tag:
                    raise AssertionError("a delivery is put back once")
            self.entries, merged = merged, self.entries
        finally:
            free(merged)
        self.first = 0
        self.end = n
        self.room = room
        for _, consumer, _ in back:
            self.unacked += 1
            consumer.unacked += 1
            if consumer.place == 0:
                self.hold(consumer)

    def drain_of(self, Holder consumer not None) -> list:
        """Takes all deliveries of one consumer out, in tag order."""
        cdef size_t i
        cdef list tags = []
        cdef uint64_t tag
        for i in range(self.first, self.end):
            if self.entries[i].consumer == <PyObject *>consumer:
                tags.append(self.entries[i].tag)
        drained = []
        for tag in tags:
            drained += self.collect(tag, False)
        return drained

    def held(self) -> list:
        """(delivery time in ms of its oldest delivery, consumer) of each that holds one, oldest first."""
        cdef size_t i
        cdef PyObject *last = NULL
        cdef dict found = {}
        for i in range(self.first, self.end):
            if self.entries[i].consumer == NULL or self.entries[i].consumer == last:
                continue
            last = self.entries[i].consumer
            found.setdefault(<size_t>last, (self.entries[i].at_ms, <object>last))
        return list(found.values())

    def listed(self) -> list:
        """(consumer, seq, delivery time in ms) of each delivery that is held, in tag order."""
        cdef size_t i
        cdef list found = []
        for i in range(self.first, self.end):
            if self.entries[i].consumer != NULL:
                found.append((<object>self.entries[i].consumer, self.entries[i].seq, self.entries[i].at_ms))
        return found

    def oldest(self):
        """(delivery time in ms, consumer, tag) of the oldest unacknowledged delivery."""
        cdef delivery *entry
        if self.first == self.end:
            return None
        entry = &self.entries[self.first]
        return entry.at_ms, <object>entry.consumer, entry.tag
