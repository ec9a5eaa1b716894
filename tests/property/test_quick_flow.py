"""Flows take a quick way between bytes and Python: what comes out is what the general way makes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp10 import performatives
from clusterbroker.broker.wire.amqp10.performatives import Composite, Flow, composed
from clusterbroker.broker.wire.amqp10.types import DecodeError
from clusterbroker.broker.wire.amqp10.types import decode as decode_value

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


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_that_does_not_fit_is_said_in_words(number: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        Flow(incoming_window=number, next_outgoing_id=0, outgoing_window=0).encoded()
