# Deliveries of a queue to a consumer of a channel; `tests/model/delivery.py` explains each name.
#
# The queue (ring) knows a `Taker`; basic.deliver is written here. A channel's deliveries are kept by tag as a
# ring keeps messages by seq: in an array, found by a search whose first guess is exact unless entries are missing.
cimport cython
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint16_t, uint64_t
from libc.stdlib cimport free, malloc, qsort, realloc

from clusterbroker.broker.wire.amqp091.codec cimport Acked, OutBuffer, with_number
from clusterbroker.broker.queues.ring cimport Taker, acknowledge, row_from
from clusterbroker.journal.record cimport Message

from clusterbroker.broker.content.formats import translate
from clusterbroker.broker.queues.stumble import Stumble

cdef enum:
    BASIC = 0  # broker/content/formats.py

cdef uint64_t NONE = 0xFFFFFFFFFFFFFFFF

cdef class Ledger


@cython.final
cdef class BasicConsumer(Taker):
    """A consumer as `dispatch` sees it."""

    cdef readonly Ledger ledger
    cdef readonly bytes tag
    cdef public bint no_ack
    cdef public uint64_t prefetch
    cdef public bytes numbered
    cdef public int64_t shift
    cdef readonly uint64_t unacked
    cdef size_t place  # where its ledger holds it: 0 nowhere, 1 `sole`, n + 2 in `holders`

    def __init__(self, ring, Ledger ledger not None, bytes tag not None, bint no_ack,
                 uint64_t prefetch, int64_t priority=0, owner=None):
        Taker.__init__(self, ring, priority, owner)
        self.ledger = ledger
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.numbered = b""

    cdef bint credit(self) noexcept:
        if not self.active or not self.ledger.flowing or self.ledger.out.paused or (
            self.ledger.out.size >= self.ledger.out.size_max
        ) or self.delivered >= self.limit:
            return False
        if self.no_ack:
            return True
        return (not self.prefetch or self.unacked < self.prefetch) and (
            not self.ledger.prefetch or self.ledger.unacked < self.ledger.prefetch
        )

    cdef bint flows(self) noexcept:
        return self.active and self.ledger.flowing

    cdef int64_t space(self) noexcept:
        cdef int64_t room = Taker.space(self)
        if self.no_ack:
            return room
        if self.prefetch:
            room = min(room, max(<int64_t>0, <int64_t>self.prefetch - <int64_t>self.unacked))
        if self.ledger.prefetch:
            room = min(room, max(<int64_t>0, <int64_t>self.ledger.prefetch - <int64_t>self.ledger.unacked))
        return room

    @property
    def writable(self) -> bool:
        return self.ledger.flowing and self.ledger.out.writable

    @property
    def shared(self) -> bool:
        return self.ledger.prefetch != 0

    cdef int hand(self, uint64_t seq, Message message, bint redelivered, uint16_t delivery_count,
                  int64_t now_ms) except -1:
        cdef uint64_t tag
        if message.format != BASIC:
            message = in_basic(self, seq, message)
        if self.no_ack:
            tag = self.ledger.next_tag
            self.ledger.next_tag = tag + 1
            self.ledger.skipped += 1
        else:
            tag = self.ledger.put(self, seq, now_ms)
        if self.numbered:
            message = with_number(message, self.numbered, <int64_t>seq + self.shift)
        self.ledger.out.put_deliver(self.ledger.number, self.tag, tag, redelivered, message)
        if redelivered:
            self.ledger.redelivered += 1
        return self.no_ack


cdef Message in_basic(BasicConsumer consumer, uint64_t seq, Message message):
    # a message that cannot be read here returns to its place, and the queue is told over which it stumbled
    try:
        return <Message?>translate(message, BASIC)
    except Exception as error:
        consumer.ring.requeue(seq, False)
        raise Stumble(seq) from error


cdef struct delivery:
    uint64_t tag
    uint64_t seq
    int64_t at_ms
    PyObject *consumer  # NULL: it left


