"""Operations by AMQP over HTTP, at a real node: RabbitMQ's recorded statuses, messages, and whose permissions hold."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from clusterbroker.broker.http.app import create_app
from clusterbroker.broker.http.control_client import ControlClient
from clusterbroker.broker.http.operations import OrderError
from clusterbroker.broker.management.amqp_operations import ACTS, Call, properties_of, refused
from clusterbroker.broker.management.errors import Refused
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.goodbye import turn_clients_away
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.stats.as_user import AsUser, Outcome
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.options import MIB, JournalOptions
from tests.unit.broker.http.clients import Client, OperationsAtOnce
from tests.unit.broker.http.test_recorded import RECORDED
from tests.unit.broker.management.set_up import NOW_MS, Place, recorded_place, user

TOPICS = {act.path.split("/")[2] for act in ACTS}


class Node(OperationsAtOnce):
    """Requests of users are carried out by the node of a directory, over its control socket."""

    def __init__(self, place: Place, directory: Path) -> None:
        super().__init__(place, False)
        self._control = ControlClient(directory, Replica("of its own"), lambda: NOW_MS)

    async def as_user(self, asked: AsUser) -> Outcome | OrderError:
        return await self._control.as_user(asked)


class Served:
    """A node, and the application whose replica hears what the node applies."""

    def __init__(self, shell: NodeShell, directory: Path) -> None:
        self.shell = shell
        self.place = Place()
        self.place.replica = replica = Replica(shell.node.options.name)
        replica.restored(shell.node.map.snapshot(), NOW_MS)
        shell.storage.wiring.listen(lambda applied: replica.applied(LogIndex(applied.index), applied.command, NOW_MS))
        app = create_app(replica, Node(self.place, directory), now_ms=lambda: NOW_MS, password_cost=4)
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def ask(self, method: str, path: str, body: Any = None, who: str = "guest") -> httpx.Response:
        password = "guest" if who == "guest" else "secret-pass"
        return await self.http.request(
            method,
            path,
            auth=(who, password),
            content=json.dumps(body) if body is not None else None,
            headers={"content-type": "application/json"},
        )

    async def get(self, queue: str, mode: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
        body = {"count": count, "ackmode": mode, "encoding": "auto"} | more
        answer = await self.ask("POST", f"/api/queues/%2F/{queue}/get", body)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()
        return found

    async def publish(self, key: str, payload: str = "p", exchange: str = "amq.default", **more: Any) -> httpx.Response:
        body = {"properties": {}, "routing_key": key, "payload": payload, "payload_encoding": "string"} | more
        return await self.ask("POST", f"/api/exchanges/%2F/{exchange}/publish", body)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    options = ServerOptions(
        data_dir=tmp_path,
        management=True,
        amqp=(Address("127.0.0.1", 0),),
        journal=JournalOptions(segment_bytes=8 * MIB, reserve_bytes=0, map_bytes=1 << 32),
        alarms=AlarmOptions(memory_fraction=0, disk_free_bytes=0),
        stop_grace_s=0.1,
        password_cost=4,
    )
    shell = NodeShell(options, NodeLog(lambda *_: None, "debug"))
    await shell.start()
    yield Served(shell, tmp_path)
    await shell.stop()


async def test_one_after_another_they_have_rabbitmqs_statuses(served: Served) -> None:
    for path, body in (
        ("/api/queues/%2F/busy", {"durable": True}),
        ("/api/queues/%2F/limited", {"arguments": {"x-max-priority": 5, "x-message-ttl": 60000}}),
        ("/api/exchanges/%2F/events", {"type": "topic"}),
    ):
        assert (await served.ask("PUT", path, body)).status_code == 201
    for _ in range(3):
        assert (await served.publish("limited", "hello")).json() == {"routed": True}
    for entry in RECORDED:
        if entry["verb"] == "GET" or entry["path"].split("/")[2] not in TOPICS or entry["status"] == 500:
            continue
        body = entry.get("sent")
        answer = await served.http.request(
            entry["verb"],
            entry["path"],
            auth=("guest", "guest"),
            content=body,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == entry["status"], (entry["verb"], entry["path"], body, answer.text)
        if entry["status"] >= 400 and entry["status"] != 404:  # it has two words for what is not there
            assert answer.json()["error"] == entry["body"]["error"]
        if "location" in entry["headers"]:
            theirs = entry["headers"]["location"].partition("~")
            assert answer.headers["location"].partition("~")[:2] == theirs[:2]
        if entry["path"].endswith("/get") and entry["status"] == 200:
            assert [set(message) for message in answer.json()] == [set(message) for message in entry["body"]]


async def test_messages_come_back_as_they_went(served: Served) -> None:
    await served.ask("PUT", "/api/queues/%2F/q", {})
    properties = {"headers": {"a": [1, "x", {"deep": True}]}, "priority": 3, "timestamp": 1_700_000_000, "type": "t"}
    assert (await served.publish("q", "ä", properties=properties)).json() == {"routed": True}
    raw = base64.b64encode(b"\xff\x00" * 200_000).decode()
    assert (await served.publish("q", raw, payload_encoding="base64")).json() == {"routed": True}
    first, second = await served.get("q", "ack_requeue_true")
    assert (first["payload"], first["payload_encoding"], first["properties"]) == ("ä", "string", properties)
    assert (second["payload"], second["payload_encoding"], second["payload_bytes"]) == (raw, "base64", 400_000)
    assert (first["message_count"], first["redelivered"], first["exchange"]) == (1, False, "")
    (again,) = await served.get("q", "ack_requeue_true", 1, encoding="base64", truncate=1)
    assert (again["payload"], again["payload_bytes"], again["redelivered"]) == ("ww==", 2, True)


async def test_what_becomes_of_messages_that_were_got(served: Served) -> None:
    await served.ask("PUT", "/api/queues/%2F/dead", {})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    await served.ask("PUT", "/api/queues/%2F/q", {"arguments": dead})
    for number in range(4):
        await served.publish("q", str(number))
    for mode in ("ack_requeue_true", "reject_requeue_true"):
        assert [message["payload"] for message in await served.get("q", mode)] == ["0", "1", "2", "3"]
    assert [message["payload"] for message in await served.get("q", "ack_requeue_false", 1)] == ["0"]
    assert [message["payload"] for message in await served.get("q", "reject_requeue_false", 2)] == ["1", "2"]
    assert [message["payload"] for message in await served.get("q", "ack_requeue_true")] == ["3"]
    assert [message["payload"] for message in await served.get("dead", "ack_requeue_true")] == ["1", "2"]
    assert (await served.ask("DELETE", "/api/queues/%2F/q/contents")).status_code == 204
    assert await served.get("q", "ack_requeue_true") == []


async def test_a_message_goes_through_a_vhost(served: Served) -> None:
    for _ in range(2):
        answer = await served.ask("GET", "/api/aliveness-test/%2F")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    await served.shell.propose(user("bob", "management"))
    await served.shell.propose(c.SetPermission(user="bob", vhost="/", configure="", write="", read=""))
    assert (await served.ask("GET", "/api/aliveness-test/%2F", who="bob")).status_code == 401
    assert (await served.ask("GET", "/api/aliveness-test/none")).status_code == 404


async def test_who_did_reads_what_it_did(served: Served) -> None:
    await served.ask("PUT", "/api/queues/%2F/a%2Fb", {"arguments": {"x-max-length": 5, "x-text": "t", "x-flag": True}})
    there = (await served.ask("GET", "/api/queues/%2F/a%2Fb")).json()
    assert there["arguments"] == {"x-max-length": 5, "x-text": "t", "x-flag": True}
    path = "/api/bindings/%2F/e/amq.topic/q/a%2Fb"
    bound = await served.ask("POST", path, {"routing_key": "ä b/*", "arguments": {"n": 1}})
    assert bound.status_code == 201
    (binding,) = (await served.ask("GET", path)).json()
    assert (await served.publish("x", exchange="amq.topic")).json() == {"routed": False}
    key = bound.headers["location"].rpartition("/")[2]
    assert (await served.ask("GET", f"{path}/{key}")).json() == binding
    assert (await served.ask("DELETE", f"{path}/{key}")).status_code == 204
    assert (await served.ask("GET", path)).json() == []
    assert (await served.ask("DELETE", "/api/queues/%2F/a%2Fb?if-empty=true")).status_code == 204
    assert (await served.ask("GET", "/api/queues/%2F/a%2Fb")).status_code == 404


async def test_if_unused_and_if_empty(served: Served) -> None:
    await served.ask("PUT", "/api/queues/%2F/q", {})
    await served.ask("POST", "/api/bindings/%2F/e/amq.fanout/q/q", {})
    await served.publish("q")
    assert (await served.ask("DELETE", "/api/queues/%2F/q?if-empty=true")).status_code == 400
    await served.ask("PUT", "/api/exchanges/%2F/x", {"type": "fanout"})
    await served.ask("POST", "/api/bindings/%2F/e/x/q/q", {})
    assert (await served.ask("DELETE", "/api/exchanges/%2F/x?if-unused=true")).status_code == 400
    assert (await served.ask("DELETE", "/api/exchanges/%2F/x")).status_code == 204


async def test_the_users_own_permissions_hold(served: Served) -> None:
    await served.shell.propose(user("bob", "management"))
    await served.shell.propose(c.SetPermission(user="bob", vhost="/", configure="^bobs", write="^bobs", read=""))
    assert (await served.ask("PUT", "/api/queues/%2F/bobs", {}, "bob")).status_code == 201
    for method, path, body in (
        ("PUT", "/api/queues/%2F/others", {}),
        ("POST", "/api/queues/%2F/bobs/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}),
        ("DELETE", "/api/queues/%2F/bobs/contents", None),
        ("POST", "/api/bindings/%2F/e/amq.topic/q/bobs", {}),
    ):
        answer = await served.ask(method, path, body, "bob")
        assert (answer.status_code, answer.json()["error"]) == (401, "not_authorised"), path


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/api/queues/%2F/" + "x" * 256, {}, 400),
        ("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": "many"}}, 400),
        ("PUT", "/api/queues/%2F/q", {"arguments": {"deep": [[[[{"a": 2**70}]]]]}}, 400),
        ("PUT", "/api/queues/%2F/q", {"arguments": {"k" * 300: 1}}, 400),
        ("PUT", "/api/queues/%2F/%0d%0a", {}, 400),
        ("PUT", "/api/queues/%2F/a%0d%0ab", {}, 400),
        ("PUT", "/api/queues/%2F/a%00b", {}, 400),
        ("PUT", "/api/queues/%2F/a%C2%85b", {}, 400),
        ("PUT", "/api/exchanges/%2F/a%0ab", {"type": "direct"}, 400),
        ("POST", "/api/bindings/%2F/e/amq.direct%0a/q/q", {}, 400),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/q%0d", {}, 400),
        ("POST", "/api/bindings/%2F/e/amq.direct/e/amq.topic%0d", {}, 400),
        ("DELETE", "/api/queues/%2F/q%0d", None, 404),
        ("DELETE", "/api/exchanges/%2F/amq.topic%0d", None, 404),
        ("PUT", "/api/queues/%2F/amq.mine", {}, 401),
        ("PUT", "/api/exchanges/%2F/amq.default", {"type": "direct"}, 401),
        ("POST", "/api/bindings/%2F/e/amq.default/q/q", {}, 401),
        ("POST", "/api/exchanges/%2F/amq.default/publish", {"routing_key": "q"}, 400),
        ("POST", "/api/queues/%2F/none/get", {}, 404),
        ("POST", "/api/queues/%2F/none/actions", {"action": "sync"}, 404),
    ],
)
async def test_what_cannot_be_done(served: Served, method: str, path: str, body: Any, status: int) -> None:
    answer = await served.ask(method, path, body)
    assert (answer.status_code, set(answer.json())) == (status, {"error", "reason"}), answer.text


async def test_a_drained_node_answers_for_the_others(served: Served) -> None:
    await turn_clients_away(served.shell)
    assert (await served.ask("PUT", "/api/queues/%2F/q", {})).status_code == 201
    assert (await served.publish("q")).json() == {"routed": True}


@pytest.mark.parametrize("code", [320, 506])
def test_what_can_be_done_later_is_no_fault_of_who_asks(code: int) -> None:
    refusal = refused(code, "RESOURCE_ERROR - an import is making it", Call(m.QueuePurge(queue="q")))
    assert (refusal.status, refusal.error, refusal.reason) == (503, "unavailable", "an import is making it")


@pytest.mark.parametrize(
    "given",
    [
        {"none": 1}, {"priority": 256}, {"priority": True}, {"priority": -1}, {"priority": "x"}, {"headers": []},
        {"type": []}, {"type": "x" * 256}, {"timestamp": 2**64}, {"timestamp": "9" * 30},
    ],
)  # fmt: skip
def test_properties_that_are_none(given: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        properties_of(given)
    assert refused.value.status == 400


def test_numbers_may_be_texts_and_texts_numbers() -> None:
    properties = properties_of({"delivery_mode": "2", "expiration": 60_000})
    assert (properties.delivery_mode, properties.expiration) == (2, "60000")


async def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    place = recorded_place()
    app = create_app(place.replica, Node(place, tmp_path), now_ms=lambda: NOW_MS, password_cost=4)
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answer = await http.put("/api/queues/%2F/q", auth=("guest", "guest"), json={})
    assert (answer.status_code, answer.json()["error"]) == (503, "unavailable")


async def test_connections_are_closed_by_their_name() -> None:
    client = Client(recorded_place())
    path = "/api/connections/127.0.0.1%3A56222%20-%3E%20127.0.0.1%3A5672"
    answer = await client.http.delete(path, auth=("guest", "guest"), headers={"x-reason": "enough"})
    assert answer.status_code == 204
    assert client.operations.closed == [("c1", "enough")]
    for who in ("man", "mon"):  # who monitors sees it, and that is all
        assert (await client.ask("DELETE", path, who)).status_code == 401
        assert (await client.ask("DELETE", "/api/connections/username/guest", who)).status_code == 401
    assert (await client.ask("GET", path, "mon")).status_code == 200
    assert (await client.ask("DELETE", "/api/connections/none")).status_code == 404
    assert (await client.ask("DELETE", "/api/connections/username/guest")).status_code == 204
    assert (await client.ask("DELETE", "/api/connections/username/man")).status_code == 204
    assert client.operations.closed == [("c1", "enough"), ("c1", "closed by operator")]
