"""Passwords: verified once, remembered without being kept, and never answered wrongly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.server.credentials import (
    FAILURES_MAX,
    FAILURES_OF_ADDRESS_MAX,
    REMEMBERED_MAX,
    VERIFIED_MAX,
    WINDOW_MS,
    Credentials,
    Throttle,
    network,
    verify,
)
from clusterbroker.cluster import passwords

STORED = passwords.hashed("right", cost=4)


class Counting:
    """The real verification, counted and held back on request."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, stored: str, algorithm: str, password: bytes) -> bool:
        self.asked += 1
        self.gate.wait(10)
        return passwords.verified(password, stored, algorithm)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
async def credentials(counting: Counting) -> AsyncIterator[Credentials]:
    made = Credentials(asyncio.get_running_loop(), lambda: None, counting)
    yield made
    counting.gate.set()
    made.close()


async def answer(credentials: Credentials, password: str, stored: str = STORED, name: str = "ann") -> bool:
    heard: list[bool] = []
    credentials.check(name, stored, passwords.SCRYPT, password.encode(), heard.append)
    await until(lambda: heard)
    return heard[0]


async def test_right_and_wrong(credentials: Credentials) -> None:
    assert await answer(credentials, "right")
    assert not await answer(credentials, "wrong")
    assert not await answer(credentials, "")


async def test_a_thousand_connections_with_one_password_cost_one_verification(
    credentials: Credentials, counting: Counting
) -> None:
    counting.gate.clear()
    heard: list[bool] = []
    for _ in range(1000):
        credentials.check("ann", STORED, passwords.SCRYPT, b"right", heard.append)
    counting.gate.set()
    await until(lambda: len(heard) == 1000)
    assert all(heard)
    assert await answer(credentials, "right")
    assert counting.asked == 1


async def test_a_changed_password_is_asked_again(credentials: Credentials, counting: Counting) -> None:
    assert await answer(credentials, "right")
    assert not await answer(credentials, "right", passwords.hashed("other", cost=4))
    assert counting.asked == 2


async def test_an_unknown_user_takes_a_verification() -> None:
    made = Credentials(asyncio.get_running_loop(), lambda: None)
    try:
        assert not await answer(made, "right", "")
    finally:
        made.close()


class Clocked:
    """A loop whose timers come at once, and are kept."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.delays_s: list[float] = []

    def call_later(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self.delays_s.append(delay_s)
        self._loop.call_soon(call, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


async def test_a_refusal_answers_for_no_other_name(counting: Counting) -> None:
    """Or the second of two made-up names would be refused without a verification, and one that exists after one."""
    clocked = Clocked()
    made = Credentials(clocked, lambda: None, counting)  # type: ignore[arg-type]
    try:
        assert not await answer(made, "guess", "", "nobody")
        assert not await answer(made, "guess", "", "nobody-else")
        assert not await answer(made, "guess", STORED, "ann")
        assert (counting.asked, clocked.delays_s) == (3, []), (
            "each name is verified, whether there is such a user or not"
        )
    finally:
        made.close()


@pytest.mark.parametrize("stored", [STORED, ""], ids=["known", "unknown"])
async def test_a_refusal_that_is_remembered_takes_the_time_of_a_verification(counting: Counting, stored: str) -> None:
    clocked = Clocked()
    made = Credentials(clocked, lambda: None, counting)  # type: ignore[arg-type]
    try:
        assert not await answer(made, "guess", stored)
        made.took_s = 123.0
        assert not await answer(made, "guess", stored)
        assert (counting.asked, clocked.delays_s) == (1, [123.0])
        heard: list[bool | None] = []
        counting.gate.clear()
        for place in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):  # one more than there are threads: it has to wait
            made.check("ann", stored, passwords.SCRYPT, b"other guess", heard.append, place)
        counting.gate.set()
        await until(lambda: len(heard) == 3)
        assert (counting.asked, len(clocked.delays_s)) == (3, 2), "what was learnt for another place as well"
    finally:
        made.close()


async def test_what_is_remembered_is_bounded_and_holds_no_password(
    credentials: Credentials, counting: Counting
) -> None:
    for number in range(VERIFIED_MAX + 10):
        credentials.remember("ann", STORED, passwords.SCRYPT, b"secret-%d" % number)
    assert len(credentials._known) == VERIFIED_MAX
    assert not any(b"secret" in question for question in credentials._known)
    assert await answer(credentials, f"secret-{VERIFIED_MAX + 9}")
    assert counting.asked == 0


async def test_a_verification_that_raises_is_a_no(credentials: Credentials) -> None:
    def broken(*_: object) -> bool:
        raise MemoryError

    made = Credentials(asyncio.get_running_loop(), lambda: None, broken)
    try:
        assert not await answer(made, "right")
    finally:
        made.close()


@pytest.mark.parametrize("password", [b"wrong", b"", b"x" * 5000], ids=["wrong", "empty", "long"])
@pytest.mark.parametrize(
    ("stored", "algorithm"),
    [
        ("", ""), (passwords.hashed("right"), passwords.SCRYPT), ("AAAA" * 12, passwords.SHA256),
        ("AAAA" * 24, passwords.SHA512),
    ],
    ids=["nobody", "scrypt", "sha256", "sha512"],
)  # fmt: skip
def test_the_time_of_a_refusal_does_not_tell_who_exists(
    stored: str, algorithm: str, password: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[int] = []
    scrypt = passwords._scrypt

    def counted(secret: bytes, salt: bytes, cost: int, block: int, parallel: int, length: int) -> bytes:
        costs.append(cost)
        return scrypt(secret, salt, cost, block, parallel, length)

    monkeypatch.setattr(passwords, "_scrypt", counted)
    assert not verify(stored, algorithm, password)
    assert costs == [passwords.COST_DEFAULT]


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
