"""Numbers that remember their width: what a protocol's typed values become in Python.

The most common type of each kind is the plain Python type (`int` is 64 bits with a sign, `float` is a double); the
others are subclasses of it, which compare and calculate like it, so that a value leaves the node as it came.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

_F32: Final = struct.Struct(">f")


class Int8(int):
    """-2^7 to 2^7 - 1. AMQP 0-9-1: tag `b`; AMQP 1.0: byte."""

    __slots__ = ()


class UInt8(int):
    """0 to 2^8 - 1. AMQP 0-9-1: tag `B`; AMQP 1.0: ubyte."""

    __slots__ = ()


class Int16(int):
    """-2^15 to 2^15 - 1. AMQP 0-9-1: tag `s`; AMQP 1.0: short."""

    __slots__ = ()


class UInt16(int):
    """0 to 2^16 - 1. AMQP 0-9-1: tag `u`; AMQP 1.0: ushort."""

    __slots__ = ()


class Int32(int):
    """-2^31 to 2^31 - 1. AMQP 0-9-1: tag `I`, which most clients give a small integer; AMQP 1.0: int."""

    __slots__ = ()


class UInt32(int):
    """0 to 2^32 - 1. AMQP 0-9-1: tag `i`; AMQP 1.0: uint."""

    __slots__ = ()


class UInt64(int):
    """0 to 2^64 - 1. AMQP 1.0: ulong."""

    __slots__ = ()


class Int64L(int):
    """Tag `L` of AMQP 0-9-1: the second spelling of a signed 64-bit integer; a plain `int` has tag `l`."""

    __slots__ = ()


class Float32(float):
    """AMQP 0-9-1: tag `f`; AMQP 1.0: float. Keeps its four bytes, because Python's own float would silence a signalling
    NaN."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, value: float) -> Float32:
        """The nearest 32-bit number. Raises ``OverflowError`` beyond about 3.4e38."""
        return cls.unpack(_F32.pack(value))

    @classmethod
    def unpack(cls, raw: bytes) -> Float32:
        """The number that these four bytes hold."""
        number = float.__new__(cls, _F32.unpack(raw)[0])
        number.raw = raw
        return number

    def __reduce__(self) -> tuple[Callable[[bytes], Float32], tuple[bytes]]:
        return Float32.unpack, (self.raw,)
