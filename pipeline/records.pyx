# Stored messages to columns: stored.py draws the records, tests/model/records.py is the specification. Two passes
# over the records: the first proves them and notes where each value stands, the second copies values into buffers that
# are as long as they must be.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from clusterbroker.pipeline.stored import (
    DATA_BYTES_MAX,
    HEADERS,
    HEADER_NAMES,
    HEADER_VALUES,
    NUMBERS,
    SEQ_END,
    TEXTS,
    BadRecord,
    Column,
    Records,
    field_text,
    mended,
)

cdef enum:
    ENQ = 1
    RECORD_MIN = 32
    OVERHEAD = 56
    ADDRESSED = 3  # the first texts: value, exchange, routing_key; properties follow
    N_TEXTS = 12
    N_NUMBERS = 5
    OFFSET = 0
    ENQUEUED = 1
    PRIORITY = 2
    TIMESTAMP = 3
    REDELIVERED = 4

cdef int64_t SECONDS_MAX = 253402300799

# What stands behind the property flags, the highest bit first: a text's place, or one of these.
cdef enum:
    TABLE = -1
    OCTET = -2
    PRIORITY_OCTET = -3
    LONGLONG = -4
cdef int[13] LIST = [3, 4, TABLE, OCTET, PRIORITY_OCTET, 5, 6, 7, 8, LONGLONG, 9, 10, 11]

cdef struct span:
    int64_t at  # in the data
    int32_t length
    uint8_t there

cdef struct row:
    span[N_TEXTS] texts
    span table
    int64_t[N_NUMBERS] numbers
    uint8_t[N_NUMBERS] there

cdef struct grown:  # bytes that are appended to
    uint8_t *data
    size_t size
    size_t room


cdef inline uint16_t u16be(const uint8_t *at) noexcept nogil:
    return (at[0] << 8) | at[1]


