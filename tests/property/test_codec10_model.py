"""AMQP 1.0's codec and its model are one: same bytes in any slices, same events, same faults."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10 import codec as codec_compiled
from clusterbroker.broker.wire.amqp10 import sections
from clusterbroker.broker.wire.amqp10.performatives import (
    Accepted,
    Begin,
    Disposition,
    Flow,
    Header,
    Properties,
    Rejected,
    Released,
    Transfer,
)
from clusterbroker.broker.wire.amqp10.types import Described, Symbol, Uuid, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.budget import examples
from tests.model import codec10 as codec_model
from tests.model import sections10
from tests.support.amqp10 import frame
from tests.support.decoded10 import fields, told

BOTH = (codec_model, codec_compiled)
FRAME_MAX = 700
BYTES_MAX = 400
LINKS = ((0, 0), (0, 1), (1, 0))

texts = st.text(max_size=6)
annotations = st.dictionaries(
    texts.filter(str.isascii).map(Symbol), st.one_of(st.none(), texts, st.lists(st.booleans(), max_size=3)), max_size=3
)
headers = st.builds(
    Header, durable=st.booleans(), priority=st.integers(0, 9), ttl=st.none() | st.integers(0, 2**32 - 1),
    first_acquirer=st.booleans(), delivery_count=st.integers(0, 300),
)  # fmt: skip
properties = st.builds(
    Properties,
    message_id=st.one_of(
        st.none(), texts, st.binary(max_size=4), st.integers(0, 2**64 - 1).map(UInt64),
        st.binary(min_size=16, max_size=16).map(Uuid),
    ),
    user_id=st.none() | st.binary(max_size=4), to=st.none() | texts, subject=st.none() | texts,
    reply_to=st.none() | texts, content_type=st.none() | st.just("text/plain"),
    creation_time=st.none() | st.integers(0, 2**40), group_sequence=st.none() | st.integers(0, 2**32 - 1),
)  # fmt: skip
applications = st.dictionaries(
    texts, st.one_of(st.none(), texts, st.integers(-5, 5), st.floats(allow_nan=False)), max_size=3
)
bodies = st.one_of(
    st.binary(max_size=60).map(lambda data: encode(Described(UInt64(0x75), data))),
    st.integers(BYTES_MAX - 30, BYTES_MAX + 5).map(lambda size: encode(Described(UInt64(0x75), bytes(size)))),
    st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(
        lambda parts: b"".join(encode(Described(UInt64(0x75), part)) for part in parts)
    ),
    st.just(encode(Described(UInt64(0x77), {"a": [1, 2]}))),
    st.just(encode(Described(UInt64(0x76), [1])) * 2),
    st.just(b""),
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Messages; mostly whole, sometimes in a wrong order, cut off or damaged."""
    sections = [
        draw(st.just(b"") | headers.map(Header.encoded)),
        draw(st.just(b"") | annotations.map(lambda one: encode(Described(UInt64(0x71), one)))),
        draw(st.just(b"") | annotations.map(lambda one: encode(Described(UInt64(0x72), one)))),
        draw(st.just(b"") | properties.map(Properties.encoded)),
        draw(st.just(b"") | applications.map(lambda one: encode(Described(UInt64(0x74), one)))),
        draw(bodies),
        draw(st.just(b"") | annotations.map(lambda one: encode(Described(UInt64(0x78), one)))),
    ]
    trouble = draw(st.integers(0, 30))
    if trouble == 0:
        sections.insert(draw(st.integers(0, 6)), draw(headers).encoded())
    data = b"".join(sections)
    if trouble == 1 and data:
        data = data[: draw(st.integers(0, len(data) - 1))]
    if trouble == 2 and data:
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + bytes((draw(st.integers(0, 255)),)) + data[place + 1 :]
    return data


usual = st.sampled_from(
    [
        encode(Described(UInt64(0x75), b"usual")),
        Header(durable=True).encoded() + encode(Described(UInt64(0x75), b"more")),
    ]
)


@st.composite
def deliveries(draw: st.DrawFn, number: int) -> list[bytes]:
    channel, handle = draw(st.sampled_from([*LINKS, *LINKS, *LINKS, (2, 9)]))
    payload = draw(usual | payloads())
    settled = draw(st.sampled_from([None, False, True, True]))
    parts = [payload]
    if draw(st.integers(0, 3)) == 0:
        step = draw(st.integers(1, 200))
        parts = [payload[at : at + step] for at in range(0, len(payload), step)] or [b""]
    frames = []
    odd = draw(st.integers(0, 25))
    for place, part in enumerate(parts):
        transfer = Transfer(handle=handle, more=place + 1 < len(parts))
        if place == 0 or draw(st.booleans()):
            transfer.delivery_id, transfer.delivery_tag = number, b"tag%d" % number
        if place == 0:
            transfer.settled = settled
            transfer.message_format = draw(st.sampled_from([None, 0]))
        if odd == 0:
            transfer.state = Accepted()
        elif odd == 1:
            transfer.aborted = True
        elif odd == 2:
            transfer.delivery_tag = draw(st.sampled_from([None, b"", b"x" * 33, b"other"]))
        elif odd == 3:
            transfer.delivery_id = draw(st.none() | st.integers(0, 9))
        elif odd == 4:
            transfer.message_format = 5
        frames.append(frame(channel, transfer, part))
    return frames


