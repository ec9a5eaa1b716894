"""The pace at which messages leave a delay queue."""

from __future__ import annotations

import pytest

from clusterbroker.broker.delay.pace import Pace


def gone(pace: Pace, until_ms: int, step_ms: int) -> int:
    count = 0
    for now_ms in range(1_000_000, 1_000_000 + until_ms + 1, step_ms):
        while pace.has_room(now_ms):
            pace.left -= 1
            count += 1
    return count


@pytest.mark.parametrize(("rate", "step_ms"), [(1, 10), (7, 100), (1000, 1), (100_000, 10)])
def test_so_many_leave_in_a_second(rate: int, step_ms: int) -> None:
    first = rate  # what a queue at rest may send at once
    assert abs(gone(Pace(rate), 10_000, step_ms) - first - 10 * rate) <= 1


@pytest.mark.parametrize("rate", [None, 0, "5"])
def test_without_a_rate_there_is_no_bound(rate: object) -> None:
    pace = Pace(rate)
    pace.left = -5
    assert pace.has_room(0)
    assert pace.wait_ms == 0


def test_a_clock_that_goes_back_takes_nothing_away_and_gives_nothing() -> None:
    pace = Pace(10)
    assert pace.has_room(5000)
    pace.left = 0
    assert not pace.has_room(1000)
    assert pace.has_room(1100)
