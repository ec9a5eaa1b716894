"""Times of group commits, by length."""

from __future__ import annotations

from clusterbroker.journal.flushes import BOUNDS_MS, FlushTimes


def test_each_stands_below_its_bound() -> None:
    times = FlushTimes()
    for took_s in (0.0, 0.001, 0.0011, 3.0, 100.0):
        times.began(0.0)
        times.ended(took_s)
    told = dict(zip((*BOUNDS_MS, "longer"), times.counts, strict=True))
    assert {bound: count for bound, count in told.items() if count} == {1: 2, 2.5: 1, 5000: 1, "longer": 1}
    assert (times.count, times.us) == (5, 103_002_100)


def test_a_window_tells_of_what_is_under_way() -> None:
    times = FlushTimes()
    assert times.take_window(0.0) == (0, 0, 0)
    times.began(1.0)
    times.ended(1.5)
    times.began(2.0)
    assert times.take_window(5.0) == (2, 3_500_000, 3_000_000)
    assert times.take_window(6.0) == (1, 4_000_000, 4_000_000), "it is under way still"
    times.ended(7.0)
    assert times.take_window(7.0) == (1, 5_000_000, 5_000_000)
    assert times.take_window(8.0) == (0, 0, 0)
