"""Guessing, many at once; names of other sites; and what is counted of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from clusterbroker.broker.http.auth import is_own_name
from clusterbroker.broker.server.credentials import FAILURES_MAX, FAILURES_OF_ADDRESS_MAX
from clusterbroker.broker.stats import rows
from clusterbroker.cluster import passwords
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place, user


@pytest.fixture
def client() -> Client:
    return Client(recorded_place())


async def test_a_thousand_guesses_at_once_are_as_many_as_one_after_the_other(client: Client) -> None:
    guesses = [client.ask("GET", "/api/whoami", "mon", password=f"wrong{number}") for number in range(200)]
    statuses = [answer.status_code for answer in await asyncio.gather(*guesses)]
    assert statuses.count(401) == FAILURES_MAX
    assert statuses.count(429) == 200 - FAILURES_MAX


@pytest.mark.long
async def test_one_password_for_many_names_waits_as_well(client: Client) -> None:
    names = [f"user{number}" for number in range(FAILURES_OF_ADDRESS_MAX + 5)]
    guesses = [client.ask("GET", "/api/whoami", name, password="Spring2026") for name in names]
    statuses = [answer.status_code for answer in await asyncio.gather(*guesses)]
    assert statuses.count(401) == FAILURES_OF_ADDRESS_MAX
    assert statuses.count(429) == 5
    assert (await client.get("/api/whoami", "mon")).status_code == 429
    client.now_ms += 60_000
    assert (await client.get("/api/whoami", "mon")).status_code == 200


async def _guesses(client: Client, count: int) -> list[int]:
    """Each from another address, as the header says."""
    statuses = []
    for number in range(count):
        headers = {"x-forwarded-for": f"10.0.{number}.1"}
        answer = await client.http.get("/api/whoami", auth=("mon", f"wrong{number}"), headers=headers)
        statuses.append(answer.status_code)
    return statuses


async def test_made_up_addresses_are_no_way_around_waiting() -> None:
    """Without a setting any process on this machine may say where its client is; it guesses in its own name as well."""
    client = Client(recorded_place(), proxies=None)
    statuses = await _guesses(client, FAILURES_OF_ADDRESS_MAX + 5)
    assert statuses == [401] * FAILURES_OF_ADDRESS_MAX + [429] * 5
    right = await client.http.get("/api/whoami", auth=("mon", "secret-pass"), headers={"x-forwarded-for": "10.9.9.9"})
    assert right.status_code == 429
    client.now_ms += 60_000
    assert (await client.get("/api/whoami", "mon")).status_code == 200


async def test_a_proxy_that_is_named_answers_for_nobody() -> None:
    client = Client(recorded_place(), proxies=("127.0.0.1",))
    assert await _guesses(client, FAILURES_OF_ADDRESS_MAX + 5) == [401] * (FAILURES_OF_ADDRESS_MAX + 5)


async def test_what_is_said_of_a_client_takes_rights_away_only() -> None:
    client = Client(recorded_place(), proxies=None)
    said = {"x-forwarded-for": "192.0.2.7"}
    assert (await client.http.get("/api/whoami", auth=("guest", "guest"), headers=said)).status_code == 401
    assert (await client.http.get("/metrics", headers=said)).status_code == 401
    elsewhere = Client(recorded_place(), address="192.0.2.7", proxies=None)
    said = {"x-forwarded-for": "127.0.0.1"}
    assert (await elsewhere.http.get("/api/whoami", auth=("guest", "guest"), headers=said)).status_code == 401
    assert (await elsewhere.http.get("/metrics", headers=said)).status_code == 401


async def test_a_name_that_nobody_has_is_verified_like_any_other(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt too: the password was just refused for another name."""
    verified: list[bytes] = []

    def counted(password: bytes) -> bool:
        verified.append(password)
        return False

    monkeypatch.setattr(passwords, "verified_nobody", counted)
    for number in range(3):
        assert (await client.ask("GET", "/api/whoami", f"nobody-{number}", password="P")).status_code == 401
    assert verified == [b"P"] * 3


