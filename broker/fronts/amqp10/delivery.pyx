# Deliveries of a queue to a receiver's link; `tests/model/delivery10.py` explains each name.
#
# The queue (ring) knows a `Taker`; transfer frames are written here, into the connection's buffer. What a session holds is
# its ledger's: delivery n has tag n there, and the id n - 1, modulo 2^32, on the wire (2.6.12: serial numbers).
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from clusterbroker.broker.access.ledger cimport DeliveryLedger, Holder, delivery
from clusterbroker.broker.content.translation cimport Translation
from clusterbroker.broker.queues.ring cimport Taker, row_from
from clusterbroker.broker.wire.amqp091.codec cimport OutBuffer
from clusterbroker.broker.wire.amqp10.codec cimport Disposed
from clusterbroker.broker.wire.amqp10.sections cimport header_parts, split_header
from clusterbroker.broker.wire.amqp10.values cimport put_uint
from clusterbroker.broker.wire.big_endian cimport put8, put16, put32, put_all
from clusterbroker.journal.record cimport Message, address_size, address_start, payload_size, payload_start

from clusterbroker.broker.queues.stumble import Stumble, Unfit

cdef enum:
    BASIC = 0  # broker/content/formats.py
    SECTIONS = 1
    FRAME_HEAD = 8
    TRANSFER_MAX = 64  # bytes of a transfer performative with nine fields
    TAG_BYTES = 10
    HEADER_MAX = 24  # of a header section
    PERSISTENT = 1
    ANNOTATIONS = 0x72
    ID_AT = 16  # where a frame has its delivery-id, when its handle is 0
    WIDE_ID = 256  # from here on a delivery-id takes as many bytes as any

cdef bytes EXCHANGE = b"\xa3\x0ax-exchange"
cdef bytes ROUTING_KEY = b"\xa3\x0dx-routing-key"
cdef uint64_t ID_MASK = 0xFFFFFFFF


cdef inline uint8_t *put_tag(uint8_t *p, uint64_t seq, uint16_t gap) noexcept:
    # a delivery's tag: unique on its link, over sessions and connections
    return put16(put32(put32(p, <uint32_t>(seq >> 32)), <uint32_t>seq), gap)


cdef inline uint8_t *put_data_head(uint8_t *p, uint64_t length) noexcept nogil:
    # of a section of data
    p = put8(put8(put8(p, 0), 0x53), 0x75)
    return put8(put8(p, 0xA0), <uint8_t>length) if length < 256 else put32(put8(p, 0xB0), <uint32_t>length)


# The frame of a link's last usual delivery, up to where the bytes of its message follow as they are, and what it was made
# of: most deliveries begin alike but for their numbers. `size` bytes of the frame stand behind this, and behind them the
# first `source` bytes of the message's payload.
cdef struct prefix:
    uint64_t room
    uint64_t size
    uint64_t id_at
    uint64_t content_at
    uint64_t source
    uint8_t format
    uint8_t priority
    uint8_t persistent


cdef inline bint split(Message message, header_parts *parts) noexcept:
    return split_header(payload_start(message), min(<uint64_t>message.header_length, payload_size(message)), parts)


