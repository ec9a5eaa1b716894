# The sections of a message (3.2): whether bytes are such, and where each of them lies.
#
# Those before the body are walked, value by value, so that whoever reads them later meets nothing else; of a body what
# its constructors say is compared with its bytes. `tests/model/codec10.py` says the same in Python.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from clusterbroker.broker.wire.big_endian cimport get32, get64
from clusterbroker.journal.record cimport Message
from clusterbroker.journal.record cimport make_message as new_message

cdef enum:
    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78
    DEPTH_MAX = 32
    ENTRIES_MAX = 4096
    OWN_ENTRIES_MAX = 1 << 20  # of what the broker makes
    PERSISTENT = 1
    HAS_HEADERS = 2
    HAS_EXPIRATION = 4
    HAS_USER_ID = 8
    HAS_REPLY_TO = 16
    SECTIONS = 1  # of a message's format (broker/content/formats.py)
    PRIORITY_DEFAULT = 4

# classes of types, for the fields of sections
cdef enum:
    IS_NULL = 1
    IS_BOOLEAN = 2
    IS_UBYTE = 4
    IS_UINT = 8
    IS_ULONG = 16
    IS_STRING = 32
    IS_SYMBOL = 64
    IS_BINARY = 128
    IS_UUID = 256
    IS_TIMESTAMP = 512
    IS_LIST = 1024
    IS_MAP = 2048
    IS_OTHER = 4096
    IS_ANY = 8191

cdef enum:
    IS_ID = IS_ULONG | IS_UUID | IS_BINARY | IS_STRING

cdef uint32_t[5] HEADER_FIELDS = [IS_BOOLEAN, IS_UBYTE, IS_UINT, IS_BOOLEAN, IS_UINT]
cdef uint32_t[13] PROPERTIES_FIELDS = [
    IS_ID, IS_BINARY, IS_ANY, IS_STRING, IS_ANY, IS_ID, IS_SYMBOL, IS_SYMBOL, IS_TIMESTAMP, IS_TIMESTAMP, IS_STRING,
    IS_UINT, IS_STRING,
]
cdef int REPLY_TO_PLACE = 4
cdef int USER_ID_PLACE = 1


# -- values: how long they are, and whether they are values


cdef inline uint32_t class_of(uint8_t code) noexcept nogil:
    if code == 0x40:
        return IS_NULL
    if code == 0x41 or code == 0x42 or code == 0x56:
        return IS_BOOLEAN
    if code == 0x50:
        return IS_UBYTE
    if code == 0x43 or code == 0x52 or code == 0x70:
        return IS_UINT
    if code == 0x44 or code == 0x53 or code == 0x80:
        return IS_ULONG
    if code == 0xA1 or code == 0xB1:
        return IS_STRING
    if code == 0xA3 or code == 0xB3:
        return IS_SYMBOL
    if code == 0xA0 or code == 0xB0:
        return IS_BINARY
    if code == 0x98:
        return IS_UUID
    if code == 0x83:
        return IS_TIMESTAMP
    if code == 0x45 or code == 0xC0 or code == 0xD0:
        return IS_LIST
    if code == 0xC1 or code == 0xD1:
        return IS_MAP
    return IS_OTHER


cdef inline int fixed_size(uint8_t code) noexcept nogil:
    # of the data behind a format code; -1: it is not fixed, or unknown
    cdef uint8_t width = code >> 4
    if width == 0x4:
        return 0 if code <= 0x45 else -1
    if width == 0x5:
        return 1 if code <= 0x56 else -1
    if width == 0x6:
        return 2 if code <= 0x61 else -1
    if width == 0x7:
        return 4 if code <= 0x74 else -1
    if width == 0x8:
        return 8 if code <= 0x84 else -1
    if code == 0x94 or code == 0x98:
        return 16
    return -1


cdef bint is_text(const uint8_t *text, uint64_t length, bint ascii) noexcept:
    cdef uint8_t joined = 0
    cdef uint64_t at
    for at in range(length):
        joined |= text[at]
    if not joined & 0x80:
        return True
    if ascii:
        return False
    try:
        PyUnicode_DecodeUTF8(<char *>text, <Py_ssize_t>length, NULL)
    except UnicodeDecodeError:
        return False
    return True


cdef uint64_t skip_value(walk *w, uint64_t at, int depth) noexcept:
    # the offset behind the value at `at`, or 0: it is none, or not all there
    cdef uint8_t code
    if at >= w.end or w.left == 0:
        return 0
    code = w.p[at]
    if code == 0:
        if depth >= DEPTH_MAX:
            return 0
        at = skip_value(w, at + 1, depth + 1)
        return skip_value(w, at, depth + 1) if at else 0
    return skip_data(w, at + 1, code, depth)


