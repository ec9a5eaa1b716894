# Deliveries of a source become publishes of a destination, frame by frame; `tests/model/rewriting.py` explains each name.
#
#   in   | basic.deliver | header | body ... |     frames of channel 1
#   out  | basic.publish | header | body ... |     the same body frames; the header with other fields
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy

from clusterbroker.broker.wire.big_endian cimport get16, get32, get64, put16, put32, put64

from hashlib import blake2b

from clusterbroker.broker.bridges.errors import Looped, Malformed, Unfit

cdef const char *DIGITS = b"0123456789abcdef"

cdef enum:
    METHOD = 1
    HEADER = 2
    BODY = 3
    END = 0xCE
    BASIC = 60
    DELIVER = 60
    PUBLISH = 40
    FRAME = 8  # bytes of a frame around its payload
    CONTENT_TYPE = 1 << 15
    ENCODING = 1 << 14
    HEADERS = 1 << 13
    DELIVERY_MODE = 1 << 12
    PRIORITY = 1 << 11
    CORRELATION = 1 << 10
    REPLY_TO = 1 << 9
    EXPIRATION = 1 << 8
    MESSAGE_ID = 1 << 7
    TIMESTAMP = 1 << 6
    TYPE = 1 << 5
    USER = 1 << 4
    APP = 1 << 3
    CLUSTER = 1 << 2
    PRINT = 8
    NO_BODY = 0


@cython.final
cdef class Out:
    """Bytes that grow."""

    cdef uint8_t *start
    cdef size_t size
    cdef size_t room

    def __dealloc__(self):
        free(self.start)

    cdef uint8_t *more(self, size_t count) except NULL:
        cdef size_t wanted = self.size + count
        cdef uint8_t *grown
        if wanted > self.room:
            self.room = wanted * 2 + 1024
            grown = <uint8_t *>realloc(self.start, self.room)
            if grown is NULL:
                raise MemoryError
            self.start = grown
        self.size = wanted
        return self.start + wanted - count

    cdef int add(self, const uint8_t *data, size_t count) except -1:
        memcpy(self.more(count), data, count)
        return 0


