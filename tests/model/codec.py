"""Frames to batches of events, messages to frames: the specification of `broker/wire/amqp091/codec.pyx`.

    frame    0 u8 type (1 method, 2 content header, 3 body, 8 heartbeat)   1 u16 channel   3 u32 size of payload
             7 payload   7+size u8 0xCE
    method   u16 class, u16 method, arguments
    header   u16 class, u16 weight 0, u64 body size, u16 property flags, properties
    content  a basic.publish method frame, one header frame, then body frames until the body size is reached;
             frames of other channels may stand between them, frames of the same channel may not (AMQP 4.2.6)

The decoder turns one socket read into few events: neighbouring publishes to the same exchange and key become one
`Published`, neighbouring acknowledgements of a channel one `Acked`; every other method is handed on undecoded as a
`MethodReceived`. It keeps the content state of each channel and knows nothing of sessions. The first fault ends
it: the error (a `ConnectionFault`) is the last event, and later bytes are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from clusterbroker.broker.wire.amqp091.errors import (
    AmqpError,
    frame_error,
    precondition_failed,
    resource_error,
    syntax_error,
    unexpected_frame,
)
from clusterbroker.broker.wire.amqp091.fields import DEFAULT_LIMITS, STORED_LIMITS, FieldLimits, pull_table
from clusterbroker.broker.wire.amqp091.properties import without_header
from clusterbroker.journal.layout import HAS_EXPIRATION, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT, TTL_MS_MAX
from tests.model.record import Message

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8
HEADER_FIXED: Final = 12
"""Of a content header, before its property flags."""

BASIC: Final = 60
PUBLISH: Final = 40
ACK: Final = 80

_HEAD: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">HHQH")
_PUBLISH_START: Final = bytes((0, BASIC, 0, PUBLISH))
_ACK_START: Final = bytes((0, BASIC, 0, ACK))
_TAG_MAX: Final = (1 << 63) - 1


class Published:
    """Messages published one after another on one channel to one exchange with one routing key.

    address    exchange and routing key as short strings on the wire
    flags      all messages' flags joined by "or"
    size       bytes of all payloads
    refusal    the channel error that the content deserves (too large, bad expiration); messages is then empty
    """

    __slots__ = ("address", "channel", "flags", "immediate", "mandatory", "messages", "refusal", "size")

    def __init__(self, channel: int, address: bytes, mandatory: bool, immediate: bool) -> None:
        self.channel = channel
        self.address = address
        self.mandatory = mandatory
        self.immediate = immediate
        self.messages: list[Message] = []
        self.flags = 0
        self.size = 0
        self.refusal: AmqpError | None = None

    @property
    def exchange(self) -> str:
        return self.address[1 : 1 + self.address[0]].decode()

    @property
    def routing_key(self) -> str:
        return self.address[2 + self.address[0] :].decode()


class Acked:
    """basic.ack, one after another on one channel: each as delivery tag * 2 + multiple.

    Iterating gives the same numbers as `acks`, and is the quicker way in the compiled module. Tags from 2**63 on,
    which nobody is ever given, count as 2**63 - 1, so that every number fits into 64 bits.
    """

    __slots__ = ("acks", "channel")

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.acks: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.acks)

    def __len__(self) -> int:
        return len(self.acks)


class MethodReceived:
    """Any other method: its payload from the class id on."""

    __slots__ = ("channel", "payload")

    def __init__(self, channel: int, payload: bytes) -> None:
        self.channel = channel
        self.payload = payload


Event = Published | Acked | MethodReceived | AmqpError


class _Content:
    """A publish whose content is not complete.

    left  bytes of the body that are still to come
    held  bytes that count against `partial_bytes_max`
    """

    __slots__ = ("address", "bits", "body", "header", "held", "left", "refusal")

    def __init__(self, address: bytes, bits: int) -> None:
        self.address = address
        self.bits = bits
        self.header: bytes | None = None
        self.body = bytearray()
        self.left = 0
        self.held = 0
        self.refusal: AmqpError | None = None


class FrameDecoder:
    """Bytes of one connection in, events out.

    frame_max          largest payload accepted (8192 before tuning). By the letter of AMQP (4.2.3) it is the largest
                       frame, 8 octets of framing included, and so it is for content headers, which go on as they came
    message_bytes_max  larger bodies are refused with a channel error, their frames passed over
    partial_bytes_max  bound on the incomplete contents (names, properties, bodies) of all channels together
    partial_bytes      what they have now
    opened             content is a fault until the session sets this (nothing is buffered before authentication)
    rest               bytes of an incomplete frame: the next `feed` gets them in front of the new ones
    heard              something arrived since it was last reset (heartbeats)
    """

    __slots__ = (
        "_contents", "failed", "frame_max", "heard", "message_bytes_max", "opened", "partial_bytes",
        "partial_bytes_max", "rest",
    )  # fmt: skip

    def __init__(self, frame_max: int = 8192, message_bytes_max: int = 16 << 20) -> None:
        self.frame_max = frame_max
        self.message_bytes_max = message_bytes_max
        self.partial_bytes_max = max(32 << 20, 2 * message_bytes_max)
        self.opened = False
        self.failed = False
        self.heard = False
        self.rest = b""
        self._contents: dict[int, _Content] = {}
        self.partial_bytes = 0

    def feed(self, data: bytes | bytearray | memoryview, now_ms: int) -> list[Event]:
        """Events of `data` (which starts with `rest`); what is left over becomes the new `rest`."""
        events: list[Event] = []
        # AMQP 4.2.7: any octet sent is a substitute for a heartbeat, so a part of a frame counts as well
        self.heard = self.heard or len(data) > len(self.rest)
        if self.failed:
            self.rest = b""
            return events
        at, end = 0, len(data)
        try:
            while end - at >= 7:
                kind, channel, size = _HEAD.unpack_from(data, at)
                if size > (self.frame_max - FRAME_OVERHEAD if kind == FRAME_HEADER else self.frame_max):
                    raise frame_error(f"frame_too_large: type {kind}, payload size {size}, frame_max {self.frame_max}")
                if end - at < size + FRAME_OVERHEAD:
                    break
                if data[at + 7 + size] != FRAME_END:
                    raise frame_error(f"invalid_frame_end_marker: {data[at + 7 + size]} instead of 206")
                self._frame(events, kind, channel, bytes(data[at + 7 : at + 7 + size]), now_ms)
                at += size + FRAME_OVERHEAD
        except AmqpError as fault:
            self.failed = True
            self.rest = b""
            self._contents.clear()
            self.partial_bytes = 0
            events.append(fault)
            return events
        self.rest = bytes(data[at:])
        return events

    def drop_channel(self, channel: int) -> None:
        """The channel was closed: its incomplete content is passed over."""
        content = self._contents.pop(channel, None)
        if content is not None:
            self.partial_bytes -= content.held

    def _frame(self, events: list[Event], kind: int, channel: int, payload: bytes, now_ms: int) -> None:
        if kind == FRAME_METHOD:
            self._method(events, channel, payload)
        elif kind == FRAME_HEADER:
            self._header(events, channel, payload, now_ms)
        elif kind == FRAME_BODY:
            self._body(events, channel, payload, now_ms)
        elif kind == FRAME_HEARTBEAT:
            if channel:
                raise unexpected_frame("heartbeat frames belong to channel 0")
        else:
            raise frame_error(f"unknown frame type {kind}")

    def _method(self, events: list[Event], channel: int, payload: bytes) -> None:
        if channel in self._contents:
            raise unexpected_frame(f"expected content for channel {channel}, got a method frame instead")
        start = payload[:4]
        if start == _PUBLISH_START:
            content = self._contents[channel] = self._publish(channel, payload)
            self._hold(content, len(content.address))
        elif start == _ACK_START and len(payload) == 13:
            last = events[-1] if events else None
            if not isinstance(last, Acked) or last.channel != channel:
                last = Acked(channel)
                events.append(last)
            tag = min(int.from_bytes(payload[4:12], "big"), _TAG_MAX)
            last.acks.append(tag << 1 | payload[12] & 1)
        else:
            events.append(MethodReceived(channel, payload))

    def _publish(self, channel: int, payload: bytes) -> _Content:
        if not self.opened or not channel:
            raise unexpected_frame("content before the connection is open")
        address, bits = payload[6:-1], payload[-1]
        if len(payload) < 9:
            raise syntax_error("basic.publish is cut off")
        key = 1 + address[0]
        if key >= len(address) or key + 1 + address[key] != len(address):
            raise syntax_error("basic.publish has a wrong length")
        _check_utf8(address[1:key])
        _check_utf8(address[key + 1 :])
        return _Content(address, bits)

    def _header(self, events: list[Event], channel: int, payload: bytes, now_ms: int) -> None:
        content = self._contents.get(channel)
        if content is None or content.header is not None:
            raise unexpected_frame(f"expected method frame on channel {channel}, got a content header instead")
        if len(payload) < 14:
            raise syntax_error("a content header is cut off")
        class_id, _, body_size, _ = _HEADER.unpack_from(payload)
        if class_id != BASIC:
            raise unexpected_frame(f"expected content header for class 60, got one for class {class_id} instead")
        content.header = payload[12:]
        content.left = body_size
        self._hold(content, len(content.header))
        if body_size > self.message_bytes_max:
            content.refusal = precondition_failed(
                f"message size {body_size} is larger than configured max size {self.message_bytes_max}"
            )
        if not body_size:
            self._complete(events, channel, content, now_ms)

    def _body(self, events: list[Event], channel: int, payload: bytes, now_ms: int) -> None:
        content = self._contents.get(channel)
        if content is None or content.header is None:
            raise unexpected_frame(f"expected method frame or header on channel {channel}, got a content body instead")
        if len(payload) > content.left:
            raise unexpected_frame(f"content body on channel {channel} is longer than its header said")
        content.left -= len(payload)
        if content.refusal is None:
            content.body += payload
            self._hold(content, len(payload))
        if not content.left:
            self._complete(events, channel, content, now_ms)

    def _hold(self, content: _Content, length: int) -> None:
        content.held += length
        self.partial_bytes += length
        if self.partial_bytes > self.partial_bytes_max:
            raise resource_error("incomplete contents exceed the connection's limit")

    def _complete(self, events: list[Event], channel: int, content: _Content, now_ms: int) -> None:
        del self._contents[channel]
        self.partial_bytes -= content.held
        mandatory, immediate = bool(content.bits & 1), bool(content.bits & 2)
        assert content.header is not None, "a complete content has a header"
        if content.refusal is None:
            message = make_message(content.address, content.header, bytes(content.body), now_ms, DEFAULT_LIMITS)
            if isinstance(message, Message):
                last = events[-1] if events else None
                if (
                    not isinstance(last, Published)
                    or last.refusal is not None
                    or (last.channel, last.address, last.mandatory, last.immediate)
                    != (channel, content.address, mandatory, immediate)
                ):
                    last = Published(channel, content.address, mandatory, immediate)
                    events.append(last)
                last.messages.append(message)
                last.flags |= message.flags
                last.size += len(message.payload)
                return
            content.refusal = message
        refused = Published(channel, content.address, mandatory, immediate)
        refused.refusal = content.refusal
        events.append(refused)


def _check_utf8(name: bytes) -> None:
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise syntax_error("a name is not valid UTF-8") from error


# property flags, high bit first (AMQP 4.2.6.1); all properties not named with their size are short strings
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE, _PRIORITY = 0x8000, 0x4000, 0x2000, 0x1000, 0x0800
_CORRELATION_ID, _REPLY_TO, _EXPIRATION, _MESSAGE_ID, _TIMESTAMP = 0x0400, 0x0200, 0x0100, 0x0080, 0x0040
_TYPE, _USER_ID, _APP_ID, _CLUSTER_ID = 0x0020, 0x0010, 0x0008, 0x0004


def make_message(
    address: bytes, header: bytes, body: bytes, now_ms: int, limits: FieldLimits = STORED_LIMITS
) -> Message | AmqpError:
    """A message of a content's parts; `header` is the property flags and list. A decoder asks for what a publish may
    hold; whoever makes one of a message that was accepted once does not.

    Returns the channel error that a bad expiration deserves; raises syntax_error when the properties, or the fields of
    the headers table, cannot be read to their end: they go on to consumers as they are and would fail there.
    """
    if len(header) < 2:
        raise syntax_error("a content header is cut off")
    bits = header[0] << 8 | header[1]
    if bits & 3:
        raise syntax_error("property flags that mean nothing")
    at = 2
    flags = priority = 0
    ttl_ms = -1
    if bits & _CONTENT_TYPE:
        at = _skip_short(header, at)
    if bits & _CONTENT_ENCODING:
        at = _skip_short(header, at)
    if bits & _HEADERS:
        if at + 4 > len(header):
            raise syntax_error("a content header is cut off")
        _, at = pull_table(header, at, limits)
        flags |= HAS_HEADERS
    if bits & _DELIVERY_MODE:
        if at >= len(header):
            raise syntax_error("a content header is cut off")
        if header[at] == 2:
            flags |= PERSISTENT
        at += 1
    if bits & _PRIORITY:
        if at >= len(header):
            raise syntax_error("a content header is cut off")
        priority = header[at]
        at += 1
    if bits & _CORRELATION_ID:
        at = _skip_short(header, at)
    if bits & _REPLY_TO:
        at = _skip_short(header, at)
        flags |= HAS_REPLY_TO
    if bits & _EXPIRATION:
        start = at + 1
        at = _skip_short(header, at)
        flags |= HAS_EXPIRATION
        text = header[start:at]
        # amqp-rules 5.6: expiration is a decimal string. As in RabbitMQ it may have a sign; a negative life has none
        digits = text[1:] if text[:1] in (b"+", b"-") else text
        if not digits.isdigit() or (text[:1] == b"-" and int(digits)):
            return precondition_failed(f"invalid expiration '{text.decode(errors='replace')}'")
        ttl_ms = min(int(digits), TTL_MS_MAX)
    if bits & _MESSAGE_ID:
        at = _skip_short(header, at)
    if bits & _TIMESTAMP:
        at += 8
    if bits & _TYPE:
        at = _skip_short(header, at)
    if bits & _USER_ID:
        at = _skip_short(header, at)
        flags |= HAS_USER_ID
    if bits & _APP_ID:
        at = _skip_short(header, at)
    if bits & _CLUSTER_ID:
        at = _skip_short(header, at)
    if at != len(header):
        raise syntax_error("a content header has a wrong length")
    return Message(address, header + body, len(header), flags, priority, now_ms, ttl_ms)


def numbered(message: Message, name: bytes, number: int) -> Message:
    """The message with one header more, a 64-bit integer (field type l). `name` is a short string on the wire; a header
    of this name that the publisher wrote is gone."""
    header = message.header
    if name in header:
        header = without_header(header, name[1:].decode())
    bits = header[0] << 8 | header[1]
    at = 2
    if bits & _CONTENT_TYPE:
        at = _skip_short(header, at)
    if bits & _CONTENT_ENCODING:
        at = _skip_short(header, at)
    field = name + b"l" + number.to_bytes(8, "big", signed=True)
    if bits & _HEADERS:
        size = int.from_bytes(header[at : at + 4])
        header = b"".join((header[:at], (size + len(field)).to_bytes(4), field, header[at + 4 :]))
    else:
        header = b"".join(((bits | _HEADERS).to_bytes(2), header[2:at], len(field).to_bytes(4), field, header[at:]))
    return Message(
        message.address, header + message.body, len(header), message.flags | HAS_HEADERS, message.priority,
        message.time_ms, message.ttl_ms, message.format,
    )  # fmt: skip


def _skip_short(header: bytes, at: int) -> int:
    if at >= len(header) or at + 1 + header[at] > len(header):
        raise syntax_error("a content header is cut off")
    return at + 1 + header[at]


class OutBuffer:
    """Frames on their way to one client's socket.

    frame_max  0 = without limit; longer bodies are split. Otherwise more than 8 (tuning allows 4096 and more)
    size       bytes waiting here
    size_max   above it the buffer is not `writable` and gets no deliveries
    paused     the socket takes nothing more at the moment
    """

    __slots__ = ("_parts", "frame_max", "paused", "size", "size_max")

    def __init__(self, frame_max: int = 8192, size_max: int = 1 << 20) -> None:
        self.frame_max = frame_max
        self.size_max = size_max
        self.size = 0
        self.paused = False
        self._parts: list[bytes] = []

    @property
    def writable(self) -> bool:
        return not self.paused and self.size < self.size_max

    def take(self) -> bytes:
        """All bytes that wait; the buffer is empty afterwards."""
        data = b"".join(self._parts)
        self._parts.clear()
        self.size = 0
        return data

    def raw(self, data: bytes) -> None:
        self._parts.append(data)
        self.size += len(data)

    def frame(self, kind: int, channel: int, payload: bytes) -> None:
        self.raw(_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce")

    def method(self, channel: int, payload: bytes) -> None:
        """A method frame; `payload` starts with the class id."""
        self.frame(FRAME_METHOD, channel, payload)

    def _content(self, channel: int, method: bytes, message: Message) -> None:
        assert self.frame_max == 0 or self.frame_max > FRAME_OVERHEAD, "a frame has room for a body"
        self.frame(FRAME_METHOD, channel, method)
        body = message.body
        self.frame(FRAME_HEADER, channel, struct.pack(">HHQ", BASIC, 0, len(body)) + message.header)
        step = self.frame_max - FRAME_OVERHEAD if self.frame_max else 0xFFFFFFFF
        for start in range(0, len(body), step):
            self.frame(FRAME_BODY, channel, body[start : start + step])

    def fits(self, message: Message) -> bool:
        """Whether its content header, which no frame may share, is within the client's frame_max."""
        return not self.frame_max or FRAME_OVERHEAD + HEADER_FIXED + message.header_length <= self.frame_max

    def deliver(self, channel: int, consumer_tag: bytes, tag: int, redelivered: bool, message: Message) -> None:
        """basic.deliver; `consumer_tag` is a short string on the wire."""
        start = struct.pack(">HH", BASIC, 60) + consumer_tag + struct.pack(">QB", tag, redelivered)
        self._content(channel, start + message.address, message)

    def get_ok(self, channel: int, tag: int, redelivered: bool, message: Message, message_count: int) -> None:
        start = struct.pack(">HHQB", BASIC, 71, tag, redelivered)
        self._content(channel, start + message.address + struct.pack(">I", message_count), message)

    def returned(self, channel: int, code: int, text: bytes, message: Message) -> None:
        assert len(text) <= 255, "a reply text is a short string"
        start = struct.pack(">HHHB", BASIC, 50, code, len(text)) + text
        self._content(channel, start + message.address, message)

    def ack(self, channel: int, tag: int, multiple: bool) -> None:
        """basic.ack to a publisher (confirm)."""
        self.frame(FRAME_METHOD, channel, struct.pack(">HHQB", BASIC, ACK, tag, multiple))

    def nack(self, channel: int, tag: int, multiple: bool) -> None:
        """basic.nack to a publisher (confirm)."""
        self.frame(FRAME_METHOD, channel, struct.pack(">HHQB", BASIC, 120, tag, multiple))
