"""Offsets of streams: checkpoints, what is lost, how much a batch takes, and how tasks share it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from clusterbroker.pipeline.offsets import (
    Bounds,
    DataLost,
    Limits,
    Position,
    Span,
    TooManyParts,
    as_json,
    begin,
    kept,
    of_json,
    spans,
    target,
)

NOW = Bounds("1.0", 100, 200, 20_000)


def test_a_checkpoint_says_where_each_stream_is() -> None:
    positions = {"a": Position("1.0", 5), "b": Position("2.1", 0)}
    said = as_json(positions)
    assert said == {"a": {"life": "1.0", "offset": 5}, "b": {"life": "2.1", "offset": 0}}
    assert of_json(said, ("b", "a")) == positions


@pytest.mark.parametrize(
    "said, told",
    [
        ({"topic": {"0": 5}}, "the checkpoint has offsets of another source"),
        ([1], "the checkpoint has offsets of another source"),
        ({"x": {"life": "1.0", "offset": 5}}, "the checkpoint is of 'x', and the options name 'a', 'b'"),
        ({}, "the checkpoint is of none"),
    ],
)
def test_a_checkpoint_of_something_else(said: object, told: str) -> None:
    with pytest.raises(DataLost, match=told):
        of_json(said, ("a", "b"))


def test_where_a_query_begins() -> None:
    assert begin("s", "earliest", NOW, True) == ("1.0", 100)
    assert begin("s", "latest", NOW, True) == ("1.0", 200)
    assert begin("s", 150, NOW, True) == ("1.0", 150)


@pytest.mark.parametrize(
    "at, goes_on, told",
    [
        (Position("0.9", 150), 100, "is not the one that the checkpoint is of"),
        (Position("1.0", 99), 100, "has no offset 99 any more, its first is 100"),
        (Position("1.0", 201), 200, "ends before offset 201, its next one is 200"),
    ],
)
def test_what_is_lost(at: Position, goes_on: int, told: str) -> None:
    with pytest.raises(DataLost, match=told):
        kept("s", at, NOW, True)
    assert kept("s", at, NOW, False) == ("1.0", goes_on)


@pytest.mark.parametrize(
    "limits, waited_s, end",
    [
        (Limits(), 0, 200),
        (Limits(rows_max=30), 0, 150),
        (Limits(bytes_max=4_000), 0, 140),
        (Limits(rows_max=30, bytes_max=4_000), 0, 140),
        (Limits(bytes_max=1), 0, 121),
        (Limits(rows_min=80, delay_max_s=10), 0, 200),
        (Limits(rows_min=81, delay_max_s=10), 9, 120),
        (Limits(rows_min=81, delay_max_s=10), 10, 200),
    ],
)
def test_how_much_a_batch_takes(limits: Limits, waited_s: float, end: int) -> None:
    assert target({"s": Position("1.0", 120)}, {"s": NOW}, limits, waited_s) == {"s": Position("1.0", end)}


def test_streams_share_a_limit_by_what_they_have() -> None:
    start = {"a": Position("1.0", 100), "b": Position("2.0", 0), "c": Position("3.0", 7)}
    tails = {"a": NOW, "b": Bounds("2.0", 0, 300, 30_000), "c": Bounds("3.0", 7, 7)}
    end = target(start, tails, Limits(rows_max=40), 0)
    assert {name: at.offset for name, at in end.items()} == {"a": 110, "b": 30, "c": 7}


def test_tasks() -> None:
    start, end = {"a": Position("1", 0), "b": Position("2", 10)}, {"a": Position("1", 100), "b": Position("2", 10)}
    assert spans(start, end, 2, None) == [Span("a", "1", 0, 50), Span("a", "1", 50, 100)]
    assert [span.end - span.start for span in spans(start, end, 1, 30)] == [25, 25, 25, 25]
    assert spans(start, start, 8, None) == []


def test_so_many_tasks_and_no_more() -> None:
    begin, end = {"a": Position("1.0", 0)}, {"a": Position("1.0", 10**9)}
    with pytest.raises(TooManyParts, match="'maxRecordsPerPartition' is '10', and a batch of 1000000000 messages"):
        spans(begin, end, 1, 10)
    assert len(spans(begin, end, 1, 10**4)) == 10**5


@example({"a": (0, 0), "b": (0, 9), "c": (0, 9)}, 17, None)
@example(dict.fromkeys("abcdef", (0, 9)), 51, None)
@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 50), st.integers(0, 500)), min_size=1),
    st.integers(1, 20),
    st.none() | st.integers(1, 50),
)
def test_tasks_read_all_of_it_once(streams: dict[str, tuple[int, int]], parts: int, rows_max: int | None) -> None:
    start = {name: Position("1", low) for name, (low, _) in streams.items()}
    end = {name: Position("1", low + count) for name, (low, count) in streams.items()}
    found = spans(start, end, parts, rows_max)
    total = sum(count for _, count in streams.values())
    assert len(found) >= min(parts, total)
    assert all(rows_max is None or span.end - span.start <= rows_max for span in found)
    for name, (low, count) in streams.items():
        mine = [span for span in found if span.stream == name]
        assert [span.start for span in mine] == [low, *(span.end for span in mine)][: len(mine)]
        assert not mine or mine[-1].end == low + count
        assert bool(mine) == bool(count)
