"""The parts of `records` that are plain Python: names of columns, types, and headers as text.

What a stream hands out in chunks, and what its files hold, are ENQ records as `journal/layout.py` draws them:

     0  u32 length, without padding   4  u32 checksum          8  u8 kind (1)   9  u8 flags (128: redelivered)
    16  u64 queue id                 24  u64 seq
    32  u64 time_ms   40  i64 ttl_ms  48  u16 length of address   52  u32 length of header
    56  address (exchange, routing key: short strings) | header (property flags, properties) | body

each padded to 8 bytes. `records.decode` makes of them the buffers that Arrow makes its arrays of: a bit per row for "is
there", 32-bit offsets, bytes end to end. So no row ever becomes an object, and nothing here knows of Arrow. A record's
offset is its seq - 1. Bytes that are no record raise BadRecord; checksums are for those who read files.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

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
NESTED_MAX: Final = 128
"""No broker takes or makes a message with deeper headers (`broker.wire.amqp091.fields.STORED_LIMITS`)."""
SEQ_END: Final = 2**62

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
        name, begin = short(data, begin, at)
        table[_text(name)], begin = _field(data, begin, at, depth + 1)
    return table, at


def short(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """The short string at `at`, and where it ends. Raises BadRecord."""
    stop = at + 1 + (data[at] if at < end else 0)
    if at >= end or stop > end:
        raise BadRecord(f"at byte {at}: a short string is longer than what holds it")
    return data[at + 1 : stop], stop


def _decimal(scale: int, digits: int) -> str:
    text = str(abs(digits)).zfill(scale + 1)
    return ("-" if digits < 0 else "") + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def offsets_of(lengths: Sequence[int]) -> bytes:
    """Where values of these lengths begin and end, as 32-bit integers: one more than there are values."""
    offsets = array("i", (0,))
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return offsets.tobytes()


def mended(offsets: bytes, data: bytes) -> tuple[bytes, bytes]:
    """Text that is UTF-8, whatever a publisher wrote: what is not is replaced."""
    places = array("i", offsets)
    texts = [_text(data[begin:end]).encode() for begin, end in pairwise(places)]
    return offsets_of([len(text) for text in texts]), b"".join(texts)
