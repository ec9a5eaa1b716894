# Frames to batches of events, messages to frames. The same in plain Python, which is the specification, explains every
# name and draws the frames, is tests/model/codec.py.
#
# What is here and not there: the decoder walks the socket's buffer by pointer. A publish whose method, header and
# one body frame lie complete and undisturbed in the buffer (nearly all do) is read in place by `quick_publish`:
# names and properties that repeat are recognised by comparing their bytes, and the message costs one allocation
# for its payload and one free-listed object. Whatever is unusual, and every fault, takes the frame-by-frame way,
# which is written as in the specification. Lengths from the wire are 64-bit numbers here and are compared with
# what the buffer still has before anything is read.
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from clusterbroker.journal.record cimport Message, address_size, address_start, held_start, payload_size, payload_start
from clusterbroker.broker.wire.big_endian cimport get16, get32, get64, put16, put32, put64, put_all
from clusterbroker.journal.record cimport make_message as new_message

from clusterbroker.broker.wire.amqp091.errors import (
    AmqpError,
    frame_error,
    precondition_failed,
    resource_error,
    syntax_error,
    unexpected_frame,
)
from clusterbroker.broker.wire.amqp091.fields import DEFAULT_LIMITS, STORED_LIMITS, pull_table
from clusterbroker.broker.wire.amqp091.properties import without_header

cdef extern from "Python.h":
    # the same two calls on bytes objects that are still being written: plain pointers, no counting by the compiler
    PyObject *new_bytes "PyBytes_FromStringAndSize" (const char *text, Py_ssize_t length) except NULL
    int resize_bytes "_PyBytes_Resize" (PyObject **store, Py_ssize_t length) except -1
    void Py_CLEAR(PyObject *store)

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    FRAME_HEAD = 7
    HEADER_FIXED = 12  # class, weight and body size of a content header
    BASIC = 60
    REMEMBERED = 128  # properties of at most so many bytes are recognised when they repeat
    FIRST_CAPACITY_MAX = 1 << 18
    PERSISTENT = 1
    HAS_HEADERS = 2
    HAS_EXPIRATION = 4
    HAS_USER_ID = 8
    HAS_REPLY_TO = 16
    BASIC_FORMAT = 0  # of a message (broker/content/formats.py)

cdef uint32_t PUBLISH_START = BASIC << 16 | 40
cdef uint32_t ACK_START = BASIC << 16 | 80
cdef uint64_t TTL_MS_MAX = 0x7FFFFFFFFFFFFFFF
cdef struct Limits:
    uint32_t depth_max
    uint32_t entries_max

cdef Limits PUBLISHED = Limits(DEFAULT_LIMITS.depth_max, DEFAULT_LIMITS.entries_max)
cdef Limits STORED = Limits(STORED_LIMITS.depth_max, STORED_LIMITS.entries_max)
cdef uint64_t TAG_MAX = 0x7FFFFFFFFFFFFFFF


cdef inline uint8_t *put_head(uint8_t *p, uint8_t kind, uint16_t channel, uint64_t size) noexcept nogil:
    p[0] = kind
    return put32(put16(p + 1, channel), <uint32_t>size)


cdef inline uint8_t *put_end(uint8_t *p) noexcept nogil:
    p[0] = FRAME_END
    return p + 1


@cython.final
@cython.freelist(64)
cdef class Published:
    """Messages published one after another on one channel to one address."""

    cdef public uint16_t channel
    cdef public bint mandatory
    cdef public bint immediate
    cdef public uint8_t flags
    cdef public uint64_t size
    cdef public bytes address
    cdef public list messages
    cdef public object refusal

    def __init__(self, uint16_t channel, bytes address not None, bint mandatory, bint immediate):
        self.channel = channel
        self.address = address
        self.mandatory = mandatory
        self.immediate = immediate
        self.messages = []

    @property
    def exchange(self) -> str:
        return self.address[1 : 1 + <uint8_t>self.address[0]].decode()

    @property
    def routing_key(self) -> str:
        return self.address[2 + <uint8_t>self.address[0] :].decode()


cdef Published new_published(uint16_t channel, bytes address, uint8_t bits):
    cdef Published batch = Published.__new__(Published)
    batch.channel = channel
    batch.address = address
    batch.mandatory = bits & 1
    batch.immediate = bits >> 1 & 1
    batch.messages = []
    return batch


