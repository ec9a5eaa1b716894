"""Field tables: the typed dictionaries of AMQP 0-9-1, between bytes and Python values (specification 4.2.5.5).

    table  | length u32 | (name shortstr, value)* |      array  | length u32 | value* |
    value  | tag u8     | as its tag says         |

A field table must leave this node exactly as it came (headers are forwarded unchanged), so a decoded value
remembers its wire type. The most common type of each kind is the plain Python type; the others are subclasses of
it, which compare and calculate like it. Tags have RabbitMQ's meaning, where the specification and its clients
disagree (https://www.rabbitmq.com/amqp-0-9-1-errata, section 3):

    tag  wire                   Python          tag  wire                        Python
    t    one octet, 0 or not    bool            f    IEEE 754, 32 bits           Float32
    b    signed 8 bits          Int8            d    IEEE 754, 64 bits           float
    B    unsigned 8 bits        UInt8           D    scale u8, unscaled i32      Decimal
    s    signed 16 bits         Int16           S    longstr of valid UTF-8      str
    u    unsigned 16 bits       UInt16          S    longstr of other bytes      LongBytes
    I    signed 32 bits         Int32           x    longstr                     bytes
    i    unsigned 32 bits       UInt32          T    unsigned 64 bits, seconds   Timestamp
    l    signed 64 bits         int             A    array                       list
    L    signed 64 bits         Int64L          F    table                       dict
                                                V    nothing                     None

What is not kept: a bool other than 0 and 1 becomes 1, and of two fields with the same name the last one wins (at
the place of the first). Names of fields are text; bytes that are not UTF-8 are carried through it by
``surrogateescape``, as RabbitMQ carries them. A timestamp stays a number: its 64 bits reach beyond any calendar.

Pulling trusts nothing and raises ``syntax_error`` (502) alone; pushing trusts its caller and raises ``ValueError``
or ``TypeError``. The elementary domains (short strings, numbers, bits) live in ``domains.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Final, TypeAlias

from msgspec import Struct

from clusterbroker.broker.wire.amqp091.domains import pull_extent, push_long, push_longstr, push_shortstr
from clusterbroker.broker.wire.amqp091.errors import syntax_error
from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, Int64L, UInt8, UInt16, UInt32
from clusterbroker.journal.values import LongBytes, Timestamp

FieldValue: TypeAlias = "bool | int | float | str | bytes | Decimal | list[FieldValue] | dict[str, FieldValue] | None"
FieldTable: TypeAlias = dict[str, FieldValue]
Table = Annotated[FieldTable, "table"]


_I64: Final = struct.Struct(">q")
_DECIMAL: Final = struct.Struct(">Bi")

_DEPTH_LIMIT: Final = 200
"""No deeper nesting is pulled or pushed whatever the options say: Python's stack holds about 1,000 calls."""


class FieldLimits(Struct, frozen=True):
    """How large a field table a peer may send. Anything larger is a syntax error."""

    depth_max: int = 64
    """Tables and arrays inside each other; the outermost table counts as 1. At most 200."""
    entries_max: int = 10_000
    """Values in the whole tree, tables and arrays included."""

    def __post_init__(self) -> None:
        if not 1 <= self.depth_max <= _DEPTH_LIMIT:
            raise ValueError(f"depth_max must lie between 1 and {_DEPTH_LIMIT}, not {self.depth_max}")
        if self.entries_max < 0:
            raise ValueError(f"entries_max must not be negative, not {self.entries_max}")


DEFAULT_LIMITS: Final = FieldLimits()
"""What a client may send: at the publish, and nowhere later."""

STORED_LIMITS: Final = FieldLimits(depth_max=128, entries_max=2**32 - 1)
"""What was accepted once, and what the broker made of it: nothing of that exceeds them. Its bytes bound the values,
for each takes one at least. The broker nests what it tells of a message two levels deeper (the firehose), and a dead
letter's history is four levels deep; so twice the depth of a publish is never reached."""