cdef uint64_t skip_data(walk *w, uint64_t at, uint8_t code, int depth) noexcept:
    # the same for the data behind a format code
    cdef int size = fixed_size(code)
    cdef uint64_t stop, end
    cdef uint32_t count, place, point
    cdef uint8_t width = code >> 4
    cdef bint wide
    if w.left == 0:
        return 0
    w.left -= 1
    if size >= 0:
        if at + size > w.end:
            return 0
        if code == 0x56 and w.p[at] > 1:
            return 0
        if code == 0x73:
            point = get32(w.p + at)
            if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                return 0
        return at + size
    if width == 0xA or width == 0xC or width == 0xE:
        if at + 1 > w.end:
            return 0
        stop = at + 1 + w.p[at]
        at += 1
        wide = False
    elif width == 0xB or width == 0xD or width == 0xF:
        if at + 4 > w.end:
            return 0
        stop = at + 4 + get32(w.p + at)
        at += 4
        wide = True
    else:
        return 0
    if stop > w.end:
        return 0
    if width == 0xA or width == 0xB:
        code &= 0xF
        if code == 0:
            return stop
        if code != 1 and code != 3:
            return 0
        return stop if is_text(w.p + at, stop - at, code == 3) else 0
    if depth >= DEPTH_MAX or code & 0xF > (1 if width < 0xE else 0):
        return 0
    if at + (4 if wide else 1) > stop:
        return 0
    count = get32(w.p + at) if wide else w.p[at]
    at += 4 if wide else 1
    end = w.end
    w.end = stop
    if width >= 0xE:
        at = skip_items(w, at, count, depth + 1)
    else:
        if code & 0xF and count & 1:
            return 0
        for place in range(count):
            if code & 0xF and not place & 1 and not is_key(w, at):
                return 0
            at = skip_value(w, at, depth + 1)
            if at == 0:
                return 0
    w.end = end
    return stop if at == stop else 0


cdef inline bint is_key(walk *w, uint64_t at) noexcept nogil:
    # of a map: neither described nor a list, map or array
    cdef uint8_t code
    if at >= w.end:
        return False
    code = w.p[at]
    return code != 0 and code != 0x45 and code >> 4 < 0xC


cdef uint64_t skip_items(walk *w, uint64_t at, uint32_t count, int depth) noexcept:
    # those of an array: one constructor for all
    cdef uint8_t code
    cdef int size
    cdef uint32_t place
    if at >= w.end:
        return 0
    code = w.p[at]
    at += 1
    if code == 0:
        at = skip_value(w, at, depth)
        if at == 0 or at >= w.end:
            return 0
        code = w.p[at]
        at += 1
        if code == 0:
            return 0
    size = fixed_size(code)
    if size < 0 and (code >> 4 < 0xA or code & 0xF > 3):
        return 0
    if size == 0:  # as many as it says, in no bytes
        if count > w.left:
            return 0
        w.left -= count
        return at
    for place in range(count):
        at = skip_data(w, at, code, depth)
        if at == 0:
            return 0
    return at


# -- sections


cdef struct section_name:
    uint8_t code
    uint8_t length
    const char *text

cdef section_name[9] NAMES = [
    section_name(HEADER, 16, b"amqp:header:list"),
    section_name(DELIVERY_ANNOTATIONS, 29, b"amqp:delivery-annotations:map"),
    section_name(ANNOTATIONS, 28, b"amqp:message-annotations:map"),
    section_name(PROPERTIES, 20, b"amqp:properties:list"),
    section_name(APPLICATION, 31, b"amqp:application-properties:map"),
    section_name(DATA, 16, b"amqp:data:binary"),
    section_name(SEQUENCE, 23, b"amqp:amqp-sequence:list"),
    section_name(VALUE, 17, b"amqp:amqp-value:*"),
    section_name(FOOTER, 15, b"amqp:footer:map"),
]


cdef uint8_t descriptor_of(const uint8_t *p, uint64_t at, uint64_t end, uint64_t *behind) noexcept nogil:
    # the number of the described value at `at`; 0: there is none, or it is not known. A symbol is as good as a number.
    cdef size_t place
    if at + 3 > end or p[at] != 0:
        return 0
    if p[at + 1] == 0x53:
        behind[0] = at + 3
        return p[at + 2]
    if p[at + 1] == 0x80:
        if at + 10 > end or get64(p + at + 2) > 0xFF:
            return 0
        behind[0] = at + 10
        return p[at + 9]
    if p[at + 1] == 0xA3:
        for place in range(9):
            if p[at + 2] == NAMES[place].length and at + 3 + p[at + 2] <= end and memcmp(
                p + at + 3, NAMES[place].text, NAMES[place].length
            ) == 0:
                behind[0] = at + 3 + p[at + 2]
                return NAMES[place].code
    return 0


