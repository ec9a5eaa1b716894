"""What of operations over HTTP is told to the audit, and what never is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterbroker.broker.http.middleware.audit import told
from clusterbroker.broker.server.audit import Audit, AuditOptions
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.stats.inspection import Result, encode
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place

CSRF = {"x-csrf": "1"}


class Heard:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, _level: str, event: str, facts: dict[str, Any]) -> None:
        assert event == "audit"
        self.lines.append(facts)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def client(heard: Heard) -> Client:
    return Client(recorded_place(), audit=Audit("a", AuditOptions(), NodeLog(heard)))


async def test_who_from_where_what_on_what_with_what_outcome(client: Client, heard: Heard) -> None:
    body = json.dumps({"password": "very-secret", "tags": "monitoring"})
    assert (await client.ask("PUT", "/api/users/b%2Fob", body=body)).status_code == 201
    assert heard.lines == [
        {
            "user": "guest", "from": "127.0.0.1", "via": "http", "what": "PUT /api/users/{user}",
            "on": {"user": "b/ob"}, "status": 201, "outcome": "done",
            "ordered": [{"command": "PutUser", "name": "b/ob", "tags": ("monitoring",), "limits": {}}],
        }
    ]  # fmt: skip


async def test_by_way_of_which_socket_it_came(heard: Heard) -> None:
    """An address in a header may be made up; the socket's is not."""
    client = Client(recorded_place(), audit=Audit("a", AuditOptions(), NodeLog(heard)), proxies=None)
    await client.http.delete("/api/users/none", auth=("mon", "x"), headers={"x-forwarded-for": "192.0.2.7"})
    await client.http.delete("/api/users/none", auth=("mon", "x"))
    assert [(line["from"], line.get("through")) for line in heard.lines] == [
        ("192.0.2.7", "127.0.0.1"), ("127.0.0.1", None),
    ]  # fmt: skip


async def test_who_lets_a_vhost_be_traced_is_told_to_have_done_so(client: Client, heard: Heard) -> None:
    """Whoever reads the firehose reads all messages."""
    for tracing in (True, False):
        assert (await client.ask("PUT", "/api/vhosts/%2F", body=json.dumps({"tracing": tracing}))).status_code == 204
    assert (await client.ask("PUT", "/api/vhosts/%2F", body=json.dumps({"description": "d"}))).status_code == 204
    assert [one["ordered"][0].get("tracing") for one in heard.lines] == [True, False, None]
    assert "tracing" not in heard.lines[-1]["ordered"][0]


async def test_what_is_refused_is_told_with_its_reason(client: Client, heard: Heard) -> None:
    await client.ask("DELETE", "/api/users/mon", "mon")
    await client.ask("DELETE", "/api/users/no-such-user")
    await client.ask("PUT", "/api/users/x", body="{")
    await client.ask("PUT", "/api/users/x", password="very-wrong", body="{}")
    await client.http.delete("/api/users/x")
    assert [(one["user"], one["status"], one["why"]) for one in heard.lines] == [
        ("mon", 401, "Not administrator user"),
        ("guest", 404, "Not Found"),
        ("guest", 400, "not_json"),
        ("", 401, "login of 'guest' failed"),
        ("", 401, "Login failed"),
    ]
    assert all(one["outcome"] == "refused" for one in heard.lines)


async def test_reading_is_no_operation_but_the_export_of_hashes_is(client: Client, heard: Heard) -> None:
    for path in ("/api/overview", "/api/queues", "/api/users", "/", "/metrics", "/api/none", "/api/definitions"):
        await client.get(path)
    await client.ask("POST", "/api/none", body="{}")
    await client.ask("POST", "/api/users", body="{}")
    assert [one["what"] for one in heard.lines] == ["GET /api/definitions"]


QUEUE = "/api/queues/%2F/busy/messages/"


