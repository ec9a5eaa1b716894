"""Rows about groups that a node tells: each 250 ms of a group, 2,000 a second of all."""

from __future__ import annotations

import pytest

from clusterbroker.broker.pools.telling import ROWS_PER_S, TELL_MS, TellPace


def told(pace: TellPace, groups: int, begin_ms: int, end_ms: int) -> list[int]:
    """Times of what is told of groups that change all the time."""
    last = dict.fromkeys(range(groups), 0)
    times = []
    for now_ms in range(begin_ms, end_ms, 10):
        for group, last_ms in last.items():
            if now_ms - last_ms >= pace.interval_ms(now_ms):
                last[group] = now_ms
                pace.told(now_ms)
                times.append(now_ms)
    return times


def test_few_groups_are_told_four_times_a_second() -> None:
    times = told(TellPace(), 400, 1_000, 11_000)
    assert len(times) == pytest.approx(400 * 40, rel=0.05)


@pytest.mark.parametrize("groups", [1_000, 5_000])
def test_of_many_groups_all_are_told_in_turn_and_no_more_than_the_bound(groups: int) -> None:
    times = told(TellPace(), groups, 1_000, 61_000)
    settled = [at for at in times if at > 21_000]
    assert len(settled) == pytest.approx(ROWS_PER_S * 40, rel=0.15)


def test_what_was_slow_is_fast_again_when_the_others_rest() -> None:
    pace = TellPace()
    told(pace, 5_000, 1_000, 31_000)
    assert pace.interval_ms(31_000) > 4 * TELL_MS
    told(pace, 10, 31_000, 51_000)
    assert pace.interval_ms(51_000) == TELL_MS
    told(pace, 5_000, 51_000, 71_000)
    assert pace.interval_ms(100_000) == TELL_MS, "nothing was told"
