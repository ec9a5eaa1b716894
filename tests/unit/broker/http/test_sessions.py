"""Sessions: how they begin, what they may, and all that ends them."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import httpx
import pytest

from clusterbroker.broker.http.sessions import LIFE_MS, OF_USER_MAX, SESSIONS_MAX, Sessions
from clusterbroker.cluster.passwords import SCRYPT, SHA256
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import User
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import NOW_MS, recorded_place, user

CSRF = {"x-csrf": "1"}


@pytest.fixture
def client() -> Client:
    return Client(recorded_place())


async def login(client: Client, name: str = "mon", password: str = "secret-pass", **headers: str) -> httpx.Response:
    told = CSRF | {key.replace("_", "-"): value for key, value in headers.items()}
    return await client.http.post("/api/login", json={"username": name, "password": password}, headers=told)


async def whoami(client: Client) -> int:
    return (await client.http.get("/api/whoami", headers=CSRF)).status_code


async def test_a_session_is_a_cookie_that_no_script_reads(client: Client) -> None:
    answer = await login(client)
    assert (answer.status_code, answer.json()) == (200, {"name": "mon", "tags": ["monitoring"]})
    cookie = answer.headers["set-cookie"]
    parts = [part.strip() for part in cookie.split(";")][1:]
    assert parts == ["Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Strict"]
    assert (await client.http.get("/api/whoami")).json()["name"] == "mon"


def _imported(name: str = "old", tags: tuple[str, ...] = ("monitoring",)) -> c.PutUser:
    """A user as RabbitMQ's definitions bring it."""
    stored = base64.b64encode(b"salt" + hashlib.sha256(b"salt" + b"secret-pass").digest()).decode()
    return c.PutUser(name=name, password_hash=stored, hash_algorithm=SHA256, tags=tags)


async def test_a_login_replaces_an_imported_hash_and_ends_no_session(client: Client) -> None:
    client.place.apply(_imported())
    assert (await login(client, "old")).status_code == 200
    async with asyncio.timeout(10):
        while not client.operations.ordered:
            await asyncio.sleep(0.001)
            assert await whoami(client) == 200
    user = client.place.replica.map.user("old")
    assert user is not None
    assert (user.hash_algorithm, user.tags) == (SCRYPT, ("monitoring",))
    assert await whoami(client) == 200, "it is the same password"
    assert (await client.ask("GET", "/api/whoami", "old")).status_code == 200
    assert len(client.operations.ordered) == 1


async def test_a_hash_that_was_changed_meanwhile_is_not_replaced_and_ends_the_session(client: Client) -> None:
    before = _imported()
    client.place.apply(before)
    assert (await login(client, "old")).status_code == 200
    changed = c.PutUser(name="old", password_hash="other", hash_algorithm=SCRYPT, tags=("monitoring",))
    client.place.apply(changed)
    late = c.PutUser(name="old", password_hash="late", hash_algorithm=SCRYPT, only_if_hash=before.password_hash)
    client.place.apply(late)
    user = client.place.replica.map.user("old")
    assert user is not None
    assert user.password_hash == "other"
    assert await whoami(client) == 401


async def test_over_tls_the_cookie_never_leaves_it(client: Client) -> None:
    client.http.base_url = httpx.URL("https://node")
    assert (await login(client)).headers["set-cookie"].endswith("; Secure")


async def test_wrong_passwords_and_users_without_tags_get_no_session(client: Client) -> None:
    client.place.apply(user("plain", ""))
    for name, password in (("mon", "wrong"), ("nobody", "x"), ("plain", "secret-pass")):
        answer = await login(client, name, password)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "www-authenticate" not in answer.headers, "the browser would ask by itself"
    assert (await login(Client(recorded_place(), address="192.0.2.7"), "guest", "guest")).status_code == 401


async def test_too_many_wrong_ones_wait(client: Client) -> None:
    for number in range(10):
        assert (await login(client, password=f"wrong{number}")).status_code == 401
    assert (await login(client)).status_code == 429


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"x-csrf": "0"}, 403),
        ({"x-csrf": "1", "sec-fetch-site": "cross-site"}, 403),
        ({"x-csrf": "1", "sec-fetch-site": "same-site"}, 403),
        ({"x-csrf": "1", "sec-fetch-site": "same-origin"}, 201),
        ({"x-csrf": "1"}, 201),
    ],
)
async def test_other_sites_change_nothing(client: Client, headers: dict[str, str], status: int) -> None:
    await login(client, "guest", "guest")
    answer = await client.http.put("/api/vhosts/new", json={}, headers=headers)
    assert answer.status_code == status
    assert (client.place.replica.map.vhost("new") is not None) == (status == 201)


