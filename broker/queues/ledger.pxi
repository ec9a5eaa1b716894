# Part of ring.pyx: consumers, a channel's deliveries, and the hand-out.

cdef class Taker:
    # what `dispatch` wants to know first of either kind of consumer
    cdef readonly Ring ring
    cdef bint remote
    cdef public bint active
    cdef public int64_t priority
    cdef public object owner
    cdef public uint64_t delivered


@cython.final
cdef class RemoteConsumer(Taker):
    """A node that takes messages for one of its consumers."""

    cdef readonly uint8_t holder
    cdef public bint no_ack
    cdef public uint64_t limit
    cdef public uint64_t unacked
    cdef readonly RecordBuffer out

    def __init__(self, Ring ring not None, int holder, int64_t priority=0, owner=None):
        if not 1 <= holder <= HOLDER_MAX:
            raise ValueError("holders are 1 to 254")
        self.ring = ring
        self.remote = True
        self.holder = holder
        self.priority = priority
        self.owner = owner
        self.active = True
        self.out = RecordBuffer()

    @property
    def has_credit(self) -> bool:
        return credit(self)


@cython.final
cdef class Consumer(Taker):
    """A consumer as `dispatch` sees it."""

    cdef readonly Ledger ledger
    cdef readonly bytes tag
    cdef public bint no_ack
    cdef public uint64_t prefetch
    cdef public bytes numbered
    cdef public int64_t shift
    cdef readonly uint64_t unacked
    cdef size_t place  # where its ledger holds it: 0 nowhere, 1 `sole`, n + 2 in `holders`

    def __init__(self, Ring ring not None, Ledger ledger not None, bytes tag not None, bint no_ack,
                 uint64_t prefetch, int64_t priority=0, owner=None):
        self.ring = ring
        self.ledger = ledger
        self.tag = tag
        self.no_ack = no_ack
        self.prefetch = prefetch
        self.priority = priority
        self.owner = owner
        self.active = True
        self.numbered = b""

    @property
    def has_credit(self) -> bool:
        return credit(self)


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
    cdef Consumer sole
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

    cdef int hold(self, Consumer consumer) except -1:
        if self.sole is None:
            self.sole = consumer
            consumer.place = 1
            return 0
        if self.holders is None:
            self.holders = []
        self.holders.append(consumer)
        consumer.place = len(self.holders) + 1
        return 0

    cdef int let_go(self, Consumer consumer) except -1:
        cdef size_t place = consumer.place
        cdef Consumer last
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

    cdef inline uint64_t put(self, Consumer consumer, uint64_t seq, int64_t now_ms) except 0:
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

    def add(self, Consumer consumer not None, uint64_t seq, int64_t now_ms) -> int:
        return self.put(consumer, seq, now_ms)

    def skip(self) -> int:
        """A delivery that needs no acknowledgement still takes a tag."""
        self.next_tag += 1
        self.skipped += 1
        return self.next_tag - 1

    cdef delivery *find(self, uint64_t tag) noexcept:
        # NULL when the tag is not outstanding; see Ring.shelf_at
        cdef size_t low = self.first, high = self.end, middle
        cdef uint64_t above, below
        cdef delivery *entry
        if low == high:
            return NULL
        high -= 1
        if tag < self.entries[low].tag or tag > self.entries[high].tag:
            return NULL
        above = tag - self.entries[low].tag
        below = self.entries[high].tag - tag
        middle = high
        if above < high - low:
            high = low + above
        if below < middle - low:
            low = middle - below
        while low < high:
            middle = (low + high) >> 1
            if self.entries[middle].tag < tag:
                low = middle + 1
            else:
                high = middle
        entry = &self.entries[low]
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
        cdef Consumer consumer = <Consumer>entry.consumer
        cdef uint64_t seq = entry.seq
        self.remove(entry)
        consumer.unacked -= 1
        consumer.ring.settle_seq(seq, False)
        consumer.ring.acked += 1  # in a line that settling has just written
        if not consumer.ring.marked:
            consumer.ring.set_mark()
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
        cdef Consumer consumer = <Consumer>entry.consumer
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
        cdef Consumer consumer
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

    def drain_of(self, Consumer consumer not None) -> list:
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


cdef inline bint remote_credit(RemoteConsumer consumer) noexcept:
    return consumer.active and consumer.delivered < consumer.limit and consumer.out.size < consumer.out.size_max


cdef inline bint credit(Taker taker) noexcept:
    cdef Consumer consumer
    cdef Ledger ledger
    if taker.remote:
        return remote_credit(<RemoteConsumer>taker)
    consumer = <Consumer>taker
    ledger = consumer.ledger
    if not consumer.active or not ledger.flowing or ledger.out.paused or ledger.out.size >= ledger.out.size_max:
        return False
    if consumer.no_ack:
        return True
    return (not consumer.prefetch or consumer.unacked < consumer.prefetch) and (
        not ledger.prefetch or ledger.unacked < ledger.prefetch
    )


cdef Message annotated(Ring ring, Message message, uint64_t seq, uint32_t count, Taker taker, bint redelivered):
    # as the consumer sees it; a message that cannot be shown returns to its place before the queue hears of that
    try:
        answer = ring.annotate(message, seq, count, taker, redelivered)
        if type(answer) is not Message:
            raise TypeError(f"annotate returned {type(answer).__name__}, not a message")
    except BaseException:
        ring.requeue(seq, False)
        raise
    return <Message>answer


