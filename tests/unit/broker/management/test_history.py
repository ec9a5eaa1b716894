"""Rates and curves out of rows that are told only when they change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.management.history import DAY, MINUTE, Sampling, Track, Window, details

T0 = 1_795_290_600_000


def value(row: int) -> int:
    return row


def told(changes: list[int | None], step_ms: int = 5_000, spans: tuple[tuple[int, int], ...] = MINUTE) -> Track[int]:
    """A track; None: the sample did not tell the row."""
    sampling = Sampling()
    sampling.sampled(T0)
    assert changes[0] is not None
    track = Track(sampling, changes[0], spans)
    for number, change in enumerate(changes[1:], 1):
        sampling.sampled(T0 + number * step_ms)
        if change is not None:
            track.put(change)
    return track


def test_the_first_sample_makes_no_rate() -> None:
    assert told([1000]).rate(value) == 0


def test_what_is_new_since_the_last_sample_counts_from_nothing() -> None:
    sampling = Sampling()
    sampling.sampled(T0)
    sampling.sampled(T0 + 5_000)
    assert Track(sampling, 50, since=0).rate(value) == 10
    assert Track(sampling, 50).rate(value) == 0


def test_a_rate_is_of_the_last_sample_only() -> None:
    assert told([0, 10]).rate(value) == 2
    assert told([0, 10, None]).rate(value) == 0
    # all of the change fell into the last sample, though the row before was told long ago
    assert told([0, None, None, 10]).rate(value) == 2


def test_a_total_that_fell_began_anew() -> None:
    assert told([1000, 10]).rate(value) == 2
    assert told([1000, 10]).rate(value, gauge=True) == -198


def test_a_sample_that_is_told_twice_counts_once() -> None:
    track = told([0, 10])
    track.sampling.sampled(T0 + 5_000)
    assert track.rate(value) == 2


def test_a_clock_that_went_back_makes_no_rate() -> None:
    track = told([0, 10])
    track.sampling.sampled(T0 - 60_000)
    track.put(20)
    assert track.rate(value) == 0


def test_samples_hold_between_changes_newest_first() -> None:
    found = details([told([1, None, 5, None])], value, Window(20_000, 5_000))
    assert found["samples"] == [
        {"sample": 5, "timestamp": T0 + 15_000},
        {"sample": 5, "timestamp": T0 + 10_000},
        {"sample": 1, "timestamp": T0 + 5_000},
        {"sample": 1, "timestamp": T0},
    ]
    assert found["avg"] == 3
    assert found["avg_rate"] == 4 / 15


def test_curves_begin_with_the_first_sample() -> None:
    """The sums of a cluster are made before anybody has told anything: a cluster of a minute had ten of zeros."""
    sampling = Sampling()
    track = Track(sampling, 0, DAY)
    assert details([track], value, Window(600_000, 5_000))["samples"] == []
    for number in range(3):
        sampling.sampled(T0 + number * 5_000)
        track.put(7)
    times = [sample["timestamp"] for sample in details([track], value, Window(600_000, 5_000))["samples"]]
    assert times == [T0 + 10_000, T0 + 5_000, T0]


def test_sums_over_nodes() -> None:
    found = details([told([1, 6]), told([10, 20])], value, Window(5_000, 5_000))
    assert found["rate"] == 3
    assert [sample["sample"] for sample in found["samples"]] == [26, 11]


def test_a_minute_is_kept_and_an_hour_once_somebody_looks() -> None:
    long_ago: list[int | None] = list(range(200))
    assert len(details([told(long_ago)], value, Window(600_000, 5_000))["samples"]) == 14
    sampling = Sampling()
    sampling.sampled(T0)
    track = Track(sampling, 0)
    track.watch()
    for number in range(1, 800):
        sampling.sampled(T0 + number * 5_000)
        track.put(number)
    assert len(details([track], value, Window(600_000, 5_000))["samples"]) == 121
    assert len(details([track], value, Window(3_600_000, 60_000))["samples"]) == 61
    track.unwatch()
    assert len(details([track], value, Window(60_000, 5_000))["samples"]) == 13


@given(st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=20), st.lists(st.integers(1, 30), max_size=3))
def test_a_track_that_rests_shows_the_same_minute(changes: list[int | None], pauses: list[int]) -> None:
    for pause in pauses:
        changes = [*changes, *[None] * pause, 1000 + pause]
    resting, kept = told([7]), told([7])
    for number, change in enumerate(changes, 1):
        for track in (resting, kept):
            track.sampling.sampled(T0 + number * 5_000)
            if change is not None:
                track.put(change)
        if resting.is_quiet:
            resting.rest()
        window = Window(60_000, 5_000)
        model = details([kept], value, window)
        found = details([resting], value, window)
        assert found["samples"] == model["samples"][: len(found["samples"])]
        assert len(found["samples"]) == min(number + 1, 13)
        assert (found["rate"], resting.row, resting.idle_since_ms) == (model["rate"], kept.row, kept.idle_since_ms)


@given(st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=40).filter(lambda rows: rows[0] is not None))
def test_a_sample_is_the_last_row_told_by_then(changes: list[int | None]) -> None:
    track = told(changes, spans=DAY)
    samples = details([track], value, Window(195_000, 5_000))["samples"]
    held, model = 0, []
    for number, change in enumerate(changes):
        held = held if change is None else change
        model.append({"sample": held, "timestamp": T0 + number * 5_000})
    assert samples == model[::-1]
