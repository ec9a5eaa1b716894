# Part of ring.pyx: the hand-out of a queue with consumers that pass messages over; tests/model/ring_selection.py is the
# specification.

@cython.final
cdef class Selection:
    """What a consumer takes of a queue."""

    cdef words cursors  # of each priority, the highest first: the next seq that is looked at
    cdef readonly object judge

    def __init__(self, judge not None):
        self.judge = judge

    def __dealloc__(self):
        drop(&self.cursors)

    @property
    def cursor(self) -> int:
        cdef uint64_t least = NONE
        cdef size_t i
        for i in range(self.cursors.n):
            least = min(least, self.cursors.at[i])
        return least if self.cursors.n else 0

    def back(self, uint64_t seq) -> None:
        """It looks at this message and those behind it again."""
        cdef size_t i
        for i in range(self.cursors.n):
            self.cursors.at[i] = min(self.cursors.at[i], seq)


cdef int set_back(Selection selection, Ring ring) except -1:
    # what has returned is looked at again
    cdef size_t i
    while selection.cursors.n <= ring.max_priority:
        push(&selection.cursors, 0)
    for i in range(selection.cursors.n):
        selection.cursors.at[i] = min(selection.cursors.at[i], ring.returned)
    return 0


cdef uint64_t next_ready(Ring ring, uint64_t seq, int priority) noexcept:
    # the first ready message of that priority from `seq` on (-1: of any), 0 without
    cdef uint64_t end = ring.next_seq, stop
    cdef block *place
    cdef slot *s
    while seq < end:
        place = ring.find_block(seq >> 8)
        if place == NULL:
            seq = ring.skip(seq, end)
            continue
        stop = min((seq | 255) + 1, end)
        while seq < stop:
            s = &place.slots[seq & 255]
            if s.bits & STATE == READY and (priority < 0 or s.priority == priority):
                return seq
            seq += 1
    return 0


cdef uint64_t next_selected(Ring ring, Selection selection, size_t *level) noexcept:
    # the next ready message by priority and seq, 0 without; its level among the cursors
    cdef size_t i
    cdef uint64_t seq
    for i in range(selection.cursors.n):
        seq = next_ready(ring, selection.cursors.at[i], <int>ring.max_priority - <int>i)
        selection.cursors.at[i] = seq if seq else ring.next_seq
        if seq:
            level[0] = i
            return seq
    return 0


cdef int give_next(Ring ring, Taker taker, int64_t now_ms, int64_t *left, uint64_t *at) except -1:
    # gives the taker the next message that it takes: HEAD_OK; otherwise why not, and at which message
    cdef Selection selection = <Selection?>taker.selection
    cdef uint64_t seq
    cdef size_t level = 0
    cdef slot *s
    cdef int head
    cdef Message message
    while True:
        seq = next_selected(ring, selection, &level)
        if not seq:
            return HEAD_NONE
        at[0] = seq
        if left[0] <= 0:
            return LIMIT
        left[0] -= 1
        s = ring.find(seq)
        head = ring.head_at(seq, s, now_ms)
        if head == HEAD_EXPIRED:  # it is given up when it is the head
            selection.cursors.at[level] = seq + 1
            continue
        if head != HEAD_OK and not waits_for_group(taker, head):
            if head != HEAD_NOT_LOADED and ring.logged() and seq + ring.reserve_step // 2 > ring.reserved:
                ring.reserve_past(seq)
                ring.set_mark()
            return head
        message = <Message><PyObject *>s.message
        answer = selection.judge(seq, message)
        if answer is None:  # not in this turn
            return LIMIT
        selection.cursors.at[level] = seq + 1
        if answer:
            deliver(ring, taker, seq, ring.find(seq), now_ms)
            return HEAD_OK
        ring.relieve(seq, ring.find(seq))


