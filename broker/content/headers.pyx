"""What is seen of AMQP 0-9-1's properties without decoding: a header's name, and where an answer shall go."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy

from clusterbroker.broker.wire.big_endian cimport get16, get32, get64
from clusterbroker.journal.layout import HAS_HEADERS as _HAS_HEADERS
from clusterbroker.journal.record cimport Message, make_message, payload_size, payload_start

cdef int HAS_HEADERS = _HAS_HEADERS
cdef enum:
    BASIC = 0  # broker/content/formats.py
cdef int64_t WHOLE_MAX = 1 << 61


cdef bint may_name(Message message, const char *name, Py_ssize_t length) noexcept:
    # a name stands in AMQP 0-9-1's properties as it is; a value with the same bytes is taken for it
    cdef const char *header = <const char *>payload_start(message)
    cdef Py_ssize_t at
    if message.format != BASIC:
        return True
    if not message.flags & HAS_HEADERS:
        return False
    for at in range(<Py_ssize_t>message.header_length - length + 1):
        if header[at] == name[0] and memcmp(header + at, name, length) == 0:
            return True
    return False


def may_have_header(Message message not None, bytes name not None) -> bool:
    """Whether a header of this name may be there. Errs on the careful side."""
    return may_name(message, name, len(name))


cdef bint reply_to_of(Message message, size_t *at, size_t *stop) noexcept:
    # where the text of the property reply-to is; False: there is none, or it is not to be seen
    cdef const uint8_t *p = payload_start(message)
    cdef size_t place = 2, end = message.header_length
    cdef int bits, field
    if message.format != BASIC or end < 2:
        return False
    bits = get16(p)
    if not bits & 0x0200:
        return False
    for field in range(6):  # content-type, content-encoding, headers, delivery-mode, priority, correlation-id
        if not bits & (0x8000 >> field):
            continue
        if field == 2:
            if place + 4 > end:
                return False
            place += 4 + <size_t>get32(p + place)
        elif field == 3 or field == 4:
            place += 1
        else:
            if place >= end:
                return False
            place += 1 + p[place]
    if place >= end or place + 1 + p[place] > end:
        return False
    at[0] = place + 1
    stop[0] = place + 1 + p[place]
    return True


def reply_to(Message message not None):
    """The bytes of the property reply-to of a message in AMQP 0-9-1's format; None: it has none, or another format."""
    cdef size_t at = 0, stop = 0
    if not reply_to_of(message, &at, &stop):
        return None
    return PyBytes_FromStringAndSize(<const char *>payload_start(message) + at, <Py_ssize_t>(stop - at))


def with_reply_to(Message message not None, bytes address not None):
    """The message with this address in place of its reply-to; all other bytes stay. `reply_to` has found one."""
    cdef size_t at = 0, stop = 0, size = <size_t>PyBytes_GET_SIZE(address), rest
    cdef bytes payload
    cdef uint8_t *to
    if size > 255 or not reply_to_of(message, &at, &stop):
        raise ValueError("no address to replace, or one that does not fit")
    rest = payload_size(message) - stop
    payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(at + size + rest))
    to = <uint8_t *>PyBytes_AS_STRING(payload)
    memcpy(to, payload_start(message), at - 1)
    to[at - 1] = <uint8_t>size
    memcpy(to + at, PyBytes_AS_STRING(address), size)
    memcpy(to + at + size, payload_start(message) + stop, rest)
    return make_message(message.address, payload, <uint32_t>(message.header_length + size - (stop - at)),
                        message.flags, message.priority, message.time_ms, message.ttl_ms, message.format)


cdef bint table_of(Message message, size_t *at, size_t *stop) noexcept:
    cdef const uint8_t *p = payload_start(message)
    cdef size_t place = 2, end = message.header_length
    cdef int field
    if end < 2:
        return False
    for field in range(2):  # content-type, content-encoding
        if get16(p) & (0x8000 >> field):
            if place >= end:
                return False
            place += 1 + p[place]
    if place + 4 > end:
        return False
    stop[0] = place + 4 + <size_t>get32(p + place)
    at[0] = place + 4
    return stop[0] <= end


cdef size_t next_field(const uint8_t *p, size_t at, size_t stop) noexcept nogil:
    return value_end(p, at + 1 + p[at], stop)


cdef size_t value_end(const uint8_t *p, size_t at, size_t end) noexcept nogil:
    # behind the value whose tag is at `at`; 0: it does not fit
    cdef uint8_t tag
    cdef size_t size
    if at >= end:
        return 0
    tag = p[at]
    at += 1
    if tag == c"I" or tag == c"i" or tag == c"f":
        size = 4
    elif tag == c"l" or tag == c"L" or tag == c"T" or tag == c"d":
        size = 8
    elif tag == c"t" or tag == c"b" or tag == c"B":
        size = 1
    elif tag == c"s" or tag == c"u":
        size = 2
    elif tag == c"D":
        size = 5
    elif tag == c"V":
        size = 0
    elif tag == c"S" or tag == c"x" or tag == c"F" or tag == c"A":
        if at + 4 > end:
            return 0
        size = 4 + <size_t>get32(p + at)
    else:
        return 0
    return at + size if at + size <= end else 0


cdef int number_at(const uint8_t *p, size_t at, int64_t *number) noexcept nogil:
    cdef uint8_t tag = p[at]
    at += 1
    if tag == c"I":
        number[0] = <int32_t>get32(p + at)
    elif tag == c"l" or tag == c"L":
        number[0] = <int64_t>get64(p + at)
    elif tag == c"i":
        number[0] = get32(p + at)
    elif tag == c"s":
        number[0] = <int16_t>get16(p + at)
    elif tag == c"u":
        number[0] = get16(p + at)
    elif tag == c"b":
        number[0] = <int8_t>p[at]
    elif tag == c"B":
        number[0] = p[at]
    elif tag == c"S" or tag == c"x" or tag == c"f" or tag == c"d" or tag == c"T":
        return DECODED
    else:
        return NO_NUMBER
    return NUMBER if -WHOLE_MAX < number[0] < WHOLE_MAX else DECODED
