"""Stored messages to columns: the specification of `records_fast`.

What a stream hands out in chunks, and what its files hold, are ENQ records as `journal/layout.py` draws them:

     0  u32 length, without padding   4  u32 checksum          8  u8 kind (1)   9  u8 flags (128: redelivered)
    16  u64 queue id                 24  u64 seq
    32  u64 time_ms   40  i64 ttl_ms  48  u16 length of address   52  u32 length of header
    56  address (exchange, routing key: short strings) | header (property flags, properties) | body

each padded to 8 bytes. They become the buffers that Arrow makes its arrays of: a bit per row for "is there", 32-bit
offsets, bytes end to end. So no row ever becomes an object, and nothing here knows of Arrow. A record's offset is its
seq - 1. Bytes that are no record raise BadRecord; checksums are for those who read files.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

ENQ: Final = 1
RECORD_BYTES_MIN: Final = 32
ENQ_OVERHEAD_BYTES: Final = 56
FLAGS_AT: Final = 9
DATA_BYTES_MAX: Final = 1 << 30
"""Of one call: offsets have 31 bits."""

TEXTS: Final = (
    "value", "exchange", "routing_key", "content_type", "content_encoding", "correlation_id", "reply_to", "expiration",
    "message_id", "type", "user_id", "app_id",
)  # fmt: skip
"""Columns of bytes; all but the first are text."""
NUMBERS: Final = ("offset", "enqueued_at", "priority", "timestamp", "redelivered")
"""Columns of 64-bit integers: times in microseconds, the last one 0 or 1."""
HEADERS: Final = "headers"
HEADER_NAMES, HEADER_VALUES = "headers.name", "headers.value"
"""What the column `headers` points into."""
HIDDEN_HEADER: Final = b"BCC"
"""Receivers that other receivers are not to see."""
SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999. A timestamp beyond is no time that anybody meant, and is left out."""
NESTED_MAX: Final = 128
"""No broker takes or makes a message with deeper headers (`broker.amqp.fields.STORED_LIMITS`)."""
SEQ_END: Final = 2**62

_RECORD: Final = struct.Struct("<IIB7xQQ")
_ENQ_FIELDS: Final = struct.Struct("<Q8xHxxI")
_SHORT_BITS: Final = (
    (15, "content_type"), (14, "content_encoding"), (13, HEADERS), (12, ""), (11, "priority"), (10, "correlation_id"),
    (9, "reply_to"), (8, "expiration"), (7, "message_id"), (6, "timestamp"), (5, "type"), (4, "user_id"), (3, "app_id"),
)  # fmt: skip
_FIXED: Final = {
    "b": struct.Struct(">b"), "B": struct.Struct(">B"), "s": struct.Struct(">h"), "u": struct.Struct(">H"),
    "I": struct.Struct(">i"), "i": struct.Struct(">I"), "l": struct.Struct(">q"), "L": struct.Struct(">q"),
    "T": struct.Struct(">Q"), "f": struct.Struct(">f"), "d": struct.Struct(">d"),
}  # fmt: skip
_LONG: Final = struct.Struct(">I")


class BadRecord(ValueError):
    """Bytes that are not a record; the text says where and what."""


class Column(NamedTuple):
    """Buffers of one column. `valid` is None when no row lacks it, `offsets` when its values are numbers."""

    nulls: int
    valid: bytes | None
    offsets: bytes | None
    data: bytes


class Records(NamedTuple):
    """So many rows, whose seqs are from `first` to `last`; both 0 without a row."""

    rows: int
    first: int
    last: int
    columns: dict[str, Column]


