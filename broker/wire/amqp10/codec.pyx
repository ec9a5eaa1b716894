# Frames of AMQP 1.0 to batches of events. The same in plain Python, which explains every name, is tests/model/codec10.py.
#
# The decoder walks the socket's buffer by pointer. What comes once per message is read here: transfers of links that
# the front has announced (`open_link`), and dispositions of receivers. Neighbours that differ in nothing but their
# message or number become one event. Everything else, and everything unusual about these two (a state, a resumed or
# aborted delivery, another message format, what is missing or does not fit), is handed to the front as the bytes of its
# frame (`FrameReceived`), which finds out what it is and what is wrong with it.
#
# A message keeps its sections as they came (sections.pyx); delivery annotations are meant for this node alone (3.2.2) and
# are not kept.
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

from clusterbroker.broker.wire.amqp10.sections cimport find_sections, message_of, sections
from clusterbroker.broker.wire.amqp10.tags cimport Tags
from clusterbroker.broker.wire.amqp10.values cimport one_data
from clusterbroker.broker.wire.big_endian cimport get16, get32
from clusterbroker.journal.record cimport Message, held_start

from clusterbroker.broker.wire.amqp10.errors import (
    Amqp10Error,
    DECODE_ERROR,
    LinkError,
    MESSAGE_SIZE,
    ConnectionFault10,
    RESOURCE_LIMIT,
    framing_error,
)

cdef extern from "Python.h":
    # the same two calls on bytes objects that are still being written: plain pointers, no counting by the compiler
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *text, Py_ssize_t length) except NULL
    int resize_bytes "_PyBytes_Resize" (PyObject **store, Py_ssize_t length) except -1
    void Py_CLEAR(PyObject *store)

cdef enum:
    FRAME_HEAD = 8
    PROTOCOL_HEADER = 8
    FRAME_AMQP = 0
    FRAME_SASL = 1
    TRANSFER = 0x14
    DISPOSITION = 0x15
    ACCEPTED = 0x24
    RELEASED = 0x26
    NO_HANDLE = 0xFFFFFFFF  # no link has it: handles are below 1024
    REMEMBERED = 128  # sections before the body of at most so many bytes are recognised when they repeat
    TAG_MAX = 32


# -- events


@cython.final
@cython.freelist(8)
cdef class HeaderReceived:
    """A protocol header: 8 bytes."""

    cdef readonly bytes data

    def __init__(self, bytes data not None):
        self.data = data


@cython.final
@cython.freelist(64)
cdef class FrameReceived:
    """A frame that the front reads itself; `payload`: behind the frame's header and extended header."""

    cdef readonly uint16_t channel
    cdef readonly bint sasl
    cdef readonly bytes payload

    def __init__(self, uint16_t channel, bint sasl, bytes payload not None):
        self.channel = channel
        self.sasl = sasl
        self.payload = payload


@cython.final
@cython.freelist(64)
cdef class Transferred:
    """Neighbouring transfers on one link."""

    cdef public IncomingLink link
    cdef public list messages
    cdef public Tags tags
    cdef public uint32_t first_id
    cdef uint32_t next_id  # of the delivery that may join
    cdef public uint32_t frames
    cdef public bint settled
    cdef public uint8_t flags
    cdef public uint64_t size
    cdef public object refusal

    def __init__(self, IncomingLink link not None, uint32_t first_id, bint settled):
        self.link = link
        self.first_id = self.next_id = first_id
        self.settled = settled
        self.messages = []
        self.tags = Tags()


cdef Transferred new_transferred(IncomingLink link, uint32_t first_id, bint settled):
    cdef Transferred batch = Transferred.__new__(Transferred)
    batch.link = link
    batch.first_id = batch.next_id = first_id
    batch.settled = settled
    batch.messages = []
    batch.tags = Tags.__new__(Tags)
    return batch


@cython.final
@cython.freelist(64)
cdef class Disposed:
    """Neighbouring dispositions of a receiver with one state."""

    def __init__(self, uint16_t channel, uint8_t outcome, bint settled):
        self.channel = channel
        self.outcome = outcome
        self.settled = settled

    def __dealloc__(self):
        free(self.ids)

    cdef int put(self, uint32_t first, uint32_t last) except -1:
        cdef uint32_t *grown
        if self.count and self.ids[2 * self.count - 1] + 1 == first and first:
            self.ids[2 * self.count - 1] = last
            return 0
        if self.count == self.capacity:
            grown = <uint32_t *>realloc(self.ids, (2 * self.capacity + 8) * 2 * sizeof(uint32_t))
            if grown is NULL:
                raise MemoryError
            self.ids = grown
            self.capacity = 2 * self.capacity + 8
        self.ids[2 * self.count] = first
        self.ids[2 * self.count + 1] = last
        self.count += 1
        return 0

    def add(self, uint32_t first, uint32_t last) -> None:
        self.put(first, last)

    @property
    def ranges(self) -> list:
        cdef size_t at
        return [(self.ids[2 * at], self.ids[2 * at + 1]) for at in range(self.count)]


