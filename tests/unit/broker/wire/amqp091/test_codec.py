"""The codec: golden frames, every legal order of frames, every fault with its code and text."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import codec
from clusterbroker.broker.wire.amqp091.errors import AmqpError, ChannelError, ConnectionFault
from clusterbroker.broker.wire.amqp091.properties import Properties, decode, encode
from clusterbroker.journal.layout import HAS_EXPIRATION, HAS_HEADERS, HAS_REPLY_TO, HAS_USER_ID, PERSISTENT, TTL_MS_MAX

NOW = 1_700_000_000_000
NO_PROPERTIES = b"\x00\x00"
PERSISTENT_TEXT = b"\x90\x00\x0atext/plain\x02"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def address_of(exchange: bytes, key: bytes) -> bytes:
    return short(exchange) + short(key)


def publish_method(channel: int = 1, exchange: bytes = b"ex", key: bytes = b"key", bits: int = 0) -> bytes:
    return frame(1, channel, b"\x00\x3c\x00\x28\x00\x00" + address_of(exchange, key) + bytes((bits,)))


def header(channel: int = 1, size: int = 4, properties: bytes = NO_PROPERTIES, class_id: int = 60) -> bytes:
    return frame(2, channel, struct.pack(">HHQ", class_id, 0, size) + properties)


def body(channel: int = 1, data: bytes = b"body") -> bytes:
    return frame(3, channel, data)


def publish(
    data: bytes = b"body",
    channel: int = 1,
    exchange: bytes = b"ex",
    key: bytes = b"key",
    bits: int = 0,
    properties: bytes = NO_PROPERTIES,
) -> bytes:
    frames = publish_method(channel, exchange, key, bits) + header(channel, len(data), properties)
    return frames + (body(channel, data) if data else b"")


def ack(tag: int, multiple: bool = False, channel: int = 1) -> bytes:
    return frame(1, channel, struct.pack(">HHQB", 60, 80, tag, multiple))


def decoder_of(*sizes: int) -> Any:
    decoder = codec.FrameDecoder(*sizes)
    decoder.opened = True
    return decoder


def fed(data: bytes) -> list[Any]:
    decoder = decoder_of()
    events = decoder.feed(data, NOW)
    assert decoder.rest == b""
    return list(events)


def fault_of(data: bytes, *, opened: bool = True) -> tuple[int, str]:
    decoder = codec.FrameDecoder()
    decoder.opened = opened
    fault = decoder.feed(data, NOW)[-1]
    assert isinstance(fault, ConnectionFault)
    assert decoder.failed
    assert decoder.rest == b""
    assert decoder.feed(publish(), NOW) == []
    return fault.code, fault.text


def fields(message: Any) -> tuple[Any, ...]:
    names = ("address", "header", "body", "flags", "priority", "time_ms", "ttl_ms")
    return tuple(getattr(message, name) for name in names)


def told(event: Any) -> tuple[Any, ...]:
    """An event as a value."""
    if isinstance(event, AmqpError):
        return ("fault", event.code, event.text)
    if hasattr(event, "messages"):
        refusal = event.refusal and (type(event.refusal), event.refusal.code, event.refusal.text)
        marks = (event.channel, event.address, event.mandatory, event.immediate, event.flags, event.size)
        return ("published", *marks, refusal, [fields(message) for message in event.messages])
    if hasattr(event, "acks"):
        return ("acked", event.channel, list(event))
    return ("method", event.channel, event.payload)


# -- publishes ------------------------------------------------------------------------------------------------


def test_golden_publish() -> None:
    data = bytes.fromhex(
        "01 0001 0000000e 003c 0028 0000 026578 036b6579 01 ce"
        "02 0001 0000001a 003c 0000 0000000000000004 9000 0a 746578742f706c61696e 02 ce"
        "03 0001 00000004 626f6479 ce"
    )
    (event,) = fed(data)
    assert type(event) is codec.Published
    assert (event.channel, event.exchange, event.routing_key) == (1, "ex", "key")
    assert event.mandatory is True
    assert event.immediate is False
    assert event.refusal is None
    assert (event.flags, event.size) == (PERSISTENT, len(PERSISTENT_TEXT) + 4)
    (message,) = event.messages
    assert fields(message) == (b"\x02ex\x03key", PERSISTENT_TEXT, b"body", PERSISTENT, 0, NOW, -1)


def test_neighbours_share_a_batch_and_its_address() -> None:
    persistent = publish(b"two", properties=PERSISTENT_TEXT)
    (event,) = fed(publish(b"one") + persistent + publish(b"") + publish(b"four"))
    assert [message.body for message in event.messages] == [b"one", b"two", b"", b"four"]
    assert event.flags == PERSISTENT
    assert event.size == sum(len(message.payload) for message in event.messages)
    assert [message.flags for message in event.messages] == [0, PERSISTENT, 0, 0]
    assert len({id(message.address) for message in event.messages}) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"channel": 2},
        {"exchange": b"e2"},
        {"key": b"ke2"},
        {"key": b""},
        {"bits": 1},
        {"bits": 2},
        # as many bytes, cut differently
        {"exchange": b"", "key": b"x\x03key"},
    ],
)
def test_anything_else_starts_a_new_batch(other: dict[str, Any]) -> None:
    first, second, third = fed(publish() + publish(**other) + publish())
    assert told(first) == told(third)
    assert told(first) != told(second)
    assert (second.exchange, second.routing_key) == (
        other.get("exchange", b"ex").decode(),
        other.get("key", b"key").decode(),
    )


def test_bits_that_mean_nothing_are_ignored() -> None:
    (event,) = fed(publish() + publish(bits=0xFC))
    assert len(event.messages) == 2


def test_an_event_between_two_publishes_parts_them() -> None:
    kinds = [told(event)[0] for event in fed(publish() + ack(1) + publish() + frame(1, 1, b"abcd") + publish())]
    assert kinds == ["published", "acked", "published", "method", "published"]


def test_heartbeats_part_nothing() -> None:
    (event,) = fed(publish() + frame(8, 0, b"") + publish())
    assert len(event.messages) == 2


def test_a_batch_ends_with_its_feed() -> None:
    decoder = decoder_of()
    (first,) = decoder.feed(publish() + ack(1), NOW)[:1]
    (second,) = decoder.feed(publish(), NOW + 1)
    assert len(first.messages) == len(second.messages) == 1
    assert second.messages[0].time_ms == NOW + 1


def test_names_may_be_any_utf8_up_to_255_bytes() -> None:
    name = "ü".encode() * 127 + b"x"
    (event,) = fed(publish(exchange=name, key=name))
    assert event.exchange == event.routing_key == name.decode()


def test_body_in_many_frames_and_an_empty_one() -> None:
    data = (
        publish_method() + header(size=9) + body(data=b"abc") + body(data=b"") + body(data=b"def") + body(data=b"ghi")
    )
    (event,) = fed(data)
    assert [message.body for message in event.messages] == [b"abcdefghi"]


def test_first_body_frame_empty() -> None:
    (event,) = fed(publish_method() + header(size=2) + body(data=b"") + body(data=b"ab"))
    assert fields(event.messages[0]) == (b"\x02ex\x03key", NO_PROPERTIES, b"ab", 0, 0, NOW, -1)


def test_channels_interleave_and_finish_in_their_own_order() -> None:
    data = (
        publish_method(1)
        + publish_method(2, key=b"k2")
        + header(2, 6)
        + header(1, 4)
        + body(2, b"222")
        + publish(b"whole", 3)
        + body(1, b"1111")
        + body(2, b"222")
        + publish(b"again", 2, key=b"k2")
    )
    first, second, third = fed(data)
    assert [(e.channel, [m.body for m in e.messages]) for e in (first, second, third)] == [
        (3, [b"whole"]),
        (1, [b"1111"]),
        (2, [b"222222", b"again"]),
    ]


def test_equal_addresses_join_even_when_another_came_between() -> None:
    data = publish(b"a") + publish_method(2, key=b"other") + publish(b"b") + header(2, 0)
    first, second = fed(data)
    assert [message.body for message in first.messages] == [b"a", b"b"]
    assert second.routing_key == "other"


def test_every_split_gives_the_same_messages() -> None:
    data = publish(b"one", properties=PERSISTENT_TEXT) + ack(7) + publish(b"") + frame(8, 0, b"") + publish(b"x" * 50)
    for cut in range(len(data) + 1):
        decoder = decoder_of()
        events = decoder.feed(data[:cut], NOW)
        assert not decoder.failed
        assert data[:cut].endswith(decoder.rest)
        events += decoder.feed(decoder.rest + data[cut:], NOW)
        assert decoder.rest == b""
        messages = [message.body for event in events if hasattr(event, "messages") for message in event.messages]
        assert messages == [b"one", b"", b"x" * 50]
        assert [list(event) for event in events if hasattr(event, "acks")] == [[14]]


def test_byte_by_byte() -> None:
    decoder = decoder_of()
    events = []
    for octet in publish(b"abc") + publish(b"def"):
        events += decoder.feed(decoder.rest + bytes((octet,)), NOW)
    assert [[message.body for message in event.messages] for event in events] == [[b"abc"], [b"def"]]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_and_nothing_of_it_is_kept(kind: Any) -> None:
    decoder = decoder_of()
    buffer = bytearray(publish(b"abc") + frame(1, 1, b"\x00\x14\x00\x0a\x00") + publish(b"cut")[:-3])
    events = decoder.feed(kind(buffer), NOW)
    rest = decoder.rest
    assert type(rest) is bytes
    buffer[:] = bytes(len(buffer))
    buffer.append(1)  # fails while somebody still exports the buffer
    assert told(events[0])[-1] == [(b"\x02ex\x03key", NO_PROPERTIES, b"abc", 0, 0, NOW, -1)]
    assert events[1].payload == b"\x00\x14\x00\x0a\x00"
    assert rest == body(data=b"cut")[:-3]


# -- properties -----------------------------------------------------------------------------------------------

EVERY_PROPERTY = (
    b"\xff\xfc"
    + short(b"text/plain")
    + short(b"utf-8")
    + struct.pack(">I", 8)
    + b"\x01kt\x01\x01lt\x00"
    + b"\x02"
    + b"\x09"
    + short(b"correlation")
    + short(b"reply")
    + short(b"60000")
    + short(b"id")
    + struct.pack(">Q", 1_700_000_000)
    + short(b"type")
    + short(b"guest")
    + short(b"app")
    + short(b"")
)


@pytest.mark.parametrize(
    ("properties", "flags", "priority", "ttl_ms"),
    [
        (NO_PROPERTIES, 0, 0, -1),
        (b"\x10\x00\x01", 0, 0, -1),
        (b"\x10\x00\x02", PERSISTENT, 0, -1),
        (b"\x08\x00\xff", 0, 255, -1),
        (b"\x20\x00\x00\x00\x00\x00", HAS_HEADERS, 0, -1),
        (b"\x02\x00\x01q", HAS_REPLY_TO, 0, -1),
        (b"\x01\x00\x010", HAS_EXPIRATION, 0, 0),
        (b"\x01\x00\x0a4294967295", HAS_EXPIRATION, 0, 0xFFFFFFFF),
        (b"\x01\x00\x0a0000000012", HAS_EXPIRATION, 0, 12),
        (b"\x01\x00\x02+5", HAS_EXPIRATION, 0, 5),
        (b"\x01\x00\x02-0", HAS_EXPIRATION, 0, 0),
        (b"\x01\x00\x0c134217728000", HAS_EXPIRATION, 0, 134217728000),
        (b"\x01\x00\x139223372036854775799", HAS_EXPIRATION, 0, TTL_MS_MAX - 8),
        (b"\x01\x00\x139223372036854775806", HAS_EXPIRATION, 0, TTL_MS_MAX - 1),
        (b"\x01\x00\x139223372036854775807", HAS_EXPIRATION, 0, TTL_MS_MAX),
        (b"\x01\x00\x139223372036854775808", HAS_EXPIRATION, 0, TTL_MS_MAX),
        (b"\x01\x00\x1418446744073709551616", HAS_EXPIRATION, 0, TTL_MS_MAX),
        (b"\x01\x00\xff" + b"9" * 255, HAS_EXPIRATION, 0, TTL_MS_MAX),
        (b"\x01\x00\xff" + b"60000".rjust(255, b"0"), HAS_EXPIRATION, 0, 60000),
        (b"\x00\x10\x05guest", HAS_USER_ID, 0, -1),
        (b"\x00\x40" + bytes(8), 0, 0, -1),
        (EVERY_PROPERTY, 31, 9, 60000),
    ],
)
def test_properties_are_classified(properties: bytes, flags: int, priority: int, ttl_ms: int) -> None:
    address = address_of(b"ex", b"key")
    wanted = (address, properties, b"body", flags, priority, NOW, ttl_ms)
    assert fields(codec.make_message(address, properties, b"body", NOW)) == wanted
    split = publish_method() + header(size=4, properties=properties) + body(data=b"bo") + body(data=b"dy")
    (event,) = fed(publish(properties=properties) * 2 + split)
    assert [fields(message) for message in event.messages] == [wanted] * 3
    assert event.flags == flags


NUMBER_OF = b"\x0bx-queue-seq"


@pytest.mark.parametrize(
    "properties",
    [
        NO_PROPERTIES,
        PERSISTENT_TEXT,
        EVERY_PROPERTY,
        b"\xe0\x00" + short(b"text/plain") + short(b"gzip") + b"\x00\x00\x00\x04\x01kt\x01",
    ],
)
def test_a_message_gets_a_number_among_its_headers(properties: bytes) -> None:
    message = codec.make_message(address_of(b"ex", b"key"), properties, b"body", NOW)
    shown = codec.numbered(message, NUMBER_OF, 2**40 + 1)
    wanted = decode(properties)
    wanted.headers = {"x-queue-seq": 2**40 + 1, **(wanted.headers or {})}
    assert decode(shown.header) == wanted
    assert fields(shown)[2:] == (b"body", message.flags | HAS_HEADERS, *fields(message)[4:])
    assert fields(message)[1] == properties, "the queue's own stays as it is"


def test_a_number_takes_the_place_of_what_the_publisher_wrote_there() -> None:
    properties = encode(Properties(headers={"x-queue-seq": "mine", "other": True}, app_id="x-queue-seq"))
    message = codec.make_message(b"\x00\x00", properties, b"body", NOW)
    shown = decode(codec.numbered(message, NUMBER_OF, -1).header)
    assert shown == Properties(headers={"x-queue-seq": -1, "other": True}, app_id="x-queue-seq")
    twice = codec.numbered(codec.numbered(message, NUMBER_OF, 1), NUMBER_OF, 2)
    assert decode(twice.header).headers == {"x-queue-seq": 2, "other": True}


def test_long_properties_are_not_remembered_but_right() -> None:
    near = [b"\x80\x00" + short(bytes((letter,)) * size) for size in (124, 125, 126, 255) for letter in b"ab"]
    (event,) = fed(b"".join(publish(properties=properties) for properties in near + near[::-1]))
    assert [message.header for message in event.messages] == near + near[::-1]


CUT_OFF = (502, "a content header is cut off")


def test_properties_that_are_cut_off_anywhere() -> None:
    for length in range(2, len(EVERY_PROPERTY)):
        assert fault_of(publish() + publish(properties=EVERY_PROPERTY[:length]))[0] == 502
    for length in range(2):
        with pytest.raises(ConnectionFault, match="a content header is cut off"):
            codec.make_message(b"\x00\x00", EVERY_PROPERTY[:length], b"", NOW)
    for cut in (
        "a000 01",
        "2000 000000",
        "2000 ffffffff",
        "1000",
        "0800",
        "0400 05aa",
        "0100",
        "0080",
        "0040",
        "0010",
    ):
        assert fault_of(publish(properties=bytes.fromhex(cut)))[0] == 502


def test_property_flags_without_meaning() -> None:
    for low in (1, 2, 3):
        assert fault_of(publish(properties=bytes((0, low)))) == (502, "property flags that mean nothing")


def test_octets_behind_the_properties() -> None:
    wrong = (502, "a content header has a wrong length")
    assert fault_of(publish(properties=b"\x10\x00\x02\x00")) == wrong


def nested(depth: int) -> bytes:
    """Fields of a table that holds tables within tables."""
    fields = b""
    for _ in range(depth):
        fields = b"\x01aF" + len(fields).to_bytes(4, "big") + fields
    return fields


@pytest.mark.parametrize(
    "fields, text",
    [
        (b"\x05abc", "truncated field name"),
        (b"\x01a", "truncated field value"),
        (b"\x01aZ", "unknown field type 0x5a"),
        (b"\x01aI\x00\x00", "truncated field value"),
        (b"\x01aS\x00\x00\x00\x09x", None),
        (b"\x01aF\x00\x00\x00\x02\x01b", "truncated field value"),
        (b"\x01aA\x00\x00\x00\x01Z", "unknown field type 0x5a"),
        (b"\x01aD\x00\x00\x00\x00", "truncated field value"),
        (nested(64), "field table nested deeper than 64"),
        (b"\x00V" * 10_001, "more than 10000 values in a field table"),
    ],
)
def test_headers_that_consumers_could_not_read_are_refused(fields: bytes, text: str | None) -> None:
    properties = b"\x20\x00" + len(fields).to_bytes(4, "big") + fields
    (fault,) = decoder_of(131072).feed(publish(properties=properties), NOW)
    code, said = fault.code, fault.text
    assert code == 502
    assert text is None or said == text


def test_headers_at_the_limits_are_taken() -> None:
    for fields in (b"\x00V" * 10_000, nested(63), b""):
        properties = b"\x20\x00" + len(fields).to_bytes(4, "big") + fields
        (event,) = decoder_of(131072).feed(publish(properties=properties), NOW)
        assert event.messages[0].header == properties


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"-1",
        b"1.5",
        b" 1",
        b"1 ",
        b"+",
        b"-",
        b"--0",
        b"+-1",
        b"1_0",
        b"ten",
        b"\xff",
        b"\xd9\xa3",
        b"9" * 20 + b"x",
    ],
)
def test_bad_expiration_is_a_channel_error(text: bytes) -> None:
    properties = b"\x01\x00" + short(text)
    refusal = codec.make_message(b"\x00\x00", properties, b"", NOW)
    assert type(refusal) is ChannelError
    assert (refusal.code, refusal.text) == (406, f"invalid expiration '{text.decode(errors='replace')}'")
    split = publish_method() + header(properties=properties) + body(data=b"bo") + body(data=b"dy")
    refused = publish(properties=properties)
    events = fed(publish() + refused + refused + publish() + split + publish())
    assert [len(event.messages) for event in events] == [1, 0, 0, 1, 0, 1]
    for event in (events[1], events[2], events[4]):
        assert (event.refusal.code, event.refusal.text) == (refusal.code, refusal.text)
        assert (event.channel, event.address, event.flags, event.size) == (1, b"\x02ex\x03key", 0, 0)


# -- sizes ----------------------------------------------------------------------------------------------------


def test_oversize_is_refused_and_passed_over() -> None:
    decoder = decoder_of(8192, 10)
    text = "message size 11 is larger than configured max size 10"
    data = publish(b"x" * 10) + publish(b"x" * 11, bits=3) + publish_method() + header(size=11) + body(data=b"y" * 5)
    events = decoder.feed(data + body(data=b"y" * 6) + publish(b"after"), NOW)
    assert not decoder.failed
    assert [len(event.messages) for event in events] == [1, 0, 0, 1]
    for refused in events[1:3]:
        assert type(refused.refusal) is ChannelError
        assert (refused.refusal.code, refused.refusal.text) == (406, text)
    assert (events[1].mandatory, events[1].immediate) == (True, True)


def test_oversize_of_64_bits_holds_no_memory() -> None:
    decoder = decoder_of()
    decoder.partial_bytes_max = 1000
    assert decoder.feed(publish_method() + header(size=2**64 - 1) + body(data=b"x" * 5000) * 20, NOW) == []
    assert not decoder.failed


def test_frame_max_edge() -> None:
    """Clients such as rabbitpy and AMQPStorm take frame_max for the size of a payload. A header goes to consumers in
    one frame, so it has to fit."""
    for frame_max in (4096, 8192, 131072):
        decoder = decoder_of(frame_max)
        (event,) = decoder.feed(publish(b"x" * frame_max), NOW)
        assert event.messages[0].body_length == frame_max
        split = publish_method() + header(size=frame_max + 1) + body(data=b"x" * frame_max) + body(data=b"y")
        (event,) = decoder.feed(split, NOW)
        assert event.messages[0].body_length == frame_max + 1
        value = b"\x01kS" + (frame_max - 33).to_bytes(4, "big") + bytes(frame_max - 33)
        wide = b"\x20\x00" + len(value).to_bytes(4, "big") + value
        (event,) = decoder.feed(publish(properties=wide), NOW)
        assert event.messages[0].header_length == frame_max - 20
        (event,) = decoder.feed(frame(1, 5, b"m" * frame_max), NOW)
        assert event.payload == b"m" * frame_max
        for kind, size, data in (
            (3, frame_max + 1, publish(b"x" * (frame_max + 1))),
            (2, frame_max - 7, publish(properties=wide + b"x")),
            (1, frame_max + 1, frame(1, 5, b"m" * (frame_max + 1))),
        ):
            decoder = decoder_of(frame_max)
            (fault,) = decoder.feed(data, NOW)
            assert (fault.code, fault.text) == (
                501,
                f"frame_too_large: type {kind}, payload size {size}, frame_max {frame_max}",
            )


def test_frame_too_large_is_known_from_its_first_seven_bytes() -> None:
    text = "frame_too_large: type 3, payload size 4294967295, frame_max 8192"
    assert fault_of(b"\x03\x00\x01\xff\xff\xff\xff") == (501, text)
    decoder = decoder_of()
    assert decoder.feed(b"\x03\x00\x01\xff\xff\xff", NOW) == []


def test_incomplete_contents_have_a_common_limit() -> None:
    assert codec.FrameDecoder().partial_bytes_max == 32 << 20
    assert codec.FrameDecoder(8192, 100 << 20).partial_bytes_max == 200 << 20
    begun = b"".join(publish_method(channel) + header(channel, 100) for channel in (1, 2))
    exactly = 2 * (7 + 2) + 200 - 1
    for limit, failed in ((exactly, False), (exactly - 1, True)):
        decoder = decoder_of()
        decoder.partial_bytes_max = limit
        assert decoder.feed(begun + body(1, b"x" * 99), NOW) == []
        events = decoder.feed(body(2, b"x" * 100), NOW)
        assert decoder.failed is failed
        if failed:
            assert told(events[0]) == ("fault", 506, "incomplete contents exceed the connection's limit")
        else:
            assert len(events[0].messages) == 1


@pytest.mark.parametrize("limit", [6, 8, 12])
def test_names_properties_and_body_count_against_the_limit(limit: int) -> None:
    decoder = decoder_of()
    decoder.partial_bytes_max = limit
    (fault,) = decoder.feed(publish(), NOW)
    assert told(fault) == ("fault", 506, "incomplete contents exceed the connection's limit")
    decoder = decoder_of()
    decoder.partial_bytes_max = 13
    assert len(decoder.feed(publish() * 5, NOW)[0].messages) == 5


def test_completed_refused_and_dropped_contents_give_their_bytes_back() -> None:
    decoder = decoder_of(8192, 40)
    decoder.partial_bytes_max = 60
    for _ in range(5):
        decoder.feed(publish_method() + header(size=40) + body(data=b"x" * 39), NOW)
        decoder.drop_channel(1)
        decoder.feed(publish_method() + header(size=4) + body(data=b"x") + body(data=b"xxx"), NOW)
        decoder.feed(publish_method() + header(size=400) + body(data=b"x" * 200) * 2, NOW)
        decoder.feed(publish(properties=b"\x01\x00\x01x"), NOW)
    assert not decoder.failed
    decoder.drop_channel(1)
    decoder.drop_channel(60000)


def test_dropped_channel_starts_anew() -> None:
    decoder = decoder_of()
    decoder.feed(publish_method(1) + publish_method(2) + header(2), NOW)
    decoder.drop_channel(1)
    (event,) = decoder.feed(publish(b"new", 1) + body(2), NOW)[:1]
    assert (event.channel, [message.body for message in event.messages]) == (1, [b"new"])
    assert not decoder.failed


# -- acknowledgements and other methods -----------------------------------------------------------------------


def test_acks_of_a_channel_join() -> None:
    events = fed(ack(1) + ack(3, True) + ack(2, channel=2) + ack(0, True) + ack(4))
    assert [(event.channel, event.acks) for event in events] == [(1, [2, 7]), (2, [4]), (1, [1, 8])]
    assert [list(event) for event in events] == [event.acks for event in events]
    assert [len(event) for event in events] == [2, 1, 2]
    assert type(events[0]) is codec.Acked


def test_thousand_acks() -> None:
    (event,) = fed(b"".join(ack(tag) for tag in range(1000)))
    assert event.acks == [2 * tag for tag in range(1000)]


def test_a_tag_that_nobody_has_stays_one() -> None:
    """Twice the tag must not lose its high bit: 2**63 + 5 is not 5."""
    (event,) = fed(ack(2**63 - 1) + ack(2**63 + 5, True) + ack(2**64 - 1))
    assert event.acks == [2**64 - 2, 2**64 - 1, 2**64 - 2]


def test_only_the_lowest_bit_of_an_ack_counts() -> None:
    (event,) = fed(frame(1, 1, struct.pack(">HHQB", 60, 80, 5, 0xFE)) + ack(6))
    assert event.acks == [10, 12]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x00",
        b"\x00\x3c\x00",
        b"\x00\x3c\x00\x50",
        struct.pack(">HHQ", 60, 80, 1),
        struct.pack(">HHQBB", 60, 80, 1, 0, 0),
        struct.pack(">HHQB", 60, 90, 1, 0),
        b"\x00\x0a\x00\x0b" + b"x" * 40,
    ],
)
def test_other_methods_are_handed_on(payload: bytes) -> None:
    for channel in (0, 1, 65535):
        (event,) = fed(frame(1, channel, payload))
        assert type(event) is codec.MethodReceived
        assert (event.channel, event.payload) == (channel, payload)


def test_methods_need_no_open_connection() -> None:
    decoder = codec.FrameDecoder()
    assert not decoder.opened
    assert [told(event)[0] for event in decoder.feed(frame(1, 0, b"abcd") + ack(1), NOW)] == ["method", "acked"]


def test_events_can_be_made_by_hand() -> None:
    assert told(codec.Published(7, b"\x00\x01q", True, False)) == (
        "published", 7, b"\x00\x01q", True, False, 0, 0, None, [],
    )  # fmt: skip
    assert told(codec.Acked(7)) == ("acked", 7, [])
    assert told(codec.MethodReceived(7, b"x")) == ("method", 7, b"x")


# -- liveness -------------------------------------------------------------------------------------------------


def test_any_new_octet_is_heard() -> None:
    decoder = decoder_of()
    assert decoder.feed(b"", NOW) == []
    assert not decoder.heard
    decoder.feed(b"\x08", NOW)
    assert decoder.heard
    decoder.heard = False
    decoder.feed(decoder.rest, NOW)
    assert not decoder.heard
    decoder.feed(decoder.rest + frame(8, 0, b"")[1:], NOW)
    assert decoder.heard


# -- faults ---------------------------------------------------------------------------------------------------

BAD_END = publish()[:-1] + b"\x00"


@pytest.mark.parametrize(
    ("data", "code", "text"),
    [
        (frame(4, 0, b""), 501, "unknown frame type 4"),
        (frame(0, 3, b"abc"), 501, "unknown frame type 0"),
        (frame(8, 1, b""), 505, "heartbeat frames belong to channel 0"),
        (BAD_END, 501, "invalid_frame_end_marker: 0 instead of 206"),
        (publish_method()[:-1] + b"\xcf", 501, "invalid_frame_end_marker: 207 instead of 206"),
        (publish_method() + header()[:-1] + b"\xcd", 501, "invalid_frame_end_marker: 205 instead of 206"),
        (b"GET / HTTP/1.1\r\n", 501, "frame_too_large: type 71, payload size 539959368, frame_max 8192"),
        (publish(channel=0), 505, "content before the connection is open"),
        (header(), 505, "expected method frame on channel 1, got a content header instead"),
        (publish() + header(), 505, "expected method frame on channel 1, got a content header instead"),
        (
            publish_method() + header() + header(),
            505,
            "expected method frame on channel 1, got a content header instead",
        ),
        (publish_method() + header(2), 505, "expected method frame on channel 2, got a content header instead"),
        (body(), 505, "expected method frame or header on channel 1, got a content body instead"),
        (publish_method() + body(), 505, "expected method frame or header on channel 1, got a content body instead"),
        (
            publish_method() + header() + body(2),
            505,
            "expected method frame or header on channel 2, got a content body instead",
        ),
        (publish() + body(data=b""), 505, "expected method frame or header on channel 1, got a content body instead"),
        (publish_method() * 2, 505, "expected content for channel 1, got a method frame instead"),
        (publish_method() + ack(1), 505, "expected content for channel 1, got a method frame instead"),
        (
            publish_method() + header() + publish(),
            505,
            "expected content for channel 1, got a method frame instead",
        ),
        (
            publish_method() + header() + body(data=b"bo") + frame(1, 1, b"abcd"),
            505,
            "expected content for channel 1, got a method frame instead",
        ),
        (
            publish_method() + header(class_id=61),
            505,
            "expected content header for class 60, got one for class 61 instead",
        ),
        (
            publish_method() + header() + body(data=b"bodyx"),
            505,
            "content body on channel 1 is longer than its header said",
        ),
        (
            publish_method() + header() + body(data=b"bod") + body(data=b"yx"),
            505,
            "content body on channel 1 is longer than its header said",
        ),
        (publish_method() + frame(2, 1, b""), 502, "a content header is cut off"),
        (publish_method() + frame(2, 1, header(size=0)[7:-2]), 502, "a content header is cut off"),
        (frame(1, 1, b"\x00\x3c\x00\x28"), 502, "basic.publish is cut off"),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00"), 502, "basic.publish is cut off"),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\xff\x00\x00"), 502, "basic.publish has a wrong length"),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x01\x00\x00"), 502, "basic.publish has a wrong length"),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x01\x00"), 502, "basic.publish has a wrong length"),
        (frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00\x00"), 502, "basic.publish has a wrong length"),
        (publish(exchange=b"\xff"), 502, "a name is not valid UTF-8"),
        (publish(key=b"\xed\xa0\x80"), 502, "a name is not valid UTF-8"),
        (publish(exchange=b"\xc3", key=b"\xbc"), 502, "a name is not valid UTF-8"),
    ],
)
def test_faults(data: bytes, code: int, text: str) -> None:
    assert fault_of(data) == (code, text)
    assert fault_of(ack(9) + publish(channel=7) + data) == (code, text)
    decoder = decoder_of()
    for octet in data:
        events = decoder.feed(decoder.rest + bytes((octet,)), NOW)
        if decoder.failed:
            break
    assert told(events[-1]) == ("fault", code, text)


def test_events_before_the_fault_are_kept() -> None:
    events = decoder_of().feed(publish() + ack(1) + frame(9, 0, b"") + publish(), NOW)
    assert [told(event)[0] for event in events] == ["published", "acked", "fault"]


def test_content_before_the_connection_is_open() -> None:
    assert fault_of(publish(), opened=False) == (505, "content before the connection is open")


def test_what_was_remembered_is_still_checked_after_a_refusal() -> None:
    """Properties that were refused, or cut off, never pass for remembered ones."""
    good, bad = b"\x01\x00\x0212", b"\x01\x00\x021x"
    events = fed(b"".join(publish(properties=each) for each in (good, bad, bad, good, bad)))
    assert [event.refusal is None for event in events] == [True, False, False, True, False]
    assert [event.messages[0].ttl_ms for event in (events[0], events[3])] == [12, 12]


# -- out ------------------------------------------------------------------------------------------------------


def message_of(data: bytes = b"body", properties: bytes = NO_PROPERTIES) -> Any:
    return codec.make_message(address_of(b"ex", b"key"), properties, data, NOW)


def test_golden_frames_out() -> None:
    out = codec.OutBuffer(4096)
    message = message_of(b"body", PERSISTENT_TEXT)
    content = header(5, 4, PERSISTENT_TEXT) + body(5)
    out.deliver(5, b"\x04ctag", 0x0102030405060708, True, message)
    deliver = bytes.fromhex("01 0005 00000019 003c 003c 04 63746167 0102030405060708 01 026578 036b6579 ce")
    assert out.take() == deliver + content
    out.get_ok(5, 7, False, message, 0xFFFFFFFF)
    get_ok = bytes.fromhex("01 0005 00000018 003c 0047 0000000000000007 00 026578 036b6579 ffffffff ce")
    assert out.take() == get_ok + content
    out.returned(5, 312, b"NO_ROUTE", message)
    returned = bytes.fromhex("01 0005 00000016 003c 0032 0138 08 4e4f5f524f555445 026578 036b6579 ce")
    assert out.take() == returned + content
    out.ack(1, 2**64 - 1, True)
    out.nack(65535, 3, False)
    confirms = bytes.fromhex(
        "01 0001 0000000d 003c 0050 ffffffffffffffff 01 ce 01 ffff 0000000d 003c 0078 0000000000000003 00 ce"
    )
    assert out.take() == confirms
    out.method(0, b"\x00\x0a\x00\x1e")
    out.frame(8, 0, b"")
    out.raw(b"AMQP\x00\x00\x09\x01")
    assert out.take() == bytes.fromhex("01 0000 00000004 000a001e ce 08 0000 00000000 ce 414d5150 00000901")


@pytest.mark.parametrize("length", [0, 1, 4087, 4088, 4089, 8176, 8177, 50_000])
@pytest.mark.parametrize("frame_max", [0, 9, 4096])
def test_bodies_are_split_by_frame_max(length: int, frame_max: int) -> None:
    data = bytes(range(256)) * (length // 256 + 1)
    data = data[:length]
    out = codec.OutBuffer(frame_max)
    out.deliver(1, b"\x00", 1, False, message_of(data))
    step = frame_max - 8 if frame_max else max(length, 1)
    bodies = b"".join(body(1, data[at : at + step]) for at in range(0, length, step))
    expected = header(1, length) + bodies
    sent = out.take()
    assert sent.endswith(expected)
    assert len(sent) == len(expected) + 8 + 4 + 1 + 9 + 7


def test_a_message_comes_out_as_it_went_in() -> None:
    (event,) = fed(publish(b"x" * 3000, properties=EVERY_PROPERTY))
    out = codec.OutBuffer(0)
    out.deliver(1, b"\x00", 1, False, event.messages[0])
    assert out.take().endswith(header(1, 3000, EVERY_PROPERTY) + body(1, b"x" * 3000))


def test_header_length_that_claims_too_much_reads_nothing_beyond() -> None:
    message = type(message_of())(address_of(b"ex", b"key"), b"abcdef", 4_000_000_000)
    out = codec.OutBuffer()
    out.deliver(1, b"\x00", 1, False, message)
    assert out.take().endswith(header(1, 0, b"abcdef"))


def test_size_and_writable() -> None:
    out = codec.OutBuffer(8192, 100)
    assert (out.size, out.size_max, out.frame_max, out.paused, out.writable) == (0, 100, 8192, False, True)
    assert out.take() == b""
    out.raw(b"x" * 99)
    assert out.writable
    out.raw(b"")
    assert out.size == 99
    out.raw(b"x")
    assert not out.writable
    assert out.size == 100
    out.size_max = 101
    assert out.writable
    out.paused = True
    assert not out.writable
    out.paused = False
    assert out.take() == b"x" * 100
    assert (out.size, out.writable, out.take()) == (0, True, b"")
    assert codec.OutBuffer().size_max == 1 << 20


def test_buffer_grows_from_nothing_again_and_again() -> None:
    out = codec.OutBuffer()
    for length in (1, 700_000, 3, 0, 40, 5_000, 1):
        pieces = [bytes((at % 251,)) * (1 + at % 700) for at in range(length % 1000)] + [b"y" * length]
        for piece in pieces:
            out.raw(piece)
        assert out.size == sum(map(len, pieces))
        assert out.take() == b"".join(pieces)


def test_mistakes_of_ours_are_refused() -> None:
    out = codec.OutBuffer(8)
    with pytest.raises(AssertionError, match="a frame has room for a body"):
        out.deliver(1, b"\x00", 1, False, message_of())
    with pytest.raises(AssertionError, match="a reply text is a short string"):
        out.returned(1, 312, b"x" * 256, message_of())
    assert out.take() == b""


def test_what_was_accepted_once_is_read_beyond_the_limits_of_a_publish() -> None:
    """The broker adds to headers: a history of deaths, counts, numbers, traces."""
    for fields in (b"\x00V" * 30_000, nested(100)):
        properties = b"\x20\x00" + len(fields).to_bytes(4, "big") + fields
        made = codec.make_message(b"\x00\x00", properties, b"", NOW)
        assert made.header == properties
        fault = decoder_of(131072).feed(publish(properties=properties), NOW)[-1]
        assert fault.code == 502
    with pytest.raises(ConnectionFault, match="nested deeper than 128"):
        fields = nested(128)
        codec.make_message(b"\x00\x00", b"\x20\x00" + len(fields).to_bytes(4, "big") + fields, b"", NOW)