@cython.final
@cython.freelist(64)
cdef class Acked:
    """basic.ack, one after another on one channel."""

    def __init__(self, uint16_t channel):
        self.channel = channel

    def __dealloc__(self):
        free(self.values)

    cdef int put(self, uint64_t tag, bint multiple) except -1:
        cdef uint64_t *grown
        if self.count == self.capacity:
            grown = <uint64_t *>realloc(self.values, (2 * self.capacity + 8) * sizeof(uint64_t))
            if grown is NULL:
                raise MemoryError
            self.values = grown
            self.capacity = 2 * self.capacity + 8
        self.values[self.count] = (tag if tag < TAG_MAX else TAG_MAX) << 1 | multiple
        self.count += 1
        return 0

    @property
    def acks(self) -> list:
        cdef size_t at
        return [self.values[at] for at in range(self.count)]

    def __iter__(self):
        return iter(self.acks)

    def __len__(self) -> int:
        return self.count


@cython.final
@cython.freelist(64)
cdef class MethodReceived:
    """Any other method."""

    cdef public uint16_t channel
    cdef public bytes payload

    def __init__(self, uint16_t channel, bytes payload not None):
        self.channel = channel
        self.payload = payload


@cython.final
@cython.freelist(64)
cdef class Content:
    # A publish whose content is not complete. `store` is a bytes object of `capacity` bytes in the making: the
    # properties, and the body as far as it came. It grows with what was received, not with what was promised.
    cdef bytes address
    cdef uint8_t bits
    cdef bint has_header
    cdef object refusal
    cdef uint64_t left
    cdef uint64_t held
    cdef uint32_t header_length
    cdef PyObject *store
    cdef uint64_t filled
    cdef uint64_t capacity

    def __dealloc__(self):
        Py_CLEAR(self.store)

    cdef int add(self, const uint8_t *data, uint64_t length) except -1:
        # `left` is what comes after this
        cdef uint64_t needed = self.filled + length, capacity = 2 * needed
        if length == 0:
            return 0
        if needed > self.capacity:
            if capacity > needed + self.left:
                capacity = needed + self.left
            if self.store is NULL:
                self.store = new_bytes(NULL, <Py_ssize_t>capacity)
            else:
                resize_bytes(&self.store, <Py_ssize_t>capacity)
            self.capacity = capacity
        memcpy(held_start(self.store) + self.filled, data, length)
        self.filled = needed
        return 0


cdef struct Traits:
    int64_t ttl_ms
    uint8_t flags
    uint8_t priority


cdef object cut_off():
    return syntax_error("a content header is cut off")


cdef uint64_t skip_short(const uint8_t *header, uint64_t length, uint64_t at) except 0:
    if at >= length or at + 1 + header[at] > length:
        raise cut_off()
    return at + 1 + header[at]


cdef uint8_t[256] FIELD_SIZES  # of the scalar field types by tag
memset(FIELD_SIZES, 0, 256)
for _tag, _size in ((c't', 1), (c'b', 1), (c'B', 1), (c's', 2), (c'u', 2), (c'I', 4), (c'i', 4), (c'l', 8), (c'L', 8),
                    (c'T', 8), (c'f', 4), (c'd', 8), (c'D', 5)):
    FIELD_SIZES[_tag] = _size


cdef bint fields_are_valid(const uint8_t *p, uint64_t at, uint64_t end, bint named, uint32_t depth_left,
                           uint32_t *budget) noexcept:
    # whether fields.pull_table would read the table (named) or array between at and end
    cdef uint8_t tag
    cdef uint64_t stop
    if depth_left == 0:
        return False
    while at < end:
        if named:
            at += 1 + <uint64_t>p[at]
        if at >= end or budget[0] == 0:
            return False
        budget[0] -= 1
        tag = p[at]
        at += 1
        if FIELD_SIZES[tag]:
            at += FIELD_SIZES[tag]
            if at > end:
                return False
        elif tag == c'S' or tag == c'x' or tag == c'F' or tag == c'A':
            if at + 4 > end:
                return False
            stop = at + 4 + get32(p + at)
            if stop > end:
                return False
            if (tag == c'F' or tag == c'A') and not fields_are_valid(p, at + 4, stop, tag == c'F', depth_left - 1, budget):
                return False
            at = stop
        elif tag != c'V':
            return False
    return True