async def test_a_right_password_of_a_user_of_this_machine_is_like_a_wrong_one_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be remembered as right, and the second refusal come at once."""
    verified: list[bytes] = []

    def counted(password: bytes) -> bool:
        verified.append(password)
        return False

    monkeypatch.setattr(passwords, "verified_nobody", counted)
    elsewhere = Client(recorded_place(), address="192.0.2.7")
    assert (await elsewhere.get("/api/whoami")).status_code == 401
    assert verified == [b"guest"]


async def test_many_good_ones_at_once_wait_for_nobody(client: Client) -> None:
    good = [client.get("/api/whoami", "mon") for _ in range(100)]
    assert {answer.status_code for answer in await asyncio.gather(*good)} == {200}


async def test_a_page_of_another_site_is_not_from_here() -> None:
    """Its name may be made to point to this machine: what its page asks comes from loopback, and bears its name."""
    assert (await Client(recorded_place(), host="evil.example").get("/api/whoami")).status_code == 401
    assert (await Client(recorded_place(), host="evil.example:15672").get("/api/whoami")).status_code == 401
    assert (await Client(recorded_place(), host="127.0.0.1").get("/api/whoami")).status_code == 200
    assert (await Client(recorded_place(), host="[::1]:15672").get("/api/whoami")).status_code == 200
    assert (await Client(recorded_place(), host="evil.example").get("/api/whoami", "mon")).status_code == 200
    assert (await Client(recorded_place(), host="evil.example").http.get("/metrics")).status_code == 401
    assert (await Client(recorded_place()).http.get("/metrics")).status_code == 200


def test_names_of_this_machine() -> None:
    import socket

    own = ("", "localhost", "LOCALHOST:1", "localhost.", "x.localhost", "127.0.0.1:80", "[::1]:80", "10.0.0.1")
    assert all(map(is_own_name, (*own, socket.gethostname())))
    others = (
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "notlocalhost",
        "[x]",
        "@",
        "localhost@evil",
    )
    assert not any(map(is_own_name, others))


async def test_attempts_are_counted_by_address_and_user(client: Client) -> None:
    await client.ask("GET", "/api/whoami", "mon", password="wrong")
    await client.get("/api/whoami", "mon")
    await client.ask("GET", "/api/whoami", "very-secret-typed-as-a-name", password="x")
    node = client.place.replica.node
    sources = (await client.get(f"/api/auth/attempts/{node}/source", "mon")).json()
    assert [
        (one["remote_address"], one["username"], one["auth_attempts_failed"], one["auth_attempts_succeeded"])
        for one in sources
    ] == [("127.0.0.1", "mon", 1, 2), ("127.0.0.1", "", 1, 0)]
    assert sources[0]["protocol"] == "http"
    assert sources[0]["auth_attempts"] == 3
    by_protocol = (await client.get(f"/api/auth/attempts/{node}", "mon")).json()
    assert by_protocol[-1]["protocol"] == "http"
    assert (by_protocol[-1]["auth_attempts"], by_protocol[-1]["auth_attempts_failed"]) == (5, 2)


async def test_every_member_tells_the_attempts_at_all_others(client: Client) -> None:
    place = client.place
    place.must(*(c.AddMember(name=NodeId(name), address="") for name in (place.replica.node, "n2")))
    attempts = rows.LoginTotals("http", 3, 4), rows.LoginTotals("amqp", 1, 2)
    for node in (place.replica.node, "n2"):
        mine = rows.LoginSourceRow("http", "10.0.0.9", "mon", 3, 4)
        place.tell(rows.NodeRow(name=node, logins=attempts), mine, node=node, whole=node == "n2")
    there = (await client.get("/api/auth/attempts/n2/source")).json()
    assert [(one["remote_address"], one["username"], one["auth_attempts"]) for one in there] == [("10.0.0.9", "mon", 7)]
    by_protocol = (await client.get("/api/auth/attempts/n2")).json()
    assert {one["protocol"]: one["auth_attempts"] for one in by_protocol} == {"http": 7, "amqp091": 3}
    here = (await client.get(f"/api/auth/attempts/{place.replica.node}/source")).json()
    assert [one["remote_address"] for one in here] == ["127.0.0.1"], "what it knows itself is newer"
    by_protocol = (await client.get(f"/api/auth/attempts/{place.replica.node}")).json()
    assert {one["protocol"]: one["auth_attempts"] for one in by_protocol} == {"http": 4, "amqp091": 3}


async def test_they_are_counted_anew_by_an_administrator(client: Client) -> None:
    node = client.place.replica.node
    assert (await client.ask("DELETE", f"/api/auth/attempts/{node}/source", "mon")).status_code == 401
    assert (await client.ask("DELETE", f"/api/auth/attempts/{node}/source")).status_code == 204
    assert len((await client.get(f"/api/auth/attempts/{node}/source")).json()) == 1, "this very one"
    assert client.operations.done == [("logins.forget", {})], "AMQP's are the node's"
    assert (await client.ask("DELETE", "/api/auth/attempts/none/source")).status_code == 404
    assert (await client.get("/api/auth/attempts/none/source")).status_code == 404
    assert (await client.get(f"/api/auth/attempts/{node}/source", "man")).status_code == 401


async def test_every_answer_has_its_headers(client: Client) -> None:
    for path, status in (("/api/whoami", 200), ("/api/none", 404), ("/api/queues/%FF", 400), ("/metrics", 200)):
        answer = await client.get(path)
        assert answer.status_code == status
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in answer.headers if name.startswith("access-control-")], "no other site reads it"


async def test_a_body_that_says_to_be_too_long_is_not_waited_for(client: Client) -> None:
    headers = {"content-type": "application/json", "content-length": str(10**9)}
    answer = await client.http.put("/api/users/x", content=b"{}", headers=headers, auth=("guest", "guest"))
    assert answer.status_code == 413


@pytest.mark.parametrize("change", ["deleted", "another password", "another tag"])
async def test_who_is_gone_when_the_body_is_there_does_nothing(client: Client, change: str) -> None:
    place = client.place
    place.must(user("eve", "administrator"))

    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"password": "backdoor", '
        match change:
            case "deleted":
                place.must(c.DeleteUser(name="eve"))
            case "another password":
                place.must(user("eve", "administrator", "another-one"))
            case _:
                place.must(user("eve", "monitoring"))
        yield b'"tags": "administrator"}'

    headers = {"content-type": "application/json"}
    answer = await client.http.put("/api/users/mallory", auth=("eve", "secret-pass"), content=slowly(), headers=headers)
    assert answer.status_code == 401
    assert not client.operations.ordered


async def test_bodies_on_their_way_have_so_much_room_together(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.broker.http.middleware.bodies.BODIES_BYTES_MAX", 1000)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"description": "' + b"x" * 900
        begun.set()
        await go_on.wait()
        yield b'"}'

    async def put(name: str, content: AsyncIterator[bytes] | bytes) -> int:
        headers = {"content-type": "application/json"}
        path = f"/api/vhosts/{name}"
        answer = await client.http.put(path, content=content, headers=headers, auth=("guest", "guest"))
        return answer.status_code

    first = asyncio.create_task(put("slow", slow()))
    await begun.wait()
    assert await put("other", b'{"description": "' + b"x" * 200 + b'"}') == 503
    assert await put("short", b"{}") == 201
    go_on.set()
    assert await first == 201
    assert await put("other", b'{"description": "' + b"x" * 200 + b'"}') == 201, "it is given back"
