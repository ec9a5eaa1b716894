"""Values of AMQP 1.0 between bytes and Python (specification, part 1).

    value        | constructor | data, as the constructor says |
    constructor  | format code u8 |  or  | 0x00 | descriptor value | format code u8 |

A value leaves the node as it came, so a decoded one remembers its type. The most common type of each kind is the plain
Python type; the others are subclasses of it, or types of their own:

    null       None         byte    Int8      float      Float32          binary     bytes
    boolean    bool         short   Int16     double     float            string     str
    ubyte      UInt8        int     Int32     decimal32  Decimal (4 bytes)  symbol   Symbol
    ushort     UInt16       long    int       decimal64  Decimal (8)      list       list
    uint       UInt32       char    Char      decimal128 Decimal (16)     map        dict
    ulong      UInt64       uuid    UUID      timestamp  Milliseconds     array      Array
                                                                          described  Described

What is not kept: how wide a value was written (`encode` writes the shortest form, 1.2), and of two equal keys of a map
the first. Decoding trusts nothing: every length is compared with the bytes that are there before anything is made, and
whatever is malformed raises DecodeError and nothing else. Encoding trusts its caller and raises ValueError or
TypeError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from clusterbroker.broker.wire.numbers import Float32, Int8, Int16, Int32, UInt8, UInt16, UInt32, UInt64

DEPTH_MAX: Final = 32
"""Lists, maps, arrays and descriptors inside each other."""
UUID_BYTES: Final = 16
ENTRIES_MAX: Final = 1 << 17
"""Values of one tree: as many as an unsettled map of 65,536 entries has. A frame's bytes bound most of them, but an
array of values without bytes (null, true) is as long as it says."""


class DecodeError(ValueError):
    """Bytes that are no value of AMQP 1.0, or not the one that belongs there: `amqp:decode-error` (2.8.15)."""


class Symbol(str):
    """ASCII, from a restricted set of names (1.6.21)."""

    __slots__ = ()


class Char(str):
    """One character of Unicode (1.6.16)."""

    __slots__ = ()


class Milliseconds(int):
    """A point in time: milliseconds since 1970 in UTC, 64 bits with a sign (1.6.17)."""

    __slots__ = ()


class Uuid(bytes):
    """16 bytes (1.6.18)."""

    __slots__ = ()

    def __str__(self) -> str:
        """As RFC 4122 writes them."""
        text = self.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    @classmethod
    def parse(cls, text: str) -> Uuid:
        """Raises ValueError."""
        raw = bytes.fromhex(text.replace("-", ""))
        if len(raw) != UUID_BYTES:
            raise ValueError(f"'{text}' is no UUID")
        return cls(raw)


class Decimal(bytes):
    """A decimal of 4, 8 or 16 bytes (IEEE 754-2008, binary integer decimal), which nobody here reckons with."""

    __slots__ = ()


class Described(NamedTuple):
    """A value whose meaning its descriptor says (1.3): a ulong or a symbol, as a rule."""

    descriptor: Any
    value: Any


class Array(list[Any]):
    """Values of one type (1.6.24). `code`: the constructor that `encode` writes for all of them; `descriptor`: before
    it, if each of them is described."""

    __slots__ = ("code", "descriptor")

    def __init__(self, code: int, items: Sequence[Any], descriptor: Any = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Array) and (self.code, self.descriptor) != (other.code, other.descriptor):
            return False
        return super().__eq__(other)

    __hash__ = None


class _Fixed(NamedTuple):
    """A format code whose data has a fixed size."""

    code: int
    name: str
    wire: struct.Struct
    make: Callable[[Any], Any]
    wide: int
    """The code of the same type that holds every value."""


def _boolean(octet: int) -> bool:
    if octet > 1:
        raise DecodeError(f"a boolean of 0x{octet:02x}")
    return octet == 1


def _char(point: int) -> Char:
    try:
        character = chr(point)
        character.encode()
    except (ValueError, OverflowError):
        raise DecodeError(f"a char of 0x{point:x}") from None
    return Char(character)


_U8, _U16, _U32, _U64 = (struct.Struct(form) for form in (">B", ">H", ">I", ">Q"))
_I8, _I16, _I32, _I64 = (struct.Struct(form) for form in (">b", ">h", ">i", ">q"))
_TABLE: Final = (
    _Fixed(0x56, "boolean", _U8, _boolean, 0x56),
    _Fixed(0x50, "ubyte", _U8, UInt8, 0x50),
    _Fixed(0x60, "ushort", _U16, UInt16, 0x60),
    _Fixed(0x70, "uint", _U32, UInt32, 0x70),
    _Fixed(0x52, "uint", _U8, UInt32, 0x70),
    _Fixed(0x80, "ulong", _U64, UInt64, 0x80),
    _Fixed(0x53, "ulong", _U8, UInt64, 0x80),
    _Fixed(0x51, "byte", _I8, Int8, 0x51),
    _Fixed(0x61, "short", _I16, Int16, 0x61),
    _Fixed(0x71, "int", _I32, Int32, 0x71),
    _Fixed(0x54, "int", _I8, Int32, 0x71),
    _Fixed(0x81, "long", _I64, int, 0x81),
    _Fixed(0x55, "long", _I8, int, 0x81),
    _Fixed(0x72, "float", struct.Struct(">4s"), Float32.unpack, 0x72),
    _Fixed(0x82, "double", struct.Struct(">d"), float, 0x82),
    _Fixed(0x74, "decimal32", struct.Struct(">4s"), Decimal, 0x74),
    _Fixed(0x84, "decimal64", struct.Struct(">8s"), Decimal, 0x84),
    _Fixed(0x94, "decimal128", struct.Struct(">16s"), Decimal, 0x94),
    _Fixed(0x73, "char", _U32, _char, 0x73),
    _Fixed(0x83, "timestamp", _I64, Milliseconds, 0x83),
    _Fixed(0x98, "uuid", struct.Struct(">16s"), Uuid, 0x98),
)
_FIXED: Final = {one.code: one for one in _TABLE}
_EMPTY: Final[dict[int, Callable[[], Any]]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: UInt32(0),
    0x44: lambda: UInt64(0),
    0x45: list,
}
"""Codes without data (1.6)."""
_EMPTY_WIDE: Final = {0x40: 0x40, 0x41: 0x56, 0x42: 0x56, 0x43: 0x70, 0x44: 0x80, 0x45: 0xD0}
_BINARY8, _STRING8, _SYMBOL8, _BINARY32, _STRING32, _SYMBOL32 = 0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3
_LIST0, _LIST8, _MAP8, _ARRAY8, _LIST32, _MAP32, _ARRAY32 = 0x45, 0xC0, 0xC1, 0xE0, 0xD0, 0xD1, 0xF0
_DESCRIBED: Final = 0x00


def decode(buf: bytes, offset: int = 0, depth_max: int = DEPTH_MAX, entries_max: int = ENTRIES_MAX) -> tuple[Any, int]:
    """One value and the offset behind it. Raises DecodeError."""
    return _Reader(buf, len(buf), depth_max, entries_max).value(offset, 0)


def decode_all(buf: bytes) -> Any:
    """The one value that all of the bytes are. Raises DecodeError."""
    value, end = decode(buf)
    if end != len(buf):
        raise DecodeError(f"{len(buf) - end} bytes behind a value")
    return value


class _Reader:
    """Reads one tree of values: `depth_max` bounds the recursion, `entries_max` the work."""

    __slots__ = ("buf", "depth_max", "end", "entries_left")

    def __init__(self, buf: bytes, end: int, depth_max: int, entries_max: int) -> None:
        self.buf = buf
        self.end = end
        self.depth_max = depth_max
        self.entries_left = entries_max

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """`depth`: of what it stands in."""
        code, at = self._code(at)
        if code == _DESCRIBED:
            if depth >= self.depth_max:
                raise DecodeError(f"values nested deeper than {self.depth_max}")
            descriptor, at = self.value(at, depth + 1)
            value, at = self.value(at, depth + 1)
            return Described(descriptor, value), at
        return self._data(code, at, depth)

    def _code(self, at: int) -> tuple[int, int]:
        if at >= self.end:
            raise DecodeError("a value is cut off")
        return self.buf[at], at + 1

    def _count_one(self) -> None:
        if not self.entries_left:
            raise DecodeError("too many values")
        self.entries_left -= 1

    def _data(self, code: int, at: int, depth: int) -> tuple[Any, int]:
        """The data behind a constructor."""
        self._count_one()
        fixed = _FIXED.get(code)
        if fixed is not None:
            stop = at + fixed.wire.size
            if stop > self.end:
                raise DecodeError(f"a {fixed.name} is cut off")
            return fixed.make(fixed.wire.unpack_from(self.buf, at)[0]), stop
        if code in _EMPTY:
            return _EMPTY[code](), at
        width = code >> 4
        if width in (0xA, 0xB):
            start, stop = self._extent(at, width == 0xB)
            return self._variable(code, self.buf[start:stop]), stop
        if width in (0xC, 0xD, 0xE, 0xF):
            return self._compound(code, at, depth)
        raise DecodeError(f"unknown format code 0x{code:02x}")

    def _extent(self, at: int, wide: bool) -> tuple[int, int]:
        """Where the data of a length starts and ends."""
        number = _U32 if wide else _U8
        start = at + number.size
        if start > self.end:
            raise DecodeError("a value is cut off")
        stop: int = start + number.unpack_from(self.buf, at)[0]
        if stop > self.end:
            raise DecodeError("a value is longer than its frame")
        return start, stop

    @staticmethod
    def _variable(code: int, raw: bytes) -> Any:
        if code in (_BINARY8, _BINARY32):
            return raw
        if code in (_STRING8, _STRING32):
            try:
                return raw.decode()
            except UnicodeDecodeError:
                raise DecodeError("a string is not UTF-8") from None
        if code in (_SYMBOL8, _SYMBOL32):
            try:
                return Symbol(raw.decode("ascii"))
            except UnicodeDecodeError:
                raise DecodeError("a symbol is not ASCII") from None
        raise DecodeError(f"unknown format code 0x{code:02x}")

    def _compound(self, code: int, at: int, depth: int) -> tuple[Any, int]:
        if depth >= self.depth_max:
            raise DecodeError(f"values nested deeper than {self.depth_max}")
        wide = code in (_LIST32, _MAP32, _ARRAY32)
        if not wide and code not in (_LIST8, _MAP8, _ARRAY8):
            raise DecodeError(f"unknown format code 0x{code:02x}")
        start, stop = self._extent(at, wide)
        number = _U32 if wide else _U8
        if start + number.size > stop:
            raise DecodeError("a list, map or array without its count")
        count: int = number.unpack_from(self.buf, start)[0]
        inner, end = start + number.size, self.end
        self.end = stop
        if code in (_LIST8, _LIST32):
            value, last = self._list(count, inner, depth + 1)
        elif code in (_MAP8, _MAP32):
            value, last = self._map(count, inner, depth + 1)
        else:
            value, last = self._array(count, inner, depth + 1)
        if last != stop:
            raise DecodeError(f"{stop - last} bytes behind the last of {count} values")
        self.end = end
        return value, stop

    def _list(self, count: int, at: int, depth: int) -> tuple[Any, int]:
        items = []
        for _ in range(count):
            item, at = self.value(at, depth)
            items.append(item)
        return items, at

    def _map(self, count: int, at: int, depth: int) -> tuple[Any, int]:
        if count % 2:
            raise DecodeError(f"a map of {count} values: each key needs one")
        entries: dict[Any, Any] = {}
        for _ in range(count // 2):
            key, at = self.value(at, depth)
            value, at = self.value(at, depth)
            if isinstance(key, (list, dict, Described)):
                raise DecodeError("a key of a map is described, or a list, map or array")
            entries.setdefault(key, value)
        return entries, at

    def _array(self, count: int, at: int, depth: int) -> tuple[Any, int]:
        descriptor = None
        code, at = self._code(at)
        if code == _DESCRIBED:
            descriptor, at = self.value(at, depth)
            code, at = self._code(at)
            if code == _DESCRIBED:
                raise DecodeError("an array's descriptor is described")
        items = []
        for _ in range(count):
            item, at = self._data(code, at, depth)
            items.append(item)
        return Array(_wide(code), items, descriptor), at


def _wide(code: int) -> int:
    """The code of the same type that holds every value."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        return fixed.wide
    if code in _EMPTY_WIDE:
        return _EMPTY_WIDE[code]
    return code | 0x10


