"""What the node itself is asked to do: moves, rebalancing, drain, forgetting members. For administrators only."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from clusterbroker.broker.http.operations import OrderError
from clusterbroker.broker.management.operations import OPERATIONS
from clusterbroker.cluster.errors import Unavailable
from tests.unit.broker.http.clients import Client
from tests.unit.broker.management.set_up import recorded_place

MOVE = "/api/queues/%2F/busy/move"


@pytest.fixture
def client() -> Client:
    return Client(recorded_place())


@pytest.mark.parametrize(
    ("method", "path", "body", "asked"),
    [
        ("POST", "/api/rebalance/queues", None, ("queues.rebalance", {})),
        ("POST", MOVE, {"to": "n2"}, ("queues.move", {"vhost": "/", "queue": "busy", "to": "n2"})),
        ("POST", "/api/queues/%2F/plain%2Fslash/force-owner", {"to": "n2", "confirm_loss": True},
         ("queues.force-owner", {"vhost": "/", "queue": "plain/slash", "to": "n2"})),
        ("POST", "/api/nodes/n1/drain", {}, ("drain", {"undo": False})),
        ("POST", "/api/nodes/n1/drain", {"undo": True}, ("drain", {"undo": True})),
        ("PUT", "/api/feature-level", {}, ("level.raise", {})),
        ("PUT", "/api/feature-level", {"level": 2}, ("level.raise", {"level": 2})),
    ],
)  # fmt: skip
async def test_the_node_is_asked(client: Client, method: str, path: str, body: Any, asked: tuple[str, Any]) -> None:
    answer = await client.ask(method, path, body=None if body is None else json.dumps(body))
    assert (answer.status_code, answer.json()) == (200, {"moved": 1, "left": 0})
    assert client.operations.done == [asked]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", MOVE, {}, 400, "key_missing,to"),
        ("POST", MOVE, {"to": 1}, 400, "should be a text"),
        ("POST", "/api/queues/%2F/none/move", {"to": "n1"}, 404, "Not Found"),
        ("POST", "/api/queues/%2F/busy/force-owner", {"to": "n1"}, 400, "messages that this copy lacks are lost"),
        ("POST", "/api/nodes/none/drain", {}, 404, "Not Found"),
        ("DELETE", "/api/nodes/none", None, 404, "Not Found"),
        ("PUT", "/api/feature-level", {"level": 0}, 400, "level"),
        ("PUT", "/api/feature-level", {"level": "2x"}, 400, "level"),
        ("DELETE", "/api/nodes/n1", None, 400, "clusterbroker leave"),
    ],
)
async def test_what_is_refused(client: Client, method: str, path: str, body: Any, status: int, reason: str) -> None:
    answer = await client.ask(method, path, body=None if body is None else json.dumps(body))
    assert answer.status_code == status
    assert reason in answer.json()["reason"]
    assert client.operations.done == []


async def test_administrators_only(client: Client) -> None:
    for operation in OPERATIONS:
        path = operation.path.format(vhost="%2F", name="n1" if "nodes" in operation.path else "busy")
        body = '{"to": "n1", "confirm_loss": true}' if operation.method == "POST" else None
        answer = await client.ask(operation.method, path, user="mon", body=body)
        assert (answer.status_code, answer.json()["reason"]) == (401, "Not administrator user")
    assert client.operations.done == []


async def test_what_the_node_refuses_is_said(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"refused": 400, Unavailable.kind: 503}
    for kind, status in answers.items():

        async def carry_out(_what: str, _arguments: dict[str, Any], kind: str = kind) -> OrderError:
            await asyncio.sleep(0)
            return OrderError(kind, "'n2' has no copy")

        monkeypatch.setattr(client.operations, "carry_out", carry_out)
        answer = await client.ask("POST", MOVE, body='{"to": "n2"}')
        assert (answer.status_code, answer.json()["reason"]) == (status, "'n2' has no copy")
