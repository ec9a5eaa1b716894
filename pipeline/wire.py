"""The part of AMQP 0-9-1 that sink and sources say and hear: methods as a table, and frames put together to methods.

    frame    kind u8 (1 method, 2 content header, 3 body, 8 heartbeat) | channel u16 | size u32 | payload | CE
    method   class u16 | method u16 | fields

Fields: `o` octet, `h` short, `l` long, `L` longlong, `s` short string, `S` long string, `t` table, `b` bit
(neighbouring bits share an octet, the first is the lowest). A table that is heard is passed over: nothing in it is
needed here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_METHODS: Final[Mapping[str, tuple[int, int, str]]] = {
    "connection.start": (10, 10, "ootSS"),
    "connection.start-ok": (10, 11, "tsSs"),
    "connection.tune": (10, 30, "hlh"),
    "connection.tune-ok": (10, 31, "hlh"),
    "connection.open": (10, 40, "ssb"),
    "connection.open-ok": (10, 41, "s"),
    "connection.close": (10, 50, "hshh"),
    "connection.close-ok": (10, 51, ""),
    "connection.blocked": (10, 60, "s"),
    "connection.unblocked": (10, 61, ""),
    "channel.open": (20, 10, "s"),
    "channel.open-ok": (20, 11, "S"),
    "channel.close": (20, 40, "hshh"),
    "channel.close-ok": (20, 41, ""),
    "exchange.declare": (40, 10, "hssbbbbbt"),
    "exchange.declare-ok": (40, 11, ""),
    "basic.qos": (60, 10, "lhb"),
    "basic.qos-ok": (60, 11, ""),
    "basic.consume": (60, 20, "hssbbbbt"),
    "basic.consume-ok": (60, 21, "s"),
    "basic.cancel": (60, 30, "sb"),
    "basic.publish": (60, 40, "hssbb"),
    "basic.return": (60, 50, "hsss"),
    "basic.deliver": (60, 60, "sLbss"),
    "basic.ack": (60, 80, "Lb"),
    "basic.nack": (60, 120, "Lbb"),
    "confirm.select": (85, 10, "b"),
    "confirm.select-ok": (85, 11, ""),
}
_NAMES: Final = {(class_id, method_id): name for name, (class_id, method_id, _) in _METHODS.items()}
WITH_CONTENT: Final = frozenset({"basic.return", "basic.deliver"})

_FRAME: Final = struct.Struct(">BHI")
_ID: Final = struct.Struct(">HH")
_CONTENT: Final = struct.Struct(">HHQ")
_NUMBERS: Final = {
    "o": struct.Struct(">B"),
    "h": struct.Struct(">H"),
    "l": struct.Struct(">I"),
    "L": struct.Struct(">Q"),
}


class BadFrame(Exception):
    """What came is not AMQP, or not of this side's part of it."""


class Heard(NamedTuple):
    """A method of a peer; `body` when it came with content."""

    name: str
    channel: int
    fields: tuple[Any, ...]
    body: bytes = b""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(name: str, channel: int, *values: Any) -> bytes:
    """The frame of a method."""
    class_id, method_id, fields = _METHODS[name]
    assert len(values) == len(fields), f"{name} has {len(fields)} fields"
    out = [_ID.pack(class_id, method_id)]
    bits = place = 0
    for field, value in zip(fields, values, strict=True):
        if field == "b":
            bits |= bool(value) << place
            place += 1
            continue
        if place:
            out.append(bytes((bits,)))
            bits = place = 0
        out.append(_field(field, value))
    if place:
        out.append(bytes((bits,)))
    return frame(METHOD, channel, b"".join(out))


def content(channel: int, properties: bytes, body: bytes, frame_bytes_max: int) -> bytes:
    """Header and body frames behind a basic.publish. `properties` are flags and list as they stand on the wire."""
    room = frame_bytes_max - FRAME_OVERHEAD
    frames = [frame(HEADER, channel, _CONTENT.pack(60, 0, len(body)) + properties)]
    frames += [frame(BODY, channel, body[start : start + room]) for start in range(0, len(body), room)]
    return b"".join(frames)


def properties(flags: int, *texts: str) -> bytes:
    """Flags and list of properties that are all short strings, in the order of the wire."""
    return _NUMBERS["h"].pack(flags) + b"".join(_field("s", text) for text in texts)


def _field(field: str, value: Any) -> bytes:
    if field == "s":
        raw: bytes = value.encode()
        return bytes((len(raw),)) + raw
    if field == "S":
        return _NUMBERS["l"].pack(len(value)) + bytes(value)
    if field == "t":
        return table(value)
    return _NUMBERS[field].pack(value)