def decode(data: bytes, wanted: Collection[str], first: int, end: int) -> Records:
    """The messages among these records with first <= seq < end, as the wanted columns. Raises BadRecord."""
    assert len(data) <= DATA_BYTES_MAX, "offsets into a column have 31 bits"
    assert end <= SEQ_END, "a journal counts to 2^62"
    found: list[dict[str, Any]] = []
    at, low, high = 0, 0, 0
    while at < len(data):
        if len(data) - at < RECORD_BYTES_MIN:
            raise BadRecord(f"at byte {at}: {len(data) - at} bytes are no record")
        length, _, kind, _, seq = _RECORD.unpack_from(data, at)
        if length < RECORD_BYTES_MIN or length > len(data) - at:
            raise BadRecord(f"at byte {at}: a length of {length}")
        if kind == ENQ and first <= seq < end:
            found.append(_fields(data, at, length))
            low, high = low or seq, seq
        at += (length + 7) & ~7
    columns: dict[str, Column] = {}
    for name in wanted:  # header tables are read now: what is no record is said before a header that is none
        values = [row.get(name) for row in found]
        if name in TEXTS:
            columns[name] = _bytes_column(values, is_text=name != "value")
        elif name in NUMBERS:
            columns[name] = _number_column(values)
        elif name == HEADERS:
            columns |= _headers_columns([None if span is None else entries(data, *span) for span in values])
    return Records(len(found), low, high, columns)


def _fields(data: bytes, at: int, length: int) -> dict[str, Any]:
    """A record's values by the names of their columns; of its headers, where their table stands."""
    if length < ENQ_OVERHEAD_BYTES:
        raise BadRecord(f"at byte {at}: a length of {length}")
    *_, seq = _RECORD.unpack_from(data, at)
    time_ms, address_length, header_length = _ENQ_FIELDS.unpack_from(data, at + RECORD_BYTES_MIN)
    address = at + ENQ_OVERHEAD_BYTES
    header = address + address_length
    body, end = header + header_length, at + length
    if body > end:
        raise BadRecord(f"at byte {at}: address and header are longer than the record")
    fields: dict[str, Any] = {"value": data[body:end], "offset": seq - 1, "enqueued_at": _microseconds(time_ms, 1000)}
    fields["redelivered"] = data[at + FLAGS_AT] >> 7
    key = _short(data, address, header, fields, "exchange")
    if _short(data, key, header, fields, "routing_key") != header:
        raise BadRecord(f"at byte {at}: an address that is none")
    if header_length >= 2:
        _properties(data, header, body, fields)
    return fields


def _properties(data: bytes, at: int, end: int, fields: dict[str, Any]) -> None:
    flags = word = int.from_bytes(data[at : at + 2], "big")
    at += 2
    while word & 1:  # more flags follow, for properties behind those that there are
        word = int.from_bytes(data[at : at + 2], "big") if at + 2 <= end else 0
        at += 2
    for bit, name in _SHORT_BITS:
        if not flags >> bit & 1:
            continue
        size = 1 if name in ("", "priority") else 8 if name == "timestamp" else 0
        if at + size > end:
            raise BadRecord(f"at byte {at}: a property is longer than its header")
        if name == HEADERS:
            if at + 4 > end or (size := 4 + _LONG.unpack_from(data, at)[0]) > end - at:
                raise BadRecord(f"at byte {at}: headers are longer than their header")
            fields[name] = (at + 4, at + size)
        elif size == 1:
            fields[name] = data[at]
        elif size == 8:
            fields[name] = _microseconds(int.from_bytes(data[at : at + 8], "big"), 1_000_000)
        else:
            size = _short(data, at, end, fields, name) - at
        at += size


def _microseconds(count: int, unit: int) -> int | None:
    return count * unit if count <= SECONDS_MAX * 1_000_000 // unit else None


def _short(data: bytes, at: int, end: int, fields: dict[str, Any], name: str) -> int:
    """Where the short string at `at` ends."""
    stop = at + 1 + (data[at] if at < end else 0)
    if at >= end or stop > end:
        raise BadRecord(f"at byte {at}: a short string is longer than what holds it")
    fields[name] = data[at + 1 : stop]
    return stop


# -- header tables -----------------------------------------------------------------------------------------------------