cdef inline int deliver(Ring ring, Taker taker, uint64_t seq, slot *s, int64_t now_ms) except -1:
    cdef Consumer consumer
    cdef Ledger ledger
    cdef RemoteConsumer far
    cdef bint redelivered = s.bits & REDELIVERED != 0
    cdef uint64_t tag
    cdef Message message
    ring.hand_out(seq, s)
    message = <Message><PyObject *>s.message
    if ring.annotate is not None and (
        message.flags & HAS_BCC or ring.annotates_all or (redelivered and ring.annotates_redelivered)
    ):
        message = annotated(ring, message, seq, s.delivery_count, taker, redelivered)
        s = ring.find(seq)
    if taker.remote:
        far = <RemoteConsumer>taker
        far.out.put(ring.queue_id, ring.epoch, seq, message, s.delivery_count, redelivered)
        ring.set_holder(seq, far.holder)
        far.delivered += 1
        far.unacked += 1
        if redelivered:
            ring.redelivered += 1
        if far.no_ack:
            ring.handed_no_ack += 1
            ring.auto_acks += 1
        if s.bits & WRITTEN:
            ring.relieve(seq, s)
        return 0
    consumer = <Consumer>taker
    ledger = consumer.ledger
    if consumer.no_ack:
        tag = ledger.next_tag
        ledger.next_tag = tag + 1
        ledger.skipped += 1
    else:
        tag = ledger.put(consumer, seq, now_ms)
    if consumer.numbered:
        message = with_number(message, consumer.numbered, <int64_t>seq + consumer.shift)
    ledger.out.put_deliver(ledger.number, consumer.tag, tag, redelivered, message)
    consumer.delivered += 1
    if redelivered:
        ring.redelivered += 1
        ledger.redelivered += 1
    if consumer.no_ack:
        ring.handed_no_ack += 1
        ring.settle_seq(seq, False)
    elif s.bits & WRITTEN:
        ring.relieve(seq, s)
    return 0


def dispatch(Ring ring not None, consumers, int64_t now_ms, int64_t limit=1 << 30) -> tuple:
    """Hands ready messages to consumers with credit (`consumers`: highest priority first).

    Returns (how many, why it stopped): HEAD_NONE, HEAD_NOT_LOADED, HEAD_NOT_RESERVED, HEAD_NOT_COMMITTED,
    HEAD_EXPIRED, NO_CREDIT or LIMIT.
    """
    cdef tuple members = tuple(consumers)
    cdef tuple answer
    for member in members:
        if type(member) is not Consumer and type(member) is not RemoteConsumer:
            raise TypeError(f"a compiled ring feeds compiled consumers, not {type(member).__name__}")
    answer = dispatch_one(ring, members[0], now_ms, limit) if len(members) == 1 else dispatch_round(
        ring, members, now_ms, limit
    )
    ring.handed += <uint64_t>answer[0]
    return answer


cdef tuple dispatch_one(Ring ring, Taker consumer, int64_t now_ms, int64_t limit):
    cdef int64_t count = 0
    cdef uint64_t seq
    cdef slot *s
    cdef int head
    while True:
        if count >= limit:
            return count, LIMIT
        if not credit(consumer):
            return count, NO_CREDIT if ring.ready else HEAD_NONE
        if ring.paused or ring.replica:
            return count, HEAD_NOT_COMMITTED if ring.ready else HEAD_NONE
        seq = ring.head_seq()
        if not seq:
            return count, HEAD_NONE
        s = ring.find(seq)
        head = ring.head_at(seq, s, now_ms)
        if head != HEAD_OK:
            if head == HEAD_NOT_COMMITTED:
                ring.ask_reserve()
            return count, head
        ring.turn = 1
        deliver(ring, consumer, seq, s, now_ms)
        count += 1


cdef tuple dispatch_round(Ring ring, tuple members, int64_t now_ms, int64_t limit):
    # Within one call credit only shrinks, so a consumer that was passed over once stays out: alive[place] is the
    # place itself while it has credit, and otherwise a place further on (`width` stands for the end).
    cdef size_t n = len(members), start = 0, end = 0, width = 0, place, i
    cdef int64_t count = 0
    cdef uint64_t seq
    cdef slot *s
    cdef int head
    cdef size_t[64] few
    cdef size_t *alive = few
    if n >= 64:
        alive = <size_t *>malloc((n + 1) * sizeof(size_t))
        if alive == NULL:
            raise MemoryError()
    try:
        while True:
            if count >= limit:
                return count, LIMIT
            while True:
                place = width
                if width:
                    place = next_alive(members, start, width, alive, ring.turn % width)
                    if place == width:
                        place = next_alive(members, start, width, alive, 0)
                if place < width:
                    break
                if end == n:
                    return count, NO_CREDIT if ring.ready else HEAD_NONE
                start = end
                while end < n and (<Taker>members[end]).priority == (<Taker>members[start]).priority:
                    end += 1
                width = end - start
                for i in range(width + 1):
                    alive[i] = i
            if ring.paused or ring.replica:
                return count, HEAD_NOT_COMMITTED if ring.ready else HEAD_NONE
            seq = ring.head_seq()
            if not seq:
                return count, HEAD_NONE
            s = ring.find(seq)
            head = ring.head_at(seq, s, now_ms)
            if head != HEAD_OK:
                if head == HEAD_NOT_COMMITTED:
                    ring.ask_reserve()
                return count, head
            ring.turn = place + 1
            deliver(ring, <Taker>members[start + place], seq, s, now_ms)
            count += 1
    finally:
        if alive != few:
            free(alive)


cdef inline size_t next_alive(tuple members, size_t start, size_t width, size_t *alive, size_t place):
    cdef size_t at = place, after
    while True:
        while alive[at] != at:
            at = alive[at]
        if at == width or credit(<Taker>members[start + at]):
            break
        alive[at] = at + 1
    while place < at:  # the next search goes there at once
        after = alive[place]
        alive[place] = at
        place = after
    return at
