"""The compiled rewriter is its model: on deliveries, cut anywhere, and on bytes that are none."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.bridges import rewriting as compiled
from clusterbroker.broker.bridges.errors import Looped, Malformed, Unfit
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import CLASS_ID, Properties, encode
from tests.budget import examples
from tests.model import rewriting as model

values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), st.none(), st.lists(st.integers(0, 9))
)
names = st.sampled_from(
    (
        "x-delivery-count",
        "x-acquired-count",
        "x-producer",
        "x-seq",
        "x-bridge-hops",
        "x-stream-offset",
        "x-death",
        "CC",
        "a",
        "",
    )
)
properties = st.fixed_dictionaries(
    {
        "content_type": st.none() | st.text(max_size=5),
        "headers": st.none() | st.dictionaries(names, values, max_size=5),
        "delivery_mode": st.none() | st.integers(1, 2),
        "priority": st.none() | st.integers(0, 255),
        "correlation_id": st.none() | st.text(max_size=5),
        "user_id": st.none() | st.just("guest"),
        "timestamp": st.none() | st.integers(0, 2**40),
        "app_id": st.none() | st.text(max_size=5),
    }
).map(lambda fields: Properties(**fields))


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def delivery(one: Properties, body: bytes, flagged: bool, key: str, pieces: int) -> bytes:
    method = m.BasicDeliver(consumer_tag="c", delivery_tag=7, redelivered=flagged, exchange="x", routing_key=key)
    size = max(1, -(-len(body) // pieces))
    return (
        frame(1, m.encode(method))
        + frame(2, struct.pack(">HHQ", CLASS_ID, 0, len(body)) + encode(one))
        + b"".join(frame(3, body[at : at + size]) for at in range(0, len(body), size))
    )


deliveries = st.builds(
    delivery, properties, st.binary(max_size=40), st.booleans(), st.text(max_size=6), st.integers(1, 3)
)
others = st.sampled_from((frame(8, b"", 0), frame(1, m.encode(m.BasicQosOk())), frame(1, m.encode(m.BasicAck(5)))))
ends = st.tuples(
    st.sampled_from(("", "far")), st.none() | st.text(max_size=4), st.sampled_from((b"", b"p")),
    st.sampled_from((b"", b"abc")), st.sampled_from((64, 131072)), st.sampled_from((48, 131072)),
    st.sampled_from((20, 131072)), st.booleans(),
)  # fmt: skip


def outcome(of: Any, end: tuple[Any, ...], parts: list[bytes], first: int) -> list[Any]:
    """All that can be seen of a rewriter that is fed with the parts."""
    rewriter, seen = of.Rewriter(*end), []
    for part in parts:
        try:
            parcel = rewriter.feed(part)
        except ValueError as error:
            return [*seen, type(error).__name__, str(error)]
        if end[2]:
            parcel.number(first)
        seen.append((parcel.count, bytes(parcel.frames), parcel.flagged, parcel.priorities, parcel.prints))
        seen.append((parcel.others, parcel.offsets, rewriter.messages))
        if end[2]:
            parcel.number_each([first + 5 * at for at in range(parcel.count)])
            seen.append(bytes(parcel.frames))
    return seen


@given(
    ends, st.lists(deliveries | others, max_size=6), st.lists(st.integers(0, 400), max_size=4), st.integers(1, 2**60)
)
@settings(max_examples=examples(400), deadline=None)
def test_it_is_its_model(end: tuple[Any, ...], frames: list[bytes], cuts: list[int], first: int) -> None:
    octets, places = b"".join(frames), [0, *sorted(cuts)]
    parts = [octets[at:to] for at, to in zip(places, [*places[1:], len(octets)], strict=True)]
    assert outcome(compiled, end, parts, first) == outcome(model, end, parts, first)


@given(ends, deliveries, st.integers(0, 200), st.integers(0, 255), st.integers(1, 2**60))
@settings(max_examples=examples(400), deadline=None)
def test_a_wrong_byte_hurts_nothing(end: tuple[Any, ...], octets: bytes, at: int, byte: int, first: int) -> None:
    broken = octets[:at] + bytes([byte]) + octets[at + 1 :]
    assert outcome(compiled, end, [broken], first) == outcome(model, end, [broken], first)


def test_a_print_does_not_change_with_what_a_source_adds() -> None:
    rewriter = compiled.Rewriter("", "q", b"p", b"", 131072, 131072, 1 << 20)
    first = rewriter.feed(delivery(Properties(), b"body", False, "k", 1))
    again = rewriter.feed(delivery(Properties(headers={"x-delivery-count": 1}), b"body", True, "k", 1))
    other = rewriter.feed(delivery(Properties(headers={"x": 1}), b"body", True, "k", 1))
    assert first.prints == again.prints != other.prints
    assert (first.flagged, again.flagged) == (b"\0", b"\1")


def test_a_message_of_a_stream_says_where_it_was_and_keeps_no_header_of_it() -> None:
    rewriter = compiled.Rewriter("", "q", b"p", b"", 131072, 131072, 1 << 20, True)
    parcel = rewriter.feed(delivery(Properties(headers={"x-stream-offset": 2**40, "a": 1}), b"body", False, "k", 1))
    assert parcel.offsets == [2**40]
    assert b"x-stream-offset" not in parcel.frames
    with pytest.raises(Malformed, match="without its offset"):
        rewriter.feed(delivery(Properties(headers={"a": 1}), b"body", False, "k", 1))


def test_a_message_that_was_here_is_refused() -> None:
    hops = Properties(headers={"x-bridge-hops": "one two"})
    with pytest.raises(Looped, match="one two"):
        compiled.Rewriter("", "q", b"", b"two", 131072, 131072, 1 << 20).feed(delivery(hops, b"", False, "k", 1))


def test_a_source_is_bounded_before_its_bytes_are_kept() -> None:
    def limited() -> compiled.Rewriter:
        return compiled.Rewriter("", "q", b"", b"", 131072, 4096, 1000)

    method = m.BasicDeliver(consumer_tag="c", delivery_tag=7, redelivered=False, exchange="x", routing_key="k")
    begun = frame(1, m.encode(method))
    with pytest.raises(Unfit, match="its 1001 bytes are more than the 1000 that are taken"):
        limited().feed(begun + frame(2, struct.pack(">HHQH", CLASS_ID, 0, 1001, 0)))
    with pytest.raises(Malformed, match="larger than was negotiated"):
        limited().feed(struct.pack(">BHIB", 3, 1, 4089, 0))
    with pytest.raises(Malformed, match="an empty body frame"):
        limited().feed(begun + frame(2, struct.pack(">HHQH", CLASS_ID, 0, 1000, 0)) + frame(3, b""))