class _Scalar(Struct, frozen=True):
    """A tag whose value has a fixed size, the Python type that stands for it, and RabbitMQ's name."""

    tag: str
    wire: struct.Struct
    type: type
    name: str

    def unpacker(self) -> Callable[[Any], FieldValue]:
        """What turns the unpacked number into its Python value."""
        return Float32.unpack if self.type is Float32 else self.type


_SCALARS: Final = (
    _Scalar("t", struct.Struct(">B"), bool, "bool"),
    _Scalar("b", struct.Struct(">b"), Int8, "byte"),
    _Scalar("B", struct.Struct(">B"), UInt8, "unsignedbyte"),
    _Scalar("s", struct.Struct(">h"), Int16, "short"),
    _Scalar("u", struct.Struct(">H"), UInt16, "unsignedshort"),
    _Scalar("I", struct.Struct(">i"), Int32, "signedint"),
    _Scalar("i", struct.Struct(">I"), UInt32, "unsignedint"),
    _Scalar("l", _I64, int, "long"),
    _Scalar("L", _I64, Int64L, "long"),
    _Scalar("T", struct.Struct(">Q"), Timestamp, "timestamp"),
    _Scalar("f", struct.Struct(">4s"), Float32, "float"),
    _Scalar("d", struct.Struct(">d"), float, "double"),
)
_UNPACK: Final = {ord(scalar.tag): (scalar.wire, scalar.unpacker()) for scalar in _SCALARS}
_STRING, _BINARY, _TABLE, _ARRAY, _DECIMAL_TAG, _VOID = b"SxFADV"
_PACK: Final[dict[type, _Scalar]] = {scalar.type: scalar for scalar in _SCALARS}
_TYPES: Final = frozenset({*_PACK, str, LongBytes, bytes, Decimal, dict, list, tuple, type(None)})


def _known_type(value: FieldValue) -> type:
    """The field type that a value's class is or descends from. Raises ``TypeError`` if there is none."""
    for base in type(value).__mro__:
        if base in _TYPES:
            return base
    raise TypeError(f"{type(value).__name__} is not a field type")


def pull_table(buf: bytes, offset: int, limits: FieldLimits = DEFAULT_LIMITS) -> tuple[FieldTable, int]:
    """A field table and the offset behind it (specification 4.2.5.5)."""
    start, end = pull_extent(buf, offset, len(buf), "table")
    return _TableReader(buf, limits).table(start, end, 1), end


def decode_fields(raw: bytes, limits: FieldLimits = DEFAULT_LIMITS) -> FieldTable:
    """The fields of a table without its length in front, as an AMQPLAIN response carries them."""
    return _TableReader(raw, limits).table(0, len(raw), 1)


