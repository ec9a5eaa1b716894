"""The codec and its model are one: same bytes in any slices, same events, same faults, same bytes out."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp091 import codec as codec_compiled
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from tests.budget import examples
from tests.model import codec as codec_model

BOTH = (codec_model, codec_compiled)
FRAME_MAX = 4096
BYTES_MAX = 600


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def cut(data: bytes, step: int) -> list[bytes]:
    return [data[at : at + step] for at in range(0, len(data), step)]


# mostly legal: a stream that dies at its first frame compares little
channels = st.sampled_from([1] * 20 + [2] * 10 + [3] * 5 + [0])
good_names = st.sampled_from([b"key"] * 12 + [b"", b"a", b"other", "ü".encode(), b"n" * 255])
names = st.integers(0, 40).flatmap(lambda luck: good_names if luck else st.just(b"\xff"))
short_strings = st.binary(max_size=30).map(short)
expirations = st.sampled_from(
    [b"0", b"60000", b"4294967296", b"9223372036854775808", b"-0", b"+1", b"-1", b"", b"x", b"\xfe"]
).map(short)
octets = st.integers(0, 255).map(lambda value: bytes((value,)))
tables = st.sampled_from([b"\x00\x00\x00\x00", b"\x00\x00\x00\x04\x01kt\x01", b"\x00\x00\x01\x00", b"\xff\xff\xff\xff"])
PROPERTIES: list[st.SearchStrategy[bytes]] = [
    short_strings, short_strings, tables, octets, octets, short_strings, short_strings, expirations,
    short_strings, st.binary(min_size=8, max_size=8), short_strings, short_strings, short_strings, short_strings,
]  # fmt: skip


@st.composite
def property_lists(draw: st.DrawFn) -> bytes:
    """Property flags and list: mostly good, sometimes cut off, continued or followed by junk."""
    bits = draw(st.sampled_from([0, 0x1000, 0x9000, 0x0100, 0x0210, 0xFFFC, 0x0002]) | st.integers(0, 0xFFFF))
    data = struct.pack(">H", bits)
    for place, strategy in enumerate(PROPERTIES):
        if bits & 0x8000 >> place:
            data += draw(strategy)
    return draw(st.sampled_from([data] * 10 + [data + b"junk", data[:-1], data[:3]]))


usual_properties = st.sampled_from([b"\x00\x00", b"\x10\x00\x02", b"\x80\x00" + short(b"t" * 126)])


@st.composite
def publishes(draw: st.DrawFn) -> list[bytes]:
    channel = draw(channels)
    body = draw(st.binary(max_size=40) | st.integers(BYTES_MAX - 2, BYTES_MAX + 2).map(bytes))
    address = short(draw(names)) + short(draw(names))
    method = b"\x00\x3c\x00\x28\x00\x00" + address + draw(st.sampled_from([b"\x00", b"\x00", b"\x01", b"\x03"]))
    said = len(body) + draw(st.sampled_from([0] * 30 + [1, -1, 2**40]))
    head = struct.pack(">HHQ", 60, 0, max(said, 0)) + draw(usual_properties | usual_properties | property_lists())
    bodies = cut(body, draw(st.sampled_from([7, 1000, 1000])))
    return [frame(1, channel, method), frame(2, channel, head), *(frame(3, channel, each) for each in bodies)]


acks = st.tuples(channels, st.integers(0, 2**64 - 1), octets).map(
    lambda ack: [frame(1, ack[0], struct.pack(">HHQ", 60, 80, ack[1]) + ack[2])]
)
others = st.one_of(
    st.builds(lambda channel, payload: [frame(1, channel, payload)], channels, st.binary(max_size=20)),
    st.just([frame(8, 0, b"")]),
)
rare = st.builds(
    lambda kind, channel, payload: [frame(kind, channel, payload)],
    st.integers(0, 10),
    channels,
    st.binary(max_size=30) | st.just(b"\x00\x3c\x00\x28\x00\x00\x00\x00\x00"),
)
streams = st.lists(publishes() | publishes() | acks | others, max_size=12)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Frames in an order that is mostly legal; contents of different channels may interleave."""
    items = draw(streams)
    if draw(st.integers(0, 5)) == 0:
        items.insert(draw(st.integers(0, len(items))), draw(rare))
    if draw(st.booleans()):
        return b"".join(each for item in items for each in item)
    waiting, mixed = [list(item) for item in items], []
    while waiting:
        item = waiting[draw(st.integers(0, min(len(waiting), 3) - 1))]
        mixed.append(item.pop(0))
        waiting = [each for each in waiting if each]
    return b"".join(mixed)


def fields(message: Any) -> tuple[Any, ...]:
    names = ("address", "payload", "header_length", "flags", "priority", "time_ms", "ttl_ms")
    return tuple(getattr(message, name) for name in names)


def told(event: Any) -> tuple[Any, ...]:
    if isinstance(event, AmqpError):
        return (type(event), event.code, event.text)
    if hasattr(event, "messages"):
        refusal = event.refusal and told(event.refusal)
        marks = (event.channel, event.address, event.mandatory, event.immediate, event.flags, event.size)
        return (*marks, event.exchange, event.routing_key, refusal, [fields(message) for message in event.messages])
    if hasattr(event, "acks"):
        return ("acked", event.channel, event.acks, list(event), len(event))
    return ("method", event.channel, event.payload)


