"""Flows take a quick way between bytes and Python: what comes out is what the general way makes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10 import flows as flows_compiled
from clusterbroker.broker.wire.amqp10 import performatives
from clusterbroker.broker.wire.amqp10.performatives import Composite, Flow, composed
from clusterbroker.broker.wire.amqp10.types import DecodeError
from clusterbroker.broker.wire.amqp10.types import decode as decode_value
from tests.model import flows10 as flows_model

numbers = st.integers(0, 2**32 - 1) | st.sampled_from((0, 1, 255, 256, 2**32 - 1))
flows = st.builds(
    lambda **values: Flow(**values),
    next_incoming_id=st.none() | numbers, incoming_window=numbers, next_outgoing_id=numbers, outgoing_window=numbers,
    handle=st.none() | numbers, delivery_count=st.none() | numbers, link_credit=st.none() | numbers,
    available=st.none() | numbers, drain=st.booleans(), echo=st.booleans(),
    properties=st.none() | st.just({"a": 1}),
)  # fmt: skip


def generally(raw: bytes) -> Any:
    """As `performatives.decode` without its quick way."""
    value, end = decode_value(raw, 0)
    return composed(value), end


def outcome(read: Any, raw: bytes) -> Any:
    try:
        return read(raw)
    except DecodeError:
        return "malformed"


def widened(raw: bytes) -> bytes:
    """The same flow as a list with a wide head, as many clients write it."""
    return raw[:3] + struct.pack(">BII", 0xD0, raw[4] + 3, raw[5]) + raw[6:]


@given(flows, st.binary(max_size=3))
def test_flows_with_a_wide_head_are_read_the_quick_way(flow: Flow, behind: bytes) -> None:
    if flow.properties is None:
        raw = widened(flow.encoded())
        assert generally(raw + behind) == performatives._quick_flow(raw + behind, 0) == (flow, len(raw))


@given(flows)
def test_flows_are_written_as_in_general(flow: Flow) -> None:
    assert flow.encoded() == Composite.encoded(flow)
    assert performatives.decode(flow.encoded()) == (flow, len(flow.encoded()))


@given(
    flows,
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from((0x40, 0x41, 0x43, 0x45, 0x52, 0x56, 0x70, 0, 255)))),
    st.booleans(),
)
def test_damaged_flows_are_read_as_in_general(flow: Flow, damage: list[tuple[int, int]], wide: bool) -> None:
    raw = bytearray((widened(flow.encoded()) if wide and flow.properties is None else flow.encoded()) + b"behind")
    for place, octet in damage[:4]:
        if 4 <= place < len(raw):
            raw[place] = octet
    for end in (len(raw), len(raw) - 7, 5):
        part = bytes(raw[:end])
        assert outcome(performatives.decode, part) == outcome(generally, part)


@given(
    st.binary(max_size=3),
    flows,
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from((0x40, 0x41, 0x42, 0x43, 0x52, 0x56, 0x70, 0, 2, 255)))),
    st.booleans(),
)
def test_flows_are_read_as_by_the_model(before: bytes, flow: Flow, damage: list[tuple[int, int]], wide: bool) -> None:
    plain = flow.encoded()
    raw = bytearray((widened(plain) if wide and flow.properties is None else plain) + b"\x40behind")
    for place, octet in damage[:3]:
        if place < len(raw):
            raw[place] = octet
    for end in range(len(raw) + 1):
        frame = before + bytes(raw[:end])
        assert flows_compiled.read(frame, len(before)) == flows_model.read(frame, len(before))


fields = st.sampled_from(
    (b"\x40", b"\x41", b"\x42", b"\x43", b"\x44", b"\x52\x05", b"\x53\x05", b"\x70\0\1\0\0", b"\x56\1")
)


@given(
    st.lists(st.sampled_from((b"\x43", b"\x52\x05", b"\x70\0\1\0\0")), min_size=2, max_size=5),
    st.lists(fields, max_size=6),
    st.booleans(),
    st.sampled_from((0, 0, 0, -1, 1)),
)
def test_flows_of_any_fields_are_read_as_by_the_model(
    first: list[bytes], rest: list[bytes], wide: bool, more: int
) -> None:
    items, count = b"".join((*first, *rest)), len(first) + len(rest)
    head = struct.pack(">BII", 0xD0, len(items) + 4, count) if wide else bytes((0xC0, len(items) + 1, count))
    frame = b"\0\x53\x13" + head + items
    frame = frame[: 4 + 3 * wide] + bytes((frame[4 + 3 * wide] + more,)) + frame[5 + 3 * wide :] + b"\x40"
    assert flows_compiled.read(frame, 0) == flows_model.read(frame, 0)


unsure = numbers | st.sampled_from((-1, 2**32, 2**64, -(2**70)))


@given(
    st.tuples(*(unsure if mandatory in (1, 2, 3) else st.none() | unsure for mandatory in range(8))),
    st.booleans(),
    st.booleans(),
)
def test_flows_are_written_as_by_the_model(fields: tuple[int | None, ...], drain: bool, echo: bool) -> None:
    assert flows_compiled.written(*fields, drain, echo) == flows_model.written(*fields, drain, echo)


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_that_does_not_fit_is_said_in_words(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Flow(incoming_window=number, next_outgoing_id=0, outgoing_window=0).encoded()