class _TableReader:
    """Reads one tree of tables and arrays: ``depth_max`` bounds the recursion, ``entries_max`` the work."""

    __slots__ = ("buf", "depth_max", "entries_left", "entries_max")

    def __init__(self, buf: bytes, limits: FieldLimits) -> None:
        self.buf = buf
        self.depth_max = limits.depth_max
        self.entries_max = self.entries_left = limits.entries_max

    def table(self, offset: int, end: int, depth: int) -> FieldTable:
        if depth > self.depth_max:
            raise syntax_error(f"field table nested deeper than {self.depth_max}")
        fields: FieldTable = {}
        while offset < end:
            start = offset + 1 + self.buf[offset]
            if start > end:
                raise syntax_error("truncated field name")
            name = self.buf[offset + 1 : start].decode("utf-8", "surrogateescape")
            fields[name], offset = self.value(start, end, depth)
        return fields

    def array(self, offset: int, end: int, depth: int) -> list[FieldValue]:
        if depth > self.depth_max:
            raise syntax_error(f"field table nested deeper than {self.depth_max}")
        items: list[FieldValue] = []
        while offset < end:
            item, offset = self.value(offset, end, depth)
            items.append(item)
        return items

    def value(self, offset: int, end: int, depth: int) -> tuple[FieldValue, int]:
        if offset >= end:
            raise syntax_error("truncated field value")
        if not self.entries_left:
            raise syntax_error(f"more than {self.entries_max} values in a field table")
        self.entries_left -= 1
        tag = self.buf[offset]
        offset += 1
        if tag == _STRING:
            start, stop = pull_extent(self.buf, offset, end, "field value")
            raw = self.buf[start:stop]
            try:
                return raw.decode("utf-8"), stop
            except UnicodeDecodeError:
                return LongBytes(raw), stop
        if tag in _UNPACK:
            number, make = _UNPACK[tag]
            stop = offset + number.size
            if stop > end:
                raise syntax_error("truncated field value")
            return make(number.unpack_from(self.buf, offset)[0]), stop
        if tag == _TABLE:
            start, stop = pull_extent(self.buf, offset, end, "field value")
            return self.table(start, stop, depth + 1), stop
        if tag == _ARRAY:
            start, stop = pull_extent(self.buf, offset, end, "field value")
            return self.array(start, stop, depth + 1), stop
        if tag == _BINARY:
            start, stop = pull_extent(self.buf, offset, end, "field value")
            return self.buf[start:stop], stop
        if tag == _VOID:
            return None, offset
        if tag == _DECIMAL_TAG:
            stop = offset + _DECIMAL.size
            if stop > end:
                raise syntax_error("truncated field value")
            scale, unscaled = _DECIMAL.unpack_from(self.buf, offset)
            digits = tuple(map(int, str(abs(unscaled))))
            return Decimal((int(unscaled < 0), digits, -scale)), stop
        raise syntax_error(f"unknown field type 0x{tag:02x}")


def push_table(table: Mapping[str, FieldValue]) -> bytes:
    """A field table with its length.

    Raises ``ValueError`` for a value outside its type's range, a name beyond 255 bytes or nesting beyond 200, and
    ``TypeError`` for a value that has no field type.
    """
    out = bytearray()
    _push_table(out, table, 1)
    return bytes(out)


def _push_table(out: bytearray, table: Mapping[str, FieldValue], depth: int) -> None:
    start = _open_extent(out, depth)
    for name, value in table.items():
        out += push_shortstr(name)
        _push_value(out, value, depth)
    _close_extent(out, start)


def _push_array(out: bytearray, items: Sequence[FieldValue], depth: int) -> None:
    start = _open_extent(out, depth)
    for item in items:
        _push_value(out, item, depth)
    _close_extent(out, start)


def _open_extent(out: bytearray, depth: int) -> int:
    if depth > _DEPTH_LIMIT:
        raise ValueError(f"field table nested deeper than {_DEPTH_LIMIT}")
    out += b"\0\0\0\0"
    return len(out)


def _close_extent(out: bytearray, start: int) -> None:
    out[start - 4 : start] = push_long(len(out) - start)


def _push_value(out: bytearray, value: FieldValue, depth: int) -> None:
    scalar = _PACK.get(_known_type(value))
    if scalar is not None:
        out += scalar.tag.encode()
        try:
            out += scalar.wire.pack(value.raw if isinstance(value, Float32) else value)
        except struct.error:
            raise ValueError(f"{value!r} does not fit into a field of type {scalar.name}") from None
    elif isinstance(value, str):
        out += b"S" + push_longstr(value.encode("utf-8", "surrogateescape"))
    elif isinstance(value, bytes):
        out += (b"S" if isinstance(value, LongBytes) else b"x") + push_longstr(value)
    elif isinstance(value, dict):
        out += b"F"
        _push_table(out, value, depth + 1)
    elif isinstance(value, list | tuple):
        out += b"A"
        _push_array(out, value, depth + 1)
    elif isinstance(value, Decimal):
        out += b"D" + _push_decimal(value)
    else:
        assert value is None, "every known type has its branch"
        out += b"V"


def _push_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is not a number")
    if exponent > 10 or len(digits) > 10:
        raise ValueError(f"{value} does not fit into a field of type decimal")
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0) * (-1 if sign else 1)
    try:
        return _DECIMAL.pack(max(-exponent, 0), unscaled)
    except struct.error:
        raise ValueError(f"{value} does not fit into a field of type decimal") from None