@cython.final
cdef class IncomingLink:
    """What the decoder keeps of a link whose sender is the client."""

    cdef readonly uint16_t channel
    cdef readonly uint32_t handle
    cdef public bytes address
    cdef public object owner
    cdef public bint raw
    # the delivery that is not whole yet: a bytes object of `capacity` bytes in the making
    cdef PyObject *store
    cdef uint64_t filled
    cdef uint64_t capacity
    cdef readonly bint partial
    cdef readonly uint32_t delivery_id
    cdef readonly bytes tag
    cdef readonly bint settled
    cdef bint too_large
    cdef bint by_front  # the front has read its first frame
    cdef uint32_t behind  # frames that the front has not read yet
    # the newest sections before a body, which the next message most likely repeats
    cdef sections found
    cdef uint8_t remembered
    cdef uint8_t *prefix  # of REMEMBERED bytes, from the first message on

    def __init__(self, uint16_t channel, uint32_t handle, bytes address not None, owner=None):
        self.channel = channel
        self.handle = handle
        self.address = address
        self.owner = owner

    def __dealloc__(self):
        Py_CLEAR(self.store)
        free(self.prefix)

    cdef int add(self, const uint8_t *data, uint64_t length) except -1:
        cdef uint64_t needed = self.filled + length
        if length == 0:
            return 0
        if needed > self.capacity:
            if self.store is NULL:
                self.store = new_bytes(NULL, <Py_ssize_t>needed)
                self.capacity = needed
            else:
                resize_bytes(&self.store, <Py_ssize_t>(2 * needed))
                self.capacity = 2 * needed
        memcpy(held_start(self.store) + self.filled, data, length)
        self.filled = needed
        return 0

    cdef int forget(self) noexcept:
        Py_CLEAR(self.store)
        self.filled = self.capacity = 0
        self.partial = self.too_large = self.by_front = False
        self.tag = None
        return 0

    cdef bint find(self, const uint8_t *payload, uint64_t length) noexcept:
        # sets `found`. False: it is no message.
        cdef uint64_t known = self.remembered
        cdef sections body
        if known and length > known and memcmp(payload, self.prefix, known) == 0 and payload[known] == 0:
            # the same sections, and behind them a body: it is proven, and no other section stands before it
            if find_body(payload + known, length - known):
                return True
        self.remembered = 0
        if not find_sections(payload, length, &self.found):
            return False
        if 0 < self.found.body <= REMEMBERED:
            if self.prefix is NULL:
                self.prefix = <uint8_t *>malloc(REMEMBERED)
                if self.prefix is NULL:
                    return True  # nothing is remembered
            memcpy(self.prefix, payload, self.found.body)
            self.remembered = <uint8_t>self.found.body
        return True


cdef bint find_body(const uint8_t *payload, uint64_t length) noexcept:
    # whether all of it is a body, and perhaps a footer
    cdef sections found
    return one_data(payload, length) > 0 or find_sections(payload, length, &found) and found.body == 0


# -- the decoder


cdef struct transfer:
    uint32_t handle
    bint has_id
    uint32_t id
    const uint8_t *tag
    uint64_t tag_length
    bint has_tag
    bint has_settled
    bint settled
    bint more


cdef enum:
    BAD = -1
    ABSENT = 0
    PRESENT = 1


cdef inline int pull_uint(const uint8_t *p, uint64_t *at, uint64_t end, uint32_t *value) noexcept nogil:
    cdef uint8_t code
    if at[0] >= end:
        return BAD
    code = p[at[0]]
    at[0] += 1
    if code == 0x40:
        return ABSENT
    if code == 0x43:
        value[0] = 0
        return PRESENT
    if code == 0x52:
        if at[0] + 1 > end:
            return BAD
        value[0] = p[at[0]]
        at[0] += 1
        return PRESENT
    if code == 0x70:
        if at[0] + 4 > end:
            return BAD
        value[0] = get32(p + at[0])
        at[0] += 4
        return PRESENT
    return BAD