cdef uint64_t fields(walk *w, uint64_t at, const uint32_t *kinds, uint32_t most, uint64_t *places) noexcept:
    # the offset behind a list whose fields are of these kinds, and where each of them is (0: null or left out); 0: it
    # is not so
    cdef uint64_t stop = skip_value(w, at, 1)
    cdef uint32_t count, place
    cdef uint8_t code
    for place in range(most):
        places[place] = 0
    if stop == 0:
        return 0
    code = w.p[at]
    if code == 0x45:
        return stop
    if code == 0xC0:
        count = w.p[at + 2]
        at += 3
    elif code == 0xD0:
        count = get32(w.p + at + 5)
        at += 9
    else:
        return 0
    if count > most:
        return 0
    for place in range(count):
        code = w.p[at]
        if code != 0x40:
            if code == 0 or not kinds[place] & class_of(code):
                return 0
            places[place] = at
        at = skip_value(w, at, 2)
        if at == 0:  # it was skipped as a part of the list a moment ago; only too many values can end here
            return 0
    return stop


cdef bint keys_are(walk *w, uint64_t at, uint32_t kinds) noexcept:
    # whether the keys of the map at `at`, which was skipped before, are of these kinds
    cdef uint8_t code = w.p[at]
    cdef uint32_t count, place
    if code == 0xC1:
        count = w.p[at + 2]
        at += 3
    elif code == 0xD1:
        count = get32(w.p + at + 5)
        at += 9
    else:
        return False
    for place in range(count // 2):
        if not kinds & class_of(w.p[at]):
            return False
        at = skip_value(w, at, 2)
        at = skip_value(w, at, 2) if at else 0
        if at == 0:
            return False
    return True


cdef bint find_sections(const uint8_t *payload, uint64_t length, sections *found,
                        uint32_t most=ENTRIES_MAX) noexcept:
    cdef walk w
    cdef uint64_t at = 0, inner = 0
    cdef uint64_t[13] places
    cdef uint8_t code, last = 0, bodies = 0
    w.p = payload
    w.end = length
    w.left = most
    found.durable = False
    found.priority = PRIORITY_DEFAULT
    found.ttl_ms = -1
    found.has_user_id = found.has_reply_to = False
    found.delivery_annotations = found.annotations = found.properties = found.application = found.body = 0
    while at < length:
        code = descriptor_of(payload, at, length, &inner)
        if code < HEADER or code > FOOTER:
            return False
        if code < last or (code == last and code != DATA and code != SEQUENCE):
            return False
        if code == DATA or code == SEQUENCE or code == VALUE:
            if bodies and last != code:
                return False
            bodies = 1
        # where sections begin that are not there is where the next one begins
        if last < DELIVERY_ANNOTATIONS and code >= DELIVERY_ANNOTATIONS:
            found.delivery_annotations = at
        if last < ANNOTATIONS and code >= ANNOTATIONS:
            found.annotations = at
        if last < PROPERTIES and code >= PROPERTIES:
            found.properties = at
        if last < APPLICATION and code >= APPLICATION:
            found.application = at
        if last < DATA and code >= DATA:
            found.body = at
            w.left = 0xFFFFFFFF  # nobody reads a body but its consumer: its bytes bound its values
        last = code
        if code == HEADER:
            at = fields(&w, inner, HEADER_FIELDS, 5, places)
            if at == 0:
                return False
            if places[0]:
                found.durable = payload[places[0]] == 0x41 or (
                    payload[places[0]] == 0x56 and payload[places[0] + 1] == 1
                )
            if places[1]:
                found.priority = payload[places[1] + 1]
            if places[2]:
                found.ttl_ms = (
                    0 if payload[places[2]] == 0x43
                    else payload[places[2] + 1] if payload[places[2]] == 0x52
                    else get32(payload + places[2] + 1)
                )
            continue
        if code == PROPERTIES:
            at = fields(&w, inner, PROPERTIES_FIELDS, 13, places)
            if at == 0:
                return False
            found.has_user_id = places[USER_ID_PLACE] != 0
            found.has_reply_to = places[REPLY_TO_PLACE] != 0
            continue
        at = skip_value(&w, inner, 1)
        if at == 0:
            return False
        if code == DELIVERY_ANNOTATIONS or code == ANNOTATIONS or code == FOOTER:
            if not keys_are(&w, inner, IS_SYMBOL | IS_ULONG):
                return False
        elif code == APPLICATION:
            if not keys_are(&w, inner, IS_STRING):
                return False
        elif code == DATA:
            if class_of(payload[inner]) != IS_BINARY:
                return False
        elif code == SEQUENCE:
            if class_of(payload[inner]) != IS_LIST:
                return False
    if last < DELIVERY_ANNOTATIONS:
        found.delivery_annotations = length
    if last < ANNOTATIONS:
        found.annotations = length
    if last < PROPERTIES:
        found.properties = length
    if last < APPLICATION:
        found.application = length
    if last < DATA:
        found.body = length
    return True


cdef Message message_of(bytes address, const uint8_t *payload, uint64_t length, const sections *found, int64_t now_ms):
    # without its delivery annotations
    cdef uint64_t dropped = found.annotations - found.delivery_annotations
    cdef bytes kept = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(length - dropped))
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(kept)
    memcpy(to, payload, found.delivery_annotations)
    memcpy(to + found.delivery_annotations, payload + found.annotations, length - found.annotations)
    return new_message(address, kept, <uint32_t>(found.body - dropped), flags_of(found), found.priority, now_ms,
                       found.ttl_ms, SECTIONS)