cdef object classify(const uint8_t *header, uint64_t length, Traits *traits, const Limits *limits):
    # make_message without the message: None, or the channel error that a bad expiration deserves
    cdef uint64_t at = 2, start, first, digit, ttl_ms
    cdef uint32_t budget
    cdef uint16_t bits
    cdef bint valid
    if length < 2:
        raise cut_off()
    bits = get16(header)
    if bits & 3:
        raise syntax_error("property flags that mean nothing")
    traits.flags = traits.priority = 0
    traits.ttl_ms = -1
    if bits & 0x8000:  # content-type
        at = skip_short(header, length, at)
    if bits & 0x4000:  # content-encoding
        at = skip_short(header, length, at)
    if bits & 0x2000:  # headers
        if at + 4 > length:
            raise cut_off()
        budget = limits.entries_max
        start = at
        at += 4 + <uint64_t>get32(header + at)
        if at > length or not fields_are_valid(header, start + 4, at, True, limits.depth_max, &budget):
            # says what is wrong with it
            pull_table((<const char *>header)[:length], start, DEFAULT_LIMITS if limits == &PUBLISHED else STORED_LIMITS)
            raise AssertionError("the two readers of a table agree")
        traits.flags |= HAS_HEADERS
    if bits & 0x1000:  # delivery-mode
        if at >= length:
            raise cut_off()
        if header[at] == 2:
            traits.flags |= PERSISTENT
        at += 1
    if bits & 0x0800:  # priority
        if at >= length:
            raise cut_off()
        traits.priority = header[at]
        at += 1
    if bits & 0x0400:  # correlation-id
        at = skip_short(header, length, at)
    if bits & 0x0200:  # reply-to
        at = skip_short(header, length, at)
        traits.flags |= HAS_REPLY_TO
    if bits & 0x0100:  # expiration
        start = at + 1
        at = skip_short(header, length, at)
        traits.flags |= HAS_EXPIRATION
        first = start + (at > start and (header[start] == c'+' or header[start] == c'-'))
        valid = first < at
        ttl_ms = 0
        for place in range(first, at):
            if not c'0' <= header[place] <= c'9':
                valid = False
                break
            digit = header[place] - c'0'
            ttl_ms = TTL_MS_MAX if ttl_ms > (TTL_MS_MAX - digit) // 10 else 10 * ttl_ms + digit
        if not valid or (ttl_ms and header[start] == c'-'):
            text = (<const char *>header)[start:at]
            return precondition_failed(f"invalid expiration '{text.decode(errors='replace')}'")
        traits.ttl_ms = <int64_t>ttl_ms
    if bits & 0x0080:  # message-id
        at = skip_short(header, length, at)
    if bits & 0x0040:  # timestamp
        at += 8
    if bits & 0x0020:  # type
        at = skip_short(header, length, at)
    if bits & 0x0010:  # user-id
        at = skip_short(header, length, at)
        traits.flags |= HAS_USER_ID
    if bits & 0x0008:  # app-id
        at = skip_short(header, length, at)
    if bits & 0x0004:  # cluster-id
        at = skip_short(header, length, at)
    if at != length:
        raise syntax_error("a content header has a wrong length")
    return None


def make_message(bytes address not None, bytes header not None, bytes body not None, int64_t now_ms):
    """A message of a content's parts, or the channel error it deserves."""
    return remade(address, header + body, <uint32_t>PyBytes_GET_SIZE(header), 0, now_ms)


cdef object remade(bytes address, bytes payload, uint32_t length, uint8_t more_flags, int64_t now_ms):
    # as make_message, of a payload whose first `length` bytes are the header; with these flags more
    cdef Traits traits
    cdef object refusal = classify(<const uint8_t *>PyBytes_AS_STRING(payload), length, &traits, &STORED)
    if refusal is not None:
        return refusal
    return new_message(address, payload, length, traits.flags | more_flags, traits.priority, now_ms, traits.ttl_ms,
                       BASIC_FORMAT)


def numbered(Message message not None, bytes name not None, int64_t number) -> Message:
    """The message with one header more, a 64-bit integer."""
    return with_number(message, name, number)