# -- encoding


def encode(value: Any) -> bytes:
    """The shortest form of a value. Raises ValueError for what does not fit its type, TypeError for what has none."""
    return _encoder(value)(value)


def _encoder(value: Any) -> Callable[[Any], bytes]:
    for base in type(value).__mro__:
        found = _ENCODERS.get(base)
        if found is not None:
            return found
    raise TypeError(f"{type(value).__name__} is no type of AMQP 1.0")


def _packed(code: int, wire: struct.Struct, value: Any) -> bytes:
    try:
        return bytes((code,)) + wire.pack(value)
    except struct.error:
        raise ValueError(f"{value!r} does not fit into a {_FIXED[code].name}") from None


def _whole(wide: int, wire: struct.Struct) -> Callable[[Any], bytes]:
    return lambda value: _packed(wide, wire, value)


def _shortest(wide: int, wire: struct.Struct, short: int, zero: int | None, signed: bool) -> Callable[[Any], bytes]:
    low, high, small = (-128, 127, _I8) if signed else (0, 255, _U8)

    def push(value: int) -> bytes:
        if value == 0 and zero is not None:
            return bytes((zero,))
        if low <= value <= high:
            return bytes((short,)) + small.pack(value)
        return _packed(wide, wire, value)

    return push


def _text(short: int) -> Callable[[Any], bytes]:
    def push(value: Any) -> bytes:
        raw = value if isinstance(value, bytes) else value.encode("ascii" if short == _SYMBOL8 else "utf-8")
        return bytes((short, len(raw))) + raw if len(raw) < 256 else bytes((short | 0x10,)) + _U32.pack(len(raw)) + raw

    return push


