# Messages in the format of one consumer; `tests/model/translation.py` is the specification.
#
# A header is the only part that costs: a body is one section of data more or less. The last header's translation is
# remembered, and the usual forms of both formats are read here, byte by byte into the other's bytes. `in_sections` and
# `in_basic` say None of whatever is unusual: tables, arrays, decimals, typed ids, names that two things have, bytes that
# are no UTF-8. `content.formats.translate` knows all of these.
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp

from clusterbroker.broker.wire.amqp10.sections cimport descriptor_of, skip_value, walk
from clusterbroker.broker.wire.amqp10.values cimport one_data, put_text, put_uint
from clusterbroker.broker.wire.big_endian cimport get16, get32, get64, put8, put32, put64, put_all
from clusterbroker.journal.record cimport Message, make_message, payload_size, payload_start

from clusterbroker.broker.content.formats import translate
from clusterbroker.broker.content.message import without_own

cdef enum:
    BASIC = 0  # broker/content/formats.py
    SECTIONS = 1
    HEADER = 0x70  # sections (3.2)
    ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION = 0x74
    PRIORITY = 4
    FIELDS_MAX = 13
    NAMES_MAX = 32  # headers; those of more are compared by a dictionary
    SHORT_MAX = 255

# property flags of AMQP 0-9-1, in the order of the list
cdef enum:
    CONTENT_TYPE = 0x8000
    CONTENT_ENCODING = 0x4000
    HEADERS = 0x2000
    DELIVERY_MODE = 0x1000
    HAS_PRIORITY = 0x0800
    CORRELATION_ID = 0x0400
    REPLY_TO = 0x0200
    EXPIRATION = 0x0100
    MESSAGE_ID = 0x0080
    TIMESTAMP = 0x0040
    TYPE = 0x0020
    USER_ID = 0x0010
    APP_ID = 0x0008
    CLUSTER_ID = 0x0004

cdef const char *QUEUES = b"/queues/"
cdef uint64_t QUEUES_LENGTH = 8
cdef const char *HEX = b"0123456789ABCDEF"
cdef const char *LOW_HEX = b"0123456789abcdef"


cdef struct span:
    const uint8_t *at
    uint64_t length


cdef struct name_list:
    span[NAMES_MAX] names
    int count


cdef inline uint8_t *put_short(uint8_t *p, const uint8_t *text, uint64_t length) noexcept nogil:
    # a short string of AMQP 0-9-1
    return put_all(put8(p, <uint8_t>length), text, length)


cdef inline uint8_t *put_long(uint8_t *p, uint8_t tag, const uint8_t *text, uint64_t length) noexcept nogil:
    # a field that is a long string
    return put_all(put32(put8(p, tag), <uint32_t>length), text, length)


cdef inline uint8_t *put_digits(uint8_t *p, uint64_t value) noexcept nogil:
    # a short string of its digits
    cdef uint8_t[20] digits
    cdef int count = 0
    while True:
        digits[count] = <uint8_t>(48 + value % 10)
        count += 1
        value //= 10
        if value == 0:
            break
    p = put8(p, <uint8_t>count)
    while count:
        count -= 1
        p = put8(p, digits[count])
    return p


