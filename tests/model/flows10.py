"""Model of ``broker.wire.amqp10.flows``."""

from __future__ import annotations

import struct
from typing import Any, Final

_NULL: Final = b"\x40"
_SMALL: Final = (b"\x43", *(bytes((0x52, number)) for number in range(1, 256)))
_WIDE: Final = struct.Struct(">BI")
_FLOW: Final = b"\0\x53\x13"
_LIST_HEAD: Final = struct.Struct(">II")
_FLOW_NUMBERS, _FLOW_FIELDS = 8, 10


def read(frame: bytes, offset: int) -> tuple[list[Any], int] | None:
    """As the compiled one."""
    at = offset + 6
    if len(frame) < at or not frame.startswith(_FLOW, offset):
        return None
    if frame[offset + 3] == 0xC0:
        end, count = offset + 5 + frame[offset + 4], frame[offset + 5]
    elif frame[offset + 3] == 0xD0 and len(frame) >= offset + 12:
        size, count = _LIST_HEAD.unpack_from(frame, offset + 4)
        at, end = offset + 12, offset + 8 + size
    else:
        return None
    if end > len(frame) or not 4 <= count <= _FLOW_FIELDS:
        return None
    values: list[Any] = [None] * _FLOW_NUMBERS + [False, False]
    for place in range(count):
        code = frame[at] if at < end else -1
        at += 1
        if code == 0x43 and place < _FLOW_NUMBERS:
            values[place] = 0
        elif code == 0x52 and place < _FLOW_NUMBERS and at < end:
            values[place] = frame[at]
            at += 1
        elif code == 0x70 and place < _FLOW_NUMBERS and at + 4 <= end:
            values[place] = int.from_bytes(frame[at : at + 4], "big")
            at += 4
        elif code in (0x41, 0x42) and place >= _FLOW_NUMBERS:
            values[place] = code == 0x41
        elif code != 0x40:
            return None
    if at != end or values[1] is None or values[2] is None or values[3] is None:
        return None
    return values, end


def written(*fields: Any) -> bytes | None:
    """As the compiled one."""
    *numbers, drain, echo = fields
    try:
        pushed = [_NULL if one is None else _SMALL[one] if 0 <= one < 256 else _WIDE.pack(0x70, one) for one in numbers]
    except struct.error:
        return None
    pushed.append(b"\x41" if drain else _NULL)
    pushed.append(b"\x41" if echo else _NULL)
    while pushed[-1] == _NULL:
        pushed.pop()
    items = b"".join(pushed)
    return bytes((0, 0x53, 0x13, 0xC0, len(items) + 1, len(pushed))) + items
