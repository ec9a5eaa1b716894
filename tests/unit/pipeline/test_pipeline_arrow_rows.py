"""Stored messages as batches of Arrow: the types that Spark asks for, and arrays that Arrow itself finds sound."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from clusterbroker.pipeline import arrow_rows, columns
from clusterbroker.pipeline.columns import BadColumns
from clusterbroker.pipeline.records import decode
from clusterbroker.pipeline.stored import HEADERS, NUMBERS, SEQ_END, TEXTS
from tests.unit.pipeline.stored import message, stored

pa = pytest.importorskip("pyarrow")
KINDS = {
    "binary": pa.binary(), "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"), "map<string,string>": pa.map_(pa.string(), pa.string()),
}  # fmt: skip


def read(*messages: Any, names: tuple[str, ...] = tuple(columns.SOURCE), kind: int = 0) -> list[dict[str, Any]]:
    schema = pa.schema(
        [(name, KINDS[columns.SOURCE[name][min(kind, len(columns.SOURCE[name]) - 1)]]) for name in names]
    )
    records = decode(stored(*messages), (*TEXTS, *NUMBERS, HEADERS), 1, SEQ_END)
    batch = arrow_rows.batch(records, schema, "q")
    batch.validate(full=True)
    assert batch.schema.equals(schema)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def test_every_column_has_its_type() -> None:
    full = message(
        b"v", content_type="text/plain", content_encoding="gzip", headers={"a": "1", "b": None}, correlation_id="c",
        reply_to="r", expiration="5", message_id="m", type="t", user_id="u", app_id="a", priority=255,
        timestamp=1_700_000_001,
    )  # fmt: skip
    one, other = read(full, message(b""))
    assert one == {
        "value": b"v", "queue": "q", "offset": 0, "redelivered": False, "exchange": "ex", "routing_key": "k",
        "headers": [("a", "1"), ("b", None)],
        "enqueued_at": datetime.fromtimestamp(1_700_000_000, UTC), "message_id": "m", "correlation_id": "c",
        "reply_to": "r", "content_type": "text/plain", "content_encoding": "gzip", "type": "t", "app_id": "a",
        "user_id": "u", "priority": 255, "expiration": "5", "timestamp": datetime.fromtimestamp(1_700_000_001, UTC),
    }  # fmt: skip
    there = {"value", "queue", "offset", "exchange", "routing_key", "enqueued_at", "redelivered"}
    assert {name for name, value in other.items() if value is not None} == there
    assert (other["value"], other["offset"]) == (b"", 1)


def test_bodies_as_text_and_columns_in_any_order() -> None:
    assert read(message("é".encode()), names=("offset", "value"), kind=1) == [{"offset": 0, "value": "é"}]


def test_a_chunk_without_a_row() -> None:
    assert read() == []


@pytest.mark.parametrize(
    "schema, said",
    [
        ([("vaule", "binary")], "unknown column 'vaule': did you mean 'value'?"),
        ([("x", "binary")], "unknown column 'x': The source's columns are value, queue, offset"),
        ([("offset", "int")], "column 'offset' has type int in the schema: it is read as bigint"),
        ([("offset", "bigint"), ("offset", "bigint")], "column 'offset' is there twice in the schema: name it once"),
        ([], "the schema has no column: name one at least"),
        ([("value", "int")], "column 'value' has type int in the schema: it is read as binary or string"),
    ],
)
def test_schemas_that_cannot_be_read(schema: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(BadColumns) as error:
        columns.check_source(schema)
    assert said in str(error.value)


def test_headers_are_read_when_asked_for() -> None:
    assert "headers" not in columns.schema(False)
    assert "headers map<string,string>" in columns.schema(True)
    assert columns.schema(False).startswith("value binary, queue string, offset bigint, enqueued_at timestamp")