def entries(data: bytes, at: int, end: int) -> list[tuple[bytes, bytes | None]]:
    """Name and value as text of each entry of a field table. Raises BadRecord."""
    found = []
    while at < end:
        named: dict[str, bytes] = {}
        at = _short(data, at, end, named, "name")
        text, at = field_text(data, at, end)
        if named["name"] != HIDDEN_HEADER:
            found.append((named["name"], text))
    return found


def field_text(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """A field's value as text, and where it ends: lists and tables as JSON, nothing as None. Raises BadRecord."""
    value, at = _field(data, at, end, 0)
    if value is None or isinstance(value, bytes):
        return value, at
    if isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_text).encode(), at
    return str(value).encode(), at


def _field(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    if at >= end or depth > NESTED_MAX:
        raise BadRecord(f"at byte {at}: a header that is none")
    kind, at = chr(data[at]), at + 1
    if kind == "V":
        return None, at
    size = 1 if kind == "t" else 5 if kind == "D" else _FIXED[kind].size if kind in _FIXED else 4
    if at + size > end:
        raise BadRecord(f"at byte {at}: a header is longer than its table")
    if kind == "t":
        return data[at] != 0, at + 1
    if kind == "D":
        return _decimal(data[at], int.from_bytes(data[at + 1 : at + 5], "big", signed=True)), at + 5
    if kind in _FIXED:
        return _FIXED[kind].unpack_from(data, at)[0], at + size
    begin, at = at + 4, at + 4 + _LONG.unpack_from(data, at)[0]
    if at > end or kind not in "SxAF":
        raise BadRecord(f"at byte {begin}: a header of kind '{kind}' that is none")
    if kind in "Sx":
        return data[begin:at], at
    if kind == "A":
        values = []
        while begin < at:
            value, begin = _field(data, begin, at, depth + 1)
            values.append(value)
        return values, at
    table: dict[str, Any] = {}
    while begin < at:
        named: dict[str, bytes] = {}
        begin = _short(data, begin, at, named, "name")
        table[_text(named["name"])], begin = _field(data, begin, at, depth + 1)
    return table, at


def _decimal(scale: int, digits: int) -> str:
    text = str(abs(digits)).zfill(scale + 1)
    return ("-" if digits < 0 else "") + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


# -- buffers -----------------------------------------------------------------------------------------------------------


def _valid(values: Sequence[Any]) -> tuple[int, bytes | None]:
    nulls = sum(value is None for value in values)
    if not nulls:
        return 0, None
    bits = bytearray((len(values) + 7) // 8)
    for place, value in enumerate(values):
        if value is not None:
            bits[place >> 3] |= 1 << (place & 7)
    return nulls, bytes(bits)


def _offsets(lengths: Sequence[int]) -> bytes:
    offsets = array("i", (0,))
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets.tobytes()


def _bytes_column(values: Sequence[bytes | None], is_text: bool) -> Column:
    offsets, data = _offsets([len(value or b"") for value in values]), b"".join(value or b"" for value in values)
    if is_text and not data.isascii():
        offsets, data = mended(offsets, data)
    return Column(*_valid(values), offsets, data)


def mended(offsets: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Text that is UTF-8, whatever a publisher wrote: what is not is replaced."""
    places = array("i", offsets)
    texts = [_text(data[begin:end]).encode() for begin, end in pairwise(places)]
    return _offsets([len(text) for text in texts]), b"".join(texts)


def _number_column(values: Sequence[int | None]) -> Column:
    return Column(*_valid(values), None, array("q", (value or 0 for value in values)).tobytes())


def _headers_columns(tables: Sequence[list[tuple[bytes, bytes | None]] | None]) -> dict[str, Column]:
    flat = [entry for table in tables for entry in table or ()]
    return {
        HEADERS: Column(*_valid(tables), _offsets([len(table or ()) for table in tables]), b""),
        HEADER_NAMES: _bytes_column([name for name, _ in flat], is_text=True),
        HEADER_VALUES: _bytes_column([value for _, value in flat], is_text=True),
    }
