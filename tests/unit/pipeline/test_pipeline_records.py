"""Stored messages as columns: on records that the journal itself writes, and on bytes that are none."""

from __future__ import annotations

import json
import struct
from array import array
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp091 import properties as codec
from clusterbroker.broker.wire.amqp091.codec import make_message
from clusterbroker.broker.wire.amqp091.fields import DEFAULT_LIMITS
from clusterbroker.journal import layout
from clusterbroker.journal.record import GroupWriter, Message, RecordBuffer
from clusterbroker.pipeline import records as records_compiled
from clusterbroker.pipeline.stored import (
    HEADER_VALUES,
    HEADERS,
    NUMBERS,
    SEQ_END,
    TEXTS,
    BadRecord,
    Column,
    Records,
)
from tests.budget import examples
from tests.model import records as records_model
from tests.unit.pipeline.stored import message, stored

ALL = (*TEXTS, *NUMBERS, HEADERS)


def values(records: Records, name: str) -> list[Any]:
    """A column as Python sees it."""
    column = records.columns[name]
    if column.offsets is None:
        found: list[Any] = list(array("q", column.data))
    else:
        ends = array("i", column.offsets)
        found = [column.data[low:high] for low, high in pairwise(ends)]
        if name == HEADERS:
            names, texts = values(records, "headers.name"), values(records, "headers.value")
            found = [list(zip(names, texts, strict=True))[low:high] for low, high in pairwise(ends)]
    there = column.valid
    found = [
        value if there is None or there[place >> 3] >> (place & 7) & 1 else None for place, value in enumerate(found)
    ]
    assert column.nulls == found.count(None)
    return found


def test_the_layout_is_the_journals() -> None:
    assert (layout.ENQ, layout.RECORD_HEADER_BYTES, layout.ENQ_OVERHEAD_BYTES, layout.SEQ_MAX) == (
        records_model.ENQ, records_model.RECORD_BYTES_MIN, records_model.ENQ_OVERHEAD_BYTES, SEQ_END - 1,
    )  # fmt: skip


def test_a_message_that_somebody_gave_back() -> None:
    buffer = RecordBuffer()
    for seq, redelivered in enumerate((False, True, False), 1):
        buffer.enqueue(7, 1, seq, message(b"v"), 0, redelivered)
    assert values(records_compiled.decode(bytes(buffer.take()), ("redelivered",), 1, SEQ_END), "redelivered") == [
        0,
        1,
        0,
    ]


def test_what_was_published_is_what_is_read() -> None:
    headers = {
        "text": "t", "number": 5, "yes": True, "nothing": None, "list": [1, "a"], "table": {"a": {"b": -1}},
        "records_compiled": 0.5, "BCC": ["x"],
    }  # fmt: skip
    full = message(
        b"body", content_type="text/plain", content_encoding="gzip", headers=headers, delivery_mode=2, priority=9,
        correlation_id="c", reply_to="r", expiration="60000", message_id="m", timestamp=1_700_000_001, type="t",
        user_id="u", app_id="a",
    )  # fmt: skip
    records = records_compiled.decode(stored(full, message(b"", b"")), ALL, 1, SEQ_END)
    assert (records.rows, records.first, records.last) == (2, 1, 2)
    assert {name: values(records, name) for name in ALL} == {
        "value": [b"body", b""], "exchange": [b"ex", b"ex"], "routing_key": [b"k", b""],
        "content_type": [b"text/plain", None], "content_encoding": [b"gzip", None], "correlation_id": [b"c", None],
        "reply_to": [b"r", None], "expiration": [b"60000", None], "message_id": [b"m", None], "type": [b"t", None],
        "user_id": [b"u", None], "app_id": [b"a", None], "offset": [0, 1], "enqueued_at": [1_700_000_000_000_000] * 2,
        "redelivered": [0, 0], "priority": [9, None], "timestamp": [1_700_000_001_000_000, None],
        HEADERS: [
            [
                (b"text", b"t"), (b"number", b"5"), (b"yes", b"true"), (b"nothing", None), (b"list", b'[1,"a"]'),
                (b"table", b'{"a":{"b":-1}}'), (b"records_compiled", b"0.5"),
            ],
            None,
        ],
    }  # fmt: skip


def test_only_what_was_asked_for() -> None:
    data = stored(*(message(b"%d" % number) for number in range(10)), first=100)
    records = records_compiled.decode(data, ("value",), 103, 105)
    assert (records.rows, records.first, records.last, list(records.columns)) == (2, 103, 104, ["value"])
    assert values(records, "value") == [b"3", b"4"]
    assert records_compiled.decode(data, ALL, 1, 100) == records_compiled.decode(b"", ALL, 1, SEQ_END)
    assert records_compiled.decode(b"", ("value",), 1, SEQ_END) == Records(
        0, 0, 0, {"value": Column(0, None, bytes(4), b"")}
    )


