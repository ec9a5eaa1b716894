"""Passwords: verified once, remembered without being kept, and never answered wrongly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from server_support import until

from broker.server.credentials import VERIFIED_MAX, Credentials, verify
from cluster import passwords

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


async def answer(credentials: Credentials, password: str, stored: str = STORED) -> bool:
    heard: list[bool] = []
    credentials.check(stored, passwords.SCRYPT, password.encode(), heard.append)
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
        credentials.check(STORED, passwords.SCRYPT, b"right", heard.append)
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


async def test_what_is_remembered_is_bounded_and_holds_no_password(
    credentials: Credentials, counting: Counting
) -> None:
    for number in range(VERIFIED_MAX + 10):
        credentials.remember(STORED, passwords.SCRYPT, b"secret-%d" % number)
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