@cython.final
cdef class Parcel:
    """Publishes on their way."""

    cdef readonly int count
    cdef readonly bytearray frames
    cdef readonly bytes flagged
    cdef readonly bytes priorities
    cdef readonly bytes prints
    cdef readonly list others
    cdef readonly list offsets
    cdef bytes places

    def number(self, uint64_t first):
        cdef uint8_t *data = <uint8_t *><char *>self.frames
        cdef const uint64_t *places = <const uint64_t *>PyBytes_AS_STRING(self.places)
        cdef const uint8_t *priorities = <const uint8_t *>PyBytes_AS_STRING(self.priorities)
        cdef Py_ssize_t at
        for at in range(PyBytes_GET_SIZE(self.places) // 8):
            _number(data + places[at], first + at, priorities[at])

    def number_each(self, list numbers not None):
        cdef uint8_t *data = <uint8_t *><char *>self.frames
        cdef const uint64_t *places = <const uint64_t *>PyBytes_AS_STRING(self.places)
        cdef const uint8_t *priorities = <const uint8_t *>PyBytes_AS_STRING(self.priorities)
        cdef Py_ssize_t at
        if len(numbers) * 8 != PyBytes_GET_SIZE(self.places):
            raise ValueError("a number for each message")
        for at in range(len(numbers)):
            _number(data + places[at], <uint64_t>numbers[at], priorities[at])


cdef void _number(uint8_t *place, uint64_t number, uint8_t priority) noexcept:
    """| producer ... "/SSSSSSSS/PP" | 5 "x-seq" "l" | number u64: `place` |"""
    cdef uint8_t *digit = place - 7 - 11
    cdef int at
    put64(place, number)
    for at in range(8):
        digit[at] = DIGITS[number >> (60 - 4 * at) & 15]
    digit[9] = DIGITS[priority >> 4]
    digit[10] = DIGITS[priority & 15]


@cython.final
cdef class Rewriter:
    """Of one channel at its source."""

    cdef bytes rest
    cdef bytes exchange
    cdef bytes key
    cdef bint keeps_key
    cdef bytes producer
    cdef bytes hop
    cdef bint stream
    cdef int64_t offset  # in the stream, of the message that is coming in; -1: it did not say
    cdef size_t frame_max
    cdef size_t source_frame_max
    cdef uint64_t content_max
    cdef bytes deliver  # of the message that is coming in; empty: none is
    cdef uint64_t left
    cdef object hashed
    cdef bint flag
    cdef bint content
    cdef int priority
    cdef Out out
    cdef size_t complete  # how much of it is whole messages
    cdef list places
    cdef size_t place
    cdef readonly uint64_t messages

    def __init__(self, str exchange, routing_key, bytes producer not None, bytes hop not None, size_t frame_max,
                 size_t source_frame_max, uint64_t content_max, bint stream=False):
        self.exchange = exchange.encode()
        self.keeps_key = routing_key is None
        self.key = b"" if routing_key is None else routing_key.encode()
        if len(self.exchange) > 255 or len(self.key) > 255:
            raise ValueError("a name has 255 bytes at most")
        self.producer = producer + b"/00000000/00" if producer else b""
        self.hop = hop
        self.stream = stream
        self.frame_max = frame_max
        self.source_frame_max = source_frame_max
        self.content_max = content_max
        self.rest = b""
        self.out = Out()
        self.places = []

    def feed(self, bytes data not None):
        cdef bytes octets = self.rest + data if self.rest else data
        cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(octets)
        cdef size_t at = 0
        cdef size_t end = PyBytes_GET_SIZE(octets)
        cdef size_t size
        cdef Parcel parcel = Parcel()
        cdef list prints = []
        cdef bytearray flagged = bytearray()
        cdef bytearray priorities = bytearray()
        parcel.others = []
        parcel.offsets = []
        while end - at >= FRAME:
            size = get32(p + at + 3)
            if p[at] not in (1, 2, 3, 8):
                raise Malformed("no frame of AMQP 0-9-1")
            if size + FRAME > self.source_frame_max:
                raise Malformed("a frame larger than was negotiated")
            if end - at < size + FRAME:
                break
            if p[at + size + 7] != END:
                raise Malformed("a frame without its end")
            if p[at] == METHOD and size >= 4 and get16(p + at + 7) == BASIC and get16(p + at + 9) == DELIVER:
                self._begin(p + at + 7, size)
            elif p[at] == HEADER and self.deliver:
                self._header(p + at + 7, size)
            elif p[at] == BODY and self.deliver:
                self._body(p + at, size)
            else:
                parcel.others.append((get16(p + at + 1), p[at], PyBytes_FromStringAndSize(<char *>p + at + 7, size)))
            at += size + FRAME
            if self.deliver and self.content and self.left == 0:
                prints.append(self.hashed.digest())
                flagged.append(self.flag)
                priorities.append(self.priority)
                if self.stream:
                    if self.offset < 0:
                        raise Malformed("a message of a stream without its offset")
                    parcel.offsets.append(self.offset)
                if self.producer:
                    self.places.append(self.place)
                self.complete = self.out.size
                self.deliver = b""
                self.content = False
        self.rest = octets[at:]
        parcel.count = len(prints)
        self.messages += parcel.count
        parcel.prints = b"".join(prints)
        parcel.flagged = bytes(flagged)
        parcel.priorities = bytes(priorities)
        self._take(parcel)
        return parcel

    cdef int _take(self, Parcel parcel) except -1:
        cdef size_t whole = self.complete
        cdef size_t over = self.out.size - whole
        cdef uint64_t *places
        cdef Out rest
        cdef Py_ssize_t at
        if whole == 0:
            parcel.frames = bytearray()
            parcel.places = b""
            return 0
        parcel.frames = bytearray(<bytes>PyBytes_FromStringAndSize(<char *>self.out.start, whole))
        parcel.places = PyBytes_FromStringAndSize(NULL, 8 * len(self.places))
        places = <uint64_t *>PyBytes_AS_STRING(parcel.places)
        for at in range(len(self.places)):
            places[at] = self.places[at]
        self.places = []
        if over:
            rest = Out()
            rest.add(self.out.start + whole, over)
            self.out = rest
            self.place -= whole
        else:
            self.out.size = 0
        self.complete = 0
        return 0

    cdef int _begin(self, const uint8_t *p, size_t size) except -1:
        """| tag s | delivery tag u64 | redelivered u8 | exchange s | key s |"""
        cdef size_t at = 4
        cdef size_t key
        cdef uint8_t *to
        if self.deliver:
            raise Malformed("a delivery within a delivery")
        self.deliver = PyBytes_FromStringAndSize(<char *>p, size)
        if size < 5:
            raise Malformed("a short basic.deliver")
        at += 1 + p[at]
        if at + 10 > size:
            raise Malformed("a short basic.deliver")
        self.flag = p[at + 8] & 1
        at += 9
        at += 1 + p[at]
        if at >= size or at + 1 + p[at] > size:
            raise Malformed("a short basic.deliver")
        self.hashed = blake2b(digest_size=PRINT)
        self.content = False
        # | class u16 | method u16 | u16 0 | exchange s | key s | mandatory u8 |
        key = p[at] if self.keeps_key else <size_t>len(self.key)
        to = self.out.more(FRAME + 4 + 2 + 1 + len(self.exchange) + 1 + key + 1)
        to[0] = METHOD
        to = put32(put16(to + 1, 1), <uint32_t>(4 + 2 + 1 + len(self.exchange) + 1 + key + 1))
        to = put16(put16(put16(to, BASIC), PUBLISH), 0)
        to[0] = <uint8_t>len(self.exchange)
        memcpy(to + 1, PyBytes_AS_STRING(self.exchange), to[0])
        to += 1 + to[0]
        to[0] = <uint8_t>key
        if self.keeps_key:
            memcpy(to + 1, p + at + 1, key)
        else:
            memcpy(to + 1, PyBytes_AS_STRING(self.key), key)
        to += 1 + key
        to[0] = 1
        to[1] = END
        return 0

    cdef int _body(self, const uint8_t *p, size_t size) except -1:
        if not self.content or size > self.left:
            raise Malformed("a body without its header")
        if size == 0:
            raise Malformed("an empty body frame")
        self.left -= size
        self.hashed.update(PyBytes_FromStringAndSize(<char *>p + 7, size))
        self.out.add(p, size + FRAME)
        return 0

    cdef int _header(self, const uint8_t *p, size_t size) except -1:
        """| class u16 | 0 u16 | body size u64 | flags u16 | properties |"""
        cdef size_t at = 14
        cdef size_t frame = self.out.size
        cdef size_t head
        cdef size_t before
        cdef uint16_t flags
        cdef uint16_t after
        cdef int bit
        if self.content or size < 14:
            raise Malformed("a header without its delivery")
        flags = get16(p + 12)
        if flags & 3:
            raise Malformed("flags of properties that are not there")
        self.content = True
        self.left = get64(p + 4)
        if self.left > self.content_max:
            raise Unfit(f"its {self.left} bytes are more than the {self.content_max} that are taken")
        self.priority = 0
        self.offset = -1
        # its size and which properties it has; a redelivery may be the first with headers
        self.hashed.update(PyBytes_FromStringAndSize(<char *>p + 4, 8) + (flags & ~HEADERS).to_bytes(2, "big"))
        after = flags & ~USER
        if self.producer or self.hop:
            after |= HEADERS
        self.out.more(7 + 14)
        for bit in range(15, 1, -1):
            before = at
            if not flags >> bit & 1:
                if 1 << bit == HEADERS and after & HEADERS:
                    self._table(NULL, 0)
                continue
            if 1 << bit == HEADERS:
                if at + 4 > size or at + 4 + get32(p + at) > size:
                    raise Malformed("headers beyond their frame")
                at += 4 + get32(p + at)
                self._table(p + before + 4, at - before - 4)
                continue
            if 1 << bit == DELIVERY_MODE or 1 << bit == PRIORITY:
                at += 1
            elif 1 << bit == TIMESTAMP:
                at += 8
            else:
                if at >= size:
                    raise Malformed("a property beyond its frame")
                at += 1 + p[at]
            if at > size:
                raise Malformed("a property beyond its frame")
            if 1 << bit == PRIORITY:
                self.priority = p[before]
            self.hashed.update(PyBytes_FromStringAndSize(<char *>p + before, at - before))
            if 1 << bit != USER:
                self.out.add(p + before, at - before)
        if at != size:
            raise Malformed("something behind the properties")
        if self.out.size - frame + 1 > self.frame_max:
            raise Unfit("headers larger than a frame of the destination")
        head = self.out.size - frame - 7
        self.out.start[frame] = HEADER
        put32(put16(self.out.start + frame + 1, 1), <uint32_t>head)
        memcpy(self.out.start + frame + 7, p, 12)
        put16(self.out.start + frame + 7 + 12, after)
        self.out.more(1)[0] = END
        return 0

    cdef int _table(self, const uint8_t *p, size_t size) except -1:
        """The headers: those of the source, without what is its own, and ours."""
        cdef size_t start = self.out.size
        cdef size_t at = 0
        cdef size_t field
        cdef size_t value
        cdef bytes hops = b""
        cdef bytes longer
        self.out.more(4)
        while at < size:
            field = at
            at += 1 + p[at]
            if at >= size:
                raise Malformed("a header beyond its table")
            value = at
            at += _value(p + at, size - at)
            if _is(p + field, b"x-delivery-count") or _is(p + field, b"x-acquired-count"):
                continue
            if self.stream and _is(p + field, b"x-stream-offset"):
                self.offset = <int64_t>get64(p + value + 1) if p[value] in b"lL" else -1
                continue
            self.hashed.update(PyBytes_FromStringAndSize(<char *>p + field, at - field))
            if self.producer and (_is(p + field, b"x-producer") or _is(p + field, b"x-seq")):
                continue
            if self.hop and _is(p + field, b"x-bridge-hops") and p[value] == c"S":
                hops = PyBytes_FromStringAndSize(<char *>p + value + 5, at - value - 5)
                continue
            self.out.add(p + field, at - field)
        if self.hop:
            longer = hops + b" " + self.hop if hops else self.hop
            if self.hop in hops.split():
                raise Looped(hops.decode("utf-8", "replace"))
            self._long(b"x-bridge-hops", longer)
        if self.producer:
            self._long(b"x-producer", self.producer)
            self.out.add(<const uint8_t *>b"\x05x-seql", 7)
            self.place = self.out.size
            self.out.more(8)
        put32(self.out.start + start, <uint32_t>(self.out.size - start - 4))
        return 0

    cdef int _long(self, bytes name, bytes text) except -1:
        cdef uint8_t *to = self.out.more(1 + len(name) + 5 + len(text))
        to[0] = <uint8_t>len(name)
        memcpy(to + 1, PyBytes_AS_STRING(name), len(name))
        to += 1 + len(name)
        to[0] = c"S"
        to = put32(to + 1, <uint32_t>len(text))
        memcpy(to, PyBytes_AS_STRING(text), len(text))
        return 0


cdef bint _is(const uint8_t *field, bytes name) noexcept:
    return field[0] == <size_t>PyBytes_GET_SIZE(name) and not memcmp(field + 1, PyBytes_AS_STRING(name), field[0])


cdef size_t _value(const uint8_t *p, size_t room) except 0:
    """Bytes of a field value with its type; `room` is at least one."""
    cdef size_t size
    if p[0] in b"SAFx":
        if room < 5:
            raise Malformed("a header beyond its table")
        size = 5 + <size_t>get32(p + 1)
    elif p[0] in b"tbB":
        size = 2
    elif p[0] in b"su":
        size = 3
    elif p[0] in b"Iif":
        size = 5
    elif p[0] == c"D":
        size = 6
    elif p[0] in b"lLdT":
        size = 9
    elif p[0] == c"V":
        size = 1
    else:
        raise Malformed("a header of an unknown type")
    if size > room:
        raise Malformed("a header beyond its table")
    return size
