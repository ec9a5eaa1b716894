"""What headers of AMQP 0-9-1 say of a delay, read without decoding them. tests/model/delays.py is the specification.

Whole numbers only: of a text, a float, another format and a name that stands there twice the answer is None, and
`broker.routing.delays` reads the decoded headers.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from clusterbroker.broker.content.headers cimport DECODED, NO_NUMBER, NUMBER, next_field, number_at, table_of
from clusterbroker.broker.wire.amqp091.codec cimport remade
from clusterbroker.broker.wire.big_endian cimport get32, put16, put32, put64
from clusterbroker.journal.layout import ANSWERABLE as _ANSWERABLE
from clusterbroker.journal.layout import HAS_BCC as _HAS_BCC
from clusterbroker.journal.layout import HAS_HEADERS as _HAS_HEADERS
from clusterbroker.journal.layout import HAS_REPLY_TO as _HAS_REPLY_TO
from clusterbroker.journal.layout import HAS_USER_ID as _HAS_USER_ID
from clusterbroker.journal.record cimport Message, make_message, payload_size, payload_start

cdef int ANSWERABLE = _ANSWERABLE, HAS_HEADERS = _HAS_HEADERS, HAS_BCC = _HAS_BCC, OWN_WAY = _HAS_BCC | _HAS_USER_ID | _HAS_REPLY_TO
cdef int64_t DELAY_MS_MAX = 3653 * 24 * 3_600_000  # broker/routing/delays.py
cdef enum:
    BASIC = 0  # broker/content/formats.py
    PERSISTENT = 1
    KEY_BYTES_MAX = 255

# The names that matter, and their places in `found`.
cdef enum:
    DELIVER_AT = 0
    DELIVERY_TIME = 1
    DELAY = 2
    DELIVERY_DELAY = 3
    KEY = 4
    PRODUCER = 5
    COPIES = 6
    TARGETS = 7
    NAMES = 8


cdef struct Found:
    size_t at[8]  # of the value's tag; 0: there is none of this name


cdef int place_of(const uint8_t *name, size_t size) noexcept nogil:
    if size == 7 and memcmp(name, b"x-delay", 7) == 0:
        return DELAY
    if size == 12 and memcmp(name, b"x-deliver-at", 12) == 0:
        return DELIVER_AT
    if size == 11 and memcmp(name, b"x-delay-key", 11) == 0:
        return KEY
    if size == 10 and memcmp(name, b"x-producer", 10) == 0:
        return PRODUCER
    if (size == 2 and memcmp(name, b"CC", 2) == 0) or (size == 3 and memcmp(name, b"BCC", 3) == 0):
        return COPIES
    if size == 10 and memcmp(name, b"x-delay-to", 10) == 0:
        return TARGETS
    if size == 19 and memcmp(name, b"x-opt-delivery-time", 19) == 0:
        return DELIVERY_TIME
    if size == 20 and memcmp(name, b"x-opt-delivery-delay", 20) == 0:
        return DELIVERY_DELAY
    return NAMES


cdef bint look(Message message, Found *found) noexcept:
    # False: Python has to read it
    cdef const uint8_t *p = payload_start(message)
    cdef size_t at = 0, stop = 0, before, name
    cdef int place
    for place in range(NAMES):
        found.at[place] = 0
    if message.format != BASIC or message.header_length < 2:
        return False
    if not message.flags & HAS_HEADERS:
        return True
    if not table_of(message, &at, &stop):
        return False
    while at < stop:
        before, at = at, next_field(p, at, stop)
        if at == 0:
            return False
        name = before + 1 + p[before]
        place = place_of(p + before + 1, p[before])
        if place != NAMES:
            if found.at[place] and place != COPIES:
                return False
            found.at[place] = name
    return True


cdef int due(const uint8_t *p, Found *found, int64_t taken_ms, int64_t *due_ms) noexcept nogil:
    # NUMBER: `due_ms`; NO_NUMBER: at once; DECODED
    cdef int64_t number = 0
    cdef int place, kind
    for place in range(KEY):
        if not found.at[place]:
            continue
        kind = number_at(p, found.at[place], &number)
        if kind == DECODED:
            return DECODED
        if kind == NO_NUMBER:
            continue
        if place == DELIVER_AT or place == DELIVERY_TIME:
            if number > taken_ms:
                due_ms[0] = number
                return NUMBER
            due_ms[0] = taken_ms
            return NUMBER if found.at[PRODUCER] and p[found.at[PRODUCER]] != c"V" else NO_NUMBER
        due_ms[0] = taken_ms + number
        return NUMBER if number > 0 else NO_NUMBER
    return NO_NUMBER


def due_of(Message message not None, int64_t taken_ms):
    """(due time, key) of a message that was taken at `taken_ms`; the time is 0 for one that is due at once, the key is
    empty without one. None: that is not to be seen here."""
    cdef Found found
    cdef int64_t due_ms = 0
    cdef const uint8_t *p
    cdef size_t size
    cdef int kind
    if not look(message, &found):
        return None
    p = payload_start(message)
    kind = due(p, &found, taken_ms, &due_ms)
    if kind == DECODED:
        return None
    if kind == NO_NUMBER:
        due_ms = 0
    if not found.at[KEY]:
        return due_ms, ""
    if p[found.at[KEY]] != c"S":
        return due_ms, ""
    size = get32(p + found.at[KEY] + 1)
    if size > KEY_BYTES_MAX:
        return due_ms, ""
    try:
        return due_ms, (<const char *>p)[found.at[KEY] + 5 : found.at[KEY] + 5 + size].decode("utf-8")
    except UnicodeDecodeError:
        return due_ms, ""


def note_waiting(list seqs not None, list messages not None, Py_ssize_t at, index, uint64_t bytes_max):
    """Notes from place `at` on when messages are due that wait in the log: their time to live is their due time. The
    place behind the last of them, and the bytes of headers that were looked through: up to about `bytes_max`, or to one
    whose key has to be looked at."""
    cdef Found found
    cdef Message message
    cdef uint64_t looked = 0
    add = index.add
    while at < len(messages) and looked < bytes_max:
        message = <Message?>messages[at]
        if not look(message, &found) or found.at[KEY]:
            break
        looked += message.header_length
        add(message.ttl_ms, seqs[at])
        at += 1
    return at, looked


cdef bint goes_on(Message message, Found *found) noexcept:
    # whether its delays can be negated where they stand, and nothing else in its header decides its way
    cdef int64_t number = 0
    cdef const uint8_t *p
    cdef uint8_t tag
    cdef int place, kind
    if message.flags & HAS_BCC or not look(message, found) or found.at[COPIES] or found.at[TARGETS]:
        return False
    p = payload_start(message)
    for place in range(DELAY, KEY):
        if found.at[place]:
            tag = p[found.at[place]]
            kind = number_at(p, found.at[place], &number)
            if kind == DECODED or number > DELAY_MS_MAX:
                return False
            if kind == NUMBER and number > 0 and (tag == c"i" or tag == c"u" or tag == c"B"):
                return False
    return True


cdef void negate(const uint8_t *p, uint8_t *to, Found *found) noexcept nogil:
    cdef int64_t number = 0
    cdef uint8_t tag
    cdef int place
    cdef size_t at
    for place in range(DELAY, KEY):
        at = found.at[place]
        if at and number_at(p, at, &number) == NUMBER and number > 0:
            tag = p[at]
            if tag == c"I":
                put32(to + at + 1, <uint32_t>-number)
            elif tag == c"l" or tag == c"L":
                put64(to + at + 1, <uint64_t>-number)
            elif tag == c"s":
                put16(to + at + 1, <int16_t>-number)
            else:
                to[at + 1] = <uint8_t>-number


def fired_header(Message message not None):
    """The header of a message that is due: its delays are negated. None: that is not to be done here; copies by CC and
    BCC, and targets of its own, are such reasons."""
    cdef Found found
    if not goes_on(message, &found):
        return None
    header = PyBytes_FromStringAndSize(<const char *>payload_start(message), message.header_length)
    negate(payload_start(message), <uint8_t *>PyBytes_AS_STRING(header), &found)
    return header


def key_delay_s(Message message not None, int bits):
    """The seconds that the routing key says by so many bits, the highest first: `1.0. ... .1.KEY`. 0 also of a key of
    another form, and of one with nothing behind the bits."""
    cdef bytes address = message.address
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(address)
    cdef size_t at = 1 + p[0]  # the key's length, behind the exchange
    cdef const uint8_t *key = p + at + 1
    cdef uint32_t seconds = 0
    cdef int place
    if p[at] <= 2 * bits:
        return 0
    for place in range(bits):
        if (key[2 * place] != c"0" and key[2 * place] != c"1") or key[2 * place + 1] != c".":
            return 0
        seconds = seconds << 1 | (key[2 * place] == c"1")
    return seconds


def kept_header(Message message not None):
    """The header of a message that is due, as its publisher wrote it. None: that is not to be done here; targets of its
    own are such a reason."""
    cdef Found found
    if not look(message, &found) or found.at[TARGETS]:
        return None
    return PyBytes_FromStringAndSize(<const char *>payload_start(message), message.header_length)


def fired(list messages not None, int64_t now_ms):
    """The messages that go on now in place of these, which are due: with their `fired_header`, None in the place of one
    without; and the bytes of headers that were looked through."""
    cdef Found found
    cdef Message message
    cdef bytes payload
    cdef uint64_t looked = 0
    cdef list made = []
    for message in messages:
        looked += message.header_length
        if not goes_on(message, &found):
            made.append(None)
            continue
        payload = PyBytes_FromStringAndSize(<const char *>payload_start(message), payload_size(message))
        negate(payload_start(message), <uint8_t *>PyBytes_AS_STRING(payload), &found)
        again = remade(message.address, payload, message.header_length, message.flags & ANSWERABLE, now_ms)
        if not isinstance(again, Message):
            raise AssertionError("what was accepted is well-formed")
        made.append(again)
    return made, looked


def alike(list messages not None, uint64_t bytes_max):
    """How many messages from the first one on have its address and a `fired_header`, and the bytes of headers that were
    looked through: up to about `bytes_max`."""
    cdef Found found
    cdef Message message
    cdef uint64_t looked = 0
    cdef Py_ssize_t count = 0
    cdef bytes address = None
    for message in messages:
        if looked >= bytes_max or not goes_on(message, &found):
            break
        if address is None:
            address = message.address
        elif message.address is not address and message.address != address:
            break
        looked += message.header_length
        count += 1
    return count, looked


def waiting(Message message not None, int64_t now_ms, int64_t due_ms) -> Message:
    """The message as one that waits until then: its time to live is the absolute due time, ten years from now at most,
    and it outlives its node."""
    cdef int64_t taken_ms = message.time_ms or now_ms
    if due_ms > now_ms + DELAY_MS_MAX:
        due_ms = now_ms + DELAY_MS_MAX
    return make_message(message.address, message.payload, message.header_length, message.flags | PERSISTENT, 0,
                        taken_ms, max(<int64_t>1, due_ms), message.format)


def runs(list messages not None, int64_t now_ms):
    """The messages of a batch, which were taken now, in runs of (whether they are delayed, messages). None: one of them
    has to be looked at by itself: it has copies, a user-id, a reply-to, a delay or key that is refused, or one
    that is not to be seen here."""
    cdef Found found
    cdef Message message
    cdef int64_t due_ms = 0
    cdef const uint8_t *p
    cdef int kind
    cdef size_t size
    cdef list made = [], run = []
    cdef bint before = False, delayed
    for message in messages:
        if message.flags & OWN_WAY or not look(message, &found):
            return None
        if found.at[COPIES] or found.at[TARGETS]:
            return None
        p = payload_start(message)
        kind = due(p, &found, now_ms, &due_ms)
        if kind == DECODED or (kind == NUMBER and due_ms - now_ms > DELAY_MS_MAX):
            return None
        delayed = kind == NUMBER
        if found.at[KEY]:
            if p[found.at[KEY]] != c"S":
                return None
            size = get32(p + found.at[KEY] + 1)
            if size == 0 or size > KEY_BYTES_MAX:
                return None
        if run and delayed != before:
            made.append((before, run))
            run = []
        before = delayed
        run.append(message)
    if run:
        made.append((before, run))
    return made