cdef Message with_number(Message message, bytes name, int64_t number):
    cdef bytes header, payload = message.payload
    cdef uint64_t length = header_length(message), name_length = PyBytes_GET_SIZE(name), at = 2, size, grown
    cdef const uint8_t *old = <const uint8_t *>PyBytes_AS_STRING(payload)
    cdef uint8_t *to
    cdef uint16_t bits
    cdef bytes result
    header = (<const char *>old)[:length]
    if name in header:  # the publisher wrote one
        header = without_header(header, name[1:].decode())
        payload = header + (<const char *>old)[length:PyBytes_GET_SIZE(payload)]
        length = PyBytes_GET_SIZE(header)
        old = <const uint8_t *>PyBytes_AS_STRING(payload)
    if length < 2:
        raise cut_off()
    bits = get16(old)
    if bits & 0x8000:  # content-type
        at = skip_short(old, length, at)
    if bits & 0x4000:  # content-encoding
        at = skip_short(old, length, at)
    size = name_length + 9
    grown = size if bits & 0x2000 else size + 4
    result = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(payload) + grown)
    to = put_all(put16(<uint8_t *>PyBytes_AS_STRING(result), bits | 0x2000), old + 2, at - 2)
    if bits & 0x2000:
        if at + 4 > length:
            raise cut_off()
        to = put32(to, <uint32_t>(get32(old + at) + size))
        at += 4
    else:
        to = put32(to, <uint32_t>size)
    to = put_all(to, PyBytes_AS_STRING(name), name_length)
    to[0] = c'l'
    to = put64(to + 1, <uint64_t>number)
    put_all(to, old + at, PyBytes_GET_SIZE(payload) - at)
    return new_message(message.address, result, <uint32_t>(length + grown), message.flags | HAS_HEADERS,
                       message.priority, message.time_ms, message.ttl_ms, message.format)


cdef int check_utf8(const uint8_t *name, uint64_t length) except -1:
    cdef uint8_t joined = 0
    cdef uint64_t at
    for at in range(length):
        joined |= name[at]
    if joined & 0x80:
        try:
            PyUnicode_DecodeUTF8(<char *>name, <Py_ssize_t>length, NULL)
        except UnicodeDecodeError as error:
            raise syntax_error("a name is not valid UTF-8") from error
    return 0