cdef inline int pull_bool(const uint8_t *p, uint64_t *at, uint64_t end, bint *value) noexcept nogil:
    cdef uint8_t code
    if at[0] >= end:
        return BAD
    code = p[at[0]]
    at[0] += 1
    if code == 0x40:
        return ABSENT
    if code == 0x41 or code == 0x42:
        value[0] = code == 0x41
        return PRESENT
    if code == 0x56:
        if at[0] + 1 > end or p[at[0]] > 1:
            return BAD
        value[0] = p[at[0]] == 1
        at[0] += 1
        return PRESENT
    return BAD


cdef inline uint64_t open_list(const uint8_t *p, uint64_t length, uint32_t *count, uint64_t *stop) noexcept nogil:
    # where the first field of the performative is, whose descriptor is p[:3]; 0: it is written in another way
    if p[3] == 0xC0 and length >= 6:
        count[0] = p[5]
        stop[0] = 5 + <uint64_t>p[4]
        return 6 if stop[0] <= length and stop[0] >= 6 else 0
    if p[3] == 0xD0 and length >= 12:
        count[0] = get32(p + 8)
        stop[0] = 8 + <uint64_t>get32(p + 4)
        return 12 if stop[0] <= length and stop[0] >= 12 else 0
    return 0


cdef uint64_t read_transfer(const uint8_t *p, uint64_t length, transfer *t) noexcept nogil:
    # where the payload of a usual transfer begins; 0: something is unusual about it
    cdef uint32_t count = 0, number = 0
    cdef uint64_t stop = 0, at = open_list(p, length, &count, &stop), size
    cdef int known
    cdef bint flag = False, wide
    if at == 0 or count == 0 or count > 11:
        return 0
    t.has_id = t.has_tag = t.has_settled = t.settled = t.more = False
    t.tag = NULL
    t.tag_length = 0
    if pull_uint(p, &at, stop, &t.handle) != PRESENT:
        return 0
    if count > 1:
        known = pull_uint(p, &at, stop, &t.id)
        if known == BAD:
            return 0
        t.has_id = known == PRESENT
    if count > 2:
        if at >= stop:
            return 0
        if p[at] == 0xA0 or p[at] == 0xB0:
            wide = p[at] == 0xB0
            if at + (5 if wide else 2) > stop:
                return 0
            size = get32(p + at + 1) if wide else p[at + 1]
            at += 5 if wide else 2
            if size > stop - at:
                return 0
            t.tag = p + at
            t.tag_length = size
            t.has_tag = True
            at += size
        elif p[at] == 0x40:
            at += 1
        else:
            return 0
    if count > 3:  # message-format
        known = pull_uint(p, &at, stop, &number)
        if known == BAD or (known == PRESENT and number != 0):
            return 0
    if count > 4:
        known = pull_bool(p, &at, stop, &t.settled)
        if known == BAD:
            return 0
        t.has_settled = known == PRESENT
    if count > 5:
        if pull_bool(p, &at, stop, &t.more) == BAD:
            return 0
    if count > 6:  # rcv-settle-mode
        if at >= stop or p[at] != 0x40:
            return 0
        at += 1
    if count > 7:  # state
        if at >= stop or p[at] != 0x40:
            return 0
        at += 1
    if count > 8:  # resume
        if pull_bool(p, &at, stop, &flag) == BAD or flag:
            return 0
    if count > 9:  # aborted
        if pull_bool(p, &at, stop, &flag) == BAD or flag:
            return 0
    if count > 10:  # batchable
        if pull_bool(p, &at, stop, &flag) == BAD:
            return 0
    return at if at == stop else 0


