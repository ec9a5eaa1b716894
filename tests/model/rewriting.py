"""Model of `broker.bridges.rewriting`: basic.deliver of a source becomes basic.publish of a destination.

    Rewriter.feed      takes what was read, whole frames or not: the messages that are complete, and all other frames
    Parcel.frames      their publishes on channel 1, mandatory, body frames as they came
    Parcel.flagged     a byte for each: it was redelivered
    Parcel.priorities  a byte for each: the property, 0 without
    Parcel.prints      8 bytes for each: BLAKE2b of size, properties and body, without what the source adds
    Parcel.offsets     with `stream`: x-stream-offset of each, which goes from its headers
    Parcel.others      (channel, frame type, payload) of frames that are of no delivery
    Parcel.number      numbers them from `first` on; number_each: by a list. Only with a producer

The headers lose x-delivery-count and x-acquired-count, which are the source's, and with a producer those of another
one. They gain x-producer ("PRODUCER/SESSION/PRIORITY", a session being the upper half of a number), x-seq and
x-bridge-hops. A user-id goes: it must name who publishes.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

from clusterbroker.broker.bridges.errors import Looped, Malformed, Unfit

_SIZES = {**dict.fromkeys("tbB", 2), **dict.fromkeys("su", 3), **dict.fromkeys("Iif", 5), "D": 6, "V": 1}
_SIZES |= dict.fromkeys("lLdT", 9)
_FIXED = {12: 1, 11: 1, 6: 8}  # bits of properties that are no short strings: mode, priority, timestamp


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


class Parcel:
    def __init__(self) -> None:
        self.count = 0
        self.frames = bytearray()
        self.flagged = self.priorities = self.prints = b""
        self.others: list[tuple[int, int, bytes]] = []
        self.offsets: list[int] = []
        self._places: list[int] = []

    def number(self, first: int) -> None:
        self.number_each([first + at for at in range(len(self._places))])

    def number_each(self, numbers: list[int]) -> None:
        if len(numbers) != len(self._places):
            raise ValueError("a number for each message")
        for place, number, priority in zip(self._places, numbers, self.priorities, strict=True):
            self.frames[place : place + 8] = number.to_bytes(8, "big")
            self.frames[place - 18 : place - 7] = b"%08x/%02x" % (number >> 32, priority)


class Rewriter:
    def __init__(
        self,
        exchange: str,
        routing_key: str | None,
        producer: bytes,
        hop: bytes,
        frame_max: int,
        source_frame_max: int,
        content_max: int,
        stream: bool = False,
    ) -> None:
        self.messages = 0
        self._exchange = exchange.encode()
        self._key = None if routing_key is None else routing_key.encode()
        if len(self._exchange) > 255 or len(self._key or b"") > 255:
            raise ValueError("a name has 255 bytes at most")
        self._producer = producer + b"/00000000/00" if producer else b""
        self._hop = hop
        self._stream, self._offset = stream, -1
        self._frame_max, self._source_frame_max, self._content_max = frame_max, source_frame_max, content_max
        self._rest = b""
        self._out = b""  # of the message that comes in
        self._delivery = False
        self._left: int | None = None
        self._place = 0

    def feed(self, data: bytes) -> Parcel:
        octets, at, parcel = self._rest + data, 0, Parcel()
        while len(octets) - at >= 8:
            kind, channel, size = struct.unpack_from(">BHI", octets, at)
            if kind not in (1, 2, 3, 8):
                raise Malformed("no frame of AMQP 0-9-1")
            if size + 8 > self._source_frame_max:
                raise Malformed("a frame larger than was negotiated")
            if len(octets) - at < size + 8:
                break
            payload = octets[at + 7 : at + 7 + size]
            if octets[at + 7 + size] != 0xCE:
                raise Malformed("a frame without its end")
            at += size + 8
            if kind == 1 and payload[:4] == b"\x00\x3c\x00\x3c":
                self._begin(payload)
            elif kind == 2 and self._delivery:
                self._header(payload)
            elif kind == 3 and self._delivery:
                self._body(octets[at - size - 8 : at])
            else:
                parcel.others.append((channel, kind, payload))
            if self._delivery and self._left == 0:
                self._complete(parcel)
        self._rest = octets[at:]
        self.messages += parcel.count
        return parcel

    def _complete(self, parcel: Parcel) -> None:
        parcel.count += 1
        parcel.prints += self._hashed.digest()
        parcel.flagged += bytes([self._flag])
        parcel.priorities += bytes([self._priority])
        if self._stream:
            if self._offset < 0:
                raise Malformed("a message of a stream without its offset")
            parcel.offsets.append(self._offset)
        if self._producer:
            parcel._places.append(len(parcel.frames) + self._place)
        parcel.frames += self._out
        self._delivery, self._left = False, None

    def _begin(self, payload: bytes) -> None:
        if self._delivery:
            raise Malformed("a delivery within a delivery")
        try:
            at = 4 + 1 + payload[4]
            self._flag = payload[at + 8] & 1
            at += 9
            at += 1 + payload[at]
            key = payload[at + 1 : at + 1 + payload[at]]
            if len(key) != payload[at]:
                raise IndexError
        except IndexError:
            raise Malformed("a short basic.deliver") from None
        self._delivery, self._left = True, None
        self._hashed = blake2b(digest_size=8)
        key = key if self._key is None else self._key
        names = bytes([len(self._exchange)]) + self._exchange + bytes([len(key)]) + key
        self._out = _frame(1, b"\x00\x3c\x00\x28\x00\x00" + names + b"\x01")

    def _body(self, frame: bytes) -> None:
        size = len(frame) - 8
        if self._left is None or size > self._left:
            raise Malformed("a body without its header")
        if not size:
            raise Malformed("an empty body frame")
        self._left -= size
        self._hashed.update(frame[7:-1])
        self._out += frame

    def _header(self, payload: bytes) -> None:
        if self._left is not None or len(payload) < 14:
            raise Malformed("a header without its delivery")
        size, flags = struct.unpack_from(">QH", payload, 4)
        if flags & 3:
            raise Malformed("flags of properties that are not there")
        if size > self._content_max:
            raise Unfit(f"its {size} bytes are more than the {self._content_max} that are taken")
        self._left, self._priority, self._place, self._offset = size, 0, 0, -1
        self._hashed.update(struct.pack(">QH", size, flags & ~(1 << 13)))
        after = flags & ~(1 << 4) | (1 << 13 if self._producer or self._hop else 0)
        out, at = payload[:12] + after.to_bytes(2, "big"), 14
        for bit in range(15, 1, -1):
            there = flags >> bit & 1
            if bit == 13:
                table = b""
                if there:
                    length = int.from_bytes(payload[at : at + 4], "big")
                    if at + 4 + length > len(payload):
                        raise Malformed("headers beyond their frame")
                    table, at = payload[at + 4 : at + 4 + length], at + 4 + length
                if after >> 13 & 1:
                    out = self._table(out, table)
                continue
            if not there:
                continue
            if bit not in _FIXED and at >= len(payload):
                raise Malformed("a property beyond its frame")
            end = at + (_FIXED[bit] if bit in _FIXED else 1 + payload[at])
            if end > len(payload):
                raise Malformed("a property beyond its frame")
            if bit == 11:
                self._priority = payload[at]
            self._hashed.update(payload[at:end])
            out += payload[at:end] if bit != 4 else b""
            at = end
        if at != len(payload):
            raise Malformed("something behind the properties")
        if len(out) + 8 > self._frame_max:
            raise Unfit("headers larger than a frame of the destination")
        self._place += len(self._out) + 7
        self._out += _frame(2, out)

    def _table(self, out: bytes, table: bytes) -> bytes:
        kept, hops, at = b"", b"", 0
        while at < len(table):
            start, name = at, table[at + 1 : at + 1 + table[at]]
            at += 1 + table[at]
            if at >= len(table):
                raise Malformed("a header beyond its table")
            value, at = at, at + _size(table[at:])
            if name in (b"x-delivery-count", b"x-acquired-count"):
                continue
            if self._stream and name == b"x-stream-offset":
                is_long = table[value : value + 1] in (b"l", b"L")
                self._offset = int.from_bytes(table[value + 1 : at], "big", signed=True) if is_long else -1
                continue
            self._hashed.update(table[start:at])
            if self._producer and name in (b"x-producer", b"x-seq"):
                continue
            if self._hop and name == b"x-bridge-hops" and table[value : value + 1] == b"S":
                hops = table[value + 5 : at]
                continue
            kept += table[start:at]
        if self._hop:
            if self._hop in hops.split():
                raise Looped(hops.decode("utf-8", "replace"))
            kept += _long(b"x-bridge-hops", hops + b" " + self._hop if hops else self._hop)
        if self._producer:
            kept += _long(b"x-producer", self._producer) + b"\x05x-seql"
            self._place = len(out) + 4 + len(kept)
            kept += bytes(8)
        return out + len(kept).to_bytes(4, "big") + kept


def _long(name: bytes, text: bytes) -> bytes:
    return bytes([len(name)]) + name + b"S" + len(text).to_bytes(4, "big") + text


def _size(value: bytes) -> int:
    kind = chr(value[0])
    if kind in "SAFx":
        if len(value) < 5:
            raise Malformed("a header beyond its table")
        size = 5 + int.from_bytes(value[1:5], "big")
    elif kind in _SIZES:
        size = _SIZES[kind]
    else:
        raise Malformed("a header of an unknown type")
    if size > len(value):
        raise Malformed("a header beyond its table")
    return size
