"""The few methods of AMQP that a publisher needs: against the broker's own codec, in pieces, and broken."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.fields import pull_table
from clusterbroker.pipeline import wire
from clusterbroker.pipeline.wire import BadFrame, Decoder, Heard


def payload(frame: bytes) -> bytes:
    return frame[7:-1]


def test_what_is_said_is_what_the_broker_reads() -> None:
    said = wire.method("exchange.declare", 1, 0, "e", "topic", True, False, True, False, True, {"a": 1, "b": "x"})
    read = m.decode(payload(said))
    assert read == m.ExchangeDeclare(
        exchange="e", type="topic", passive=True, auto_delete=True, nowait=True, arguments={"a": 1, "b": "x"}
    )
    closing = m.decode(payload(wire.method("connection.close", 0, 200, "bye", 10, 20)))
    assert closing == m.ConnectionClose(reply_code=200, reply_text="bye", class_id=10, method_id=20)


def test_a_table_of_all_that_it_may_hold() -> None:
    fields = {"yes": True, "no": False, "n": -5, "text": "grün", "inner": {"deep": {"n": 1}}}
    raw = wire.table(fields)
    assert pull_table(raw, 0) == (fields, len(raw))


def returned(body: bytes) -> bytes:
    method = wire.method("basic.return", 1, 312, "NO_ROUTE", "e", "k")
    return method + wire.content(1, b"\x00\x00", body, 4096)


@given(body=st.binary(max_size=9000), cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_frames_in_any_pieces(body: bytes, cuts: list[int]) -> None:
    data = (
        wire.method("basic.ack", 1, 7, True)
        + wire.HEARTBEAT_FRAME
        + returned(body)
        + wire.method("connection.blocked", 0, "low on disk")
    )
    decoder, heard = Decoder(), []
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for begin, end in pairwise(places):
        heard += decoder.feed(data[begin:end])
    assert heard == [
        Heard("basic.ack", 1, (7, True)),
        Heard("basic.return", 1, (312, "NO_ROUTE", "e", "k"), body),
        Heard("connection.blocked", 0, ("low on disk",)),
    ]


@pytest.mark.parametrize(
    "data, why",
    [
        (b"AMQP\x00\x00\x09\x01", "another version"),
        (wire.method("basic.ack", 1, 7, True)[:-1] + b"\0", "does not end with 0xCE"),
        (wire.frame(1, 1, b"\x00\x3c\x00\x50\x00"), "cut short"),
        (wire.frame(1, 1, b"\x00\x0a\x00\x3c\x09abc"), "longer than its frame"),
        (wire.frame(1, 1, b"\x00\x3c\x00\x46"), "method 60.70"),
        (wire.frame(4, 1, b""), "unknown kind 4"),
        (wire.frame(3, 1, b"x"), "content without its method"),
        (wire.method("basic.return", 1, 1, "", "", "") + wire.frame(3, 1, b"x"), "content without its method"),
        (returned(b"abc")[:-11] + wire.frame(3, 1, b"abcd"), "longer than its header"),
    ],
)
def test_what_is_not_amqp_is_told(data: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        Decoder().feed(data + bytes(8))