def answers(module: Any, data: bytes, cuts: list[int], partial: int, drop: int) -> list[Any]:
    decoder = module.FrameDecoder(FRAME_MAX, BYTES_MAX)
    decoder.opened = True
    decoder.partial_bytes_max = partial
    said: list[Any] = []
    for at, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(data)], strict=True)):
        said += map(told, decoder.feed(decoder.rest + data[start:end], 1000 + at))
        said.append((decoder.rest, decoder.failed, decoder.heard))
        decoder.heard = False
        if at == drop:
            decoder.drop_channel(1)
    return said


def agree(data: bytes, fractions: list[int], partial: int = 32 << 20, drop: int = -1) -> list[Any]:
    cuts = sorted(fraction * len(data) // 1000 for fraction in fractions)
    pure, fast = (answers(module, data, cuts, partial, drop) for module in BOTH)
    assert fast == pure
    return pure


slices = st.lists(st.integers(0, 1000), max_size=6)
partials = st.sampled_from([32 << 20, 32 << 20, 2000, 700])


@settings(max_examples=examples(400))
@given(conversations(), slices, partials, st.integers(-1, 3))
def test_same_events_and_same_faults(data: bytes, fractions: list[int], partial: int, drop: int) -> None:
    agree(data, fractions, partial, drop)


@settings(max_examples=examples(400))
@given(conversations(), slices, st.data())
def test_mutated_bytes(data: bytes, fractions: list[int], choice: st.DataObject) -> None:
    noisy = bytearray(data)
    for _ in range(choice.draw(st.integers(1, 3))):
        if noisy:
            at = choice.draw(st.integers(0, len(noisy) - 1))
            noisy[at] = choice.draw(st.integers(0, 255))
    agree(bytes(noisy), fractions)


@given(st.binary(max_size=300), slices)
def test_arbitrary_bytes(data: bytes, fractions: list[int]) -> None:
    agree(data, fractions)


@given(conversations(), slices)
def test_slices_change_no_message(data: bytes, fractions: list[int]) -> None:
    """However the bytes are cut, the same messages arrive (only batches and times differ)."""

    def messages(cuts: list[int]) -> list[Any]:
        said = agree(data, cuts)
        return [message[:5] for event in said if len(event) == 10 for message in event[-1]]

    assert messages(fractions) == messages([])


contents = st.tuples(good_names, usual_properties, st.integers(0, 20_000))
calls = st.one_of(
    st.tuples(st.just("deliver"), channels, short_strings, st.integers(0, 2**64 - 1), st.booleans(), contents),
    st.tuples(
        st.just("get_ok"), channels, st.integers(0, 2**64 - 1), st.booleans(), contents, st.integers(0, 2**32 - 1)
    ),
    st.tuples(st.just("returned"), channels, st.integers(0, 65535), st.binary(max_size=255), contents),
    st.tuples(st.sampled_from(["ack", "nack"]), channels, st.integers(0, 2**64 - 1), st.booleans()),
    st.tuples(st.just("method"), channels, st.binary(max_size=50)),
    st.tuples(st.just("frame"), st.integers(0, 255), channels, st.binary(max_size=50)),
    st.tuples(st.just("raw"), st.binary(max_size=50)),
    st.tuples(st.just("take")),
)


def written(module: Any, frame_max: int, todo: list[tuple[Any, ...]]) -> list[Any]:
    out = module.OutBuffer(frame_max, 5000)
    said: list[Any] = []
    for name, *arguments in todo:
        for place, argument in enumerate(arguments):
            if isinstance(argument, tuple):
                key, properties, length = argument
                body = bytes(at % 251 for at in range(length))
                arguments[place] = module.make_message(short(b"x") + short(key), properties, body, 5)
        said.append(getattr(out, name)(*arguments))
        said.append((out.size, out.writable))
    return [*said, out.take()]


@given(st.lists(calls, max_size=12), st.sampled_from([0, 9, 300, 4096]))
def test_same_frames_out(todo: list[tuple[Any, ...]], frame_max: int) -> None:
    pure, fast = (written(module, frame_max, todo) for module in BOTH)
    assert fast == pure


@given(
    st.lists(st.tuples(channels.filter(bool), short_strings, st.booleans(), contents), max_size=8),
    st.sampled_from([600, 4096, 131072]),
)
def test_deliveries_read_as_the_publishes_they_were(deliveries: list[tuple[Any, ...]], frame_max: int) -> None:
    """What goes out keeps the grammar of what comes in: each basic.deliver, made a basic.publish, decodes to it."""
    for module in BOTH:
        out = module.OutBuffer(frame_max)
        decoder = module.FrameDecoder(frame_max)
        decoder.opened = True
        for tag, (channel, consumer, redelivered, (key, properties, length)) in enumerate(deliveries):
            address = short(b"x") + short(key)
            sent = module.make_message(address, properties, bytes(length), 5)
            out.deliver(channel, consumer, tag, redelivered, sent)
            data = out.take()
            size = int.from_bytes(data[3:7], "big")
            method, content = data[7 : 7 + size], data[8 + size :]
            assert method == b"\x00\x3c\x00\x3c" + consumer + struct.pack(">QB", tag, redelivered) + address
            again = frame(1, channel, b"\x00\x3c\x00\x28\x00\x00" + address + b"\x00") + content
            (event,) = decoder.feed(again, 5)
            assert event.channel == channel
            assert [fields(message) for message in event.messages] == [fields(sent)]