@cython.final
cdef class SessionLedger(DeliveryLedger):
    """A session's unsettled outgoing deliveries by tag, and where they go."""

    cdef readonly uint16_t channel
    cdef readonly OutBuffer out
    cdef public uint32_t window
    cdef public uint32_t next_outgoing_id
    cdef readonly uint64_t own
    # deliveries that wait for the window: (content, handle, number, settled, delivery-tag, state when it is resumed);
    # of the first, `sent` bytes are gone
    cdef list waiting  # None until there is one: there may be very many sessions
    cdef uint64_t sent

    def __init__(self, uint16_t channel, OutBuffer out not None):
        DeliveryLedger.__init__(self)
        self.channel = channel
        self.out = out

    @property
    def is_cut(self) -> bool:
        return bool(self.waiting)

    cdef uint64_t tag_of(self, uint32_t delivery_id) noexcept:
        # the tag that is nearest to the newest one; ids wrap at 2^32 (RFC 1982), and one that was not given has none
        cdef int64_t newest = <int64_t>self.next_tag - 1
        cdef int64_t tag = newest + <int32_t>(delivery_id - <uint32_t>((newest - 1) & <int64_t>ID_MASK))
        return <uint64_t>max(<int64_t>0, tag)

    cdef size_t row_of(self, uint64_t tag) noexcept:
        return row_from(self.entries, sizeof(delivery), self.first, self.end, tag)

    def settle(self, Disposed event not None) -> int:
        """Those of the event's ids that are unsettled are accepted; how many. Others mean nothing (2.6.12)."""
        cdef size_t place, at
        cdef uint64_t last, before = self.unacked
        for place in range(event.count):
            at = self.row_of(self.tag_of(event.ids[2 * place]))
            last = self.tag_of(event.ids[2 * place + 1])
            while at < self.end and self.entries[at].tag <= last:
                if self.entries[at].consumer != NULL:
                    self.settle_entry(&self.entries[at])
                at = max(at + 1, self.first)
        return before - self.unacked

    def take(self, uint32_t first_id, uint32_t last_id) -> list:
        """Takes those of these ids that are unsettled out without settling them, in the order of their tags."""
        cdef list taken = []
        cdef size_t at = self.row_of(self.tag_of(first_id))
        cdef uint64_t last = self.tag_of(last_id)
        while at < self.end and self.entries[at].tag <= last:
            if self.entries[at].consumer != NULL:
                taken.append(self.collect_entry(&self.entries[at]))
            at = max(at + 1, self.first)
        return taken

    cdef uint8_t *put_transfer(self, uint8_t *p, uint64_t size, uint32_t handle, uint64_t tag, const uint8_t *name,
                               uint8_t name_size, bint settled, bint first, bint more, bytes state) noexcept:
        # the frame's head and performative; `size`: of the payload behind it; `name`: the delivery-tag; `state`: it is
        # resumed with this state, as it is on the wire
        cdef uint8_t *start = p
        cdef uint8_t *listed
        cdef bint resumed = first and state is not None
        p = put8(put8(put8(p + FRAME_HEAD, 0), 0x53), 0x14)
        listed = p + 2
        p = put_uint(put8(listed, 9 if resumed else 6 if more or not first else 5), handle)
        if first:
            p = put_uint(p, <uint32_t>((tag - 1) & ID_MASK))
            p = put_all(put8(put8(p, 0xA0), name_size), name, name_size)
            p = put8(put8(p, 0x43), 0x41 if settled else 0x42)
        else:
            p = put32(p, 0x40404040)
        if more or not first or resumed:
            p = put8(p, 0x41 if more else 0x42)
        if resumed:
            p = put8(put_all(put8(p, 0x40), PyBytes_AS_STRING(state), PyBytes_GET_SIZE(state)), 0x41)
        listed[-2] = 0xC0
        listed[-1] = <uint8_t>(p - listed)
        put16(put8(put8(put32(start, <uint32_t>(p - start + size)), 2), 0), self.channel)
        self.window -= 1
        self.next_outgoing_id += 1
        return p

    cdef int wait(self, tuple waiting) except -1:
        if self.waiting is None:
            self.waiting = []
        self.waiting.append(waiting)
        return 0

    def send(self, uint32_t handle, bytes content not None) -> None:
        """A delivery that comes from no queue, settled."""
        cdef uint64_t tag = self.next_tag
        cdef uint8_t[4] name
        self.next_tag = tag + 1
        self.skipped += 1
        self.own += 1
        put32(name, <uint32_t>((tag - 1) & ID_MASK))
        self.wait((content, handle, tag, True, (<const char *>name)[:4], None))
        self.go_on()

    def resend(self, LinkConsumer consumer not None, uint64_t seq, bytes content not None, bytes state, bint settled,
               int64_t now_ms) -> None:
        """A delivery of before, under its tag: resumed with `state` (none: new), or `settled` with it."""
        cdef uint64_t tag
        cdef uint8_t[TAG_BYTES] name
        if settled:
            tag = self.next_tag
            self.next_tag = tag + 1
            self.skipped += 1
            self.own += 1
        else:
            tag = self.put(consumer, seq, now_ms)
            self.redelivered += 1
        put_tag(name, seq, consumer.gap)
        self.wait((content, consumer.handle, tag, settled, (<const char *>name)[:TAG_BYTES], state))
        consumer.delivered += 1
        self.go_on()

    def interrupt(self, uint32_t handle) -> None:
        """The link is detached: what waits of its deliveries is not sent."""
        if self.waiting:
            if self.waiting[0][1] == handle:
                self.sent = 0
            self.waiting = [one for one in self.waiting if one[1] != handle]
            self.go_on()

    def go_on(self) -> None:
        """What waits goes on, as far as the window reaches."""
        cdef uint64_t length, part, most = self.out.frame_max - FRAME_HEAD - TRANSFER_MAX, tag
        cdef uint32_t handle
        cdef bint settled
        cdef bytes content, name, state
        cdef uint8_t *p
        while self.waiting and self.window:
            content, handle, tag, settled, name, state = self.waiting[0]
            length = PyBytes_GET_SIZE(content) - self.sent
            part = min(length, most)
            p = self.out.room(FRAME_HEAD + TRANSFER_MAX + part)
            p = self.put_transfer(p, part, handle, tag, <const uint8_t *>PyBytes_AS_STRING(name),
                                  <uint8_t>PyBytes_GET_SIZE(name), settled, self.sent == 0, part < length, state)
            p = put_all(p, PyBytes_AS_STRING(content) + self.sent, part)
            self.out.size = p - self.out.data
            self.sent += part
            if part == length:
                del self.waiting[0]
                self.sent = 0