@cython.final
cdef class FrameDecoder:
    """Bytes of one connection in, events out."""

    cdef public uint32_t frame_max
    cdef public uint64_t message_bytes_max
    cdef public uint64_t partial_bytes_max
    cdef public bint failed
    cdef public bint heard
    cdef public bytes rest
    cdef dict links
    cdef readonly uint64_t partial_bytes
    # while `feed` runs: its events, and the last of them when neighbours may join it
    cdef list events
    cdef Transferred batch
    cdef Disposed disposed
    cdef IncomingLink last

    def __init__(self, uint32_t frame_max=512, uint64_t message_bytes_max=16 << 20):
        self.frame_max = frame_max
        self.message_bytes_max = message_bytes_max
        self.partial_bytes_max = max(<uint64_t>32 << 20, 2 * message_bytes_max)
        self.rest = b""
        self.links = {}

    def open_link(self, uint16_t channel, uint32_t handle, bytes address not None, owner=None) -> IncomingLink:
        """Transfers with this handle are read here from now on."""
        cdef IncomingLink link = IncomingLink(channel, handle, address, owner)
        self.links[<uint64_t>channel << 32 | handle] = link
        return link

    def close_link(self, IncomingLink link not None) -> None:
        """No more; what is not whole is passed over."""
        self.abort(link)
        self.links.pop(<uint64_t>link.channel << 32 | link.handle, None)
        self.last = None

    def abort(self, IncomingLink link not None) -> None:
        """The delivery that is not whole yet is passed over."""
        self.partial_bytes -= link.filled
        link.forget()

    def feed(self, data, int64_t now_ms) -> list:
        """Events of `data` (which starts with `rest`); what is left over becomes the new `rest`."""
        cdef Py_buffer view
        cdef list events = []
        cdef const uint8_t *start
        cdef Py_ssize_t used
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if view.len > PyBytes_GET_SIZE(self.rest):
                self.heard = True
            if self.failed:
                self.rest = b""
                return events
            start = <const uint8_t *>view.buf
            self.events = events
            used = self.walk(start, <uint64_t>view.len, now_ms)
            self.rest = PyBytes_FromStringAndSize(<const char *>start + used, view.len - used)
        except Amqp10Error as fault:
            self.failed = True
            self.rest = b""
            events.append(fault)
        except BaseException:  # no memory: a delivery may have lost its bytes, so none of them may be used
            self.failed = True
            raise
        finally:
            PyBuffer_Release(&view)
            self.events = None
            self.batch = None
            self.disposed = None
        return events

    cdef Py_ssize_t walk(self, const uint8_t *p, uint64_t end, int64_t now_ms) except -1:
        # all complete frames; returns where the incomplete one starts
        cdef uint64_t at = 0, size, skipped
        cdef uint16_t channel
        cdef uint8_t kind
        while end - at >= FRAME_HEAD:
            if p[at] == c"A" and p[at + 1] == c"M" and p[at + 2] == c"Q" and p[at + 3] == c"P":
                self.tell(HeaderReceived((<const char *>p)[at : at + PROTOCOL_HEADER]))
                at += PROTOCOL_HEADER
                continue
            size = get32(p + at)
            skipped = 4 * <uint64_t>p[at + 4]
            kind = p[at + 5]
            channel = get16(p + at + 6)
            if size < FRAME_HEAD or skipped < FRAME_HEAD or skipped > size:
                raise framing_error(f"a frame of {size} bytes with a data offset of {p[at + 4]}")
            if kind > FRAME_SASL:
                raise framing_error(f"unknown frame type {kind}")
            if size > self.frame_max:
                raise framing_error(f"a frame of {size} bytes, {self.frame_max} are allowed")
            if end - at < size:
                break
            if kind == FRAME_AMQP and skipped == size:
                pass  # an empty frame says that its sender lives (2.4.5)
            elif not self.quick(p + at + skipped, size - skipped, kind, channel, now_ms):
                self.tell(new_frame(channel, kind, p + at + skipped, size - skipped))
            at += size
        return <Py_ssize_t>at

    cdef int tell(self, event) except -1:
        self.events.append(event)
        self.batch = None
        self.disposed = None
        return 0

    cdef bint quick(self, const uint8_t *p, uint64_t length, uint8_t kind, uint16_t channel, int64_t now_ms) except -1:
        # False: the front reads the frame
        if kind != FRAME_AMQP or length < 4 or p[0] != 0 or p[1] != 0x53:
            return False
        if p[2] == TRANSFER:
            return self.quick_transfer(p, length, channel, now_ms)
        if p[2] == DISPOSITION:
            return self.quick_disposition(p, length, channel)
        return False

    cdef bint knows(self, uint16_t channel, uint32_t handle) except -1:
        # whether there is such a link: then it is `last`. As a result it would be counted, and let go of, once more for
        # each transfer.
        cdef IncomingLink link
        if self.last is not None and self.last.handle == handle and self.last.channel == channel:
            return True
        link = self.links.get(<uint64_t>channel << 32 | handle)
        if link is None:
            return False
        self.last = link
        return True

    cdef bint is_usual(self, IncomingLink link, const transfer *t) noexcept:
        # whether it is the first frame of a delivery, or goes on with the one that is not whole
        if link.partial:
            return not (t.has_id and t.id != link.delivery_id) and not (
                t.has_tag and (
                    t.tag_length != <uint64_t>PyBytes_GET_SIZE(link.tag)
                    or memcmp(t.tag, PyBytes_AS_STRING(link.tag), t.tag_length) != 0
                )
            )
        return t.has_id and t.has_tag and t.tag_length <= TAG_MAX

    cdef bint quick_transfer(self, const uint8_t *p, uint64_t length, uint16_t channel, int64_t now_ms) except -1:
        cdef transfer t
        cdef uint64_t start
        cdef IncomingLink link
        t.handle = NO_HANDLE
        start = read_transfer(p, length, &t)
        if not self.knows(channel, t.handle):
            return False
        link = self.last
        if start == 0 or link.behind or (link.partial and link.by_front) or not self.is_usual(link, &t):
            link.behind += 1  # the front has a frame of the link before it: all that follow go there, in their order
            return False
        if link.partial:
            if t.has_settled and t.settled:
                link.settled = True
            return self.go_on(link, p + start, length - start, t.more, now_ms)
        if not t.more:
            self.deliver(link, t.id, t.settled, t.tag, t.tag_length, p + start, length - start, now_ms)
            self.batch.frames += 1
            return True
        link.partial = True
        link.delivery_id = t.id
        link.settled = t.settled
        link.tag = (<const char *>t.tag)[:t.tag_length]
        return self.go_on(link, p + start, length - start, True, now_ms)

    cdef bint go_on(self, IncomingLink link, const uint8_t *payload, uint64_t length, bint more,
                    int64_t now_ms) except -1:
        # a part of a delivery
        self.gather(link, payload, length)
        self.join(link, link.delivery_id, link.settled)
        self.batch.frames += 1
        if not more:
            self.complete(link, now_ms)
        return True

    cdef int gather(self, IncomingLink link, const uint8_t *payload, uint64_t length) except -1:
        if link.too_large:
            return 0
        if link.filled + length > self.message_bytes_max:
            self.partial_bytes -= link.filled
            Py_CLEAR(link.store)
            link.filled = link.capacity = 0
            link.too_large = True
            return 0
        link.add(payload, length)
        self.partial_bytes += length
        if self.partial_bytes > self.partial_bytes_max:
            raise ConnectionFault10(RESOURCE_LIMIT, "incomplete deliveries exceed the connection's limit")
        return 0

    cdef int complete(self, IncomingLink link, int64_t now_ms) except -1:
        cdef uint32_t delivery_id = link.delivery_id
        cdef bint settled = link.settled
        cdef bytes tag = link.tag
        cdef PyObject *store = link.store
        cdef uint64_t filled = link.filled
        self.partial_bytes -= filled
        if link.too_large:
            link.forget()
            self.refuse(link, delivery_id, settled, <const uint8_t *>PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag),
                        too_large(self.message_bytes_max))
            return 0
        # the bytes are the delivery's, whatever becomes of the link while it is read
        link.store = NULL
        link.forget()
        try:
            self.deliver(link, delivery_id, settled, <const uint8_t *>PyBytes_AS_STRING(tag), PyBytes_GET_SIZE(tag),
                         held_start(store) if store != NULL else <const uint8_t *>b"", filled, now_ms)
        finally:
            Py_CLEAR(store)
        return 0

    cdef int deliver(self, IncomingLink link, uint32_t delivery_id, bint settled, const uint8_t *tag, uint64_t tag_length,
                     const uint8_t *payload, uint64_t length, int64_t now_ms) except -1:
        cdef Transferred batch
        cdef Message message
        if length > self.message_bytes_max:
            return self.refuse(link, delivery_id, settled, tag, tag_length, too_large(self.message_bytes_max))
        if link.raw:
            message = Message(link.address, PyBytes_FromStringAndSize(<const char *>payload, <Py_ssize_t>length), 0)
        elif link.find(payload, length):
            message = message_of(link.address, payload, length, &link.found, now_ms)
        else:
            return self.refuse(link, delivery_id, settled, tag, tag_length,
                               LinkError(DECODE_ERROR, "the sections are no message"))
        self.join(link, delivery_id, settled)
        batch = self.batch
        batch.messages.append(message)
        batch.tags.put(tag, tag_length)
        batch.next_id += 1
        batch.flags |= message.flags
        batch.size += length
        return 0

    cdef int refuse(self, IncomingLink link, uint32_t delivery_id, bint settled, const uint8_t *tag, uint64_t tag_length,
                    refusal) except -1:
        # stays the last event, so that the frame it came in is counted; nothing joins it
        cdef Transferred refused = new_transferred(link, delivery_id, settled)
        refused.refusal = refusal
        refused.tags.put(tag, tag_length)
        self.tell(refused)
        self.batch = refused
        return 0

    cdef inline int join(self, IncomingLink link, uint32_t delivery_id, bint settled) except -1:
        # `batch` is the one that a delivery, or a part of one, belongs to
        if self.batch is None or self.batch.link is not link or self.batch.settled != settled or (
            self.batch.next_id != delivery_id or self.batch.refusal is not None
        ):
            self.begin_batch(link, delivery_id, settled)
        return 0

    cdef int begin_batch(self, IncomingLink link, uint32_t delivery_id, bint settled) except -1:
        cdef Transferred batch = new_transferred(link, delivery_id, settled)
        self.tell(batch)
        self.batch = batch
        return 0

    cdef bint quick_disposition(self, const uint8_t *p, uint64_t length, uint16_t channel) except -1:
        cdef uint32_t count = 0, first = 0, last = 0
        cdef uint64_t stop = 0, at = open_list(p, length, &count, &stop)
        cdef bint role = False, settled = False, batchable = False
        cdef uint8_t outcome = 0
        cdef int known
        cdef Disposed event = self.disposed
        if at == 0 or count < 2 or count > 6 or stop != length:
            return False
        if pull_bool(p, &at, stop, &role) != PRESENT or not role or pull_uint(p, &at, stop, &first) != PRESENT:
            return False
        last = first
        if count > 2 and pull_uint(p, &at, stop, &last) == BAD:
            return False
        if count > 3 and pull_bool(p, &at, stop, &settled) == BAD:
            return False
        if count > 4:
            if at >= stop:
                return False
            if p[at] == 0x40:
                at += 1
            elif at + 4 <= stop and p[at] == 0 and p[at + 1] == 0x53 and (
                p[at + 2] == ACCEPTED or p[at + 2] == RELEASED
            ):
                outcome = p[at + 2]
                if p[at + 3] == 0x45:
                    at += 4
                elif p[at + 3] == 0xC0 and at + 6 <= stop and p[at + 4] == 1 and p[at + 5] == 0:
                    at += 6
                else:
                    return False
            else:
                return False
        if count > 5 and pull_bool(p, &at, stop, &batchable) == BAD:
            return False
        if at != stop or last - first > 0x7FFFFFFF:
            return False
        if event is None or event.channel != channel or event.outcome != outcome or event.settled != settled:
            event = Disposed(channel, outcome, settled)
            self.tell(event)
            self.disposed = event
        event.put(first, last)
        return True

    def take(self, IncomingLink link not None) -> None:
        """The front reads a frame of the link that was handed to it."""
        if link.behind:
            link.behind -= 1

    def begin(self, IncomingLink link not None, uint32_t delivery_id, bytes tag not None, bint settled) -> None:
        """A delivery whose first frame the front has read."""
        assert not link.partial, "one delivery of a link at a time"
        link.partial = True
        link.delivery_id = delivery_id
        link.tag = tag
        link.settled = settled
        link.by_front = True

    def extend(self, IncomingLink link not None, bytes data not None, bint settled=False) -> None:
        """A part of a delivery that the front has read. `settled`: so its frame says."""
        if settled:
            link.settled = True
        self.gather(link, <const uint8_t *>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def part_of(self, IncomingLink link not None) -> bytes:
        """What has come of the delivery that is not whole; nothing of one that is too large."""
        if link.filled == 0:
            return b""
        return PyBytes_FromStringAndSize(<const char *>held_start(link.store), <Py_ssize_t>link.filled)

    def finish(self, IncomingLink link not None, int64_t now_ms) -> Transferred:
        """The delivery is whole: its event, which neighbours do not join."""
        cdef list events = []
        self.events = events
        self.batch = None
        try:
            self.complete(link, now_ms)
        finally:
            self.events = None
            self.batch = None
            self.disposed = None
        return events[0]


cdef FrameReceived new_frame(uint16_t channel, uint8_t kind, const uint8_t *payload, uint64_t length):
    cdef FrameReceived frame = FrameReceived.__new__(FrameReceived)
    frame.channel = channel
    frame.sasl = kind == FRAME_SASL
    frame.payload = PyBytes_FromStringAndSize(<const char *>payload, <Py_ssize_t>length)
    return frame


cdef object too_large(uint64_t most):
    return LinkError(MESSAGE_SIZE, f"a message of more than {most} bytes")
