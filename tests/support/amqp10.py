"""Frames and messages of AMQP 1.0 for tests that are a client."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from clusterbroker.broker.wire.amqp10.performatives import Composite, Header, Properties, composed, decode
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, encode
from clusterbroker.broker.wire.amqp10.types import decode as decode_value
from clusterbroker.broker.wire.numbers import UInt64

HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
_HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    """One frame; a protocol header has no channel."""

    channel: int
    body: Any
    payload: bytes = b""


def frame(channel: int, body: Composite | bytes, payload: bytes = b"", kind: int = 0) -> bytes:
    raw = (body if isinstance(body, bytes) else body.encoded()) + payload
    return _HEAD.pack(_HEAD.size + len(raw), 2, kind, channel) + raw


class Reader:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._rest = b""
        self.empty_frames = 0

    def feed(self, data: bytes) -> list[Frame]:
        data, frames, at = self._rest + data, [], 0
        while len(data) - at >= 8:
            if data[at : at + 4] == b"AMQP":
                frames.append(Frame(-1, data[at : at + 8]))
                at += 8
                continue
            size, offset, _, channel = _HEAD.unpack_from(data, at)
            if len(data) - at < size:
                break
            payload = data[at + 4 * offset : at + size]
            at += size
            if not payload:
                self.empty_frames += 1
                continue
            body, end = decode(payload)
            frames.append(Frame(channel, body, payload[end:]))
        self._rest = data[at:]
        return frames


def message(
    body: bytes = b"",
    *,
    header: Header | None = None,
    annotations: dict[str, Any] | None = None,
    properties: Properties | None = None,
    application: dict[str, Any] | None = None,
    sections: bytes | None = None,
) -> bytes:
    """The sections of a message; `sections`: those of its body, in place of one of data."""
    parts = [b"" if header is None else header.encoded()]
    if annotations is not None:
        parts.append(encode(Described(UInt64(0x72), {Symbol(key): value for key, value in annotations.items()})))
    parts.append(b"" if properties is None else properties.encoded())
    if application is not None:
        parts.append(encode(Described(UInt64(0x74), application)))
    parts.append(encode(Described(UInt64(0x75), body)) if sections is None else sections)
    return b"".join(parts)


class Message(NamedTuple):
    """What a receiver reads."""

    header: Header
    annotations: dict[Any, Any]
    properties: Properties
    application: dict[str, Any]
    body: bytes
    """All data sections."""
    raw: bytes
    """The bare message and its footer, as they came."""


def read(payload: bytes) -> Message:
    header, annotations, properties, application, body, bare, at = Header(), {}, Properties(), {}, b"", 0, 0
    while at < len(payload):
        section, end = decode_value(payload, at)
        known = composed(section)
        if isinstance(known, Header):
            header, bare = known, end
        elif isinstance(known, Properties):
            properties = known
        elif section.descriptor == 0x72:
            annotations, bare = section.value, end
        elif section.descriptor == 0x74:
            application = section.value
        elif section.descriptor == 0x75:
            body += section.value
        at = end
    return Message(header, annotations, properties, application, body, payload[bare:])
