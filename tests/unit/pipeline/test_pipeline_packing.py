"""Many rows in one message: what is packed is read back row for row, in order; no message is too long."""

from __future__ import annotations

import datetime
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.embedded import Broker
from clusterbroker.pipeline import columns, task
from clusterbroker.pipeline.columns import BadColumns
from clusterbroker.pipeline.encode import Encoder, Template
from clusterbroker.pipeline.options import BadOption, parse
from clusterbroker.pipeline.packing import CONTENT_TYPES, Packer
from clusterbroker.pipeline.task import BadRows, Identity
from tests.budget import examples

pa = pytest.importorskip("pyarrow")

ROW = pa.struct([("n", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
AT = datetime.datetime(2026, 1, 31, 8, tzinfo=datetime.UTC)
SHARED = {
    "routing_key": (pa.string(), st.one_of(st.none(), st.sampled_from(["a", "b", ""]))),
    "headers": (
        pa.map_(pa.string(), pa.string()),
        st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from(["1", None])), max_size=1)),
    ),
    "priority": (pa.int32(), st.one_of(st.none(), st.integers(0, 2))),
    "timestamp": (pa.timestamp("us", "UTC"), st.sampled_from([None, AT])),
}


def decoded(message_format: str, body: bytes) -> list[int]:
    """The numbers of a message's rows."""
    if message_format == "jsonl":
        return [json.loads(line)["n"] for line in body.split(b"\n")]
    return [row["n"] for row in pa.ipc.open_stream(body).read_all().to_pylist()]


def values(message_format: str, numbers: list[int], padding: int = 0) -> Any:
    rows = [{"n": number, "name": "x" * padding, "at": AT} for number in numbers]
    if message_format == "arrow":
        return pa.array(rows, ROW)
    return pa.array([json.dumps({"n": row["n"], "name": row["name"]}) for row in rows])


