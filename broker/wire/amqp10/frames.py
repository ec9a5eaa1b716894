"""Frames of AMQP 1.0 that are written one at a time (specification 2.3.1); transfers are `fronts.amqp10.delivery`'s.

frame   | size u32 | data offset u8, in words | type u8 | channel u16, or nothing | performative | payload |
"""

from __future__ import annotations

import struct
from typing import Final

from clusterbroker.broker.wire.amqp10.performatives import Accepted, Composite, Disposition

HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
FRAME_MIN_BYTES: Final = 512
"""The smallest max-frame-size that a peer may ask for (2.7.1)."""
AMQP: Final = 0
SASL: Final = 1

_HEAD: Final = struct.Struct(">IBBH")
EMPTY: Final = _HEAD.pack(_HEAD.size, 2, AMQP, 0)
"""Says that its sender lives (2.4.5)."""
_ACCEPTED: Final = Accepted().encoded()


def frame(channel: int, performative: Composite, kind: int = AMQP) -> bytes:
    """One frame without a payload."""
    body = performative.encoded()
    return _HEAD.pack(_HEAD.size + len(body), 2, kind, channel) + body


def _uint(number: int) -> bytes:
    if number > 255:
        return b"\x70" + number.to_bytes(4)
    return bytes((0x52, number)) if number else b"\x43"


def accepted(channel: int, role: bool, first: int, last: int, settled: bool) -> bytes:
    """The disposition that there are most of: what `frame` makes of `Disposition`."""
    fields = (b"\x41" if role else b"\x42") + _uint(first) + _uint(last)
    fields += (b"\x41" if settled else b"\x42") + _ACCEPTED
    body = bytes((0, 0x53, Disposition.CODE, 0xC0, len(fields) + 1, 5)) + fields
    return _HEAD.pack(_HEAD.size + len(body), 2, AMQP, channel) + body