def table(fields: Mapping[str, Any]) -> bytes:
    """A field table of texts, whole numbers (64 bits), truths and tables."""
    out = []
    for name, value in fields.items():
        out.append(_field("s", name))
        if isinstance(value, bool):
            out.append(b"t\x01" if value else b"t\x00")
        elif isinstance(value, int):
            out.append(b"l" + struct.pack(">q", value))
        elif isinstance(value, str):
            out.append(b"S" + _field("S", value.encode()))
        else:
            out.append(b"F" + table(value))
    raw = b"".join(out)
    return _NUMBERS["l"].pack(len(raw)) + raw


def _unpack(fields: str, payload: bytes) -> tuple[Any, ...]:
    at = _ID.size
    values: list[Any] = []
    place = 8
    for field in fields:
        if field == "b":
            if place == 8:
                place, octet, at = 0, payload[at], at + 1
            values.append(bool(octet >> place & 1))
            place += 1
            continue
        place = 8
        if field in _NUMBERS:
            values.append(_NUMBERS[field].unpack_from(payload, at)[0])
            at += _NUMBERS[field].size
            continue
        if field == "s":
            begin, size = at + 1, payload[at]
        else:
            begin, size = at + 4, _NUMBERS["l"].unpack_from(payload, at)[0]
        at = begin + size
        if at > len(payload):
            raise BadFrame("a field is longer than its frame")
        raw = payload[begin:at]
        values.append(raw.decode("utf-8", "replace") if field == "s" else raw if field == "S" else None)
    return tuple(values)


class Decoder:
    """Bytes of one connection in, methods out, those with content when it is complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._open: dict[int, tuple[str, tuple[Any, ...], int, list[bytes]]] = {}
        """Channel to the method whose content comes: bytes that are missing (-1: its header), pieces."""

    def feed(self, data: bytes) -> list[Heard]:
        """Raises BadFrame, after which the connection is of no use."""
        data = self._rest + data
        at, end = 0, len(data)
        heard: list[Heard] = []
        while end - at >= _FRAME.size:
            kind, channel, size = _FRAME.unpack_from(data, at)
            if data[at : at + 4] == b"AMQP":
                raise BadFrame("the other side speaks another version of AMQP")
            if end - at < size + FRAME_OVERHEAD:
                break
            if data[at + _FRAME.size + size] != FRAME_END:
                raise BadFrame("a frame does not end with 0xCE: is this AMQP, and TLS on both sides or none?")
            at += _FRAME.size
            try:
                self._frame(heard, kind, channel, data[at : at + size])
            except (struct.error, IndexError):
                raise BadFrame(f"a frame of kind {kind} is cut short") from None
            at += size + 1
        self._rest = data[at:]
        return heard

    def _frame(self, heard: list[Heard], kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            key = _ID.unpack_from(payload)
            name = _NAMES.get(key)
            if name is None:
                raise BadFrame(f"method {key[0]}.{key[1]} is not one that is heard here")
            fields = _unpack(_METHODS[name][2], payload)
            if name in WITH_CONTENT:
                self._open[channel] = (name, fields, -1, [])
            else:
                heard.append(Heard(name, channel, fields))
        elif kind == HEADER:
            self._content(heard, channel, _CONTENT.unpack_from(payload)[2], None)
        elif kind == BODY:
            self._content(heard, channel, None, payload)
        elif kind != HEARTBEAT:
            raise BadFrame(f"frame of unknown kind {kind}: is this AMQP?")

    def _content(self, heard: list[Heard], channel: int, size: int | None, piece: bytes | None) -> None:
        if channel not in self._open or (size is None) == (self._open[channel][2] < 0):
            raise BadFrame("content without its method")
        name, fields, left, pieces = self._open[channel]
        if size is not None:
            left = size
        elif piece is not None:
            left -= len(piece)
            pieces.append(piece)
        if left < 0:
            raise BadFrame("content is longer than its header says")
        self._open[channel] = (name, fields, left, pieces)
        if not left:
            del self._open[channel]
            heard.append(Heard(name, channel, fields, b"".join(pieces)))


def plain(user: str, password: str) -> bytes:
    """The response of SASL PLAIN."""
    return b"\0" + user.encode() + b"\0" + password.encode()


def words(raw: bytes) -> Sequence[str]:
    """A list of words, as mechanisms travel."""
    return raw.decode("utf-8", "replace").split()