@pytest.mark.parametrize(
    ("operation", "body", "facts"),
    [
        ("move", {"seqs": [1, 2, 3], "to_queue": "busy"},
         {"which": "3 numbers", "to": {"exchange": "amq.default", "queue": "busy"}, "moved": 2,
          "skipped": {"refused": 1}}),
        ("move", {"filter": "payload~private", "to_origin": True},
         {"which": "filter", "to": "origin", "moved": 2, "skipped": {"refused": 1}}),
        ("replay", {"filter": "", "exchange": "amq.topic", "routing_key": "a.b"},
         {"which": "filter", "to": {"exchange": "amq.topic", "routing_key": "a.b"}, "replayed": 2,
          "skipped": {"refused": 1}}),
        ("replay", {"filter": "", "exchange": "amq.fanout"},
         {"which": "filter", "to": {"exchange": "amq.fanout"}, "replayed": 2, "skipped": {"refused": 1}}),
        ("delete", {"filter": ""}, {"which": "filter", "deleted": 2, "skipped": {"refused": 1}}),
    ],
)  # fmt: skip
async def test_what_became_of_messages(
    client: Client, heard: Heard, operation: str, body: dict[str, Any], facts: dict[str, Any]
) -> None:
    result = Result("a", 1, "1.0", 3, 0, 3, done=2, skipped={"refused": [3]})
    client.operations.told = {"result": encode(result)}
    assert (await client.ask("POST", QUEUE + operation, body=json.dumps(body))).status_code == 200
    (line,) = heard.lines
    assert {name: line[name] for name in facts} == facts
    assert "private" not in json.dumps(line)


async def test_where_messages_were_to_go_is_told_when_nobody_knows_what_became_of_them(
    client: Client, heard: Heard
) -> None:
    client.operations.told = {"unavailable": "its owner was lost"}
    body = json.dumps({"filter": "", "to_queue": "busy"})
    assert (await client.ask("POST", QUEUE + "move", body=body)).status_code == 503
    (line,) = heard.lines
    assert (line["to"], line["why"]) == ({"exchange": "amq.default", "queue": "busy"}, "its owner was lost")
    assert "moved" not in line


async def test_where_a_queue_was_to_go(client: Client, heard: Heard) -> None:
    await client.ask("POST", "/api/queues/%2F/busy/move", body=json.dumps({"to": "b"}))
    assert heard.lines[0]["asked"] == {"vhost": "/", "queue": "busy", "to": "b"}


async def test_sign_in_and_out(client: Client, heard: Heard) -> None:
    for password in ("wrong-one", "secret-pass"):
        await client.http.post("/api/login", json={"username": "mon", "password": password}, headers=CSRF)
    await client.http.post("/api/logout", json={}, headers=CSRF)
    assert [(one["what"], one["user"], one["outcome"]) for one in heard.lines] == [
        ("POST /api/login", "", "refused"), ("POST /api/login", "mon", "done"), ("POST /api/logout", "mon", "done"),
    ]  # fmt: skip
    assert heard.lines[0]["why"] == "login of 'mon' failed", "it is not known to be mon"


async def test_nothing_secret_is_in_a_line(client: Client, heard: Heard) -> None:
    secret = "very-secret-1234"
    hashed = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    imported = {
        "users": [{"name": "i", "password_hash": hashed, "hashing_algorithm": "rabbit_password_hashing_sha256",
                   "tags": ""}],
        "parameters": [{"vhost": "/", "component": "c", "name": "n", "value": {"uri": f"amqp://u:{secret}@h"}}],
    }  # fmt: skip
    for method, path, body in (
        ("PUT", "/api/users/a", {"password": secret, "tags": ""}),
        ("PUT", "/api/users/b", {"password_hash": hashed, "tags": ""}),
        ("PUT", "/api/parameters/c/%2F/n", {"value": {"uri": f"amqp://u:{secret}@h"}}),
        ("PUT", "/api/global-parameters/g", {"value": secret}),
        ("POST", "/api/definitions", imported),
        ("PUT", "/api/users/c", {"password": [secret], "tags": "x"}),
    ):
        await client.ask(method, path, body=json.dumps(body))
    await client.http.post("/api/login", json={"username": "mon", "password": secret}, headers=CSRF)
    text = json.dumps(heard.lines)
    assert len(heard.lines) == 7
    assert hashed not in text
    assert secret not in text


def test_many_commands_are_told_by_their_number() -> None:
    commands = [c.AddVhost(name=str(number)) for number in range(30)] + [c.DeleteUser(name="u")]
    assert told(commands) == {"AddVhost": 30, "DeleteUser": 1}