@cython.final
cdef class FrameDecoder:
    """Bytes of one connection in, events out."""

    cdef public uint64_t frame_max
    cdef public uint64_t message_bytes_max
    cdef public uint64_t partial_bytes_max
    cdef public bint opened
    cdef public bint failed
    cdef public bint heard
    cdef public bytes rest
    cdef dict contents
    cdef readonly uint64_t partial_bytes
    # while `feed` runs: its events, and the last of them when neighbours may join it
    cdef list events
    cdef Published batch
    cdef Acked acked
    # the newest names and properties, which the next publish most likely repeats
    cdef bytes address
    cdef Traits traits
    cdef uint8_t header_length
    cdef uint8_t header[REMEMBERED]

    def __init__(self, uint64_t frame_max=8192, uint64_t message_bytes_max=16 << 20):
        self.frame_max = frame_max
        self.message_bytes_max = message_bytes_max
        self.partial_bytes_max = max(<uint64_t>32 << 20, 2 * message_bytes_max)
        self.rest = b""
        self.contents = {}

    def feed(self, data, int64_t now_ms) -> list:
        """Events of `data` (which starts with `rest`); what is left over becomes the new `rest`."""
        cdef Py_buffer view
        cdef list events = []
        cdef const uint8_t *start
        cdef Py_ssize_t used
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            # AMQP 4.2.7: any octet sent is a substitute for a heartbeat, so a part of a frame counts as well
            if view.len > PyBytes_GET_SIZE(self.rest):
                self.heard = True
            if self.failed:
                self.rest = b""
                return events
            start = <const uint8_t *>view.buf
            self.events = events
            used = self.walk(start, <uint64_t>view.len, now_ms)
            self.rest = PyBytes_FromStringAndSize(<const char *>start + used, view.len - used)
        except AmqpError as fault:
            self.failed = True
            self.rest = b""
            self.contents.clear()
            self.partial_bytes = 0
            events.append(fault)
        except BaseException:  # no memory: a content may have lost its bytes, so none of them may be used
            self.failed = True
            self.contents.clear()
            raise
        finally:
            PyBuffer_Release(&view)
            self.events = None
            self.batch = None
            self.acked = None
        return events

    def drop_channel(self, channel) -> None:
        """The channel was closed: its incomplete content is passed over."""
        content = self.contents.pop(channel, None)
        if content is not None:
            self.partial_bytes -= (<Content>content).held

    cdef Py_ssize_t walk(self, const uint8_t *p, uint64_t end, int64_t now_ms) except -1:
        # all complete frames; returns where the incomplete one starts
        cdef uint64_t at = 0, size
        cdef Py_ssize_t used
        cdef uint16_t channel
        cdef uint8_t kind
        while end - at >= FRAME_HEAD:
            kind = p[at]
            channel = get16(p + at + 1)
            size = get32(p + at + 3)
            if size + FRAME_OVERHEAD > self.frame_max and (size > self.frame_max or kind == FRAME_HEADER):
                raise frame_error(f"frame_too_large: type {kind}, payload size {size}, frame_max {self.frame_max}")
            if end - at < size + FRAME_OVERHEAD:
                break
            if p[at + FRAME_HEAD + size] != FRAME_END:
                raise frame_error(f"invalid_frame_end_marker: {p[at + FRAME_HEAD + size]} instead of 206")
            if kind == FRAME_METHOD and size >= 9 and get32(p + at + FRAME_HEAD) == PUBLISH_START:
                used = self.quick_publish(p + at, end - at, channel, size, now_ms)
                if used:
                    at += used
                    continue
            self.frame(kind, channel, p + at + FRAME_HEAD, size, now_ms)
            at += size + FRAME_OVERHEAD
        return <Py_ssize_t>at

    cdef Py_ssize_t quick_publish(self, const uint8_t *p, uint64_t length, uint16_t channel, uint64_t size,
                                  int64_t now_ms) except -1:
        # `p`: a good frame with a basic.publish of at least 9 bytes. Returns the bytes of the three frames, or 0
        # when they are not all there and good: then the frame-by-frame way finds out what is wrong.
        cdef uint64_t at = size + FRAME_OVERHEAD, header_size, body_size
        cdef const uint8_t *header
        cdef const uint8_t *body
        cdef bytes address, payload
        cdef uint8_t *store
        cdef uint8_t bits = p[size + FRAME_HEAD - 1]
        cdef Message message
        if not self.opened or not channel or (self.contents and channel in self.contents):
            return 0
        if length - at < FRAME_OVERHEAD + HEADER_FIXED + 2:
            return 0
        header_size = get32(p + at + 3)
        if p[at] != FRAME_HEADER or get16(p + at + 1) != channel or header_size < HEADER_FIXED + 2:
            return 0
        if header_size + FRAME_OVERHEAD > self.frame_max or length - at < header_size + FRAME_OVERHEAD:
            return 0
        if p[at + FRAME_HEAD + header_size] != FRAME_END or get16(p + at + FRAME_HEAD) != BASIC:
            return 0
        body_size = get64(p + at + FRAME_HEAD + 4)
        header = p + at + FRAME_HEAD + HEADER_FIXED
        at += header_size + FRAME_OVERHEAD
        header_size -= HEADER_FIXED
        body = p + at + FRAME_HEAD
        if body_size:
            if length - at < FRAME_OVERHEAD + 1 or p[at] != FRAME_BODY or get16(p + at + 1) != channel:
                return 0
            if get32(p + at + 3) != body_size or body_size > self.message_bytes_max:
                return 0
            if body_size > self.frame_max or length - at < body_size + FRAME_OVERHEAD:
                return 0
            if body[body_size] != FRAME_END:
                return 0
            at += body_size + FRAME_OVERHEAD
        if self.partial_bytes + size - 7 + header_size + body_size > self.partial_bytes_max:
            return 0

        address = self.address_of(p + FRAME_HEAD + 6, size - 7)
        refusal = self.traits_of(header, header_size)
        if refusal is not None:
            self.refuse(channel, address, bits, refusal)
            return <Py_ssize_t>at
        payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(header_size + body_size))
        store = <uint8_t *>PyBytes_AS_STRING(payload)
        memcpy(store, header, header_size)
        memcpy(store + header_size, body, body_size)
        message = new_message(address, payload, <uint32_t>header_size, self.traits.flags, self.traits.priority,
                              now_ms, self.traits.ttl_ms, BASIC_FORMAT)
        self.publish(channel, address, bits, message, header_size + body_size)
        return <Py_ssize_t>at

    cdef int publish(self, uint16_t channel, bytes address, uint8_t bits, Message message,
                     uint64_t length) except -1:
        cdef Published batch = self.batch
        if (batch is None or batch.channel != channel or batch.mandatory != (bits & 1)
                or batch.immediate != (bits >> 1 & 1)
                or (batch.address is not address and batch.address != address)):
            batch = new_published(channel, address, bits)
            self.events.append(batch)
            self.batch = batch
            self.acked = None
        batch.messages.append(message)
        batch.flags |= message.flags
        batch.size += length
        return 0

    cdef int refuse(self, uint16_t channel, bytes address, uint8_t bits, refusal) except -1:
        cdef Published refused = new_published(channel, address, bits)
        refused.refusal = refusal
        return self.tell(refused)

    cdef int tell(self, event) except -1:
        self.events.append(event)
        self.batch = None
        self.acked = None
        return 0

    cdef bytes address_of(self, const uint8_t *names, uint64_t length):
        # exchange and key of a basic.publish, checked; `length` is 2 or more
        cdef bytes address = self.address
        cdef uint64_t key
        if (address is not None and <uint64_t>PyBytes_GET_SIZE(address) == length
                and memcmp(PyBytes_AS_STRING(address), names, length) == 0):
            return address
        key = 1 + <uint64_t>names[0]
        if key >= length or key + 1 + names[key] != length:
            raise syntax_error("basic.publish has a wrong length")
        check_utf8(names + 1, key - 1)
        check_utf8(names + key + 1, length - key - 1)
        address = PyBytes_FromStringAndSize(<const char *>names, <Py_ssize_t>length)
        self.address = address
        return address

    cdef object traits_of(self, const uint8_t *header, uint64_t length):
        # sets `traits`; returns None, or the channel error that the properties deserve
        if length == self.header_length and length and memcmp(self.header, header, length) == 0:
            return None
        self.header_length = 0
        refusal = classify(header, length, &self.traits, &PUBLISHED)
        if refusal is None and length <= REMEMBERED:
            memcpy(self.header, header, length)
            self.header_length = <uint8_t>length
        return refusal

    # -- frame by frame, as in the specification -------------------------------------------------------------

    cdef int frame(self, uint8_t kind, uint16_t channel, const uint8_t *payload, uint64_t size,
                   int64_t now_ms) except -1:
        if kind == FRAME_METHOD:
            return self.method(channel, payload, size)
        if kind == FRAME_HEADER:
            return self.content_header(channel, payload, size, now_ms)
        if kind == FRAME_BODY:
            return self.content_body(channel, payload, size, now_ms)
        if kind != FRAME_HEARTBEAT:
            raise frame_error(f"unknown frame type {kind}")
        if channel:
            raise unexpected_frame("heartbeat frames belong to channel 0")
        return 0

    cdef int method(self, uint16_t channel, const uint8_t *payload, uint64_t size) except -1:
        cdef uint32_t start = get32(payload) if size >= 4 else 0
        cdef Acked acked
        if self.contents and channel in self.contents:
            raise unexpected_frame(f"expected content for channel {channel}, got a method frame instead")
        if start == ACK_START and size == 13:
            acked = self.acked
            if acked is None or acked.channel != channel:
                acked = Acked.__new__(Acked)
                acked.channel = channel
                self.tell(acked)
                self.acked = acked
            return acked.put(get64(payload + 4), payload[12] & 1)
        if start == PUBLISH_START:
            return self.open_content(channel, payload, size)
        cdef MethodReceived received = MethodReceived.__new__(MethodReceived)
        received.channel = channel
        received.payload = PyBytes_FromStringAndSize(<const char *>payload, <Py_ssize_t>size)
        return self.tell(received)

    cdef int open_content(self, uint16_t channel, const uint8_t *payload, uint64_t size) except -1:
        cdef Content content
        if not self.opened or not channel:
            raise unexpected_frame("content before the connection is open")
        if size < 9:
            raise syntax_error("basic.publish is cut off")
        content = Content.__new__(Content)
        content.address = self.address_of(payload + 6, size - 7)
        content.bits = payload[size - 1]
        self.contents[channel] = content
        return self.hold(content, size - 7)

    cdef int content_header(self, uint16_t channel, const uint8_t *payload, uint64_t size,
                            int64_t now_ms) except -1:
        cdef Content content = self.contents.get(channel)
        cdef uint64_t body_size
        if content is None or content.has_header:
            raise unexpected_frame(f"expected method frame on channel {channel}, got a content header instead")
        if size < HEADER_FIXED + 2:
            raise syntax_error("a content header is cut off")
        if get16(payload) != BASIC:
            raise unexpected_frame(f"expected content header for class 60, got one for class {get16(payload)} instead")
        body_size = get64(payload + 4)
        content.has_header = True
        content.header_length = <uint32_t>(size - HEADER_FIXED)
        content.add(payload + HEADER_FIXED, size - HEADER_FIXED)
        content.left = body_size
        self.hold(content, size - HEADER_FIXED)
        if body_size > self.message_bytes_max:
            content.refusal = precondition_failed(
                f"message size {body_size} is larger than configured max size {self.message_bytes_max}"
            )
        if not body_size:
            self.complete(channel, content, now_ms)
        return 0

    cdef int content_body(self, uint16_t channel, const uint8_t *payload, uint64_t size, int64_t now_ms) except -1:
        cdef Content content = self.contents.get(channel)
        if content is None or not content.has_header:
            raise unexpected_frame(f"expected method frame or header on channel {channel}, got a content body instead")
        if size > content.left:
            raise unexpected_frame(f"content body on channel {channel} is longer than its header said")
        content.left -= size
        if content.refusal is None:
            content.add(payload, size)
            self.hold(content, size)
        if not content.left:
            self.complete(channel, content, now_ms)
        return 0

    cdef int hold(self, Content content, uint64_t length) except -1:
        content.held += length
        self.partial_bytes += length
        if self.partial_bytes > self.partial_bytes_max:
            raise resource_error("incomplete contents exceed the connection's limit")
        return 0

    cdef int complete(self, uint16_t channel, Content content, int64_t now_ms) except -1:
        cdef Message message
        del self.contents[channel]
        self.partial_bytes -= content.held
        if content.refusal is None:
            content.refusal = self.traits_of(held_start(content.store), content.header_length)
        if content.refusal is not None:
            return self.refuse(channel, content.address, content.bits, content.refusal)
        assert content.filled == content.capacity, "a content's bytes object has no byte to spare at the end"
        message = new_message(content.address, <bytes>content.store, content.header_length, self.traits.flags,
                              self.traits.priority, now_ms, self.traits.ttl_ms, BASIC_FORMAT)
        return self.publish(channel, content.address, content.bits, message, content.filled)