def test_records_of_other_kinds_are_passed_over() -> None:
    writer = GroupWriter(1, 0)
    writer.settle(7, 1, [(1, 5)])
    writer.enqueue(7, 1, 6, message(), 0)
    writer.set_attribute(7, 1, b"p", 9)
    data = bytes(writer.finish(1, 0))[layout.GROUP_HEADER_BYTES :]
    assert values(records_compiled.decode(data, ("offset",), 1, SEQ_END), "offset") == [5]


def test_what_is_no_utf_8_becomes_so_and_what_no_calendar_has_is_left_out() -> None:
    header = struct.pack(">H", 0x8040) + b"\x02\xff\xc3" + struct.pack(">Q", 2**63)
    broken = Message(b"\x01e\x03\xc3\xa9k", header + b"\xff", len(header), time_ms=2**62)
    records = records_compiled.decode(stored(broken), ALL, 1, SEQ_END)
    found = {name: values(records, name)[0] for name in ALL}
    assert found["content_type"].decode() == "\ufffd\ufffd"
    assert (found["routing_key"].decode(), found["value"]) == ("ék", b"\xff"), "bodies are bytes"
    assert (found["timestamp"], found["enqueued_at"]) == (None, None)


@pytest.mark.parametrize("wrapped", [lambda value: {"a": value}, lambda value: [value]])
def test_headers_as_deep_as_a_broker_takes_them(wrapped: Any) -> None:
    nested: Any = 1
    for _ in range(DEFAULT_LIMITS.depth_max - 1):
        nested = wrapped(nested)
    made = make_message(b"\0\1k", codec.encode(codec.Properties(headers={"h": nested})), b"", 5)
    assert isinstance(made, Message)
    (value,) = values(records_compiled.decode(stored(made), (HEADERS,), 1, 2), HEADER_VALUES)
    assert json.loads(value) == nested


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda data: data[:40], "at byte 0: a length of"),
        (lambda data: data + b"\0" * 8, "8 bytes are no record"),
        (lambda data: struct.pack("<I", 31) + data[4:], "at byte 0: a length of 31"),
        (lambda data: struct.pack("<I", 40) + data[4:], "at byte 0: a length of 40"),
        (lambda data: data[:52] + struct.pack("<I", 2**32 - 1) + data[56:], "address and header are longer than"),
        (lambda data: data[:56] + b"\xff" + data[57:], "at byte 56: a short string is longer than what holds it"),
        (lambda data: data[:56] + b"\x01" + data[57:], "a short string is longer than what holds it"),
        (lambda data: data[:59] + b"\x00" + data[60:], "at byte 0: an address that is none"),
    ],
)
def test_bytes_that_are_no_record(change: Any, said: str) -> None:
    with pytest.raises(BadRecord) as error:
        records_compiled.decode(change(stored(message(content_type="text/plain"))), ALL, 1, SEQ_END)
    assert said in str(error.value)


def test_of_two_damages_the_record_comes_before_the_header() -> None:
    data = stored(message(headers={"a": "b"}))
    data = data.replace(b"\x01aS", b"\x01a?") + bytes(8)
    with pytest.raises(BadRecord, match="8 bytes are no record"):
        records_compiled.decode(data, ALL, 1, SEQ_END)
    with pytest.raises(BadRecord, match="a header of kind"):
        records_compiled.decode(data[:-8], ALL, 1, SEQ_END)
    assert values(records_compiled.decode(data[:-8], ("offset",), 1, SEQ_END), "offset") == [0], (
        "a table that nobody asked for"
    )


@settings(max_examples=examples(300))
@given(data=st.data())
def test_the_model_reads_the_same_of_anything(data: st.DataObject) -> None:
    text = st.text(max_size=5)
    said = st.fixed_dictionaries(
        {},
        optional={
            "content_type": text, "correlation_id": text, "message_id": text, "app_id": text, "expiration": text,
            "priority": st.integers(0, 255), "timestamp": st.integers(0, 2**63),
            "headers": st.dictionaries(text, st.none() | st.booleans() | st.integers(-9, 9) | text | st.lists(text)),
        },
    )  # fmt: skip
    messages = data.draw(
        st.lists(st.builds(lambda body, more: message(body, **more), st.binary(max_size=9), said), max_size=6)
    )
    raw = bytearray(stored(*messages))
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    first, wanted = data.draw(st.integers(1, 4)), data.draw(st.sets(st.sampled_from(ALL)))
    answers: list[object] = []
    for module in (records_model, records_compiled):
        try:
            answers.append(module.decode(bytes(raw), tuple(wanted), first, SEQ_END))
        except BadRecord as error:
            answers.append(str(error))
    assert answers[0] == answers[1]
