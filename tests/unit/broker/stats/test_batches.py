"""The census: whoever asks, with whatever number, ends with the rows of one who asked from the beginning."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.broker.stats.batches import Census, joined, split
from clusterbroker.broker.stats.rows import AnyRow, Key, QueueRow
from tests.budget import examples

LIFE = 7


def rows_of(things: dict[int, int]) -> list[AnyRow]:
    return [QueueRow(queue_id=queue_id, ready=ready) for queue_id, ready in things.items()]


def kept(things: dict[int, int]) -> dict[Key, AnyRow]:
    return {row.key: row for row in rows_of(things)}


def sampled(census: Census, things: dict[int, int], slice_of: int = 500) -> None:
    census.begin(rows_of(things), 1000)
    while not census.step(slice_of):
        pass


@dataclass
class Asker:
    """One who follows: what he has been told so far."""

    life: int = 0
    number: int = 0
    rows: dict[Key, AnyRow] = field(default_factory=dict)

    def ask(self, census: Census, parts_of: int = 2000) -> None:
        parts = split(census.since(self.life, self.number), parts_of)
        assert all(len(part.rows) + len(part.gone) <= parts_of for part in parts)
        batch = joined(parts)
        if batch.whole:
            self.rows.clear()
        for row in batch.rows:
            self.rows[row.key] = row
        for key in batch.gone:
            self.rows.pop(key, None)  # it may have come and gone between two askings
        self.life, self.number = batch.life, batch.number


def test_only_what_changed_is_told() -> None:
    census, asker = Census("a", LIFE), Asker()
    sampled(census, {1: 10, 2: 20, 3: 30})
    asker.ask(census)
    sampled(census, {1: 10, 2: 21, 4: 40})
    batch = census.since(asker.life, asker.number)
    assert not batch.whole
    assert {row.key for row in batch.rows} == {("queue", 2), ("queue", 4)}
    assert batch.gone == (("queue", 3),)
    asker.ask(census)
    assert census.since(asker.life, asker.number).rows == ()


def test_a_row_that_is_met_by_its_key_holds() -> None:
    census, asker = Census("a", LIFE), Asker()
    sampled(census, {1: 10, 2: 20})
    asker.ask(census)
    census.begin([("queue", 1), *rows_of({3: 30})], 2000)
    assert census.step()
    batch = census.since(asker.life, asker.number)
    assert ([row.key for row in batch.rows], batch.gone) == ([("queue", 3)], (("queue", 2),))
    assert set(census.keys) == {("queue", 1), ("queue", 3)}
    sampled(census, {3: 30})
    assert ("queue", 1) in census.since(asker.life, asker.number).gone


def test_another_life_or_a_number_from_nowhere_gets_everything() -> None:
    census = Census("a", LIFE)
    sampled(census, {1: 10, 2: 20})
    for life, number in ((LIFE, 0), (LIFE + 1, 1), (LIFE, census.number + 1)):
        batch = census.since(life, number)
        assert batch.whole, (life, number)
        assert len(batch.rows) == 2


def test_who_missed_too_many_ends_gets_everything_and_memory_stays_bounded() -> None:
    census, asker = Census("a", LIFE, kept_gone=10), Asker()
    sampled(census, {0: 0, 1: 1})
    asker.ask(census)
    for queue_id in range(1, 100):
        sampled(census, {0: 0, queue_id + 1: 1})
    assert len(census) == 2
    assert len(census._gone) == 10
    batch = census.since(asker.life, asker.number)
    assert batch.whole
    asker.ask(census)
    assert asker.rows == kept({0: 0, 100: 1})


def test_a_sample_is_taken_in_slices() -> None:
    census = Census("a", LIFE)
    things = dict.fromkeys(range(1200), 1)
    made = 0

    def walk() -> object:
        nonlocal made
        for row in rows_of(things):
            made += 1
            yield row

    census.begin(walk(), 5)  # type: ignore[arg-type]
    assert not census.step()
    assert made == 500
    assert not census.step()
    assert census.step()
    assert not census.sampling
    assert len(census) == 1200
    with pytest.raises(AssertionError, match="a sample has begun"):
        census.step()


def test_an_abandoned_sample_ends_nothing() -> None:
    census, asker = Census("a", LIFE), Asker()
    sampled(census, {1: 10, 2: 20})
    census.begin(rows_of({1: 11, 3: 30}), 2000)
    assert not census.step(1)
    census.abandon()
    asker.ask(census)
    assert asker.rows == kept({1: 11, 2: 20})
    sampled(census, {1: 11})
    asker.ask(census)
    assert asker.rows == kept({1: 11})


THINGS = st.dictionaries(st.integers(0, 6), st.integers(0, 2))


@settings(max_examples=examples(300))
@given(
    samples=st.lists(st.tuples(THINGS, st.integers(1, 4)), max_size=12),
    asks=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=40),
    kept_gone=st.integers(0, 6),
)
def test_all_askers_end_alike(
    samples: list[tuple[dict[int, int], int]], asks: list[tuple[int, int]], kept_gone: int
) -> None:
    """Three askers ask now and then, also in the middle of a sample; one of them knew an earlier life."""
    census = Census("a", LIFE, kept_gone)
    askers = [Asker(), Asker(), Asker(life=LIFE - 1, number=3)]
    waiting = iter(asks)
    things: dict[int, int] = {}
    for things, slice_of in samples:
        census.begin(rows_of(things), 0)
        done = False
        while not done:
            done = census.step(slice_of)
            who, limit = next(waiting, (None, 1))
            if who is not None:
                askers[who].ask(census, limit)
    for asker in (*askers, Asker()):
        asker.ask(census, 3)
        assert asker.rows == kept(things)
        assert asker.number == census.number
