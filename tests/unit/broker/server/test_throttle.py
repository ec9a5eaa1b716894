"""Guessing passwords is slow, and locks nobody else out."""

from __future__ import annotations

from clusterbroker.broker.server.throttle import (
    FAILURES_MAX,
    FAILURES_OF_ADDRESS_MAX,
    REMEMBERED_MAX,
    WINDOW_MS,
    Throttle,
    network,
)


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
    last = REMEMBERED_MAX + 99
    for number in range(last + 1):
        for _ in range(1 if 0 < number < last else FAILURES_MAX):
            throttle.failed("u", str(number), 0)
    assert throttle.waits_ms("u", "0", 1) == 0
    assert throttle.waits_ms("u", str(REMEMBERED_MAX + 99), 1)


def test_of_a_name_that_nobody_has_little_is_remembered() -> None:
    throttle = Throttle()
    for _ in range(FAILURES_MAX):
        throttle.failed("x" * 8000, "192.0.2.1", 0)
    assert throttle.waits_ms("x" * 8000, "192.0.2.1", 1) > 0
    assert [len(name) for name, _ in throttle._pairs._failed] == [255]


def test_an_address_waits_whoever_it_says_to_be() -> None:
    throttle = Throttle()
    for number in range(FAILURES_OF_ADDRESS_MAX):
        assert throttle.waits_ms(f"u{number}", "192.0.2.1", number) == 0
        throttle.failed(f"u{number}", "192.0.2.1", number)
    assert throttle.waits_ms("anybody", "192.0.2.1", 100) == WINDOW_MS - 100
    assert throttle.waits_ms("anybody", "192.0.2.2", 100) == 0
    throttle.succeeded("anybody", "192.0.2.1")
    assert throttle.waits_ms("anybody", "192.0.2.1", 100), "one good password pays for no bad ones"
    assert throttle.waits_ms("anybody", "192.0.2.1", WINDOW_MS) == 0


def test_of_ipv6_the_network_counts() -> None:
    throttle = Throttle()
    for number in range(FAILURES_MAX):
        throttle.failed("u", f"2001:db8::{number:x}", 0)
    assert throttle.waits_ms("u", "2001:db8::ffff", 1)
    assert throttle.waits_ms("u", "2001:db8:0:1::1", 1) == 0
    assert network("::ffff:192.0.2.1") == "192.0.2.1"
    assert network("::1") == "::1"
    assert network("fe80::1%eth0") == "fe80::/64"
    assert network("x" * 1000) == "x" * 64


def test_a_new_minute_makes_a_place_young_again() -> None:
    throttle = Throttle()
    throttle.failed("u", "192.0.2.1", 0)
    for number in range(REMEMBERED_MAX - 1):
        throttle.failed("u", str(number), 1)
    throttle.failed("u", "192.0.2.1", WINDOW_MS)
    for _ in range(FAILURES_MAX - 1):
        throttle.failed("u", "192.0.2.1", WINDOW_MS)
    throttle.failed("u", "one more", WINDOW_MS)
    assert throttle.waits_ms("u", "192.0.2.1", WINDOW_MS + 1)
