"""Where a delivery that was transferred in part goes on (specification 3.4.1): a section of its message, and an offset.

Sections are numbered from 0, an offset counts the bytes of one as it is encoded. Values in, values out; bytes that are
no sections have no place but their beginning.
"""

from __future__ import annotations

import struct
from typing import Final

from clusterbroker.broker.wire.amqp10.performatives import Received

DEPTH_MAX: Final = 32
"""Descriptors of descriptors."""
OWN_SECTIONS: Final = 2
"""Header and annotations, which the node writes anew each time."""
BEGINNING: Final = Received(section_number=0, section_offset=0)
_U32: Final = struct.Struct(">I")
_FIXED: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""Bytes of a value by the high half of its format code (1.2)."""


def place_of(part: bytes) -> Received:
    """How far a message has come of which these are the first bytes."""
    at = number = 0
    while at < len(part):
        end = _end(part, at)
        if end is None or end > len(part):
            break
        at, number = end, number + 1
    return Received(section_number=number, section_offset=len(part) - at)


def offset_of(message: bytes, place: Received) -> int | None:
    """The byte of a message, or of its first part, at which this place is; None: it is not in there."""
    at = 0
    for _ in range(place.section_number):
        end = _end(message, at) if at < len(message) else None
        if end is None or end > len(message):
            return None
        at = end
    offset = at + int(place.section_offset)
    end = _end(message, at) if at < len(message) else at
    return offset if offset <= min(len(message), len(message) if end is None else end) else None


def resumed_at(message: bytes, place: Received) -> tuple[Received, int]:
    """Where a message is resumed that its receiver has up to this place, and the byte of it: not in the sections that
    are not what they were, and from the beginning if the receiver cannot have come so far."""
    offset = None if place.section_number < OWN_SECTIONS else offset_of(message, place)
    return (BEGINNING, 0) if offset is None else (place, offset)


def _end(data: bytes, at: int, depth: int = 0) -> int | None:
    """Where the value that begins here ends, which may be behind the data; None: the data do not say."""
    if at >= len(data) or depth > DEPTH_MAX:
        return None
    code = data[at]
    if not code:
        behind = _end(data, at + 1, depth + 1)
        return None if behind is None else _end(data, behind, depth + 1)
    kind = code >> 4
    if kind in _FIXED:
        return at + 1 + _FIXED[kind]
    if kind in (0xA, 0xC, 0xE):
        return at + 2 + data[at + 1] if at + 2 <= len(data) else None
    if kind in (0xB, 0xD, 0xF):
        return at + 5 + int(_U32.unpack_from(data, at + 1)[0]) if at + 5 <= len(data) else None
    return None