cdef inline uint8_t flags_of(const sections *found) noexcept nogil:
    cdef uint8_t flags = 0
    if found.durable:
        flags |= PERSISTENT
    if found.properties > found.annotations or found.body > found.application:
        flags |= HAS_HEADERS
    if found.ttl_ms >= 0:
        flags |= HAS_EXPIRATION
    if found.has_user_id:
        flags |= HAS_USER_ID
    if found.has_reply_to:
        flags |= HAS_REPLY_TO
    return flags


cdef bint split_header(const uint8_t *header, uint64_t length, header_parts *parts) noexcept:
    # what is stored was proven when it came: only its bounds are asked again
    cdef uint64_t inner = 0, place = 0, end
    cdef uint8_t code = descriptor_of(header, 0, length, &inner)
    parts.at = parts.entries = parts.count = 0
    if code == HEADER:
        place = behind_compound(header, inner, length)
        code = descriptor_of(header, place, length, &inner)
    parts.rest = place
    if code != ANNOTATIONS:
        return True
    parts.rest = end = behind_compound(header, inner, length)
    if end - inner < 3:
        return True
    if header[inner] == 0xC1:
        parts.at = inner + 3
        parts.count = header[inner + 2]
    elif end - inner >= 9:
        parts.at = inner + 9
        parts.count = get32(header + inner + 5)
    else:
        return True
    parts.entries = end - parts.at
    for place in range(parts.at, end):
        if header[place] == c"x" and (
            (end - place >= 10 and memcmp(header + place, b"x-exchange", 10) == 0)
            or (end - place >= 13 and memcmp(header + place, b"x-routing-key", 13) == 0)
        ):
            return not has_own_key(header, parts.at, end)
    return True


cdef bint has_own_key(const uint8_t *header, uint64_t at, uint64_t end) noexcept:
    # whether a key among the entries of a map is one of the node's own; the text may be a part of a value
    cdef walk w
    cdef uint64_t name, length
    w.p = header
    w.end = end
    w.left = OWN_ENTRIES_MAX
    while at < end:
        name = length = 0
        if header[at] == 0xA3 and at + 1 < end:
            name, length = at + 2, header[at + 1]
        elif header[at] == 0xB3 and at + 4 < end:
            name, length = at + 5, get32(header + at + 1)
        if (length == 10 and name + 10 <= end and memcmp(header + name, b"x-exchange", 10) == 0) or (
            length == 13 and name + 13 <= end and memcmp(header + name, b"x-routing-key", 13) == 0
        ):
            return True
        at = skip_value(&w, at, 1)
        at = skip_value(&w, at, 1) if at else 0
        if at == 0:
            return True  # not as it was proven: whoever decodes it says why
    return False


cdef inline uint64_t behind_compound(const uint8_t *p, uint64_t at, uint64_t end) noexcept nogil:
    # the offset behind a list or map; not beyond `end`
    cdef uint64_t behind = end
    if at < end:
        if p[at] == 0x45:
            behind = at + 1
        elif p[at] >> 4 == 0xC and at + 1 < end:
            behind = at + 2 + p[at + 1]
        elif p[at] >> 4 == 0xD and at + 4 < end:
            behind = at + 5 + <uint64_t>get32(p + at + 1)
    return min(behind, end)


def make_message(bytes address not None, bytes payload not None, int64_t now_ms, bint own=False):
    """A message of the sections that a client sent, or None: they are no message. `own`: sections of the broker's
    making, which adds to what it took."""
    cdef sections found
    cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(payload)
    if not find_sections(start, PyBytes_GET_SIZE(payload), &found, OWN_ENTRIES_MAX if own else ENTRIES_MAX):
        return None
    return message_of(address, start, PyBytes_GET_SIZE(payload), &found, now_ms)
