"""The compiled due index against its model, over random lives."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.journal.due_index import DueIndex
from tests.budget import examples
from tests.model.due_index import DueIndex as Model

TIMES = st.one_of(st.integers(0, 20), st.integers(0, 2**62))
STEPS = st.one_of(
    st.tuples(st.just("add"), TIMES, st.integers(1, 2**62)),
    st.tuples(st.just("take"), TIMES, st.integers(0, 50)),
    st.tuples(st.just("within"), TIMES, st.integers(0, 10)),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
    st.tuples(st.just("reserve"), st.integers(0, 300), st.just(0)),
)


@settings(max_examples=examples(50))
@given(st.lists(STEPS, max_size=100))
def test_the_compiled_index_is_its_model(steps: list[tuple[str, int, int]]) -> None:
    index, model = DueIndex(), Model()
    for what, first, second in steps:
        match what:
            case "add":
                index.add(first, second)
                model.add(first, second)
            case "take":
                assert index.take(first, second) == model.take(first, second)
            case "within":
                assert index.within(5, first, second) == model.within(5, first, second)
            case "reserve":
                index.reserve(first)
                model.reserve(first)
            case _:
                index.clear()
                model.clear()
        assert (len(index), index.first_ms) == (len(model), model.first_ms)


@settings(max_examples=examples(20))
@given(st.lists(TIMES, min_size=100, max_size=300))
def test_many_rows_come_in_the_order_of_due_times_then_of_seqs(times: list[int]) -> None:
    index = DueIndex()
    for seq, due_ms in enumerate(times, 1):
        index.add(due_ms, seq)
    taken = []
    while index:
        taken += index.take(2**63 - 1, 97)
    assert taken == [seq for _, seq in sorted((due_ms, seq) for seq, due_ms in enumerate(times, 1))]


@settings(max_examples=examples(10))
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 300))
def test_rows_of_what_left_go_when_they_are_many(seed: int, each: int, taken: int) -> None:
    index, model = DueIndex(), Model()
    for seq, due_ms in enumerate(Random(seed).choices(range(1000), k=3000), 1):
        for one in (index, model):
            one.add(due_ms, seq)
            if seq % (each + 1):
                one.void(seq)
    assert len(index) == len(model) < 3000
    assert index.take(10, taken) == model.take(10, taken)
    assert index.within(3, 2**63 - 1, 100) == model.within(3, 2**63 - 1, 100)
    assert index.take(2**63 - 1, 10_000) == model.take(2**63 - 1, 10_000)
