"""Signing in over AMQP: guesses are held up, tokens are taken, hashes of other systems are replaced."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.node.effects import GOOD, WRONG, Check, Verdict
from clusterbroker.broker.server import credentials
from clusterbroker.broker.server.credentials import FAILURES_MAX, FAILURES_OF_ADDRESS_MAX
from clusterbroker.broker.server.logins import HELD_UP, Logins
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.cluster import passwords
from clusterbroker.cluster.wiring.commands import PutUser
from clusterbroker.cluster.wiring.entities import User
from tests.unit.broker.oauth2 import authority as tokens

HERE, THERE = "192.0.2.1", "192.0.2.2"


def rabbit(password: bytes) -> str:
    """As RabbitMQ stores it."""
    return base64.b64encode(b"salt" + hashlib.sha256(b"salt" + password).digest()).decode()


ANN = User(name="ann", password_hash=passwords.hashed("right", cost=4), hash_algorithm=passwords.SCRYPT)
OLD = User(name="old", password_hash=rabbit(b"right"), hash_algorithm=passwords.SHA256)


class Place:
    """Logins of a node that keeps these users."""

    def __init__(self, **options: Any) -> None:
        self.ordered: list[PutUser] = []
        self.carry_out: Callable[[PutUser], Any] = self.ordered.append
        self.told = 0
        self.verified: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.logins = Logins(
            asyncio.get_running_loop(), self._told, self._order, ServerOptions(password_cost=4, **options), self._say
        )
        self.said: list[str] = []
        self.logins.credentials._verify = self._verify

    def _told(self) -> None:
        self.told += 1

    async def _order(self, command: PutUser) -> None:
        await asyncio.sleep(0)
        self.carry_out(command)

    def _say(self, _level: str, event: str, **_facts: Any) -> None:
        self.said.append(event)

    def _verify(self, stored: str, algorithm: str, password: bytes) -> bool:
        self.gate.wait(10)
        self.verified.append(password)
        return passwords.verified(password, stored, algorithm)

    def ask(
        self, secret: bytes, user: User | None = ANN, address: str = HERE, wanted: bool = True, name: str = ""
    ) -> list[Verdict]:
        """What is heard, when it is heard."""
        heard: list[Verdict] = []
        named = name or ("nobody" if user is None else user.name)
        self.logins.answer([Check(named, user, secret, address, heard.append, lambda: wanted)])
        return heard

    async def answer(self, *arguments: Any, **more: Any) -> Verdict:
        heard = self.ask(*arguments, **more)
        await until(lambda: heard)
        return heard[0]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    made = Place()
    yield made
    made.gate.set()
    made.logins.close()


async def test_right_and_wrong(place: Place) -> None:
    assert await place.answer(b"right") == GOOD
    assert await place.answer(b"wrong") == WRONG
    assert await place.answer(b"right", None) == WRONG
    assert place.told >= 3


async def test_who_guesses_waits_and_nobody_else_does(place: Place) -> None:
    for number in range(FAILURES_MAX):
        assert await place.answer(b"wrong-%d" % number) == WRONG
    verified = len(place.verified)
    assert await place.answer(b"right") == HELD_UP, "also with the right password: a guesser would learn it"
    assert len(place.verified) == verified
    assert await place.answer(b"right", address=THERE) == GOOD, "nobody is locked out from elsewhere"
    assert await place.answer(b"right", OLD) == GOOD, "another user at this address goes on"


async def test_a_remembered_password_does_not_let_a_guesser_learn_it(place: Place) -> None:
    assert await place.answer(b"right", address=THERE) == GOOD
    for number in range(FAILURES_MAX):
        await place.answer(b"wrong-%d" % number)
    assert await place.answer(b"right") == HELD_UP


async def test_guesses_that_come_all_at_once_are_held_up_too(place: Place) -> None:
    place.gate.clear()
    heard = [place.ask(b"wrong-%d" % number) for number in range(100)]
    place.gate.set()
    await until(lambda: all(heard))
    assert len(place.verified) <= FAILURES_MAX + 1, "one more may run already when the tenth fails"
    assert [one for (one,) in heard].count(HELD_UP) >= 100 - FAILURES_MAX - 1


async def test_many_names_from_one_address(place: Place) -> None:
    for number in range(FAILURES_OF_ADDRESS_MAX):
        await place.answer(b"wrong", None, name=f"user-{number}")
    assert await place.answer(b"right") == HELD_UP
    assert await place.answer(b"right", address=THERE) == GOOD


async def test_a_good_client_waits_for_one_guess_of_others_not_for_all(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "THREADS", 1)  # with two, what began later may end sooner
    place.gate.clear()
    guesses = [place.ask(b"wrong-%d" % number, None, name=f"user-{number}") for number in range(50)]
    good = place.ask(b"right", address=THERE)
    place.gate.set()
    await until(lambda: good)
    assert good == [GOOD]
    assert place.verified.index(b"right") == 2, "after the one that ran already, and one more"
    await until(lambda: all(guesses))


async def test_who_has_gone_is_not_verified(place: Place) -> None:
    place.gate.clear()
    running = [place.ask(b"wrong-%d" % number) for number in range(2)]
    gone = place.ask(b"right", address=THERE, wanted=False)
    place.gate.set()
    await until(lambda: gone and all(running))
    assert b"right" not in place.verified
    assert await place.answer(b"right", address=THERE) == GOOD, "it does not count as a failure either"


async def test_the_operators_own_socket_is_not_held_up(place: Place) -> None:
    for number in range(FAILURES_MAX + 1):
        assert await place.answer(b"wrong-%d" % number, address="") == WRONG
    assert await place.answer(b"right", address="") == GOOD


# -- hashes of other systems ----------------------------------------------------------------------------------


async def test_a_foreign_hash_is_replaced_at_a_good_login(place: Place) -> None:
    assert await place.answer(b"wrong", OLD) == WRONG
    assert place.ordered == []
    assert await place.answer(b"right", OLD) == GOOD
    await until(lambda: place.ordered)
    (command,) = place.ordered
    assert (command.name, command.only_if_hash, command.hash_algorithm) == ("old", OLD.password_hash, passwords.SCRYPT)
    assert passwords.verified("right", command.password_hash, passwords.SCRYPT)
    renewed = User(name="old", password_hash=command.password_hash, hash_algorithm=passwords.SCRYPT)
    verified = len(place.verified)
    assert await place.answer(b"right", renewed) == GOOD
    assert len(place.verified) == verified, "the new hash of the same password is known"
    assert len(place.ordered) == 1


async def test_one_replacement_at_a_time_for_a_user_and_another_one_after_it_failed(place: Place) -> None:
    for _ in range(5):
        assert await place.answer(b"right", OLD) == GOOD
    await until(lambda: place.ordered)
    await asyncio.sleep(0)
    assert len(place.ordered) == 1
    await until(lambda: not place.logins._rehashing._waiting)
    assert await place.answer(b"right", OLD) == GOOD
    await until(lambda: len(place.ordered) == 2)


# -- tokens ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def taking(tmp_path: Path) -> AsyncIterator[Place]:
    keys = tmp_path / "keys.json"
    keys.write_bytes(tokens.key_set())
    made = Place(oauth2=tokens.options(keys_file=keys))
    yield made
    made.logins.close()


async def test_a_token_is_taken_in_the_place_of_a_password(taking: Place) -> None:
    good = tokens.token()
    verdict = await taking.answer(good, None)
    assert verdict.refusal == ""
    assert verdict.token is not None
    assert verdict.token.name == "alice"
    assert verdict.until_ms == int((verdict.token.expires_s + 5) * 1000), "the clocks may differ by that much"
    assert taking.verified == []
    assert await taking.answer(b"right") == GOOD, "passwords are good as before"


async def test_a_bad_token_is_refused_and_tried_as_no_password(taking: Place) -> None:
    for number in range(FAILURES_MAX + 1):
        verdict = await taking.answer(tokens.token(exp=1000 + number))
        assert verdict == Verdict("token: it is over (exp)")
    assert taking.verified == []
    assert await taking.answer(b"right") == GOOD, "nobody is held up for it: nobody guesses a signature"


async def test_where_no_tokens_are_taken_one_is_a_wrong_password(place: Place) -> None:
    assert await place.answer(tokens.token()) == WRONG
