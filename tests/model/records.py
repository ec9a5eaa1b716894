"""Stored messages to columns: the specification of `pipeline/records.pyx`; `pipeline/stored.py` draws the records."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final

from clusterbroker.pipeline.stored import (
    DATA_BYTES_MAX,
    HEADER_NAMES,
    HEADER_VALUES,
    HEADERS,
    NUMBERS,
    SEQ_END,
    TEXTS,
    BadRecord,
    Column,
    Records,
    field_text,
    mended,
    offsets_of,
    short,
)

ENQ: Final = 1
RECORD_BYTES_MIN: Final = 32
ENQ_OVERHEAD_BYTES: Final = 56
FLAGS_AT: Final = 9
HIDDEN_HEADER: Final = b"BCC"
"""Receivers that other receivers are not to see."""
SECONDS_MAX: Final = 253_402_300_799
"""The end of the year 9999. A timestamp beyond is no time that anybody meant, and is left out."""

_RECORD: Final = struct.Struct("<IIB7xQQ")
_ENQ_FIELDS: Final = struct.Struct("<Q8xHxxI")
_SHORT_BITS: Final = (
    (15, "content_type"), (14, "content_encoding"), (13, HEADERS), (12, ""), (11, "priority"), (10, "correlation_id"),
    (9, "reply_to"), (8, "expiration"), (7, "message_id"), (6, "timestamp"), (5, "type"), (4, "user_id"), (3, "app_id"),
)  # fmt: skip
_LONG: Final = struct.Struct(">I")


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
    fields[name], stop = short(data, at, end)
    return stop


# -- header tables -----------------------------------------------------------------------------------------------------


def entries(data: bytes, at: int, end: int) -> list[tuple[bytes, bytes | None]]:
    """Name and value as text of each entry of a field table. Raises BadRecord."""
    found = []
    while at < end:
        name, at = short(data, at, end)
        text, at = field_text(data, at, end)
        if name != HIDDEN_HEADER:
            found.append((name, text))
    return found


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


def _bytes_column(values: Sequence[bytes | None], is_text: bool) -> Column:
    offsets, data = offsets_of([len(value or b"") for value in values]), b"".join(value or b"" for value in values)
    if is_text and not data.isascii():
        offsets, data = mended(offsets, data)
    return Column(*_valid(values), offsets, data)


def _number_column(values: Sequence[int | None]) -> Column:
    return Column(*_valid(values), None, array("q", (value or 0 for value in values)).tobytes())


def _headers_columns(tables: Sequence[list[tuple[bytes, bytes | None]] | None]) -> dict[str, Column]:
    flat = [entry for table in tables for entry in table or ()]
    return {
        HEADERS: Column(*_valid(tables), offsets_of([len(table or ()) for table in tables]), b""),
        HEADER_NAMES: _bytes_column([name for name, _ in flat], is_text=True),
        HEADER_VALUES: _bytes_column([value for _, value in flat], is_text=True),
    }
