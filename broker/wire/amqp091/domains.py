"""The elementary domains of AMQP 0-9-1 (specification 4.2.5): numbers, strings and packed bits, as bytes.

    octet      | u8  |                          shortstr | length u8  | bytes, UTF-8 |
    short      | u16 |                          longstr  | length u32 | bytes        |
    long       | u32 |                          bits     | up to 8 in an octet, the first one lowest |
    longlong   | u64 |                          timestamp, seconds: as longlong

``pull_x(buf, offset)`` reads one value and returns it with the offset behind it; ``push_x(value)`` gives the
bytes. Pulling trusts nothing: every length is compared with the bytes that are there before anything is made, and
whatever is malformed raises ``syntax_error`` (502, closes the connection) and nothing else. Pushing trusts its
caller: a value that does not fit its domain is our own mistake and raises ``ValueError``.

The ``Annotated`` names are the vocabulary in which ``methods.py`` and ``properties.py`` declare their fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Annotated, Final

from clusterbroker.broker.wire.amqp091.errors import syntax_error

Bit = Annotated[bool, "bit"]
Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
Long = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
TimestampS = Annotated[int, "timestamp"]
ShortStr = Annotated[str, "shortstr"]
LongStr = Annotated[bytes, "longstr"]

_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


def _pull_number(number: struct.Struct, name: str) -> Callable[[bytes, int], tuple[int, int]]:
    def pull(buf: bytes, offset: int) -> tuple[int, int]:
        end = offset + number.size
        if end > len(buf):
            raise syntax_error(f"truncated {name}")
        return number.unpack_from(buf, offset)[0], end

    pull.__doc__ = f"An unsigned number of {8 * number.size} bits and the offset behind it."
    return pull


pull_octet: Final = _pull_number(_U8, "octet")
pull_short: Final = _pull_number(_U16, "short")
pull_long: Final = _pull_number(_U32, "long")
pull_longlong: Final = _pull_number(_U64, "longlong")


def pull_shortstr(buf: bytes, offset: int, errors: str = "strict") -> tuple[str, int]:
    """A short string and the offset behind it (specification 4.2.5.3: up to 255 octets of UTF-8).

    ``errors`` is Python's word for bytes that are not UTF-8: ``strict`` refuses them with a syntax error,
    ``surrogateescape`` carries them through the text so that ``push_shortstr`` gives them back.
    """
    if offset >= len(buf):
        raise syntax_error("truncated shortstr")
    start = offset + 1
    end = start + buf[offset]
    if end > len(buf):
        raise syntax_error("truncated shortstr")
    try:
        return buf[start:end].decode("utf-8", errors), end
    except UnicodeDecodeError:
        raise syntax_error("malformed UTF-8 in shortstr") from None


def pull_longstr(buf: bytes, offset: int) -> tuple[bytes, int]:
    """A long string and the offset behind it. It holds any bytes (specification 4.2.5.3)."""
    start, end = pull_extent(buf, offset, len(buf), "longstr")
    return buf[start:end], end


def pull_bits(buf: bytes, offset: int, count: int) -> tuple[list[bool], int]:
    """``count`` bits and the offset behind their octets: eight to an octet, the first one lowest (4.2.5.2)."""
    end = offset + (count + 7) // 8
    if end > len(buf):
        raise syntax_error("truncated bits")
    packed = int.from_bytes(buf[offset:end], "little")
    return [packed >> place & 1 == 1 for place in range(count)], end


def pull_extent(buf: bytes, offset: int, limit: int, name: str) -> tuple[int, int]:
    """Where the content of a u32-counted value starts and ends; both lie before ``limit``."""
    start = offset + 4
    if start > limit:
        raise syntax_error(f"truncated {name}")
    end: int = start + _U32.unpack_from(buf, offset)[0]
    if end > limit:
        raise syntax_error(f"truncated {name}")
    return start, end


def _push_number(number: struct.Struct, name: str) -> Callable[[int], bytes]:
    def push(value: int) -> bytes:
        try:
            return number.pack(value)
        except struct.error:
            raise ValueError(f"{value!r} does not fit into a {name}") from None

    push.__doc__ = f"An unsigned number of {8 * number.size} bits. Raises ``ValueError`` if it does not fit."
    return push


push_octet: Final = _push_number(_U8, "octet")
push_short: Final = _push_number(_U16, "short")
push_long: Final = _push_number(_U32, "long")
push_longlong: Final = _push_number(_U64, "longlong")


def push_shortstr(text: str) -> bytes:
    """A short string. Raises ``ValueError`` beyond 255 bytes of UTF-8."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raise ValueError(f"{len(raw)} bytes do not fit into a shortstr")
    return bytes((len(raw),)) + raw


def push_longstr(raw: bytes) -> bytes:
    """A long string of any bytes."""
    return push_long(len(raw)) + raw


def push_bits(*bits: bool) -> bytes:
    """Bits, eight to an octet, the first one lowest."""
    packed = 0
    for place, bit in enumerate(bits):
        if bit:
            packed |= 1 << place
    return packed.to_bytes((len(bits) + 7) // 8, "little")