def _push_decimal(value: Decimal) -> bytes:
    codes = {4: 0x74, 8: 0x84, 16: 0x94}
    if len(value) not in codes:
        raise ValueError(f"a decimal of {len(value)} bytes")
    return bytes((codes[len(value)],)) + value


def _counted(short: int, count: int, items: bytes) -> bytes:
    if len(items) < 255 and count < 256:
        return bytes((short, len(items) + 1, count)) + items
    return bytes((short | 0x10,)) + _U32.pack(len(items) + 4) + _U32.pack(count) + items


def encode_list(items: Sequence[bytes]) -> bytes:
    """A list of values that are encoded already."""
    return _counted(_LIST8, len(items), b"".join(items)) if items else bytes((_LIST0,))


def _push_map(value: Mapping[Any, Any]) -> bytes:
    entries = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _counted(_MAP8, 2 * len(value), entries)


def _push_array(value: Array) -> bytes:
    head = bytes((value.code,))
    if value.descriptor is not None:
        head = bytes((_DESCRIBED,)) + encode(value.descriptor) + head
    return _counted(_ARRAY8, len(value), head + b"".join(_element(value.code, item) for item in value))


def _element(code: int, item: Any) -> bytes:
    """The data of one value behind the constructor that all have."""
    fixed = _FIXED.get(code)
    if fixed is not None:
        raw = item.raw if isinstance(item, Float32) else item
        return _packed(code, fixed.wire, ord(raw) if isinstance(raw, Char) else raw)[1:]
    if code == 0x40:
        return b""
    if code in (_LIST32, _MAP32, _ARRAY32):
        pushed = encode(item)
        if pushed[0] == code:
            return pushed[1:]
        if pushed == bytes((_LIST0,)):
            return _U32.pack(4) + _U32.pack(0)
        if pushed[0] != code ^ 0x10:
            raise ValueError("an array of values of one type has one of another")
        return _U32.pack(pushed[1] + 3) + _U32.pack(pushed[2]) + pushed[3:]
    raw = item if isinstance(item, bytes) else item.encode()
    return (_U32 if code & 0x10 else _U8).pack(len(raw)) + raw