cdef bint is_text(const uint8_t *text, uint64_t length) noexcept:
    # whether bytes are UTF-8
    if is_ascii(text, length):
        return True
    try:
        PyUnicode_DecodeUTF8(<const char *>text, <Py_ssize_t>length, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef inline bint is_ascii(const uint8_t *text, uint64_t length) noexcept nogil:
    cdef uint8_t joined = 0
    cdef uint64_t at
    for at in range(length):
        joined |= text[at]
    return not joined & 0x80


cdef inline bint is_name(const uint8_t *text, uint64_t length, const char *name, uint64_t name_length) noexcept nogil:
    return length == name_length and memcmp(text, name, length) == 0


cdef inline bint begins(const uint8_t *text, uint64_t length, const char *name, uint64_t name_length) noexcept nogil:
    return length >= name_length and memcmp(text, name, name_length) == 0


cdef bint take_name(name_list *list, const uint8_t *text, uint64_t length) noexcept nogil:
    # False: it is there already, or too many are
    cdef int place
    if list.count == NAMES_MAX:
        return False
    for place in range(list.count):
        if list.names[place].length == length and memcmp(list.names[place].at, text, length) == 0:
            return False
    list.names[list.count].at = text
    list.names[list.count].length = length
    list.count += 1
    return True


cdef inline bint is_special(const uint8_t *name, uint64_t length) noexcept nogil:
    # a header that stands for something of AMQP 1.0's, or that a delivery there has from the broker
    if name[0] == 120:  # x
        return (
            begins(name, length, b"x-opt-", 6) or is_name(name, length, b"x-message-id-type", 17)
            or is_name(name, length, b"x-correlation-id-type", 21) or is_name(name, length, b"x-basic-type", 12)
            or is_name(name, length, b"x-exchange", 10) or is_name(name, length, b"x-routing-key", 13)
            or is_name(name, length, b"x-cc", 4)
        )
    return is_name(name, length, b"timestamp_in_ms", 15)


@cython.final
cdef class Translation:
    """Messages in the format of one consumer, as `content.formats.translate` makes them."""

    def __init__(self, uint8_t to):
        self.to = to

    def __dealloc__(self):
        free(self.data)

    def translated(self, Message message not None) -> Message:
        """Raises what `formats.translate` raises."""
        return self.of(message)

    cdef uint8_t *room(self, uint64_t more) except NULL:
        # for so many bytes more, behind `size`
        cdef uint8_t *grown
        cdef uint64_t wanted = self.size + more
        if wanted > self.capacity:
            wanted += wanted // 2 + 256
            grown = <uint8_t *>realloc(self.data, wanted)
            if grown is NULL:
                raise MemoryError
            self.data = grown
            self.capacity = wanted
        return self.data + self.size

    cdef bint knows(self, Message message) noexcept:
        # whether its header is the one that is remembered
        cdef uint64_t length = min(<uint64_t>message.header_length, payload_size(message))
        return self.header is not None and message.format == self.source and (
            <uint64_t>PyBytes_GET_SIZE(self.before) == length
            and memcmp(PyBytes_AS_STRING(self.before), payload_start(message), length) == 0
        )

    cdef Message of(self, Message message):
        cdef uint64_t length = min(<uint64_t>message.header_length, payload_size(message))
        cdef const uint8_t *p = payload_start(message)
        cdef bytes header = None
        cdef Message made
        if self.knows(message):
            made = self.with_header(message)
            if made is not None:
                return made
        if message.format == BASIC and self.to == SECTIONS:
            header = self.in_sections(p, length)
        elif message.format == SECTIONS and self.to == BASIC:
            header = self.in_basic(p, length)
        if header is not None:
            self.source = message.format
            self.before = PyBytes_FromStringAndSize(<const char *>p, <Py_ssize_t>length)
            self.header = header
            made = self.with_header(message)
            if made is not None:
                return made
        made = <Message?>translate(message, self.to)
        return <Message?>without_own(made) if self.to == SECTIONS else made

    cdef Message with_header(self, Message message):
        # the message with the header that is remembered, or None: its body is unusual
        cdef const uint8_t *body = payload_start(message) + PyBytes_GET_SIZE(self.before)
        cdef uint64_t length = payload_size(message) - PyBytes_GET_SIZE(self.before)
        cdef uint64_t head = PyBytes_GET_SIZE(self.header), skipped = 0, wrap = 0
        cdef bytes payload
        cdef uint8_t *p
        if self.to == BASIC:
            skipped = one_data(body, length)
            if skipped == 0:
                return None
        else:
            wrap = 5 if length < 256 else 8
        payload = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(head + wrap + length - skipped))
        p = put_all(<uint8_t *>PyBytes_AS_STRING(payload), PyBytes_AS_STRING(self.header), head)
        if wrap == 5:
            p = put8(put8(put8(put8(put8(p, 0), 0x53), 0x75), 0xA0), <uint8_t>length)
        elif wrap:
            p = put32(put8(put8(put8(put8(p, 0), 0x53), 0x75), 0xB0), <uint32_t>length)
        put_all(p, body + skipped, length - skipped)
        return make_message(message.address, payload, <uint32_t>head, message.flags, message.priority, message.time_ms,
                            message.ttl_ms, self.to)

    # -- AMQP 0-9-1 to AMQP 1.0

    cdef bytes in_sections(self, const uint8_t *p, uint64_t length):
        cdef span[16] properties
        cdef uint16_t flags
        cdef uint64_t at = 2, size
        cdef int place
        cdef uint16_t bit
        cdef span table
        cdef uint8_t *out
        if length < 2:
            return None
        flags = get16(p)
        table.at = p
        table.length = 0
        for place in range(14):
            bit = <uint16_t>(0x8000 >> place)
            properties[place].at = NULL
            properties[place].length = 0
            if not flags & bit:
                continue
            if bit == HEADERS:
                if at + 4 > length or at + 4 + get32(p + at) > length:
                    return None
                table.at = p + at + 4
                table.length = get32(p + at)
                at += 4 + table.length
                continue
            if bit == DELIVERY_MODE or bit == HAS_PRIORITY:
                size = 1
            elif bit == TIMESTAMP:
                size = 8
            else:
                if at >= length:
                    return None
                size = p[at]
                at += 1
            if at + size > length:
                return None
            properties[place].at = p + at
            properties[place].length = size
            at += size
        if flags & 3 or at != length:
            return None
        self.size = 0
        if not put_header(self, properties) or not put_tables(self, table, properties):
            return None
        return PyBytes_FromStringAndSize(<const char *>self.data, <Py_ssize_t>self.size)

    # -- AMQP 1.0 to AMQP 0-9-1

    cdef bytes in_basic(self, const uint8_t *p, uint64_t length):
        cdef walk w
        cdef uint64_t at = 0, behind = 0, head
        cdef uint64_t[5] header
        cdef uint64_t[13] known
        cdef uint64_t application = 0, annotations = 0
        cdef uint8_t section
        cdef bint has_header = False
        cdef int place
        for place in range(5):
            header[place] = 0
        for place in range(13):
            known[place] = 0
        w.p = p
        w.end = length
        w.left = 0xFFFFFFFF
        while at < length:
            section = descriptor_of(p, at, length, &behind)
            at = skip_value(&w, behind, 1) if section else 0
            if at == 0:
                return None
            if section == HEADER:
                has_header = True
                if not places(&w, behind, header, 5):
                    return None
            elif section == PROPERTIES:
                if not places(&w, behind, known, 13):
                    return None
            elif section == ANNOTATIONS:
                annotations = behind
            elif section == APPLICATION:
                application = behind
            else:
                return None
        self.size = 0
        return put_basic(self, &w, has_header, header, known, application, annotations)


include "translation_sections.pxi"
include "translation_basic.pxi"
