"""Bytes to frames and back (specification 2.3.1). Of a frame's size is known before anything of it is read."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from clusterbroker.amqp10.client.errors import ProtocolError
from clusterbroker.broker.wire.amqp10.frames import AMQP, FRAME_MIN_BYTES, SASL
from clusterbroker.broker.wire.amqp10.performatives import Composite, decode
from clusterbroker.broker.wire.amqp10.types import DecodeError

_HEAD: Final = struct.Struct(">IBBH")
HEADER_BYTES: Final = 8


class Frame(NamedTuple):
    """`kind`: AMQP or SASL; `header`: the eight bytes of a protocol header, which is no frame; `body` None: empty."""

    kind: int = AMQP
    channel: int = 0
    body: Composite | None = None
    payload: bytes = b""
    header: bytes = b""


def packed(channel: int, body: bytes, payload: bytes = b"", kind: int = AMQP) -> bytes:
    """One frame; `body` is an encoded performative."""
    return _HEAD.pack(_HEAD.size + len(body) + len(payload), 2, kind, channel) + body + payload


class FrameReader:
    """`feed` bytes as they come."""

    def __init__(self, size_max: int) -> None:
        self.size_max = max(size_max, FRAME_MIN_BYTES)
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole now. Raises ProtocolError."""
        data = self._rest + data if self._rest else data
        at, frames = 0, []
        while len(data) - at >= HEADER_BYTES:
            if data[at : at + 4] == b"AMQP":
                frames.append(Frame(header=data[at : at + HEADER_BYTES]))
                at += HEADER_BYTES
                continue
            size, offset, kind, channel = _HEAD.unpack_from(data, at)
            start = 4 * offset
            if size > self.size_max or start < HEADER_BYTES or start > size or kind not in (AMQP, SASL):
                raise ProtocolError(f"a frame of {size} bytes, type {kind}, data from {start} on: not one of AMQP 1.0")
            if len(data) - at < size:
                break
            frames.append(_frame(kind, channel, data[at + start : at + size]))
            at += size
        self._rest = data[at:]
        return frames


def _frame(kind: int, channel: int, content: bytes) -> Frame:
    if not content:
        return Frame(kind, channel)
    try:
        body, end = decode(content)
    except DecodeError as error:
        raise ProtocolError(f"a frame on channel {channel} cannot be read: {error}") from None
    return Frame(kind, channel, body, content[end:])
