"""Typed values of argument and header tables: when two are the same, and how they are stored.

A field table says of each value which of some twenty wire types it has, and clients choose among them by accident: one
library writes 10 as a short, the next one as a long. RabbitMQ therefore compares by *type class* (amqp-rules 5.3):
integers of every width are one class, both float widths are one class, and every other type is a class by itself. So
short 10 equals long 10, while 10, 10.0, "10" and true are four different values; a timestamp is no integer either.

    class      Python                      stored as (msgpack)
    void       None                        nil
    boolean    bool                        bool
    integer    int of any width            int
    timestamp  Timestamp                   extension 1: u64, big-endian
    float      float of any width          float 64
    string     str (valid UTF-8)           str
    string     LongBytes (other bytes)     extension 2: the bytes
    bytes      bytes                       bin
    decimal    Decimal                     extension 3: its text
    array      list                        array
    table      dict                        map

`canonical` maps a value to a hashable pair (class, value): two values are the same exactly when their pairs are equal.
Headers exchanges match with it, bindings take their identity from it, and redeclarations compare by it. `stored` maps a
value to the one Python value of its class that the table names; STORED and `restored` are for msgspec's coders.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

_EXT_TIMESTAMP: Final = 1
_EXT_LONG_BYTES: Final = 2
_EXT_DECIMAL: Final = 3
_U64: Final = struct.Struct(">Q")

Canonical = tuple[str, Hashable]

VOID: Canonical = ("void", None)


class Timestamp(int):
    """Seconds since 1970 in UTC, 0 to 2^64 - 1."""

    __slots__ = ()
    more_ms = 0
    """What is left of a time in milliseconds (`FineTimestamp`)."""


class FineTimestamp(Timestamp):
    """The seconds of a time that was given in milliseconds. AMQP 0-9-1 keeps the seconds alone."""

    more_ms: int

    @classmethod
    def of(cls, time_ms: int) -> FineTimestamp:
        """From ms since 1970."""
        made = cls(time_ms // 1000)
        made.more_ms = time_ms % 1000
        return made


class LongBytes(bytes):
    """A string whose bytes are not UTF-8; plain ``bytes`` are a byte array."""

    __slots__ = ()


class StoredDecimal(Decimal):
    """A decimal that is stored as one: msgspec would write a plain one as a text."""

    __slots__ = ()


def canonical(value: object) -> Canonical:
    """The (type class, value) of one field value; nested tables and arrays are followed.

    A longstr is one class whether it holds text or other bytes; a byte array (tag `x`) is another. Recursion
    is as deep as the value, which the frame decoder has limited (64 by default).
    """
    if isinstance(value, str):
        return ("string", value)
    # bool before int, and Timestamp before int: Python derives both from int, AMQP does not
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, Timestamp):
        return ("timestamp", int(value))
    if isinstance(value, int):
        return ("integer", int(value))
    if value is None:
        return VOID
    if isinstance(value, float):
        # NaN differs from itself, and a binding made with it could never be removed
        return ("float", "nan" if math.isnan(value) else float(value))
    if isinstance(value, LongBytes):
        return ("string", bytes(value))
    if isinstance(value, bytes):
        return ("bytes", value)
    if isinstance(value, Decimal):
        return ("decimal", Decimal(value))
    if isinstance(value, Mapping):
        return ("table", canonical_table(value))
    if isinstance(value, Sequence):
        return ("array", tuple(canonical(item) for item in value))
    return (type(value).__name__, repr(value))


def canonical_table(table: Mapping[str, object]) -> tuple[tuple[str, Canonical], ...]:
    """A table as a hashable value; the order in which its keys were written does not matter."""
    return tuple((key, canonical(table[key])) for key in sorted(table)) if table else ()


def stored(value: Any) -> Any:
    """The value of the same class that the wiring keeps. Raises TypeError for what is no field value."""
    if value is None or isinstance(value, (bool, Timestamp, LongBytes)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Decimal):
        return StoredDecimal(value)
    if isinstance(value, Mapping):
        return {str(key): stored(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [stored(item) for item in value]
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored in the wiring log")


def extended(value: Any) -> Any:
    """For msgspec's encoders (`enc_hook`): what stands in the table for a value that msgpack has no form for. Raises
    TypeError."""
    if isinstance(value, Timestamp):
        return msgspec.msgpack.Ext(_EXT_TIMESTAMP, _U64.pack(value))
    if isinstance(value, LongBytes):
        return msgspec.msgpack.Ext(_EXT_LONG_BYTES, bytes(value))
    if isinstance(value, StoredDecimal):
        return msgspec.msgpack.Ext(_EXT_DECIMAL, str(value).encode())
    return stored(value)


def restored(code: int, data: memoryview) -> Any:
    """For msgspec's decoders (`ext_hook`): the value of an extension. Raises ValueError."""
    if code == _EXT_TIMESTAMP and len(data) == _U64.size:
        return Timestamp(_U64.unpack(data)[0])
    if code == _EXT_LONG_BYTES:
        return LongBytes(data)
    if code == _EXT_DECIMAL:
        try:
            return StoredDecimal(bytes(data).decode("ascii"))
        except ArithmeticError as error:
            raise ValueError("an extension says that it is a decimal, and is none") from error
    raise ValueError(f"no value has extension {code} with {len(data)} bytes: it comes from a newer release")
