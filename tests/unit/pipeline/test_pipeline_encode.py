"""What the encoder writes, the broker's own codec reads back, row for row; what is no message is found and told."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.wire.amqp091 import codec, properties
from clusterbroker.pipeline.encode import (
    ROW_ERROR_HEADER,
    WIRE_ORDER,
    BadRow,
    Encoder,
    Template,
    dead_letters,
    without,
)
from tests.budget import examples

pa = pytest.importorskip("pyarrow")

TYPES = {
    "value": pa.binary(),
    "routing_key": pa.string(),
    "exchange": pa.string(),
    "headers": pa.map_(pa.string(), pa.string()),
    "priority": pa.int32(),
    "expiration": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
} | {
    name: pa.string()
    for name in ("message_id", "correlation_id", "reply_to", "content_type", "content_encoding", "type", "app_id")
}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

short = st.text(max_size=12)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "value": st.one_of(st.binary(max_size=30), st.integers(4070, 13_000).map(lambda size: b"%d" % size + bytes(size))),
    "routing_key": st.one_of(st.none(), st.sampled_from(["a", "b.c", ""]), short),
    "exchange": st.one_of(st.none(), st.sampled_from(["", "amq.topic"])),
    "headers": st.one_of(
        st.none(), st.lists(st.tuples(short, st.one_of(st.none(), short)), max_size=4, unique_by=lambda pair: pair[0])
    ),
    "priority": st.one_of(st.none(), st.integers(0, 255)),
    "expiration": st.one_of(st.none(), st.integers(0, 2**70).map(str)),
    "timestamp": st.one_of(
        st.none(), st.integers(0, 2**40).map(lambda ms: EPOCH + datetime.timedelta(milliseconds=ms))
    ),
}
OTHERS = st.one_of(st.none(), short)


@st.composite
def tables(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = ["value", *(name for name in TYPES if name != "value" and draw(st.booleans()))]
    count = draw(st.integers(0, 12))
    row = st.fixed_dictionaries({name: VALUES.get(name, OTHERS) for name in names})
    return [draw(row) for _ in range(count)]


def batch_of(rows: list[dict[str, Any]], types: dict[str, Any] = TYPES) -> Any:
    names = list(rows[0]) if rows else ["value"]
    return pa.RecordBatch.from_pydict({name: pa.array([row[name] for row in rows], types[name]) for name in names})


def read_back(data: bytes, frame_bytes_max: int) -> list[tuple[str, str, bool, Any, bytes]]:
    """(exchange, key, mandatory, properties, body) of each message, by the broker's codec."""
    decoder = codec.FrameDecoder(frame_bytes_max)
    decoder.opened = True
    found = []
    for event in decoder.feed(data, 0):
        assert isinstance(event, codec.Published), event
        assert event.refusal is None
        found += [
            (event.exchange, event.routing_key, event.mandatory, properties.decode(message.header), message.body)
            for message in event.messages
        ]
    assert decoder.rest == b""
    return found


@settings(max_examples=examples(80))
@given(
    rows=tables(),
    cut=st.integers(0, 4),
    persistent=st.booleans(),
    mandatory=st.booleans(),
    prefix=st.one_of(st.none(), st.just("q/1/0/")),
    chunk_rows_max=st.integers(1, 6),
)
def test_the_brokers_codec_reads_what_was_written(
    rows: list[dict[str, Any]], cut: int, persistent: bool, mandatory: bool, prefix: str | None, chunk_rows_max: int
) -> None:
    batch = batch_of(rows).slice(cut)  # slices share their parents' buffers
    rows = rows[cut:]
    template = Template("ex", "default", persistent, mandatory, prefix, chunk_rows_max=chunk_rows_max)
    encoder = Encoder(template, frame_bytes_max=4096)
    assert encoder.bad_rows(batch) == []
    chunks = list(encoder.encode(batch, 100))
    assert sum(chunk.rows for chunk in chunks) == len(rows)
    assert all(0 < chunk.rows <= chunk_rows_max for chunk in chunks)
    found = [message for chunk in chunks for message in read_back(chunk.data, 4096)]
    assert len(found) == len(rows)
    for number, (row, (exchange, key, was_mandatory, own, body)) in enumerate(zip(rows, found, strict=True), 100):
        assert body == row["value"]
        assert key == ("default" if row.get("routing_key") is None else row["routing_key"])
        assert exchange == ("ex" if row.get("exchange") is None else row["exchange"])
        assert was_mandatory == mandatory
        wanted = {name: row.get(name) for name in WIRE_ORDER}
        if wanted["headers"] is not None:
            wanted["headers"] = dict(wanted["headers"])
        if wanted["timestamp"] is not None:
            wanted["timestamp"] = int((wanted["timestamp"] - EPOCH).total_seconds())
        wanted["delivery_mode"] = 2 if persistent else None
        if "message_id" not in row and prefix is not None:
            wanted["message_id"] = f"{prefix}{number}"
        assert {name: getattr(own, name) for name in WIRE_ORDER} == wanted


