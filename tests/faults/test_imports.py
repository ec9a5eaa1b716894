"""Definitions that are imported while nodes die: all of them come to be, or none; their queues are like others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.managed import NAMES, Managed, running

pytestmark = [pytest.mark.faults]
COUNT = 1500
PATIENCE_S = 90.0


class Patient(Managed):
    """Members die here, and on a busy machine one may be cut off for a moment: who asks, asks again."""

    def answer(self, name: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and document; 0: it has not answered."""
        try:
            status, document, _ = self.ask(name, path, "GET" if body is None else "POST", body, 60)
        except OSError:
            return 0, None
        return status, document

    async def told(self, name: str, path: str, body: Any) -> tuple[int, Any]:
        """Status and document, once the node is not cut off: on a busy machine a lease may be lost for a moment."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            status, document = await asyncio.to_thread(self.answer, name, path, body)
            if status != 503 or "cut off" not in str(document) or time.monotonic() > end_s:
                return status, document
            await asyncio.sleep(0.1)

    async def until(self, name: str, path: str, wanted: Any) -> Any:
        """The document, once it is as it must become, and whatever is answered before."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            status, document = await asyncio.to_thread(self.answer, name, path)
            if status == 200 and wanted(document):
                return document
            assert time.monotonic() < end_s, (name, path, status, str(document)[:500])
            await asyncio.sleep(0.1)

    async def leader(self) -> str:
        """Who orders the wiring log."""
        found: list[str] = []
        await self.until(
            "a",
            "/api/nodes",
            lambda rows: found.extend(r["name"] for r in rows if r["wiring_leader"] == r["name"]) or found,
        )
        return found[-1]


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Patient]:
    async with running(Patient(tmp_path)) as made:
        yield made


def definitions() -> dict[str, Any]:
    return {
        "vhosts": [{"name": "shop"}],
        "permissions": [{"user": "guest", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}],
        "policies": [{"vhost": "shop", "name": "long", "pattern": "^q1", "definition": {"max-length": 7}}],
        "exchanges": [{"vhost": "shop", "name": "x", "type": "topic", "auto_delete": True}],
        "queues": [{"vhost": "shop", "name": f"q{number}"} for number in range(COUNT)],
        "bindings": [
            {"vhost": "shop", "source": "x", "destination": f"q{number}", "routing_key": str(number)}
            for number in range(0, COUNT, 10)
        ],
    }


def total(wanted: int) -> Any:
    return lambda page: page["total_count"] == wanted


async def test_the_leader_dies_in_the_middle(managed: Patient) -> None:
    leader = await managed.leader()
    at = next(name for name in NAMES if name != leader)
    importing = asyncio.create_task(asyncio.to_thread(managed.answer, at, "/api/definitions", definitions()))
    await managed.until(at, "/api/queues/shop?page=1&page_size=1", lambda page: page["total_count"] > 0)
    _, page = await asyncio.to_thread(managed.answer, at, "/api/queues/shop?page=1&page_size=1")
    assert page["total_count"] < COUNT, "it is in the middle"
    await managed.fleet.kill(leader)
    others = [name for name in NAMES if name != leader]
    for name in others:
        await managed.until(name, "/api/queues/shop?page=1&page_size=1", total(COUNT))
        await managed.until(
            name, "/api/bindings/shop", lambda rows: sum(r["source"] == "x" for r in rows) == COUNT // 10
        )
    status, answer = await importing
    assert status in (204, 503), answer
    managed.launch(leader)
    await managed.fleet.ready(leader)
    await managed.until(leader, "/api/queues/shop?page=1&page_size=1", total(COUNT))
    # an import of the same is a success, and changes nothing
    status, trial = await asyncio.to_thread(managed.answer, leader, "/api/definitions?dry_run=true", definitions())
    assert status == 200
    assert not any(trial.pop(notes) for notes in ("warnings", "unsupported", "obstacles"))
    assert all(counts["new"] == counts["changed"] == 0 for counts in trial.values()), trial


async def test_a_contradiction_refuses_the_whole_and_its_queues_hold_messages(managed: Patient) -> None:
    document = definitions()
    document["queues"].append({"vhost": "shop", "name": f"q{COUNT - 1}", "durable": False})
    status, answer = await managed.told("a", "/api/definitions", document)
    assert status == 400
    assert answer["reason"].startswith(f"inequivalent arg 'durable' for queue 'q{COUNT - 1}' in vhost 'shop'"), answer
    for name in NAMES:
        status, _ = await asyncio.to_thread(managed.answer, name, "/api/vhosts/shop")
        assert status == 404, "nothing of it is there"
    document["queues"][-1] = {"vhost": "shop", "name": "of b", "durable": False}
    status, answer = await managed.told("b", "/api/definitions", document)
    assert status == 204, answer
    await managed.until("b", "/api/queues/shop/of%20b", lambda queue: queue["owner"] == "b")
    for number in (0, COUNT // 2 // 10 * 10, COUNT - 10):
        sent = {
            "properties": {"delivery_mode": 2},
            "routing_key": str(number),
            "payload": "y",
            "payload_encoding": "string",
        }
        status, answer = await managed.told("c", "/api/exchanges/shop/x/publish", sent)
        assert (status, answer) == (200, {"routed": True})
    # what its queues hold is there after all nodes were killed
    await managed.fleet.kill_all()
    for name in NAMES:
        managed.launch(name)
    await managed.fleet.ready(*NAMES)
    wanted = {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}
    for number in (0, COUNT // 2 // 10 * 10, COUNT - 10):
        status, got = await managed.told("a", f"/api/queues/shop/q{number}/get", wanted)
        assert status == 200, got
        assert [message["payload"] for message in got] == ["y"]
