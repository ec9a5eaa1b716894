"""The number that a producer gave its message: headers `x-producer`, a name, and `x-seq`. The one statement of the rule;
tests/model/numbers.py is the specification.

    x-producer   text of 1 to PRODUCER_BYTES_MAX bytes, the first not NUL; absent or void: no number
    x-seq        an integer of 1 to NUMBER_MAX; other values beside a producer are refused

`named_in` reads decoded headers. `runs` reads AMQP 0-9-1's headers as they are, without decoding; where it says None
somebody decodes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp

from clusterbroker.broker.content.headers cimport NUMBER, next_field, number_at, table_of
from clusterbroker.broker.wire.big_endian cimport get32
from clusterbroker.journal.layout import HAS_BCC as _HAS_BCC
from clusterbroker.journal.layout import HAS_HEADERS as _HAS_HEADERS
from clusterbroker.journal.layout import HAS_REPLY_TO as _HAS_REPLY_TO
from clusterbroker.journal.layout import HAS_USER_ID as _HAS_USER_ID
from clusterbroker.journal.record cimport Message, payload_start

cdef int HAS_HEADERS = _HAS_HEADERS, OWN_WAY = _HAS_BCC | _HAS_USER_ID | _HAS_REPLY_TO
cdef int64_t NUMBER_MOST = 1 << 62
PRODUCER_BYTES_MAX = 255
NUMBER_MAX = 2**62
cdef enum:
    PRODUCER_BYTES = 255
    BASIC = 0  # broker/content/formats.py


def named_in(headers):
    """Producer and number of a message with these headers; None: it has none. Raises ValueError."""
    producer = headers.get("x-producer") if headers else None
    if producer is None:
        return None
    if not isinstance(producer, str) or not 0 < len(raw := producer.encode()) <= PRODUCER_BYTES_MAX or not raw[0]:
        raise ValueError(f"invalid header 'x-producer': expected a text of 1 to {PRODUCER_BYTES_MAX} bytes")
    number = headers.get("x-seq")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number <= NUMBER_MAX:
        raise ValueError(f"invalid header 'x-seq' beside 'x-producer': expected an integer of 1 to {NUMBER_MAX}")
    return raw, int(number)


def is_numbered(headers) -> bool:
    """Whether a message that was accepted with these headers has a number."""
    return headers.get("x-producer") is not None


cdef int named_at(Message message, const uint8_t **name, size_t *size, int64_t *number) noexcept:
    # 1: it has a number, 0: it has none, -1: it is to be decoded
    cdef const uint8_t *p = payload_start(message)
    cdef size_t at = 0, stop = 0, field, length, value, producer = 0, sequence = 0
    if message.format != BASIC or message.flags & OWN_WAY:
        return -1
    if not message.flags & HAS_HEADERS:
        return 0
    if not table_of(message, &at, &stop):
        return -1
    while at < stop:
        field = at + 1
        length = p[at]
        value = field + length
        at = next_field(p, at, stop)
        if at == 0:
            return -1
        if length == 10 and memcmp(p + field, b"x-producer", 10) == 0:
            if producer:
                return -1
            producer = value
        elif length == 5 and memcmp(p + field, b"x-seq", 5) == 0:
            if sequence:
                return -1
            sequence = value
        elif (length == 2 and memcmp(p + field, b"CC", 2) == 0) or (length == 3 and memcmp(p + field, b"BCC", 3) == 0):
            return -1
    if not producer:
        return 0
    if p[producer] != c"S" or not sequence or number_at(p, sequence, number) != NUMBER:
        return -1
    if not 0 < number[0] <= NUMBER_MOST:
        return -1
    size[0] = get32(p + producer + 1)
    name[0] = p + producer + 5
    return 1 if 0 < size[0] <= PRODUCER_BYTES and name[0][0] else -1


def runs(messages not None):
    """The messages of a batch in runs of (producer, numbers, messages): neighbours of one producer whose numbers rise,
    or without numbers (None, None, messages). None: one of them has to be looked at by itself: it has copies, a user-id,
    a reply-to, a number that is refused, or headers that are not to be read here."""
    cdef const uint8_t *name = NULL
    cdef size_t size = 0
    cdef int64_t number = 0, last = 0
    cdef int kind, before = -1
    cdef Message message
    cdef bytes producer = None
    cdef list made = [], numbers = None, run = None
    for message in messages:
        kind = named_at(message, &name, &size, &number)
        if kind < 0:
            return None
        if kind and not (producer is not None and <size_t>len(producer) == size
                         and memcmp(PyBytes_AS_STRING(producer), name, size) == 0):
            producer = PyBytes_FromStringAndSize(<const char *>name, size)
            try:
                producer.decode("utf-8")
            except UnicodeDecodeError:
                return None
            before = -1
        if kind != before or (kind and number <= last):
            run = []
            numbers = [] if kind else None
            made.append((producer if kind else None, numbers, run))
            before = kind
        if kind:
            numbers.append(number)
            last = number
        run.append(message)
    return made


def are_rising(numbers) -> bool:
    """Whether each number is above the one before."""
    cdef int64_t last = -1, number
    for number in numbers:
        if number <= last:
            return False
        last = number
    return True
