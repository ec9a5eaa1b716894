"""Guessing passwords is slow, and locks nobody else out."""

from __future__ import annotations

from broker.management.throttle import FAILURES_MAX, PAIRS_MAX, WINDOW_MS, Throttle


def test_ten_failures_within_a_minute_wait_until_it_is_over() -> None:
    throttle = Throttle()
    for at_ms in range(FAILURES_MAX):
        assert throttle.waits_ms("u", "a", at_ms) == 0
        throttle.failed("u", "a", at_ms)
    assert throttle.waits_ms("u", "a", 10) == WINDOW_MS - 10
    assert throttle.waits_ms("u", "b", 10) == throttle.waits_ms("v", "a", 10) == 0
    assert throttle.waits_ms("u", "a", WINDOW_MS) == 0
    throttle.failed("u", "a", WINDOW_MS)
    assert throttle.waits_ms("u", "a", WINDOW_MS + 1) == 0


def test_a_good_login_forgets_the_bad_ones() -> None:
    throttle = Throttle()
    for _ in range(FAILURES_MAX - 1):
        throttle.failed("u", "a", 0)
    throttle.succeeded("u", "a")
    throttle.failed("u", "a", 1)
    assert throttle.waits_ms("u", "a", 2) == 0


def test_memory_is_bounded() -> None:
    throttle = Throttle()
    for number in range(PAIRS_MAX + 100):
        for _ in range(FAILURES_MAX):
            throttle.failed(str(number), "a", 0)
    assert throttle.waits_ms("0", "a", 1) == 0
    assert throttle.waits_ms(str(PAIRS_MAX + 99), "a", 1)