@cython.final
cdef class LinkConsumer(Holder):
    """A receiver's link as `dispatch` sees it."""

    cdef SessionLedger session
    cdef readonly uint32_t handle
    cdef readonly bint settled
    # of the queue's messages (`cluster.wiring.entities.Queue.gap_epoch`), modulo 2^16: in tags
    cdef public uint16_t gap
    cdef public bytes numbered
    cdef public int64_t shift
    cdef public uint64_t message_max  # bytes of a message that the client takes (2.7.3); 0: all there are
    cdef Translation translation  # made for the first message that needs it
    cdef prefix *known
    cdef bytes known_address

    def __dealloc__(self):
        free(self.known)

    def __init__(self, ring, SessionLedger ledger not None, uint32_t handle, bint settled, int64_t priority=0,
                 owner=None):
        Holder.__init__(self, ring, ledger, priority, owner)
        self.session = ledger
        self.handle = handle
        self.settled = settled
        self.limit = 0
        self.numbered = b""

    def move(self, SessionLedger ledger not None, uint32_t handle, bint settled) -> None:
        """The link goes on in another session, or waits in none; what it holds was taken out of its ledger."""
        if self.unacked:
            raise AssertionError("a link that moves leaves nothing in its ledger")
        self.session = ledger
        self.ledger = ledger
        self.handle = handle
        self.settled = settled
        free(self.known)
        self.known = NULL

    def tag_of(self, uint64_t seq) -> bytes:
        """The delivery-tag of a message of the queue."""
        cdef uint8_t[TAG_BYTES] name
        put_tag(name, seq, self.gap)
        return (<const char *>name)[:TAG_BYTES]

    cdef bint credit(self) noexcept:
        # no name for the session: that would count references of it
        return (
            self.active and self.session.flowing and self.delivered < self.limit and self.session.window != 0
            and not self.session.waiting and not self.session.out.paused
            and self.session.out.size < self.session.out.size_max
        )

    cdef bint flows(self) noexcept:
        return self.active and self.session.flowing

    cdef int64_t space(self) noexcept:
        # a session's window is for all its links; each delivery takes one frame at least
        if self.session.waiting:
            return 0
        return min(Taker.space(self), <int64_t>self.session.window)

    @property
    def writable(self) -> bool:
        return self.session.flowing and self.session.window != 0 and not self.session.waiting and (
            self.session.out.writable
        )

    @property
    def shared(self) -> bool:
        return self.session.window < self.limit - min(self.delivered, self.limit)

    cdef Message translated(self, Message message):
        if self.translation is None:
            self.translation = Translation(SECTIONS)
        return self.translation.of(message)

    cdef int hand(self, uint64_t seq, Message message, bint redelivered, uint16_t delivery_count,
                  int64_t now_ms) except -1:
        cdef SessionLedger session = self.session
        cdef uint64_t tag
        cdef bint alike = (
            not redelivered and not delivery_count and not self.message_max and self.begins_alike(message)
        )
        cdef Message readable = message
        cdef header_parts parts
        cdef uint64_t before, begins
        if not alike and (message.format != SECTIONS or not split(message, &parts)):
            readable = in_sections(self, seq, message)
            split(readable, &parts)
        if self.message_max:
            self.check_size(readable, &parts, seq, delivery_count, now_ms)
        if self.settled:
            tag = session.next_tag
            session.next_tag = tag + 1
            session.skipped += 1
        else:
            tag = session.put(self, seq, now_ms)
            if session.took is not None:
                session.took(session, tag, message)
        if alike:
            self.repeat(message, tag, seq)
            return self.settled
        before = session.out.size
        begins = self.write(readable, &parts, tag, seq, redelivered, delivery_count, now_ms)
        if begins and not redelivered and not delivery_count and ((tag - 1) & ID_MASK) >= WIDE_ID:
            self.remember(message, readable, &parts, session.out.data + before, begins)
        if redelivered:
            session.redelivered += 1
        return self.settled

    cdef int check_size(self, Message message, const header_parts *parts, uint64_t seq, uint16_t delivery_count,
                        int64_t now_ms) except -1:
        # as it is written, which is seldom known without writing it
        cdef uint64_t size = HEADER_MAX + 12 + parts.entries + self.own_annotations(message)
        size += payload_size(message) - parts.rest
        if size > self.message_max and (
            why := self.too_large(seq, self.content(seq, message, delivery_count, now_ms))
        ):
            self.active = False
            raise Unfit(seq, self.owner, why)
        return 0

    def too_large(self, uint64_t seq, bytes content not None) -> str:
        """Why the client cannot have these sections of a message; empty: it can."""
        if not self.message_max or <uint64_t>PyBytes_GET_SIZE(content) <= self.message_max:
            return ""
        return f"message {seq}: it has {len(content)} bytes, and the link takes {self.message_max}"

    cdef bint begins_alike(self, Message message) noexcept:
        # whether its delivery differs in nothing but its numbers from the last usual one, up to the message's own bytes
        cdef prefix *known = self.known
        cdef uint64_t size, tail
        cdef const uint8_t *payload
        cdef const uint8_t *rest
        if known == NULL or message.format != known.format or message.ttl_ms >= 0 or (
            message.priority != known.priority or message.flags & PERSISTENT != known.persistent
            or (self.session.next_tag - 1) & ID_MASK < WIDE_ID or PyBytes_GET_SIZE(self.numbered)
            or not self.session.window or self.session.waiting
        ):
            return False
        if <PyObject *>message.address != <PyObject *>self.known_address and (
            address_size(message) != <size_t>PyBytes_GET_SIZE(self.known_address)
            or memcmp(address_start(message), PyBytes_AS_STRING(self.known_address), address_size(message)) != 0
        ):
            return False
        payload = payload_start(message)
        size = payload_size(message)
        if size < known.source or memcmp(payload, <uint8_t *>(known + 1) + known.size, known.source) != 0:
            return False
        tail = size - known.source
        if known.format == BASIC:
            if message.header_length != known.source:
                return False
            tail += 8
        elif tail:
            # a section that stands behind annotations: those that the prefix has are all that there are
            rest = payload + known.source
            if tail < 3 or rest[0] != 0 or rest[1] != 0x53 or rest[2] <= ANNOTATIONS:
                return False
        return known.size - known.content_at + tail + FRAME_HEAD + TRANSFER_MAX <= self.session.out.frame_max

    cdef int repeat(self, Message message, uint64_t tag, uint64_t seq) except -1:
        # writes a delivery that `begins_alike`
        cdef prefix *known = self.known
        cdef uint64_t tail = payload_size(message) - known.source
        cdef uint8_t *start = self.session.out.room(known.size + 8 + tail)
        cdef uint8_t *p = put_all(start, known + 1, known.size)
        put_tag(put32(start + known.id_at, <uint32_t>((tag - 1) & ID_MASK)) + 2, seq, self.gap)
        if known.format == BASIC:
            p = put_data_head(p, tail)
        p = put_all(p, payload_start(message) + known.source, tail)
        put32(start, <uint32_t>(p - start))
        self.session.out.size = p - self.session.out.data
        self.session.window -= 1
        self.session.next_outgoing_id += 1
        return 0

    cdef int remember(self, Message message, Message readable, const header_parts *parts, const uint8_t *frame,
                      uint64_t begins) except -1:
        # `readable`: the message as its client reads it, whose own bytes begin at frame[begins]
        cdef uint64_t source = parts.rest, translated = 0, needed
        cdef prefix *known = self.known
        cdef uint8_t *to
        if message.ttl_ms >= 0 or PyBytes_GET_SIZE(self.numbered):
            return 0
        if message is not readable:
            if message.format != BASIC or not self.translation.knows(message):
                return 0
            source = message.header_length
            translated = readable.header_length - parts.rest  # sections behind the annotations
        needed = begins + translated + source
        if known == NULL or known.room < needed:
            known = <prefix *>realloc(known, sizeof(prefix) + needed)
            if known == NULL:
                raise MemoryError
            self.known = known
            known.room = needed
        to = put_all(<uint8_t *>(known + 1), frame, begins)
        to = put_all(to, payload_start(readable) + parts.rest, translated)
        put_all(to, payload_start(message), source)
        known.size = begins + translated
        known.source = source
        known.id_at = ID_AT + (0 if self.handle == 0 else 1 if self.handle < 256 else 4)
        known.content_at = FRAME_HEAD + 5 + <uint64_t>frame[FRAME_HEAD + 4]
        known.format = message.format
        known.priority = message.priority
        known.persistent = message.flags & PERSISTENT
        self.known_address = message.address
        return 0

    def deliver(self, uint64_t seq, Message message not None, int64_t now_ms) -> None:
        """A message of a reader that stands in a queue's place."""
        cdef header_parts parts
        message = self.parted(message, &parts)
        self.write(message, &parts, self.session.put(self, seq, now_ms), seq, False, 0, now_ms)
        self.delivered += 1

    def content(self, uint64_t seq, Message message not None, uint16_t delivery_count, int64_t now_ms) -> bytes:
        """The sections of a message that was handed out before, as they are written now."""
        cdef header_parts parts
        cdef uint64_t added, size
        cdef bytes content
        cdef uint8_t *start
        cdef uint8_t *p
        message = self.parted(message, &parts)
        added = self.own_annotations(message)
        size = HEADER_MAX + 12 + parts.entries + added + payload_size(message) - parts.rest
        content = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        p = start = <uint8_t *>PyBytes_AS_STRING(content)
        p = self.put_sections(p, message, &parts, added, seq, True, delivery_count, now_ms)
        p = put_all(p, payload_start(message) + parts.rest, payload_size(message) - parts.rest)
        return content[: p - start]

    cdef Message parted(self, Message message, header_parts *parts):
        # the message as the client reads it, and where its sections are
        if message.format != SECTIONS or not split(message, parts):
            message = self.translated(message)
            split(message, parts)
        return message

    cdef uint64_t own_annotations(self, Message message) noexcept:
        # bytes of the annotations that the node adds
        cdef uint64_t exchange = address_start(message)[0]
        cdef uint64_t added = PyBytes_GET_SIZE(EXCHANGE) + 2 + exchange + PyBytes_GET_SIZE(ROUTING_KEY) + 2 + (
            address_size(message) - exchange - 2
        )
        if self.numbered:
            added += PyBytes_GET_SIZE(self.numbered) + 9
        return added

    cdef int64_t write(self, Message message, const header_parts *parts, uint64_t tag, uint64_t seq, bint redelivered,
                       uint16_t delivery_count, int64_t now_ms) except -1:
        # all frames of a delivery, as far as the session's window reaches. Returns where its only frame has the message's
        # own bytes, or 0.
        cdef SessionLedger session = self.session
        cdef OutBuffer out = session.out
        cdef uint64_t added, tail, annotations, most, begins
        cdef const uint8_t *payload = payload_start(message)
        cdef uint8_t *p
        cdef uint8_t *start
        cdef bytes content
        cdef uint8_t[TAG_BYTES] name
        put_tag(name, seq, self.gap)
        added = self.own_annotations(message)
        tail = payload_size(message) - parts.rest
        annotations = 12 + parts.entries + added
        most = out.frame_max - FRAME_HEAD - TRANSFER_MAX
        if HEADER_MAX + annotations + tail <= most and session.window and not session.waiting:
            # the usual one: a single frame. Its size is known when its payload is written.
            start = out.room(FRAME_HEAD + TRANSFER_MAX + HEADER_MAX + annotations + tail)
            p = session.put_transfer(start, 0, self.handle, tag, name, TAG_BYTES, self.settled, True, False, None)
            p = self.put_sections(p, message, parts, added, seq, redelivered, delivery_count, now_ms)
            begins = p - start
            p = put_all(p, payload + parts.rest, tail)
            put32(start, <uint32_t>(p - start))
            out.size = p - out.data
            return begins
        content = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(HEADER_MAX + annotations + tail))
        p = start = <uint8_t *>PyBytes_AS_STRING(content)
        p = self.put_sections(p, message, parts, added, seq, redelivered, delivery_count, now_ms)
        p = put_all(p, payload + parts.rest, tail)
        session.wait(
            (content[: p - start], self.handle, tag, self.settled, (<const char *>name)[:TAG_BYTES], None)
        )
        session.go_on()
        return 0

    cdef uint8_t *put_sections(self, uint8_t *p, Message message, const header_parts *parts, uint64_t added,
                               uint64_t seq, bint redelivered, uint16_t delivery_count, int64_t now_ms) noexcept:
        # the header as it is now (3.2.1), and the message's annotations with the node's own
        cdef uint8_t *listed
        cdef const uint8_t *address = address_start(message)
        cdef uint64_t exchange = address[0], key = address_size(message) - exchange - 2
        cdef uint64_t entries = parts.entries, count = parts.count + 4
        cdef int64_t left
        p = put8(put8(put8(p, 0), 0x53), 0x70)
        listed = p + 3
        p = put8(listed, 0x41 if message.flags & PERSISTENT else 0x42)
        p = put8(put8(p, 0x50), message.priority)
        if message.ttl_ms < 0:
            p = put8(p, 0x40)
        else:
            # a turn's time is that of its beginning: what it reads may be later than what it delivers
            left = message.ttl_ms - max(<int64_t>0, now_ms - message.time_ms)
            p = put_uint(p, <uint32_t>max(<int64_t>0, min(left, <int64_t>ID_MASK)))
        p = put8(p, 0x42 if redelivered else 0x41)
        p = put_uint(p, delivery_count)
        listed[-3] = 0xC0
        listed[-2] = <uint8_t>(p - listed + 1)
        listed[-1] = 5
        p = put8(put8(put8(p, 0), 0x53), 0x72)
        if self.numbered:
            count += 2
        if entries + added + 1 < 256 and count < 256:
            p = put8(put8(put8(p, 0xC1), <uint8_t>(entries + added + 1)), <uint8_t>count)
        else:
            p = put32(put32(put8(p, 0xD1), <uint32_t>(entries + added + 4)), <uint32_t>count)
        p = put_all(p, payload_start(message) + parts.at, entries)
        p = put8(put_all(p, PyBytes_AS_STRING(EXCHANGE), PyBytes_GET_SIZE(EXCHANGE)), 0xA1)
        p = put_all(p, address, exchange + 1)
        p = put8(put_all(p, PyBytes_AS_STRING(ROUTING_KEY), PyBytes_GET_SIZE(ROUTING_KEY)), 0xA1)
        p = put_all(p, address + 1 + exchange, key + 1)
        if self.numbered:
            p = put8(put_all(p, PyBytes_AS_STRING(self.numbered), PyBytes_GET_SIZE(self.numbered)), 0x80)
            p = put32(put32(p, <uint32_t>(<uint64_t>(<int64_t>seq + self.shift) >> 32)),
                      <uint32_t>(<int64_t>seq + self.shift))
        return p


cdef Message in_sections(LinkConsumer consumer, uint64_t seq, Message message):
    # a message that cannot be read here returns to its place, and the queue is told over which it stumbled
    try:
        return consumer.translated(message)
    except Exception as error:
        if not consumer.ring.proxy:
            consumer.ring.requeue(seq, False)
        raise Stumble(seq) from error