cdef int compare_deliveries(const void *a, const void *b) noexcept nogil:
    cdef uint64_t x = (<const delivery *>a).tag, y = (<const delivery *>b).tag
    return (x > y) - (x < y)


@cython.final
cdef class Ledger:
    """A channel's unacknowledged deliveries by tag.

    Entries stand in tag order in entries[first:end], the first and the last of them alive. A consumer with a
    delivery here is kept alive by `sole` or `holders`, where the garbage collector sees it; entries borrow.
    """

    cdef readonly uint16_t number
    cdef readonly OutBuffer out
    cdef public uint64_t prefetch
    cdef public bint flowing
    cdef readonly uint64_t unacked
    cdef readonly uint64_t next_tag
    cdef readonly uint64_t skipped
    cdef readonly uint64_t redelivered
    cdef BasicConsumer sole
    cdef list holders
    cdef delivery *entries
    cdef size_t first
    cdef size_t end
    cdef size_t room

    def __init__(self, uint16_t number, OutBuffer out not None):
        self.number = number
        self.out = out
        self.flowing = True
        self.next_tag = 1

    def __dealloc__(self):
        free(self.entries)

    cdef int hold(self, BasicConsumer consumer) except -1:
        if self.sole is None:
            self.sole = consumer
            consumer.place = 1
            return 0
        if self.holders is None:
            self.holders = []
        self.holders.append(consumer)
        consumer.place = len(self.holders) + 1
        return 0

    cdef int let_go(self, BasicConsumer consumer) except -1:
        cdef size_t place = consumer.place
        cdef BasicConsumer last
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

    cdef inline uint64_t put(self, BasicConsumer consumer, uint64_t seq, int64_t now_ms) except 0:
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

    def add(self, BasicConsumer consumer not None, uint64_t seq, int64_t now_ms) -> int:
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

    cdef inline void remove(self, delivery *entry) noexcept:
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

    cdef inline int settle_entry(self, delivery *entry) except -1:
        cdef BasicConsumer consumer = <BasicConsumer>entry.consumer
        cdef uint64_t seq = entry.seq
        self.remove(entry)
        consumer.unacked -= 1
        acknowledge(consumer, seq)
        if consumer.unacked == 0:
            self.let_go(consumer)
        return 0

    cdef bint ack_one(self, uint64_t ack) except -1:
        # False: the tag is unknown
        cdef uint64_t tag = ack >> 1
        cdef delivery *entry
        if ack & 1 == 0:
            entry = self.find(tag)
            if entry == NULL:
                return False
            self.settle_entry(entry)
            return True
        # amqp-rules 5.5: `multiple` with tag 0 means all
        if tag == 0:
            tag = NONE
        elif self.find(tag) == NULL:
            return False
        while self.first < self.end and self.entries[self.first].tag <= tag:
            self.settle_entry(&self.entries[self.first])
        return True

    def ack(self, acks) -> int:
        """Settles the deliveries named by `acks` (tag * 2 + multiple). Returns 0, or the unknown tag + 1."""
        cdef size_t i
        cdef Acked batch
        if type(acks) is Acked:
            batch = <Acked>acks
            for i in range(batch.count):
                if not self.ack_one(batch.values[i]):
                    return (batch.values[i] >> 1) + 1
            return 0
        for ack in acks:
            if ack > NONE or not self.ack_one(ack):
                return (ack >> 1) + 1
        return 0

    cdef tuple collect_entry(self, delivery *entry):
        cdef BasicConsumer consumer = <BasicConsumer>entry.consumer
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
        cdef BasicConsumer consumer
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

    def drain_of(self, BasicConsumer consumer not None) -> list:
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

    def oldest(self):
        """(delivery time in ms, consumer, tag) of the oldest unacknowledged delivery."""
        cdef delivery *entry
        if self.first == self.end:
            return None
        entry = &self.entries[self.first]
        return entry.at_ms, <object>entry.consumer, entry.tag