cdef inline uint32_t u32be(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t u64be(const uint8_t *at) noexcept nogil:
    return (<uint64_t>u32be(at) << 32) | u32be(at + 4)


cdef inline void number(row *one, int place, uint64_t count, int64_t unit) noexcept nogil:
    # Microseconds of so many units, unless no calendar has them.
    one.there[place] = count <= <uint64_t>(SECONDS_MAX * 1000000 // unit)
    one.numbers[place] = <int64_t>count * unit if one.there[place] else 0


cdef inline int64_t short_string(const uint8_t *data, int64_t at, int64_t end, span *text) noexcept nogil:
    # Where it ends; -1 when it is longer than what holds it.
    if at >= end or at + 1 + data[at] > end:
        return -1
    text.at = at + 1
    text.length = data[at]
    text.there = True
    return at + 1 + data[at]


cdef int64_t properties(const uint8_t *data, int64_t at, int64_t end, row *one, const char **why) noexcept nogil:
    # -1, or where a header is damaged.
    cdef uint16_t flags = u16be(data + at), word = flags
    cdef int bit, kind
    cdef int64_t stop
    at += 2
    while word & 1:
        word = u16be(data + at) if at + 2 <= end else 0
        at += 2
    for bit in range(13):
        if not (flags >> (15 - bit)) & 1:
            continue
        kind = LIST[bit]
        stop = at + (1 if kind in (OCTET, PRIORITY_OCTET) else 8 if kind == LONGLONG else 0)
        if stop > end:
            why[0] = b"a property is longer than its header"
            return at
        if kind == TABLE:
            if at + 4 > end or u32be(data + at) > <uint64_t>(end - at - 4):
                why[0] = b"headers are longer than their header"
                return at
            one.table.at = at + 4
            one.table.there = True
            one.table.length = <int32_t>u32be(data + at)
            stop = at + 4 + one.table.length
        elif kind == PRIORITY_OCTET:
            one.numbers[PRIORITY] = data[at]
            one.there[PRIORITY] = True
        elif kind == LONGLONG:
            number(one, TIMESTAMP, u64be(data + at), 1000000)
        elif kind >= 0:
            stop = short_string(data, at, end, &one.texts[kind])
            if stop < 0:
                why[0] = b"a short string is longer than what holds it"
                return at
        at = stop
    return -1


cdef int64_t fields(const uint8_t *data, int64_t at, int64_t length, row *one, const char **why) noexcept nogil:
    # -1, or where a record is damaged.
    cdef int64_t address = at + OVERHEAD, header, body, end = at + length, stop
    if length < OVERHEAD:
        why[0] = NULL
        return at
    header = address + (<uint16_t *>(data + at + 48))[0]
    body = header + (<uint32_t *>(data + at + 52))[0]
    if body > end:
        why[0] = b"address and header are longer than the record"
        return at
    memset(one, 0, sizeof(row))
    one.texts[0].at = body
    one.texts[0].length = <int32_t>(end - body)
    one.texts[0].there = True
    stop = short_string(data, address, header, &one.texts[1])
    if stop < 0:
        why[0] = b"a short string is longer than what holds it"
        return address
    address = stop
    stop = short_string(data, address, header, &one.texts[2])
    if stop < 0:
        why[0] = b"a short string is longer than what holds it"
        return address
    if stop != header:
        why[0] = b"an address that is none"
        return at
    one.numbers[OFFSET] = <int64_t>(<uint64_t *>(data + at + 24))[0] - 1
    one.there[OFFSET] = True
    one.numbers[REDELIVERED] = data[at + 9] >> 7
    one.there[REDELIVERED] = True
    number(one, ENQUEUED, (<uint64_t *>(data + at + 32))[0], 1000)
    if body - header >= 2:
        return properties(data, header, body, one, why)
    return -1


def decode(bytes data not None, wanted, uint64_t first, uint64_t end):
    """The messages among these records with first <= seq < end, as the wanted columns. Raises BadRecord."""
    cdef const uint8_t *raw = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef int64_t size = len(data), at = 0, length, bad = -1
    cdef uint64_t seq, low = 0, high = 0
    cdef size_t count = 0, room = 0
    cdef const char *why = NULL
    cdef row *rows = NULL
    cdef row *larger
    assert size <= DATA_BYTES_MAX, "offsets into a column have 31 bits"
    assert end <= SEQ_END, "a journal counts to 2^62"
    try:
        with nogil:
            while at < size:
                if size - at < RECORD_MIN:
                    bad, length = at, -1
                    break
                length = (<uint32_t *>(raw + at))[0]
                if length < RECORD_MIN or length > size - at:
                    bad = at
                    break
                seq = (<uint64_t *>(raw + at + 24))[0]
                if raw[at + 8] == ENQ and first <= seq < end:
                    if count == room:
                        room = max(room * 2, <size_t>4096)
                        larger = <row *>realloc(rows, room * sizeof(row))
                        if larger == NULL:
                            break
                        rows = larger
                    bad = fields(raw, at, length, rows + count, &why)
                    if bad >= 0:
                        break
                    count += 1
                    low = low or seq
                    high = seq
                at += (length + 7) & ~<int64_t>7
        if bad >= 0:
            if why != NULL:
                raise BadRecord(f"at byte {bad}: {why.decode()}")
            if length < 0:
                raise BadRecord(f"at byte {bad}: {size - bad} bytes are no record")
            raise BadRecord(f"at byte {bad}: a length of {length}")
        if at < size:
            raise MemoryError()
        columns = {}
        for name in wanted:
            if name in TEXTS:
                columns[name] = text_column(raw, rows, count, TEXTS.index(name))
            elif name in NUMBERS:
                columns[name] = number_column(rows, count, NUMBERS.index(name))
            elif name == HEADERS:
                headers_columns(data, rows, count, columns)
        return Records(count, low, high, columns)
    finally:
        free(rows)


cdef object valid_bits(const uint8_t *there, size_t stride, size_t count, size_t nulls):
    # `there` is a truth per row, `stride` bytes apart.
    cdef bytes bits
    cdef uint8_t *out
    cdef size_t place
    if not nulls:  # and perhaps no row to look at
        return None
    bits = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
    out = <uint8_t *>PyBytes_AS_STRING(bits)
    memset(out, 0, (count + 7) // 8)
    for place in range(count):
        if there[place * stride]:
            out[place >> 3] |= 1 << (place & 7)
    return bits


cdef object text_column(const uint8_t *raw, row *rows, size_t count, int place):
    cdef bytes offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * sizeof(int32_t)), data
    cdef int32_t *ends = <int32_t *>PyBytes_AS_STRING(offsets)
    cdef size_t k, nulls = 0
    cdef int32_t total = 0
    cdef uint8_t *out
    cdef span *text
    ends[0] = 0
    for k in range(count):
        text = &rows[k].texts[place]
        nulls += not text.there
        total += text.length
        ends[k + 1] = total
    data = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(data)
    for k in range(count):
        text = &rows[k].texts[place]
        if text.length:
            memcpy(out + ends[k], raw + text.at, text.length)
    valid = valid_bits(&rows[0].texts[place].there, sizeof(row), count, nulls)
    if place and not data.isascii():
        return Column(nulls, valid, *mended(offsets, data))
    return Column(nulls, valid, offsets, data)


cdef object number_column(row *rows, size_t count, int place):
    cdef bytes data = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
    cdef int64_t *out = <int64_t *>PyBytes_AS_STRING(data)
    cdef size_t k, nulls = 0
    for k in range(count):
        out[k] = rows[k].numbers[place]
        nulls += not rows[k].there[place]
    valid = valid_bits(&rows[0].there[place], sizeof(row), count, nulls)
    return Column(nulls, valid, None, data)


cdef int append(grown *to, const void *data, size_t size) except -1:
    cdef size_t room
    cdef uint8_t *larger
    if to.size + size > to.room:
        room = max(2 * to.room, to.size + size + 4096)
        larger = <uint8_t *>realloc(to.data, room)
        if larger == NULL:
            raise MemoryError()
        to.data = larger
        to.room = room
    if size:
        memcpy(to.data + to.size, data, size)
    to.size += size
    return 0


cdef int append_end(grown *offsets, size_t end) except -1:
    cdef int32_t value = <int32_t>end
    return append(offsets, &value, sizeof(value))


cdef bytes taken(grown *of):
    return PyBytes_FromStringAndSize(<char *>of.data, of.size)


cdef object text_of(grown *offsets, grown *data, size_t nulls, object valid):
    ends, text = taken(offsets), taken(data)
    return Column(nulls, valid, *(mended(ends, text) if not text.isascii() else (ends, text)))


cdef void headers_columns(bytes data, row *rows, size_t count, dict columns) except *:
    # An entry's offsets are written behind its bytes, so the counts of entries are those of offsets.
    cdef grown[6] out  # tables' ends, names' ends, names, values' ends, values, whether there is a value
    cdef size_t k, nulls = 0, values_nulls = 0
    memset(out, 0, sizeof(out))
    try:
        append_end(&out[0], 0)
        append_end(&out[1], 0)
        append_end(&out[3], 0)
        for k in range(count):
            if not rows[k].table.there:
                nulls += 1
            else:
                values_nulls += entries(data, rows[k].table.at, rows[k].table.at + rows[k].table.length, out)
            append_end(&out[0], out[5].size)
        valid = valid_bits(&rows[0].table.there, sizeof(row), count, nulls)
        columns[HEADERS] = Column(nulls, valid, taken(&out[0]), b"")
        columns[HEADER_NAMES] = text_of(&out[1], &out[2], 0, None)
        columns[HEADER_VALUES] = text_of(
            &out[3], &out[4], values_nulls, valid_bits(out[5].data, 1, out[5].size, values_nulls)
        )
    finally:
        for k in range(6):
            free(out[k].data)


cdef size_t entries(bytes data, int64_t at, int64_t end, grown *out) except? 1000000000:
    # Appends a table's entries; returns how many have no value. All but texts is left to stored.py.
    cdef const uint8_t *raw = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef size_t nulls = 0
    cdef span name
    cdef uint8_t there
    cdef int64_t stop, value_at
    cdef bytes text
    while at < end:
        stop = short_string(raw, at, end, &name)
        if stop < 0:
            raise BadRecord(f"at byte {at}: a short string is longer than what holds it")
        there, value_at, text = True, -1, None
        if stop + 5 <= end and raw[stop] == c"S" and u32be(raw + stop + 1) <= <uint64_t>(end - stop - 5):
            value_at = stop + 5
            at = value_at + u32be(raw + stop + 1)
        else:
            found, at = field_text(data, stop, end)
            text = found
        if name.length == 3 and raw[name.at] == c"B" and raw[name.at + 1] == c"C" and raw[name.at + 2] == c"C":
            continue
        append(&out[2], raw + name.at, name.length)
        append_end(&out[1], out[2].size)
        if value_at >= 0:
            append(&out[4], raw + value_at, at - value_at)
        elif text is None:
            there = False
            nulls += 1
        else:
            append(&out[4], PyBytes_AS_STRING(text), len(text))
        append_end(&out[3], out[4].size)
        append(&out[5], &there, 1)
    return nulls
