"""A lane to one queue behind a delayed exchange: what goes there, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusterbroker.broker.delay.lanes import QUOTA, RETRY_MAX_MS, STALL_MS, Lane
from clusterbroker.broker.queues.producers import DEAD_SPREAD


@pytest.fixture
def lane() -> Lane:
    return Lane(cast("Any", SimpleNamespace(away=False, deleted=False)))


def refuse(lane: Lane, number: int, now_ms: int) -> None:
    lane.hold(number, 10)
    lane.ask(1, now_ms)
    lane.answered(1, 10, True, now_ms)
    lane.open.pop(number)


def test_an_open_lane_takes_as_many_letters_as_are_held(lane: Lane) -> None:
    for number in range(1, QUOTA + 1):
        assert lane.takes(number, 0)
        lane.hold(number, 10)
    assert not lane.takes(QUOTA + 1, 0)
    lane.ask(QUOTA, 0)
    lane.answered(1, 10, False, 5)
    assert lane.takes(QUOTA + 1, 5)


def test_after_a_refusal_it_waits_longer_each_time(lane: Lane) -> None:
    now_ms, waits = 0, []
    for number in range(1, 10):
        refuse(lane, number, now_ms)
        waits.append(lane.again_ms - now_ms)
        assert not lane.takes(number + 1, lane.again_ms - 1)
        now_ms = lane.again_ms
        assert lane.takes(number + 1, now_ms)
    assert waits == [1000, 2000, 4000, 8000, 16000, 32000, RETRY_MAX_MS, RETRY_MAX_MS, RETRY_MAX_MS]


def test_refusals_of_one_try_count_once(lane: Lane) -> None:
    lane.refuse(0)
    lane.refuse(10)
    assert (lane.again_ms, lane.tries) == (1000, 1)


def test_each_letter_that_is_taken_doubles_what_may_go(lane: Lane) -> None:
    lane.refuse(0)
    now_ms, allowed = lane.again_ms, []
    for _ in range(12):
        allowed.append(lane.quota)
        lane.hold(1, 10)
        lane.ask(1, now_ms)
        lane.answered(1, 10, False, now_ms)
    assert allowed == [min(QUOTA, 1 << n) for n in range(12)]


def test_no_number_is_so_high_that_the_lowest_open_one_would_be_forgotten(lane: Lane) -> None:
    lane.hold(7, 10)
    assert lane.takes(7 + DEAD_SPREAD - 1, 0)
    assert not lane.takes(7 + DEAD_SPREAD, 0)
    lane.open.pop(7)
    assert lane.takes(7 + DEAD_SPREAD, 0)


def test_it_stalls_when_an_answer_is_late_and_goes_on_with_one(lane: Lane) -> None:
    lane.hold(1, 10)
    assert not lane.look(STALL_MS), "it is not published yet"
    lane.ask(1, 100)
    assert not lane.look(100 + STALL_MS - 1)
    assert lane.look(100 + STALL_MS)
    assert not lane.look(100 + STALL_MS), "it does already"
    assert not lane.takes(2, 100 + STALL_MS)
    lane.answered(1, 10, False, 5000)
    assert lane.takes(2, 5000)


def test_nothing_goes_to_a_queue_that_is_away(lane: Lane) -> None:
    cast("Any", lane.target).away = True
    assert not lane.takes(1, 0)


def test_one_of_which_nothing_is_known_may_be_forgotten(lane: Lane) -> None:
    known = [lane.idle]
    lane.parked.add(1, 1)
    known.append(lane.idle)
    lane.parked.clear()
    lane.refuse(0)
    known.append(lane.idle)
    assert known == [True, False, False]