cdef int give_head(Ring ring, Taker taker, int64_t now_ms, uint64_t *at) except -1:
    cdef uint64_t seq = ring.head_seq()
    cdef slot *s = ring.find(seq)
    cdef int head
    if not seq:
        return HEAD_NONE
    at[0] = seq
    head = ring.head_at(seq, s, now_ms)
    if head == HEAD_OK or waits_for_group(taker, head):
        deliver(ring, taker, seq, s, now_ms)
        return HEAD_OK
    if head == HEAD_NOT_COMMITTED:
        ring.ask_reserve()
    return head


def dispatch_selected(Ring ring not None, consumers, int64_t now_ms, int64_t look_max) -> tuple:
    """Hands ready messages to consumers with credit (`consumers`: highest priority first), some of which pass messages
    over. In turns among equals each gets one: the next that its selection takes, or the head.

    Returns (how many, why it stopped, the message over which a selection waits to be loaded, 0: none): HEAD_EXPIRED;
    LIMIT, for `look_max` messages were looked at; or else what `dispatch` says of the consumer that was asked last.
    """
    cdef tuple members = tuple(consumers)
    cdef size_t start = 0, end, width
    cdef int64_t count = 0
    cdef uint64_t at = 0, absent = 0
    cdef int told = HEAD_NONE, why = HEAD_NONE
    cdef Taker taker
    for taker in members:
        if taker.selection is not None:
            set_back(<Selection?>taker.selection, ring)
    ring.returned = NONE
    if ring.paused or ring.replica:
        return 0, HEAD_NOT_COMMITTED if ring.ready else HEAD_NONE, 0
    while start < <size_t>len(members):
        end = start
        while end < <size_t>len(members) and (<Taker>members[end]).priority == (<Taker>members[start]).priority:
            end += 1
        width = end - start
        hungry = [start + (ring.turn + place) % width for place in range(width)]
        while hungry:
            again = []
            for place in hungry:
                taker = <Taker>members[<Py_ssize_t>place]
                if not taker.credit():
                    if why == HEAD_NONE and ring.ready:
                        why = NO_CREDIT
                    continue
                if taker.selection is None:
                    told = give_head(ring, taker, now_ms, &at)
                else:
                    told = give_next(ring, taker, now_ms, &look_max, &at)
                if told == HEAD_OK:
                    count += 1
                    ring.turn = <size_t>place - start + 1
                    again.append(place)
                elif told == HEAD_NOT_LOADED and taker.selection is not None:
                    absent = at if absent == 0 else min(absent, at)
                elif told != HEAD_NONE and why not in (HEAD_EXPIRED, LIMIT):
                    why = told
            hungry = again
        start = end
    ring.handed += count
    return count, why, absent


def sweep(Ring ring not None, uint64_t seq, judge not None, int64_t look_max) -> tuple:
    """Settles the ready messages from `seq` on that nobody is to have: `judge(message)` is False of them.

    Returns (the seq at which it stopped, how many have left, why it stopped): HEAD_NONE, all were looked at; LIMIT, for
    `judge` said None, or `look_max` were; HEAD_NOT_LOADED; HEAD_NOT_COMMITTED, for the queue is paused.
    """
    cdef uint64_t count = 0, at = seq
    cdef int why = HEAD_NONE
    cdef slot *s
    if ring.paused or ring.replica:
        return seq, 0, HEAD_NOT_COMMITTED
    while True:
        at = next_ready(ring, at, -1)
        if not at:
            at = ring.next_seq
            break
        s = ring.find(at)
        if not in_memory(s):
            why = HEAD_NOT_LOADED
            break
        answer = None if look_max <= 0 else judge(<Message><PyObject *>s.message)
        if answer is None:
            why = LIMIT
            break
        look_max -= 1
        if answer:
            ring.relieve(at, ring.find(at))
        else:
            ring.settle_seq(at, False)
            count += 1
        at += 1
    if count:
        if ring.heap.n > 2 * ring.ready + HEAP_SLACK:
            tidy_heap(ring)
        ring.set_mark()
    return at, count, why