async def test_other_sites_sign_nobody_in_or_out(client: Client) -> None:
    asked = {"username": "mon", "password": "secret-pass"}
    assert (await client.http.post("/api/login", json=asked)).status_code == 403
    assert (await login(client, sec_fetch_site="cross-site")).status_code == 403
    form = await client.http.post("/api/login", data=asked, headers=CSRF)
    assert form.status_code == 415, "a form of another site may be sent without asking first"
    await login(client)
    assert (await client.http.post("/api/logout", json={})).status_code == 403
    assert await whoami(client) == 200


async def test_signed_out_is_out(client: Client) -> None:
    await login(client)
    kept = dict(client.http.cookies)
    answer = await client.http.post("/api/logout", json={}, headers=CSRF)
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert await whoami(client) == 401
    client.http.cookies.update(kept)
    assert await whoami(client) == 401, "the cookie is worth nothing any more"


async def test_it_ends_after_eight_hours_whatever_is_done_with_it(client: Client) -> None:
    await login(client)
    kept = dict(client.http.cookies)
    client.now_ms += LIFE_MS - 1
    client.http.cookies.update(kept)
    assert await whoami(client) == 200
    client.now_ms += 1
    client.http.cookies.update(kept)
    assert await whoami(client) == 401


async def test_it_ends_with_the_password_and_with_the_user(client: Client) -> None:
    await login(client)
    client.place.apply(user("mon", "monitoring", "another-pass"))
    assert await whoami(client) == 401
    await login(client, password="another-pass")
    assert await whoami(client) == 200
    client.place.apply(c.DeleteUser(at_ms=NOW_MS, name="mon"))
    assert await whoami(client) == 401


async def test_it_ends_with_the_user_though_the_very_same_is_back_at_once(client: Client) -> None:
    """An import of definitions may delete and make a user again, with the same hash, between two requests."""
    await login(client)
    (mon,) = [found for found in client.place.replica.map.users() if found.name == "mon"]
    client.place.apply(
        c.DeleteUser(at_ms=NOW_MS, name="mon"),
        c.PutUser(at_ms=NOW_MS, name="mon", password_hash=mon.password_hash, hash_algorithm=SCRYPT, tags=mon.tags),
    )
    assert await whoami(client) == 401


async def test_it_ends_when_nobody_can_say_who_was_deleted(client: Client) -> None:
    await login(client)
    client.place.replica.restored(client.place.replica.map.snapshot(), client.now_ms)
    assert await whoami(client) == 401


async def test_rights_are_those_of_now(client: Client) -> None:
    await login(client)
    assert (await client.http.get("/api/nodes")).status_code == 200
    (mon,) = [found for found in client.place.replica.map.users() if found.name == "mon"]
    client.place.apply(
        c.PutUser(
            at_ms=NOW_MS, name="mon", password_hash=mon.password_hash, hash_algorithm=SCRYPT, tags=("management",)
        )
    )
    assert (await client.http.get("/api/nodes")).status_code == 401


async def test_basic_says_who_asks_even_beside_a_session(client: Client) -> None:
    await login(client)
    assert (await client.get("/api/whoami", "man")).json()["name"] == "man"
    assert (await client.http.get("/api/whoami", headers={"authorization": "Bearer x"})).status_code == 401


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"username": 1, "password": "x"}', '{"username": "mon"}', "{"])
async def test_bad_bodies(client: Client, body: str) -> None:
    headers = CSRF | {"content-type": "application/json"}
    assert (await client.http.post("/api/login", content=body, headers=headers)).status_code == 400


async def test_cookies_of_nobody(client: Client) -> None:
    for token in ("", "x", "A" * 5000, "\u00e9"):
        headers = {b"cookie": b"clusterbroker-80=" + token.encode("latin-1")}
        assert (await client.http.get("/api/whoami", headers=headers)).status_code == 401


def test_there_is_room_for_so_many_only() -> None:
    place = recorded_place()
    sessions, map_ = Sessions(), place.replica.map
    mon = map_.user("mon")
    assert mon is not None
    for number in range(OF_USER_MAX + 1):
        sessions.begin(f"t{number}", mon, NOW_MS)
    assert len(sessions) == OF_USER_MAX
    assert sessions.user("t0", map_, NOW_MS) is None
    assert sessions.user("t1", map_, NOW_MS) == mon
    for number in range(SESSIONS_MAX):
        sessions.begin(f"u{number}", User(name=f"user{number}", password_hash="h", hash_algorithm=SCRYPT), NOW_MS)
    assert len(sessions) == SESSIONS_MAX
    sessions.begin("late", mon, NOW_MS + LIFE_MS)
    assert len(sessions) == 1, "those that ended are forgotten"
