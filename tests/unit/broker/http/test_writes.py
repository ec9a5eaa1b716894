"""Writes to the wiring: RabbitMQ's recorded statuses, what is ordered, and what is refused before anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.management.writes import WRITES
from clusterbroker.cluster.passwords import SCRYPT, verified
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import UserLimits
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import NOW_MS, recorded_place

RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[3] / "recorded" / "management.json").read_text(encoding="utf-8")
)
TOPICS = {write.path.split("/")[2] for write in WRITES} - {"queues"}
"""What RabbitMQ has to do with queues is AMQP; pause and resume are not RabbitMQ's."""
OTHER = {
    '{"queues": [{"vhost": "/", "name": "imported", "durable": true, "arguments": {}}]}': (
        "RabbitMQ wants auto_delete said; here it has a default"
    ),
    '{"exchanges": [{"vhost": "none", "name": "x", "type": "direct"}]}': "the wiring's answer is 404, and says which",
}


@pytest.fixture
def client() -> Client:
    return Client(recorded_place())


def operations() -> list[dict[str, Any]]:
    return [
        entry
        for entry in RECORDED
        if entry["verb"] != "GET" and entry["path"].split("/")[2] in TOPICS and entry.get("sent") not in OTHER
    ]


async def test_one_after_another_they_have_rabbitmqs_statuses(client: Client) -> None:
    for entry in operations():
        answer = await client.ask(entry["verb"], entry["path"], body=entry.get("sent"))
        assert answer.status_code == entry["status"], (entry["verb"], entry["path"], entry.get("sent"), answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"error", "reason"}
            assert answer.json()["error"] == entry["body"]["error"]
        else:
            assert answer.content == b""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/vhosts/{}", {}), ("/api/users/{}", {"password_hash": "", "tags": ""}),
        ("/api/policies/%2F/{}", {"pattern": "", "definition": {"max-length": 1}}),
        ("/api/operator-policies/%2F/{}", {"pattern": "", "definition": {"max-length": 1}}),
        ("/api/parameters/c/%2F/{}", {"value": 1}), ("/api/parameters/{}/%2F/n", {"value": 1}),
        ("/api/global-parameters/{}", {"value": 1}),
    ],
)  # fmt: skip
async def test_what_is_new_has_no_control_characters_in_its_name(
    client: Client, path: str, body: dict[str, Any]
) -> None:
    for name, why in (("%0d%0a", "U+000D"), ("a%7f", "U+007F"), ("x" * 256, "longer than 255 bytes")):
        answer = await client.ask("PUT", path.format(name), body=json.dumps(body))
        assert answer.status_code == 400
        assert why in answer.json()["reason"]
    assert not client.operations.ordered
    assert (await client.ask("PUT", path.format("a%20b%2Fc"), body=json.dumps(body))).status_code == 201


async def test_who_makes_a_vhost_may_use_it(client: Client) -> None:
    assert (await client.ask("PUT", "/api/vhosts/mine", body="{}")).status_code == 201
    made = c.AddVhost(at_ms=NOW_MS, name="mine")
    every = c.SetPermission(at_ms=NOW_MS, user="guest", vhost="mine", configure=".*", write=".*", read=".*")
    assert client.operations.ordered == [made, every]
    client.operations.ordered.clear()
    assert (await client.ask("PUT", "/api/vhosts/mine", body="{}")).status_code == 204
    assert client.operations.ordered == [made], "of one that is there nothing is given back that was taken"


async def test_a_password_is_hashed_before_it_is_ordered(client: Client) -> None:
    body = json.dumps({"password": "sesame-open", "tags": "monitoring, x,monitoring"})
    assert (await client.ask("PUT", "/api/users/new", body=body)).status_code == 201
    (command,) = client.operations.ordered
    assert isinstance(command, c.PutUser)
    assert (command.hash_algorithm, command.tags, command.at_ms) == (SCRYPT, ("monitoring", "x"), NOW_MS)
    assert verified("sesame-open", command.password_hash, SCRYPT)
    assert (await client.ask("GET", "/api/whoami", "new", password="sesame-open")).json()["name"] == "new"


async def test_a_new_password_ends_the_old_one_at_once(client: Client) -> None:
    assert (await client.get("/api/whoami", "mon")).status_code == 200
    body = json.dumps({"password": "another", "tags": "monitoring"})
    assert (await client.ask("PUT", "/api/users/mon", body=body)).status_code == 204
    assert (await client.get("/api/whoami", "mon")).status_code == 401
    assert (await client.get("/api/user-limits/mon")).json()[0]["value"] == {"max-connections": 5}


