# Part of ring.pyx: who takes messages, and the hand-out.

cdef class Taker:
    """Who takes messages of a ring."""

    def __init__(self, Ring ring not None, int64_t priority=0, owner=None):
        self.ring = ring
        self.priority = priority
        self.owner = owner
        self.active = True
        self.limit = NONE

    @property
    def has_credit(self) -> bool:
        return self.credit()

    @property
    def room(self) -> int:
        return self.space()

    @property
    def writable(self) -> bool:
        return self.flows()

    @property
    def shared(self) -> bool:
        return False

    cdef bint credit(self) noexcept:
        return False

    cdef bint flows(self) noexcept:
        return False

    cdef int64_t space(self) noexcept:
        if self.limit <= self.delivered:
            return 0
        return <int64_t>min(self.limit - self.delivered, <uint64_t>ROOM_MAX)

    cdef int hand(self, uint64_t seq, Message message, bint redelivered, uint16_t delivery_count,
                  int64_t now_ms) except -1:
        raise NotImplementedError


cdef inline int settle_handed(Ring ring, uint64_t seq) except -1:
    ring.settle_seq(seq, False)
    ring.acked += 1  # in a line that settling has just written
    if not ring.marked:
        ring.set_mark()
    return 0


cdef int acknowledge(Taker taker, uint64_t seq) except -1:
    return settle_handed(<Ring>taker.ring, seq)


cdef bint link_takes(RemoteConsumer taker) noexcept:
    # whether its link is there still, nothing returns that would come behind, and the queue may have more at links
    cdef Ring ring = <Ring>taker.ring
    if ring.links_wait:
        return False
    if taker.row >= ring.link_room or ring.link_rows[taker.row].link != taker.link:
        row = ring.row_of_link.get(taker.link)  # it was at no node meanwhile, and may have another one since
        if row is None:
            return False
        taker.row = <uint16_t>row
    return (
        ring.link_rows[taker.row].place == taker.holder
        and (ring.held_counts == NULL or ring.held_counts[LINK] < LINK_HELD_MAX)
    )


@cython.final
cdef class RemoteConsumer(Taker):
    """A node that takes messages for one of its consumers."""

    cdef readonly uint8_t holder
    cdef readonly uint64_t link
    cdef uint16_t row  # in the ring's `link_rows`; 0: what it is handed is its node's
    cdef public bint no_ack
    cdef public uint64_t unacked
    cdef readonly RecordBuffer out

    def __init__(self, Ring ring not None, int holder, int64_t priority=0, owner=None, uint64_t link=0):
        if not 1 <= holder <= HOLDER_MAX:
            raise ValueError("holders are 1 to 253")
        if link:
            ring.attach_link(link, <uint8_t>holder)
            self.row = row_for(ring, link)
            self.link = link
        Taker.__init__(self, ring, priority, owner)
        self.holder = holder
        self.limit = 0
        self.out = RecordBuffer()

    cdef bint credit(self) noexcept:
        return (self.active and self.delivered < self.limit and self.out.size < self.out.size_max
                and (not self.row or link_takes(self)))

    cdef int hand(self, uint64_t seq, Message message, bint redelivered, uint16_t delivery_count,
                  int64_t now_ms) except -1:
        self.out.put((<Ring>self.ring).queue_id, (<Ring>self.ring).epoch, seq, message, delivery_count, redelivered)
        if self.row:
            assign(<Ring>self.ring, seq, self.row)
        else:
            (<Ring>self.ring).set_holder(seq, self.holder)
        self.unacked += 1
        if self.no_ack:
            (<Ring>self.ring).handed_no_ack += 1
            (<Ring>self.ring).auto_acks += 1
        return 0


cdef bint waits_for_group(Taker taker, int head) noexcept:
    # whether it may be assigned what nobody may be shown before the next group is committed: it is sent after that
    return (
        (head == HEAD_NOT_COMMITTED or head == HEAD_NOT_RESERVED)
        and type(taker) is RemoteConsumer
        and (<RemoteConsumer>taker).row != 0
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
    cdef bint redelivered = s.bits & REDELIVERED != 0
    cdef Message message
    ring.hand_out(seq, s)
    message = <Message><PyObject *>s.message
    if ring.annotate is not None and (
        message.flags & HAS_BCC or ring.annotates_all or (redelivered and ring.annotates_redelivered)
    ):
        message = annotated(ring, message, seq, s.delivery_count, taker, redelivered)
        s = ring.find(seq)
    if taker.hand(seq, message, redelivered, s.delivery_count, now_ms):
        ring.handed_no_ack += 1
        ring.settle_seq(seq, False)
    elif s.bits & WRITTEN:
        ring.relieve(seq, s)
    taker.delivered += 1
    if redelivered:
        ring.redelivered += 1
    return 0


def dispatch(Ring ring not None, consumers, int64_t now_ms, int64_t limit=1 << 30) -> tuple:
    """Hands ready messages to consumers with credit (`consumers`: highest priority first).

    Returns (how many, why it stopped): HEAD_NONE, HEAD_NOT_LOADED, HEAD_NOT_RESERVED, HEAD_NOT_COMMITTED,
    HEAD_EXPIRED, NO_CREDIT or LIMIT.
    """
    cdef tuple members = tuple(consumers)
    cdef tuple answer
    for member in members:
        if not isinstance(member, Taker):
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
        if not consumer.credit():
            return count, NO_CREDIT if ring.ready else HEAD_NONE
        if ring.paused or ring.replica:
            return count, HEAD_NOT_COMMITTED if ring.ready else HEAD_NONE
        seq = ring.head_seq()
        if not seq:
            return count, HEAD_NONE
        s = ring.find(seq)
        head = ring.head_at(seq, s, now_ms)
        if head != HEAD_OK and not waits_for_group(consumer, head):
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
            if head != HEAD_OK and not waits_for_group(<Taker>members[start + place], head):
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
        if at == width or (<Taker>members[start + at]).credit():
            break
        alive[at] = at + 1
    while place < at:  # the next search goes there at once
        after = alive[place]
        alive[place] = at
        place = after
    return at