def symbols(names: Sequence[str]) -> Array:
    """An array of symbols, each of less than 256 characters."""
    return Array(_SYMBOL8, [Symbol(name) for name in names])


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UInt8: _whole(0x50, _U8),
    UInt16: _whole(0x60, _U16),
    UInt32: _shortest(0x70, _U32, 0x52, 0x43, signed=False),
    UInt64: _shortest(0x80, _U64, 0x53, 0x44, signed=False),
    Int8: _whole(0x51, _I8),
    Int16: _whole(0x61, _I16),
    Int32: _shortest(0x71, _I32, 0x54, None, signed=True),
    int: _shortest(0x81, _I64, 0x55, None, signed=True),
    Milliseconds: _whole(0x83, _I64),
    Float32: lambda value: b"\x72" + value.raw,
    float: _whole(0x82, struct.Struct(">d")),
    Decimal: _push_decimal,
    Char: lambda value: b"\x73" + _U32.pack(ord(value)),
    Uuid: lambda value: b"\x98" + value,
    bytes: _text(_BINARY8),
    str: _text(_STRING8),
    Symbol: _text(_SYMBOL8),
    Array: _push_array,
    Described: lambda value: b"\0" + encode(value.descriptor) + encode(value.value),
    dict: _push_map,
    list: lambda value: encode_list([encode(item) for item in value]),
    tuple: lambda value: encode_list([encode(item) for item in value]),
}
"""By type; of a subclass of several the nearest. Described before tuple, which it is as well."""
