"""Tokens in the place of passwords, over HTTP."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.oauth2.tokens import Tokens
from clusterbroker.broker.server.audit import Audit, AuditOptions
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place
from tests.unit.broker.oauth2 import authority as a


class Bearer:
    """Asks with a token."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(a.key_set())
        self.client = Client(recorded_place(), tokens=Tokens(a.options(keys_file=file), time.time, _unsaid))

    async def ask(self, token: bytes, path: str = "/api/whoami", method: str = "GET", **more: Any) -> Any:
        headers = {"authorization": "Bearer " + token.decode("latin-1")}
        return await self.client.http.request(method, path, headers=headers, **more)


def _unsaid(*_: Any, **__: Any) -> None:
    """Nothing."""


@pytest.fixture
def bearer(tmp_path: Path) -> Bearer:
    return Bearer(tmp_path / "keys.json")


async def test_a_good_token_is_whom_it_names(bearer: Bearer) -> None:
    answer = await bearer.ask(a.token())
    assert (answer.status_code, answer.json()) == (200, {"name": "alice", "tags": ["administrator"]})


async def test_its_scopes_say_what_it_sees(bearer: Bearer) -> None:
    token = a.token(scope="mq.tag:management mq.read:%2F/*")
    seen = (await bearer.ask(token, "/api/vhosts")).json()
    assert [vhost["name"] for vhost in seen] == ["/"]
    assert (await bearer.ask(token, "/api/queues/%2F/busy")).json()["may"] == ["read"]
    assert (await bearer.ask(token, "/api/queues/a%2Fb")).status_code == 401
    assert (await bearer.ask(token, "/api/users")).status_code == 401
    assert (await bearer.ask(a.token(scope="mq.read:*/*"))).status_code == 401, "no tag, no API"
    assert (await bearer.ask(a.token(), "/api/users")).status_code == 200


async def test_connections_of_an_account_of_the_same_name_are_not_its_own(bearer: Bearer) -> None:
    """Where people choose their `sub`, it would be a way to the connections of others."""
    own = "127.0.0.1%3A56222%20-%3E%20127.0.0.1%3A5672"
    token = a.token(sub="guest", scope="mq.tag:management mq.read:%2F/*")
    for path in ("connections", "channels", "consumers", "connections/username/guest"):
        assert (await bearer.ask(token, f"/api/{path}")).json() == [], path
    assert (await bearer.ask(token, "/api/overview")).json()["object_totals"]["connections"] == 0
    assert (await bearer.ask(token, f"/api/connections/{own}")).status_code == 401
    assert (await bearer.ask(token, f"/api/connections/{own}", "DELETE")).status_code == 401
    assert (await bearer.ask(token, "/api/connections/username/guest", "DELETE")).status_code == 204
    assert bearer.client.operations.closed == []
    monitors = a.token(sub="guest", scope="mq.tag:monitoring mq.read:%2F/*")
    assert (await bearer.ask(monitors, f"/api/connections/{own}")).status_code == 200
    assert (await bearer.ask(monitors, f"/api/connections/{own}", "DELETE")).status_code == 401


async def test_an_audit_tells_a_token_from_an_account(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(a.key_set())
    said: list[Any] = []
    audit = Audit("n", AuditOptions(), NodeLog(lambda _level, _event, facts: said.append(facts["user"])))
    tokens = Tokens(a.options(keys_file=tmp_path / "keys.json"), time.time, _unsaid)
    client = Client(recorded_place(), tokens=tokens, audit=audit)
    headers = {"authorization": "Bearer " + a.token(sub="guest").decode()}
    assert (await client.http.put("/api/vhosts/new", headers=headers, json={})).status_code == 201
    assert (await client.ask("PUT", "/api/vhosts/newer", body="{}")).status_code == 201
    assert said == ["guest (by token)", "guest"]


async def test_an_administrator_by_token_administers(bearer: Bearer) -> None:
    assert (await bearer.ask(a.token(), "/api/vhosts/new", "PUT", json={})).status_code == 201
    said = "its scopes say what it may; a user of the same name is somebody else"
    assert [type(command) for command in bearer.client.operations.ordered] == [c.AddVhost], said
    refused = await bearer.ask(a.token(scope="mq.tag:monitoring"), "/api/vhosts/newer", "PUT", json={})
    assert refused.status_code == 401


@pytest.mark.parametrize(
    "token",
    [
        a.token(exp=int(time.time()) - 60),
        a.token(aud="other"),
        a.token(iss="https://evil.example"),
        a.token(a.STRANGER),
        a.by_hand({"alg": "none"}, a.claims()),
        *a.confused(),
        b"x" * 9_000,
        b"",
        b"a.b.c",
    ],
)
async def test_bad_tokens(bearer: Bearer, token: bytes) -> None:
    answer = await bearer.ask(token)
    assert (answer.status_code, answer.json()["reason"]) == (401, "Login failed")


async def test_without_an_authority_no_token_is_good() -> None:
    client = Client(recorded_place())
    answer = await client.http.get("/api/whoami", headers={"authorization": "Bearer " + a.token().decode()})
    assert answer.status_code == 401