def test_whole_numbers_and_texts_are_values_as_well() -> None:
    types = TYPES | {"value": pa.string(), "expiration": pa.int64(), "timestamp": pa.int64(), "priority": pa.int8()}
    rows = [{"value": "grün", "expiration": 60_000, "timestamp": 5, "priority": 3}]
    [(_, _, _, own, body)] = read_back(next(Encoder(Template()).encode(batch_of(rows, types))).data, 131_072)
    assert (body.decode(), own.expiration, own.timestamp, own.priority) == ("grün", "60000", 5, 3)
    forever = batch_of([{"value": "", "expiration": 2**64 - 1}], TYPES | {"expiration": pa.uint64()})
    [(_, _, _, own, _)] = read_back(next(Encoder(Template()).encode(forever)).data, 131_072)
    assert own.expiration == str(2**64 - 1)


def test_properties_that_change_from_batch_to_batch() -> None:
    """What is remembered of one batch is not taken for another that has the same lengths."""
    encoder = Encoder(Template(), frame_bytes_max=4096)
    plain = batch_of([{"value": b"abc"}])
    typed = batch_of([{"value": b"abc", "content_type": "x"}])
    seen = [
        read_back(next(encoder.encode(batch)).data, 4096)[0][3].content_type for batch in (plain, typed, plain, typed)
    ]
    assert seen == [None, "x", None, "x"]


def test_a_chunk_is_bounded_in_bytes() -> None:
    rows = [{"value": bytes(3 << 20)}, {"value": bytes(3 << 20)}, {"value": b"x"}]
    chunks = list(Encoder(Template()).encode(batch_of(rows)))
    assert [chunk.rows for chunk in chunks] == [1, 2]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"value": None}, "column 'value' is null"),
    ({"value": b"12345678901"}, "column 'value' has more than 10 bytes"),
    ({"routing_key": "ü" * 128}, "column 'routing_key' has more than 255 bytes"),
    ({"exchange": "e" * 256}, "column 'exchange' has more than 255 bytes"),
    ({"message_id": "e" * 256}, "column 'message_id' has more than 255 bytes"),
    ({"priority": 256}, "column 'priority' is not between 0 and 255"),
    ({"priority": -1}, "column 'priority' is not between 0 and 255"),
    ({"expiration": "1e3"}, "column 'expiration' is no whole number of ms"),
    ({"expiration": "-1"}, "column 'expiration' is no whole number of ms"),
    ({"expiration": ""}, "column 'expiration' is no whole number of ms"),
    ({"timestamp": EPOCH - datetime.timedelta(seconds=1)}, f"column 'timestamp' is not between 0 and {2**63 - 1}"),
    ({"headers": [("k" * 256, "v")]}, "a name in column 'headers' has more than 255 bytes"),
    ({"headers": [("k", "v" * 5000)]}, "column 'headers' has more than"),
]


@pytest.mark.parametrize("bad, why", BAD, ids=[f"{next(iter(bad))}-{place}" for place, (bad, _) in enumerate(BAD)])
def test_a_row_that_is_no_message_is_found(bad: dict[str, Any], why: str) -> None:
    good: dict[str, Any] = dict.fromkeys(bad) | {"value": b"0123456789"}
    rows = [good, good | bad, good]
    batch = batch_of(rows).slice(1)  # again: offsets of a slice
    encoder = Encoder(Template(message_bytes_max=10), frame_bytes_max=4096)
    [found] = encoder.bad_rows(batch)
    assert (found.row, found.why[: len(why)]) == (0, why)
    [kept] = read_back(next(encoder.encode(without(batch, [found]))).data, 4096)
    assert kept[4] == b"0123456789"


def test_the_first_reason_is_told_and_rows_ascend() -> None:
    rows: list[dict[str, Any]] = [{"value": b"x", "priority": 999}, {"value": None, "priority": 999}]
    found = Encoder(Template()).bad_rows(batch_of(rows))
    assert found == [
        BadRow(0, "column 'priority' is not between 0 and 255"),
        BadRow(1, "column 'value' is null"),
    ]


def test_bad_rows_as_dead_letters() -> None:
    rows: list[dict[str, Any]] = [
        {"value": b"x", "routing_key": "k", "priority": 999},
        {"value": None, "routing_key": "k" * 256, "priority": 0},
        {"value": b"0123456789ab", "routing_key": "r", "priority": 0},
    ]
    encoder = Encoder(Template(message_bytes_max=10))
    batch = batch_of(rows)
    letters = dead_letters(batch, encoder.bad_rows(batch), 10)
    graves = Encoder(Template(exchange="graves", message_bytes_max=10))
    assert graves.bad_rows(letters) == []
    found = read_back(next(graves.encode(letters)).data, 131_072)
    assert [(exchange, key, body) for exchange, key, _, _, body in found] == [
        ("graves", "k", b"x"),
        ("graves", "", b""),
        ("graves", "r", b""),
    ]
    assert [own.headers[ROW_ERROR_HEADER] for *_, own, _ in found] == [
        "column 'priority' is not between 0 and 255",
        "column 'value' is null",
        "column 'value' has more than 10 bytes",
    ]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.pipeline.encode.REMEMBERED_MAX", 3)
    encoder = Encoder(Template())
    rows = [{"value": bytes(size), "routing_key": f"k{size}"} for size in range(20)]
    found = [m for chunk in encoder.encode(batch_of(rows)) for m in read_back(chunk.data, 131_072)]
    assert [(key, len(body)) for _, key, _, _, body in found] == [(f"k{size}", size) for size in range(20)]
    assert max(map(len, (encoder._methods, encoder._openings, encoder._bodies))) <= 3
