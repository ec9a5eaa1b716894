"""Single messages of queues of a real cluster, over HTTP: looked at, deleted, moved and replayed through any member,
with owners that are killed meanwhile; and queues that are paused."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods
from tests.faults.fleet import until
from tests.faults.managed import NAMES, Managed, running

pytestmark = [pytest.mark.faults]
QUEUE = "/api/queues/%2F/{}"


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Managed]:
    async with running(Managed(tmp_path)) as made:
        yield made


async def asked(managed: Managed, name: str, path: str, method: str = "GET", body: Any = None) -> tuple[int, Any]:
    status, document, _ = await asyncio.to_thread(managed.ask, name, path, method, body)
    return status, document


async def look(managed: Managed, name: str, queue: str, **query: Any) -> list[dict[str, Any]]:
    """All messages, page by page."""
    found: list[dict[str, Any]] = []
    at: int | None = 1
    while at:
        words = urllib.parse.urlencode({"count": 500, **query, "from": at})
        status, page = await asked(managed, name, f"{QUEUE.format(queue)}/messages?{words}")
        assert status == 200, page
        found += page["items"]
        at = page["next"]
    return found


def numbered(first: int, many: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + many)]


def payloads(items: list[dict[str, Any]]) -> list[bytes]:
    return [item["payload"].encode() for item in items]


async def test_any_member_shows_and_treats_the_messages_of_any_queue(managed: Managed) -> None:
    fleet = managed.fleet
    await fleet.publish("a", "q", numbered(0, 1200))
    await fleet.publish("b", "target", [])
    owner = (await fleet.queue("a", "q"))["owner"]
    for name in NAMES:
        found = await look(managed, name, "q")
        assert payloads(found) == numbered(0, 1200)
        assert {(item["state"], item["redelivered"], item["routing_key"]) for item in found} == {("ready", False, "q")}
    assert payloads(await look(managed, "c", "q", filter="payload=11?? AND seq>1190 AND age<1h")) == numbered(1190, 10)
    path = QUEUE.format("q") + "/messages"
    for name, what, body, counted in (
        ("a", "delete", {"filter": "seq<=100"}, {"deleted": 100}),
        ("b", "move", {"filter": "seq<=200", "to_queue": "target"}, {"moved": 100}),
        ("c", "replay", {"seqs": [201, 202, 1], "exchange": "amq.default", "routing_key": "target"}, {"replayed": 2}),
    ):
        status, answer = await asked(managed, name, f"{path}/{what}", "POST", body)
        assert status == 200, answer
        assert counted.items() <= answer.items()
        assert answer["owner"] == owner
    assert answer["skipped"] == {"not_ready": [1]}
    await fleet.kill(owner)
    name = next(name for name in NAMES if name != owner)
    await until(lambda: asyncio.to_thread(managed.ask, name, path), "an owner")
    assert payloads(await look(managed, name, "q")) == numbered(200, 1000)
    assert payloads(await look(managed, name, "target")) == numbered(100, 102)
    status, answer = await asked(managed, name, f"{path}/delete", "POST", {"seqs": [1], "life": "1.1"})
    assert (status, "look again" in answer["reason"]) == (400, True)
    for wrong in ("?filter=nonsense", "?count=501", "?from=x", "?encoding=x"):
        status, answer = await asked(managed, name, path + wrong)
        assert (status, answer["error"]) == (400, "bad_request")
    assert (await asked(managed, name, QUEUE.format("none") + "/messages"))[0] == 404


async def test_owners_that_are_killed_while_messages_move_lose_none(managed: Managed) -> None:
    fleet = managed.fleet
    await fleet.publish("a", "q", numbered(0, 3000))
    await fleet.publish("b", "target", [])
    source = (await fleet.queue("a", "q"))["owner"]
    others = [name for name in NAMES if name != source]
    moving = asyncio.create_task(
        asked(managed, others[0], QUEUE.format("q") + "/messages/move", "POST", {"filter": "", "to_queue": "target"})
    )

    async def some_moved() -> bool:
        status, document = await asked(managed, others[1], QUEUE.format("target") + "/messages?count=1")
        return moving.done() or (status == 200 and bool(document["items"]))

    await until(some_moved, "the first of them")
    await fleet.kill(source)
    status, answer = await moving
    assert status in (200, 503), answer
    left = payloads(await look(managed, others[0], "q"))
    there = payloads(await look(managed, others[1], "target"))
    assert sorted({*left, *there}, key=int) == numbered(0, 3000), "none is lost"
    assert len(there) == len({*there})


async def test_a_paused_queue_hands_nothing_out_whoever_owns_it(managed: Managed) -> None:
    fleet = managed.fleet
    await fleet.publish("a", "q", [])
    owner = (await fleet.queue("a", "q"))["owner"]
    others = [name for name in NAMES if name != owner]
    heard: list[bytes] = []
    client = await fleet.client(others[0])
    client.on_deliver = lambda delivery: heard.append(bytes(delivery.body))
    await client.call(methods.BasicConsume(queue="q", no_ack=True))
    assert (await asked(managed, others[1], QUEUE.format("q") + "/pause", "PUT", {}))[0] == 204
    for name in NAMES:
        document = await managed.until(name, QUEUE.format("q"), lambda document: document["state"] == "paused")
        assert document["paused"]
        assert "paused" in document["explain"]
    await fleet.publish(others[1], "q", numbered(0, 100))
    await fleet.kill(owner)
    await fleet.publish(others[1], "q", numbered(100, 100))
    got = await client.call(methods.BasicGet(queue="q"))
    assert got is None or isinstance(got, methods.BasicGetEmpty), got
    assert heard == []
    assert (await asked(managed, others[1], QUEUE.format("q") + "/resume", "PUT", {}))[0] == 204
    await until(lambda: len(heard) >= 200, "all of them")
    assert heard == numbered(0, 200)
    await client.close()


async def test_the_permissions_of_a_user_hold(managed: Managed) -> None:
    fleet = managed.fleet
    await fleet.publish("a", "open", numbered(0, 2))
    await fleet.publish("a", "shut", numbered(0, 2))
    path = QUEUE.format("open") + "/messages"
    await asked(managed, "a", "/api/users/eve", "PUT", {"password": "eve", "tags": "management"})
    rights = {"configure": "^$", "write": "^$", "read": "^open$"}
    await asked(managed, "a", "/api/permissions/%2F/eve", "PUT", rights)
    managed.user = ("eve", "eve")
    assert (await asked(managed, "b", path))[0] == 200
    for method, where, body in (
        ("GET", QUEUE.format("shut") + "/messages", None),
        ("POST", QUEUE.format("shut") + "/messages/delete", {"filter": ""}),
        ("POST", path + "/move", {"filter": "", "to_queue": "shut"}),
        ("POST", path + "/replay", {"filter": "", "exchange": "amq.topic"}),
        ("PUT", QUEUE.format("open") + "/pause", {}),
    ):
        status, answer = await asked(managed, "b", where, method, body)
        assert (status, answer["error"]) == (401, "not_authorised"), where
        assert "refused for user 'eve'" in answer["reason"]
    assert (await asked(managed, "c", path + "/delete", "POST", {"filter": ""}))[0] == 200