@pytest.mark.parametrize(
    ("method", "path", "body", "ordered"),
    [
        ("PUT", "/api/user-limits/mon/max-channels", {"value": 7}, c.SetUserLimits(
            at_ms=NOW_MS, name="mon", limits=UserLimits(channels_max=7), only=("channels_max",))),
        ("DELETE", "/api/user-limits/mon/max-connections", None, c.SetUserLimits(
            at_ms=NOW_MS, name="mon", limits=UserLimits(), only=("connections_max",))),
        ("PUT", "/api/users/mon", {"tags": "a"}, c.PutUser(
            at_ms=NOW_MS, name="mon", hash_algorithm=SCRYPT, tags=("a",), limits=None, only=("tags",))),
        ("PUT", "/api/users/mon", {"password_hash": "", "hashing_algorithm": SCRYPT}, c.PutUser(
            at_ms=NOW_MS, name="mon", hash_algorithm=SCRYPT, limits=None, only=("password_hash", "hash_algorithm"))),
        ("PUT", "/api/users/mon", {"password_hash": "", "hashing_algorithm": SCRYPT, "tags": "a"}, c.PutUser(
            at_ms=NOW_MS, name="mon", hash_algorithm=SCRYPT, tags=("a",), limits=None)),
        ("PUT", "/api/vhost-limits/%2F/max-connections", {"value": 3}, c.SetVhostLimits(
            at_ms=NOW_MS, vhost="/", connections_max=3, only=("connections_max",))),
        ("DELETE", "/api/vhost-limits/%2F/max-queues", None, c.SetVhostLimits(
            at_ms=NOW_MS, vhost="/", only=("queues_max",))),
        ("PUT", "/api/vhosts/%2F", {"tracing": True}, c.AddVhost(
            at_ms=NOW_MS, name="/", tracing=True, only=("tracing",))),
    ],
)  # fmt: skip
async def test_a_part_is_ordered_without_the_rest(
    client: Client, method: str, path: str, body: dict[str, Any] | None, ordered: c.AnyCommand
) -> None:
    """Whatever the rest is by the time that it is carried out: a password that was changed meanwhile, a deletion."""
    answer = await client.ask(method, path, body=None if body is None else json.dumps(body))
    assert answer.status_code == 204
    assert client.operations.ordered == [ordered]


async def test_a_new_user_is_said_whole(client: Client) -> None:
    for body in ({"tags": "a"}, {"password": "sesame"}, {}):
        assert (await client.ask("PUT", "/api/users/newcomer", body=json.dumps(body))).status_code == 400
    assert client.operations.ordered == []


async def test_who_wrote_reads_what_it_wrote(client: Client) -> None:
    policy = {"pattern": "^x", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 1}
    assert (await client.ask("PUT", "/api/policies/a%2Fb/mine", body=json.dumps(policy))).status_code == 201
    there = (await client.get("/api/policies/a%2Fb/mine")).json()
    assert there == policy | {"name": "mine", "vhost": "a/b"}
    assert (await client.ask("PUT", "/api/cluster-name", body='{"name": "rabbits"}')).status_code == 204
    assert (await client.get("/api/cluster-name")).json() == {"name": "rabbits"}


@pytest.mark.parametrize(
    ("method", "path", "user", "status"),
    [
        ("PUT", "/api/vhosts/new", "mon", 401),
        ("PUT", "/api/users/new", "pol", 401),
        ("DELETE", "/api/users/guest", "man", 401),
        ("POST", "/api/definitions", "mon", 401),
        ("PUT", "/api/policies/%2F/p", "man", 401),
        ("PUT", "/api/operator-policies/%2F/p", "pol", 401),
        ("PUT", "/api/policies/a%2Fb/p", "pol", 401),
        ("PUT", "/api/global-parameters/p", "pol", 401),
    ],
)
async def test_without_the_right_nothing_is_ordered(
    client: Client, method: str, path: str, user: str, status: int
) -> None:
    answer = await client.ask(method, path, user, body='{"pattern": "x", "definition": {"max-length": 1}}')
    assert answer.status_code == status
    assert client.operations.ordered == []


async def test_a_vhost_is_traced_and_keeps_what_it_is(client: Client) -> None:
    await client.ask("PUT", "/api/vhosts/new", body='{"description": "words", "tags": "a,b"}')
    for tracing in (True, False):
        answer = await client.ask("PUT", "/api/vhosts/new", body=json.dumps({"tracing": tracing}))
        assert answer.status_code == 204
        document = (await client.get("/api/vhosts/new")).json()
        assert (document["tracing"], document["description"], document["tags"]) == (tracing, "words", ["a", "b"])
    assert (await client.ask("PUT", "/api/vhosts/new", body='{"tracing": 5}')).status_code == 400