@settings(max_examples=examples(100))
@given(data=st.data(), message_format=st.sampled_from(["arrow", "jsonl"]), rows_max=st.integers(1, 7))
def test_what_is_packed_is_read_back(data: st.DataObject, message_format: str, rows_max: int) -> None:
    count, cut = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 3))
    names = data.draw(st.lists(st.sampled_from(sorted(SHARED)), unique=True))
    shared = {name: data.draw(st.lists(SHARED[name][1], min_size=count, max_size=count)) for name in names}
    batch = pa.RecordBatch.from_pydict(
        {"value": values(message_format, list(range(count)))}
        | {name: pa.array(column, SHARED[name][0]) for name, column in shared.items()}
    ).slice(cut)
    packer = Packer(message_format, rows_max, 1 << 20, Encoder(Template()))
    assert packer.bad_rows(batch) == []
    packed = packer.pack(batch)
    expected = defaultdict(list)
    for number, row in enumerate(batch.to_pylist(), cut):
        expected[repr([row[name] for name in names])].append(number)
    found = defaultdict(list)
    for message in packed.to_pylist():
        rows = decoded(message_format, message["value"])
        assert 0 < len(rows) <= rows_max
        assert message["content_type"] == CONTENT_TYPES[message_format]
        found[repr([message[name] for name in names])] += rows
    assert found == expected, "rows that go the same way keep their order, and share messages with no others"
    assert packed.num_rows == sum(-(-len(rows) // rows_max) for rows in expected.values())


@pytest.mark.parametrize("message_format", ["arrow", "jsonl"])
def test_no_message_is_longer_than_allowed(message_format: str) -> None:
    batch = pa.RecordBatch.from_pydict({"value": values(message_format, list(range(500)), 100)})
    packer = Packer(message_format, 1000, 4000, Encoder(Template()))
    assert packer.bad_rows(batch) == []
    bodies = packer.pack(batch).column("value").to_pylist()
    assert [row for body in bodies for row in decoded(message_format, body)] == list(range(500))
    assert max(map(len, bodies)) <= 4000
    assert len(bodies) < 100


def test_rows_that_no_message_holds() -> None:
    lines = pa.RecordBatch.from_pydict({"value": pa.array(['{"n": 1}', "{\n}", "", None, "x" * 99])})
    found = Packer("jsonl", 10, 50, Encoder(Template(message_bytes_max=50))).bad_rows(lines)
    assert [(bad.row, bad.why) for bad in found] == [
        (1, "column 'value' is not one line"),
        (2, "column 'value' is not one line"),
        (3, "column 'value' is null"),
        (4, "column 'value' has more than 50 bytes"),
    ]
    rows = pa.array([None, *({"n": n, "name": "x" * size, "at": None} for n, size in enumerate((1, 9000, 2)))], ROW)
    batch = pa.RecordBatch.from_pydict({"value": rows})
    found = Packer("arrow", 10, 4000, Encoder(Template(message_bytes_max=4000))).bad_rows(batch)
    assert [(bad.row, bad.why) for bad in found] == [
        (0, "column 'value' is null"),
        (2, "column 'value' has more than 4000 bytes as an Arrow stream"),
    ]


def test_what_cannot_be_packed_is_refused() -> None:
    with pytest.raises(
        BadOption, match="option 'rowsPerMessage' is '5', and a raw message holds one row: set messageF"
    ):
        parse({"rowsPerMessage": "5"})
    with pytest.raises(BadOption, match="option 'messageFormat' is 'json': expected raw or arrow or jsonl"):
        parse({"messageFormat": "json"})
    with pytest.raises(BadColumns, match="column 'message_id' is of each row, and rowsPerMessage puts many into one"):
        columns.check([("value", "string"), ("message_id", "string")], False, "jsonl", 2)
    assert columns.check([("value", "string"), ("message_id", "string")], False, "jsonl", 1)
    with pytest.raises(BadColumns, match="A struct needs messageFormat arrow, or to_json"):
        columns.check([("value", "struct<a:int>")], False, "jsonl", 2)
    assert columns.check([("value", "struct<a:int>")], False, "arrow", 2) == ("value",)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_a_task_counts_rows_and_messages(broker: Broker) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        for name in ("a", "b", "graves"):
            channel.queue_declare(name, durable=True)
        channel.exchange_declare("dead", "fanout")
        channel.queue_bind("graves", "dead")
        rows = pa.array([None, *({"n": n, "name": "x", "at": AT} for n in range(24))], ROW)
        batch = pa.RecordBatch.from_pydict({"value": rows, "routing_key": ["a"] + ["a", "b"] * 12})
        given = {"endpoints": f"127.0.0.1:{broker.port}", "messageFormat": "arrow", "rowsPerMessage": "5"}
        options = parse({**given, "onRowError": "deadLetter", "deadLetterExchange": "dead"})
        written = task.write([batch, batch], batch.schema.names, options, Identity("job", 3, 1))
        assert (written.rows, written.messages, written.dead_lettered, written.skipped) == (48, 12, 2, 0)
        ids = []
        for name, first in (("a", 0), ("b", 1)):
            found = []
            for _ in range(6):
                _, properties, body = channel.basic_get(name, auto_ack=True)
                assert properties.content_type == "application/vnd.apache.arrow.stream"
                assert properties.delivery_mode == 2
                ids.append(properties.message_id)
                found += decoded("arrow", body)
            assert found == [*range(first, 24, 2)] * 2
        assert sorted(ids) == sorted(f"job/3/1/{number}" for number in range(12))
        _, properties, body = channel.basic_get("graves", auto_ack=True)
        assert (properties.headers, body) == ({"x-row-error": "column 'value' is null"}, b"")
        with pytest.raises(BadRows, match="row 0 of its partition is no message: column 'value' is null"):
            task.write([batch], batch.schema.names, parse(given), Identity("job", 3, 1))