@cython.final
cdef class OutBuffer:
    """Frames on their way to one client's socket.

    The frames are written into a bytes object in the making, which `take` cuts to length and gives away: no copy,
    and an idle connection owns nothing. A new object starts as large as the last one was.
    """

    def __init__(self, uint32_t frame_max=8192, uint64_t size_max=1 << 20):
        self.frame_max = frame_max
        self.size_max = size_max

    def __dealloc__(self):
        Py_CLEAR(self.store)

    @property
    def writable(self) -> bool:
        return self.can_write()

    cdef bint can_write(self) noexcept:
        return not self.paused and self.size < self.size_max

    def take(self) -> bytes:
        """All bytes that wait; the buffer is empty afterwards."""
        cdef bytes taken
        if self.size == 0:
            return b""
        self.first_capacity = min(self.size, <uint64_t>FIRST_CAPACITY_MAX)
        if self.size < self.capacity:
            resize_bytes(&self.store, <Py_ssize_t>self.size)
        taken = <bytes>self.store
        Py_CLEAR(self.store)
        self.data = NULL
        self.capacity = self.size = 0
        return taken

    cdef uint8_t *room(self, uint64_t length) except NULL:
        # where `length` more bytes go; the caller writes them and adds them to `size`
        cdef uint64_t needed = self.size + length, capacity
        if needed > self.capacity:
            if self.store is NULL:
                capacity = max(needed, self.first_capacity)
                self.store = new_bytes(NULL, <Py_ssize_t>capacity)
            else:
                capacity = max(needed, 2 * self.capacity)
                try:
                    resize_bytes(&self.store, <Py_ssize_t>capacity)
                except MemoryError:  # what waited is lost, and the connection with it
                    self.data = NULL
                    self.capacity = self.size = 0
                    raise
            self.data = held_start(self.store)
            self.capacity = capacity
        return self.data + self.size

    def raw(self, bytes data not None) -> None:
        cdef uint64_t length = PyBytes_GET_SIZE(data)
        if length == 0:
            return
        memcpy(self.room(length), PyBytes_AS_STRING(data), length)
        self.size += length

    def frame(self, uint8_t kind, uint16_t channel, bytes payload not None) -> None:
        self.put_frame(kind, channel, payload)

    def method(self, uint16_t channel, bytes payload not None) -> None:
        """A method frame; `payload` starts with the class id."""
        self.put_frame(FRAME_METHOD, channel, payload)

    cdef int put_frame(self, uint8_t kind, uint16_t channel, bytes payload) except -1:
        cdef uint64_t length = PyBytes_GET_SIZE(payload)
        cdef uint8_t *at = put_head(self.room(length + FRAME_OVERHEAD), kind, channel, length)
        put_end(put_all(at, PyBytes_AS_STRING(payload), length))
        self.size += length + FRAME_OVERHEAD
        return 0

    cdef uint8_t *open_content(self, uint16_t channel, uint64_t method_length, Message message) except NULL:
        # room for all frames of a delivery; returns where the method's `method_length` bytes go
        cdef uint64_t body = body_length(message), frames = 0, step = body_step(self)
        assert self.frame_max == 0 or self.frame_max > FRAME_OVERHEAD, "a frame has room for a body"
        if body:
            frames = 1 if body <= step else (body - 1) // step + 1
        return put_head(
            self.room(
                FRAME_OVERHEAD + method_length
                + FRAME_OVERHEAD + HEADER_FIXED + header_length(message)
                + frames * FRAME_OVERHEAD + body
            ),
            FRAME_METHOD, channel, method_length,
        )

    cdef void close_content(self, uint8_t *at, uint16_t channel, Message message) noexcept:
        # `at`: behind the method's last byte; writes the rest and counts all
        cdef uint64_t header = header_length(message), body = body_length(message), step = body_step(self), part
        cdef const uint8_t *payload = payload_start(message)
        at = put_head(put_end(at), FRAME_HEADER, channel, HEADER_FIXED + header)
        at = put64(put32(at, <uint32_t>BASIC << 16), body)
        at = put_end(put_all(at, payload, header))
        payload += header
        while body:
            part = min(body, step)
            at = put_end(put_all(put_head(at, FRAME_BODY, channel, part), payload, part))
            payload += part
            body -= part
        self.size = at - self.data

    cdef bint takes(self, Message message) noexcept:
        return (
            FRAME_OVERHEAD + HEADER_FIXED + <uint64_t>message.header_length <= self.frame_max or not self.frame_max
        )

    def fits(self, Message message not None) -> bool:
        """Whether its content header, which no frame may share, is within the client's frame_max."""
        return self.takes(message)

    cdef int put_deliver(self, uint16_t channel, bytes consumer_tag, uint64_t tag, bint redelivered,
                         Message message) except -1:
        cdef uint64_t address = address_size(message), name = PyBytes_GET_SIZE(consumer_tag)
        cdef uint8_t *at = self.open_content(channel, 13 + name + address, message)
        at = put_all(put32(at, BASIC << 16 | 60), PyBytes_AS_STRING(consumer_tag), name)
        at = put64(at, tag)
        at[0] = redelivered
        self.close_content(put_all(at + 1, address_start(message), address), channel, message)
        return 0

    def deliver(self, uint16_t channel, bytes consumer_tag not None, uint64_t tag, bint redelivered,
                Message message not None) -> None:
        """basic.deliver; `consumer_tag` is a short string on the wire."""
        self.put_deliver(channel, consumer_tag, tag, redelivered, message)

    def get_ok(self, uint16_t channel, uint64_t tag, bint redelivered, Message message not None,
               uint32_t message_count) -> None:
        cdef uint64_t address = address_size(message)
        cdef uint8_t *at = self.open_content(channel, 17 + address, message)
        at = put64(put32(at, BASIC << 16 | 71), tag)
        at[0] = redelivered
        at = put32(put_all(at + 1, address_start(message), address), message_count)
        self.close_content(at, channel, message)

    def returned(self, uint16_t channel, uint16_t code, bytes text not None, Message message not None) -> None:
        cdef uint64_t address = address_size(message), length = PyBytes_GET_SIZE(text)
        assert length <= 255, "a reply text is a short string"
        cdef uint8_t *at = self.open_content(channel, 7 + length + address, message)
        at = put16(put32(at, BASIC << 16 | 50), code)
        at[0] = <uint8_t>length
        at = put_all(at + 1, PyBytes_AS_STRING(text), length)
        self.close_content(put_all(at, address_start(message), address), channel, message)

    def ack(self, uint16_t channel, uint64_t tag, bint multiple) -> None:
        """basic.ack to a publisher (confirm)."""
        self.outcome(channel, 80, tag, multiple)

    def nack(self, uint16_t channel, uint64_t tag, bint multiple) -> None:
        """basic.nack to a publisher (confirm)."""
        self.outcome(channel, 120, tag, multiple)

    cdef int outcome(self, uint16_t channel, uint16_t method, uint64_t tag, bint multiple) except -1:
        cdef uint8_t *at = put_head(self.room(21), FRAME_METHOD, channel, 13)
        at = put64(put16(put16(at, BASIC), method), tag)
        at[0] = multiple
        put_end(at + 1)
        self.size += 21
        return 0


cdef inline uint64_t header_length(Message message) noexcept:
    # a message that Python made may claim more than it has
    return min(<uint64_t>message.header_length, payload_size(message))


cdef inline uint64_t body_length(Message message) noexcept:
    return payload_size(message) - header_length(message)


cdef inline uint64_t body_step(OutBuffer out) noexcept:
    return out.frame_max - FRAME_OVERHEAD if out.frame_max else 0xFFFFFFFF