states = st.sampled_from([Accepted(), Accepted(), Accepted(), Released(), None, Rejected()])
dispositions = st.builds(
    lambda channel, role, first, more, settled, state: [
        frame(
            channel,
            Disposition(
                role=role, first=first, last=more and (first + more) % 2**32, settled=settled, state=state
            ),
        )
    ],
    st.integers(0, 1), st.sampled_from([True] * 5 + [False]), st.integers(0, 20) | st.just(2**32 - 2),
    st.none() | st.integers(1, 5), st.booleans(), states,
)  # fmt: skip
others = st.sampled_from(
    [
        [frame(0, Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3))],
        [frame(5, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))],
        [struct.pack(">IBBH", 8, 2, 0, 3)],
        [b"AMQP\0\1\0\0"],
        [frame(0, Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3), kind=1)],
    ]
)
rare = st.sampled_from(
    [
        [struct.pack(">IBBH", 7, 2, 0, 0)], [struct.pack(">IBBH", FRAME_MAX + 1, 2, 0, 0)],
        [struct.pack(">IBBH", 8, 1, 0, 0)],
        [struct.pack(">IBBH", 8, 2, 2, 0)], [struct.pack(">IBBH", 12, 4, 0, 0) + b"junk"],
    ]
)  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    items, number = [], 0
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.integers(0, 9))
        if kind < 6:
            items.append(draw(deliveries(number)))
            number = draw(st.sampled_from([number + 1] * 9 + [number]))
        elif kind < 8:
            items.append(draw(dispositions))
        else:
            items.append(draw(others))
    if draw(st.integers(0, 7)) == 0:
        items.append(draw(rare))
    if draw(st.booleans()):
        return b"".join(each for item in items for each in item)
    waiting, mixed = [list(item) for item in items], []
    while waiting:
        item = waiting[draw(st.integers(0, min(len(waiting), 3) - 1))]
        mixed.append(item.pop(0))
        waiting = [each for each in waiting if each]
    return b"".join(mixed)


def heard(module: Any, data: bytes, cuts: list[int]) -> list[Any]:
    decoder = module.FrameDecoder(FRAME_MAX, BYTES_MAX)
    links = [decoder.open_link(channel, handle, b"\0\1%d" % handle, handle) for channel, handle in LINKS]
    links[-1].raw = True
    found: list[Any] = []
    at = 0
    for end in [*cuts, len(data)]:
        events = decoder.feed(decoder.rest + data[at:end], 1000 + end)
        at = end
        found.append([told(event) for event in events])
        found.append((decoder.failed, decoder.heard, decoder.partial_bytes, decoder.rest))
        found.append([(link.partial, link.tag) for link in links])
    decoder.close_link(links[0])
    found.append((decoder.partial_bytes, [told(event) for event in decoder.feed(decoder.rest + data, 5)]))
    return found


@settings(max_examples=examples(200), deadline=None)
@given(conversations(), st.lists(st.integers(0, 2000), max_size=4))
def test_both_hear_the_same(data: bytes, cuts: list[int]) -> None:
    slices = sorted(cut for cut in cuts if cut < len(data))
    model, compiled = (heard(module, data, slices) for module in BOTH)
    assert compiled == model


@settings(max_examples=examples(200), deadline=None)
@given(payloads(), st.data())
def test_both_find_the_same_message(payload: bytes, data: st.DataObject) -> None:
    if payload and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(payload) - 1))
        payload = payload[:place] + data.draw(st.binary(max_size=3)) + payload[place + 1 :]
    model, compiled = (module.make_message(b"\0\0", payload, 5) for module in (sections10, sections))
    assert (model is None) == (compiled is None)
    if model is not None:
        assert fields(model) == fields(compiled)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=8))
def test_junk_costs_nobody_but_its_sender(junk: list[bytes], start: bytes) -> None:
    decoder = codec_compiled.FrameDecoder(FRAME_MAX, BYTES_MAX)
    decoder.open_link(0, 0, b"\0\0")
    data = start + b"".join(frame(0, b"\0\x53\x14" + each) for each in junk)
    decoder.feed(data, 1)