async def test_a_trial_of_an_import_does_nothing(client: Client) -> None:
    body = json.dumps({"queues": [{"name": "new", "vhost": "/"}], "vhosts": [{"name": "/"}, {"name": "other"}]})
    answer = await client.ask("POST", "/api/definitions?dry_run=true", body=body)
    assert answer.status_code == 200
    counts = answer.json()["queues"]
    assert {what: counts[what] for what in ("new", "changed", "same")} == {"new": 1, "changed": 0, "same": 0}
    assert counts["names"]["changed"] == []
    assert answer.json()["vhosts"]["new"] == 1
    contradiction = json.dumps({"exchanges": [{"name": "amq.topic", "vhost": "/", "type": "direct"}]})
    refused = (await client.ask("POST", "/api/definitions?dry_run=true", body=contradiction)).json()
    assert list(refused) == ["warnings", "unsupported", "obstacles"]
    assert "inequivalent arg 'type' for exchange 'amq.topic' in vhost '/'" in refused["obstacles"][0]
    assert client.operations.ordered == []


async def test_an_import_is_ordered_as_one(client: Client) -> None:
    document = (await client.get("/api/definitions")).text
    other = Client(recorded_place())
    assert (await other.ask("POST", "/api/definitions", body=document)).status_code == 204
    assert other.operations.ordered
    assert (await other.get("/api/definitions")).json() == json.loads(document)


async def test_a_node_that_is_cut_off_does_nothing(client: Client) -> None:
    client.place.replica.lease(False, NOW_MS - 7_000)
    answer = await client.ask("PUT", "/api/vhosts/new")
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")
    assert "7 s" in answer.json()["reason"]
    assert client.operations.ordered == []


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"\xff", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b'{"a": ' * 50_000 + b"1" + b"}" * 50_000, {}, 400),
        (b'{"description": 5}', {}, 400),
        (b'{"tags": [5]}', {}, 400),
        (b'{"description": "' + b"x" * (1 << 20) + b'"}', {}, 413),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"sec-fetch-site": "cross-site"}, 403),
        (b"{}", {"sec-fetch-site": "same-origin"}, 201),
    ],
)
async def test_bodies_that_cannot_be_used(client: Client, body: bytes, headers: dict[str, str], status: int) -> None:
    answer = await client.http.put(
        "/api/vhosts/new",
        auth=("guest", "guest"),
        content=body,
        headers={"content-type": "application/json"} | headers,
    )
    assert answer.status_code == status, answer.text
    assert bool(client.operations.ordered) is (status < 300)


async def test_another_sites_form_cannot_post(client: Client) -> None:
    answer = await client.http.post("/api/users/bulk-delete", auth=("guest", "guest"), content=b'{"users": ["man"]}')
    assert answer.status_code == 415
    assert client.operations.ordered == []


async def test_bridges_are_an_administrators_unless_one_said_otherwise(client: Client) -> None:
    path, body = "/api/parameters/shovel/%2F/s", '{"value": {"src-uri": "amqp://u:secret@h"}}'
    allowed = "/api/global-parameters/policymakers_set_bridges"
    permission = '{"configure": "", "write": "", "read": ""}'
    assert (await client.ask("PUT", "/api/permissions/%2F/pol", body=permission)).status_code < 300
    refused = await client.ask("PUT", path, "pol", body=body)
    assert refused.status_code == 401
    assert "policymakers_set_bridges" in refused.json()["reason"]
    assert (await client.ask("PUT", "/api/parameters/other/%2F/s", "pol", body='{"value": 1}')).status_code == 201
    assert (await client.ask("PUT", path, body=body)).status_code == 201
    assert (await client.ask("DELETE", path, "pol")).status_code == 401
    for url in (path, "/api/parameters", "/api/parameters/shovel", "/api/parameters/shovel/%2F"):
        shown = (await client.ask("GET", url, "pol")).text
        assert "amqp://u:***@h" in shown, url
        assert "secret" not in shown, url
        assert "secret" in (await client.ask("GET", url)).text
    assert (await client.ask("PUT", allowed, body='{"value": "yes"}')).status_code == 201
    assert (await client.ask("DELETE", path, "pol")).status_code == 401, "true, and nothing like it"
    assert (await client.ask("PUT", allowed, body='{"value": true}')).status_code == 204
    assert (await client.ask("PUT", path, "pol", body=body)).status_code == 204
    assert (await client.ask("DELETE", path, "pol")).status_code == 204
