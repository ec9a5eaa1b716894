"""Filters: nothing is left out that they let pass, whatever is in a table, and all are given back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.budget import examples

pa = pytest.importorskip("pyarrow")
datasource = pytest.importorskip("pyspark.sql.datasource", reason="PySpark is not installed: pip install '.[spark]'")

from clusterbroker.pipeline import filters  # noqa: E402 - it needs PySpark
from clusterbroker.pipeline.filters import ALL, Narrowed, Pushed, matching, of  # noqa: E402

TEXTS = ("queue", "routing_key", "exchange")
AT = datetime(2026, 1, 31, 8, tzinfo=UTC)
COMPARED = {
    "EqualTo": lambda one, other: one is not None and other is not None and one == other,
    "EqualNullSafe": lambda one, other: one == other,
    "GreaterThan": lambda one, other: one is not None and one > other,
    "GreaterThanOrEqual": lambda one, other: one is not None and one >= other,
    "LessThan": lambda one, other: one is not None and one < other,
    "LessThanOrEqual": lambda one, other: one is not None and one <= other,
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "offset": st.integers(0, 9),
    "enqueued_at": st.integers(0, 9).map(lambda ms: AT + timedelta(microseconds=500 * ms)),
    "queue": st.sampled_from("qr"),
    "routing_key": st.sampled_from("ab"),
    "exchange": st.sampled_from(["", "e"]),
}


@st.composite
def a_filter(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[column]
    if draw(st.integers(0, 3)) == 0:
        one = datasource.In((column,), tuple(draw(st.lists(st.one_of(value, st.none()), min_size=1, max_size=3))))
    else:
        names = [*COMPARED] if column in ("offset", "enqueued_at") else ["EqualTo", "EqualNullSafe"]
        one = getattr(datasource, draw(st.sampled_from(names)))((column,), draw(value))
    return datasource.Not(one) if draw(st.integers(0, 4)) == 0 else one


def passes(one: Any, row: dict[str, Any]) -> bool:
    """As SQL has it: what compares with null is not true, nor is its opposite."""
    if isinstance(one, datasource.Not):
        return row[one.child.attribute[0]] is not None and not passes(one.child, row)
    mine = row[one.attribute[0]]
    if isinstance(one, datasource.In):
        return mine is not None and mine in one.value
    return bool(COMPARED[type(one).__name__](mine, one.value))


def is_in(narrowed: Narrowed, row: dict[str, Any]) -> bool:
    if not narrowed.low <= row["offset"] < narrowed.high or not narrowed.wanted([row["queue"]]):
        return False
    ms = (row["enqueued_at"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if narrowed.since_ms is not None and ms < narrowed.since_ms:
        return False
    types = {"routing_key": pa.string(), "exchange": pa.string()}
    batch = pa.RecordBatch.from_pydict({name: pa.array([row[name]], kind) for name, kind in types.items()})
    return bool(matching(batch, narrowed).num_rows)


@settings(max_examples=examples(300))
@given(
    asked=st.lists(a_filter(), max_size=4),
    rows=st.lists(st.fixed_dictionaries(VALUES | {"routing_key": st.sampled_from(["a", "b", None])}), max_size=6),
)
def test_every_row_that_passes_is_read(asked: list[Any], rows: list[dict[str, Any]]) -> None:
    narrowed = of(asked, TEXTS)
    for row in rows:
        row["enqueued_at"] = row["enqueued_at"].replace(microsecond=row["enqueued_at"].microsecond // 1000 * 1000)
        assert is_in(narrowed, row) or not all(passes(one, row) for one in asked)


def test_less_is_read() -> None:
    equal, more, less, among = datasource.EqualTo, datasource.GreaterThan, datasource.LessThanOrEqual, datasource.In
    assert of([more(("offset",), 5), less(("offset",), 9)], TEXTS) == Narrowed(6, 10)
    assert of([equal(("offset",), 5)], TEXTS) == Narrowed(5, 6)
    assert of([among(("offset",), (7, 3))], TEXTS) == Narrowed(3, 8)
    assert of([more(("enqueued_at",), AT), less(("enqueued_at",), AT)], TEXTS).since_ms == 1_769_846_400_000
    assert of([equal(("queue",), "q"), among(("queue",), ("q", "r"))], TEXTS).queues == {"q"}
    assert of([among(("routing_key",), ("a", "b"))], TEXTS).rows == (("routing_key", ("a", "b")),)
    nothing = [
        equal(("routing_key", "x"), "a"), equal(("timestamp",), AT), datasource.IsNotNull(("offset",)),
        datasource.Not(equal(("offset",), 5)), more(("enqueued_at",), AT.replace(tzinfo=None)),
    ]  # fmt: skip
    assert of(nothing, TEXTS) == ALL
    assert of([equal(("routing_key",), "a"), equal(("queue",), "q")], ()) == ALL, "texts that are compared otherwise"


def test_all_of_them_are_given_back_and_spark_takes_the_reader_for_one_without() -> None:
    kept: list[Narrowed] = []
    asked = [datasource.EqualTo(("offset",), 5)]
    pushed = Pushed(TEXTS, kept.append)
    assert pushed(asked) == asked
    assert kept == [Narrowed(5, 6)]
    assert pushed.__func__ is datasource.DataSourceReader.pushFilters
    assert filters.END > 2**61
