"""Rounds and pauses of syncs that nobody waits for, and the bytes a second that an operator allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.replication.pacing import LIVE_MS, LOOK_MS, OWED_S, PAUSE_MAX_MS, Pacing, Rate

FULL = 1000
BUCKET_BYTES_MAX = 100_000


def in_a_round(now_ms: int) -> Pacing:
    """A bucket that fills the round was asked for at that time."""
    pacing = Pacing(FULL)
    pacing.live(now_ms)
    assert pacing.may_ask(0, FULL, now_ms)
    pacing.asked(now_ms)
    assert not pacing.may_ask(1, FULL, now_ms), "it is on its way"
    pacing.took(FULL)
    assert not pacing.may_ask(1, FULL, now_ms), "it is here, but not durable"
    return pacing


@pytest.mark.parametrize(("took_ms", "pause_ms"), [(0, 0), (7, 7), (PAUSE_MAX_MS, PAUSE_MAX_MS), (400, PAUSE_MAX_MS)])
def test_nothing_is_asked_for_as_long_as_the_round_took_within_a_bound(took_ms: int, pause_ms: int) -> None:
    pacing = in_a_round(100)
    durable_ms = 100 + took_ms
    for now_ms in range(durable_ms, durable_ms + pause_ms):
        pacing.live(now_ms)
        assert not pacing.may_ask(0, FULL, now_ms)
        assert pacing.opens_ms(now_ms) == durable_ms + pause_ms
    assert pacing.may_ask(0, FULL, durable_ms + pause_ms)


def test_without_live_work_there_are_no_rounds() -> None:
    pacing = in_a_round(100)
    assert pacing.opens_ms(100) == 100 + LIVE_MS
    assert not pacing.may_ask(1, FULL, 100 + LIVE_MS - 1)
    assert pacing.may_ask(1, FULL, 100 + LIVE_MS)


def test_a_bucket_longer_than_a_round_is_a_round() -> None:
    pacing = Pacing(FULL)
    pacing.live(0)
    assert pacing.may_ask(0, 9 * FULL, 0)


def test_a_round_has_as_many_buckets_as_it_holds() -> None:
    pacing = Pacing(FULL)
    pacing.live(0)
    for under_way in range(4):
        assert pacing.may_ask(under_way, FULL // 4, 0)
        pacing.asked(0)
    assert not pacing.may_ask(4, FULL // 4, 0)


@given(st.lists(st.tuples(st.integers(1, 3 * FULL), st.integers(0, 300)), min_size=1, max_size=30))
def test_whatever_comes_live_all_buckets_come(buckets: list[tuple[int, int]]) -> None:
    """Buckets of some bytes, each durable some ms after it is asked for: each waits at most for one pause."""
    pacing, now_ms, expected = Pacing(FULL), 0, 0
    for size, durable_ms in buckets:
        asked_ms = now_ms
        pacing.live(now_ms)
        while not pacing.may_ask(0, expected, now_ms):
            opens_ms = pacing.opens_ms(now_ms)
            assert opens_ms > now_ms, "a no has its end in the future"
            now_ms += 1
            pacing.live(now_ms)
        assert now_ms - asked_ms <= PAUSE_MAX_MS
        pacing.asked(now_ms)
        pacing.took(size)
        expected = size
        now_ms += durable_ms


@given(st.integers(1, 10_000_000), st.lists(st.integers(1, BUCKET_BYTES_MAX), min_size=1, max_size=30))
def test_no_second_has_more_and_all_of_it_is_used(limit: int, buckets: list[int]) -> None:
    rate, now_ms, came = Rate(limit), 0, 0
    for size in buckets:
        while not rate.may_ask(0, now_ms):
            opens_ms = rate.opens_ms(now_ms)
            assert now_ms < opens_ms <= now_ms + LOOK_MS, "a no has its end in the future"
            now_ms = opens_ms
        assert came < limit * (now_ms / 1000 + 1) + 1, "what was asked for before is made up for"
        rate.took(size)
        came += size
    # and it is no slower than that: each look is late by one millisecond at most
    assert now_ms <= came * 1000 / limit + len(buckets) * (LOOK_MS if limit < 1000 else 2)


def test_what_is_on_its_way_counts() -> None:
    rate = Rate(1000)
    assert rate.may_ask(999, 0)
    assert not rate.may_ask(1000, 0)


def test_what_publishers_wait_for_is_owed_for_a_while_only() -> None:
    rate = Rate(1000)
    assert rate.may_ask(0, 0)
    for _ in range(1000):
        rate.took(1000)
    assert not rate.may_ask(0, OWED_S * 1000 - 1)
    assert rate.may_ask(0, OWED_S * 1000 + 1)


def test_a_pause_is_no_bound_of_zero() -> None:
    rate = Rate()
    assert rate.may_ask(1 << 40, 0)
    rate.paused = True
    assert not rate.may_ask(0, 0)
    assert rate.opens_ms(0) == LOOK_MS
    rate.took(5)
    rate.paused = False
    assert rate.may_ask(0, 0)
    assert rate.bytes == 5
