"""Bytes a second that an operator allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.replication.rate import LOOK_MS, OWED_S, Rate

BUCKET_BYTES_MAX = 100_000


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
