"""The management API of a real cluster: any node answers for all, and what happens to its process harms no message."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from clusterbroker.broker.trial.nodes import LOOPBACK
from clusterbroker.broker.wire.amqp091 import methods
from tests.faults.managed import NAMES, PATIENCE_S, Managed, running

pytestmark = [pytest.mark.faults]


@pytest.fixture
async def managed(tmp_path: Path) -> AsyncIterator[Managed]:
    async with running(Managed(tmp_path)) as made:
        yield made


async def test_every_node_answers_for_the_cluster(managed: Managed) -> None:
    node = managed.fleet.node("a")
    (said,) = (json.loads(line) for line in (node.directory / "node.out").read_text().splitlines())
    assert said["at"] == [f"amqp {LOOPBACK}:{node.amqp_port}", f"http {LOOPBACK}:{managed.ports['a']}"]
    assert (said["event"], said["node"]) == ("node.listening", "a")
    for name in NAMES:
        await managed.fleet.publish(name, f"of-{name}", [b"x"] * 10)
    clients = [await managed.fleet.client(name) for name in NAMES]
    for name in NAMES:
        queues = await managed.until(
            name, "/api/queues", lambda rows: [row.get("messages_ready") for row in rows] == [10, 10, 10]
        )
        assert [row["name"] for row in queues] == ["of-a", "of-b", "of-c"]
        nodes = await managed.until(name, "/api/nodes", lambda rows: all(row["running"] for row in rows))
        assert [row["name"] for row in nodes] == list(NAMES)
        assert all(row["mem_used"] > 1 << 20 for row in nodes)
        assert all(0 < row["lease_left_ms"] < 60_000 for row in nodes)
        assert all(link["up"] and link["stats"]["send_bytes"] > 0 for row in nodes for link in row["cluster_links"])
        overview = await managed.until(
            name, "/api/overview", lambda found: found["object_totals"]["connections"] == len(clients)
        )
        assert overview["node"] == name
        assert overview["queue_totals"]["messages_ready"] == 30
    # what is ordered at one node is read at once there, and soon everywhere
    status, _, _ = await asyncio.to_thread(managed.ask, "b", "/api/vhosts/new", "PUT", {})
    assert status == 201
    assert (await managed.get("b", "/api/vhosts/new"))["name"] == "new"
    for name in NAMES:
        await managed.until(name, "/api/vhosts", lambda rows: "new" in [row["name"] for row in rows])
    # messages: AMQP by the node that is asked, whoever owns the queue
    sent = {"properties": {}, "routing_key": "of-c", "payload": "y", "payload_encoding": "string"}
    status, answer, _ = await asyncio.to_thread(
        managed.ask, "a", "/api/exchanges/%2F/amq.default/publish", "POST", sent
    )
    assert (status, answer) == (200, {"routed": True})
    wanted = {"count": 20, "ackmode": "ack_requeue_false", "encoding": "auto"}
    status, got, _ = await asyncio.to_thread(managed.ask, "b", "/api/queues/%2F/of-c/get", "POST", wanted)
    assert status == 200
    assert [message["payload"] for message in got] == ["x"] * 10 + ["y"]
    # a connection of another node is closed
    (at_b,) = [row for row in await managed.get("a", "/api/connections") if row["node"] == "b"]
    path = "/api/connections/" + urllib.parse.quote(at_b["name"])
    status, _, _ = await asyncio.to_thread(managed.ask, "a", path, "DELETE")
    assert status == 204
    await asyncio.wait_for(clients[1].lost.wait(), PATIENCE_S)
    assert "closed by operator" in clients[1].why
    for client in clients:
        await client.close()


async def test_killing_the_management_process_harms_nothing(managed: Managed) -> None:
    await managed.fleet.publish("a", "q", [b"x"] * 5)
    client = await managed.fleet.client("a")
    await managed.until("a", "/api/queues/%2F/q", lambda row: row.get("messages_ready") == 5)
    first = managed.pid("a")
    os.kill(first, signal.SIGKILL)
    await managed.fleet.publish("a", "q", [b"x"] * 5)  # at this very moment
    await managed.until("a", "/api/queues/%2F/q", lambda row: row.get("messages_ready") == 10)
    assert managed.pid("a") != first
    await client.call(methods.QueueDeclare(queue="mine", exclusive=True))
    log = managed.fleet.node("a").log.read_text()
    assert log.count("management.ended") == 1
    assert "SIGKILL" in log
    await client.close()


async def test_a_node_that_is_cut_off_says_so_and_shows_what_it_knew(managed: Managed) -> None:
    await managed.fleet.publish("a", "q", [b"x"] * 5)
    await managed.until("a", "/api/queues/%2F/q", lambda row: row.get("messages_ready") == 5)
    for name in ("b", "c"):
        managed.fleet.node(name).send(signal.SIGSTOP)

    async def stale() -> tuple[int, Any, dict[str, str]]:
        return await asyncio.to_thread(managed.ask, "a", "/api/queues/%2F/q")

    end_s = time.monotonic() + PATIENCE_S
    while "x-clusterbroker-stale" not in (answer := await stale())[2]:
        assert time.monotonic() < end_s, answer
        await asyncio.sleep(0.1)
    assert answer[0] == 200
    assert answer[1]["name"] == "q", "what it last knew"
    status, refused, _ = await asyncio.to_thread(managed.ask, "a", "/api/vhosts/new", "PUT", {})
    assert (status, refused["error"]) == (503, "unavailable")
    pid = managed.pid("a")
    # the node begins again and waits for a majority; its management process stays
    log = managed.fleet.node("a").log
    while "node.begins_again" not in log.read_text():
        assert time.monotonic() < end_s, log.read_text()[-2000:]
        await asyncio.sleep(0.1)
    answer = await stale()
    assert (answer[0], answer[1]["name"]) == (200, "q")
    assert int(answer[2]["x-clusterbroker-stale"]) >= 1
    for name in ("b", "c"):
        managed.fleet.node(name).send(signal.SIGCONT)
    while "x-clusterbroker-stale" in (answer := await stale())[2]:
        assert time.monotonic() < end_s + PATIENCE_S, answer
        await asyncio.sleep(0.1)
    await managed.until("a", "/api/queues/%2F/q", lambda row: row.get("messages_ready") == 5)
    assert managed.pid("a") == pid


async def test_a_node_that_stands_still_is_said_to(managed: Managed) -> None:
    """Its management process hears nothing of it any more; the others know that it is dead."""
    await managed.fleet.publish("b", "q", [b"x"] * 5)
    await managed.until("a", "/api/queues/%2F/q", lambda row: row.get("messages_ready") == 5)
    managed.fleet.node("a").send(signal.SIGSTOP)
    await managed.until("b", "/api/nodes", lambda rows: [row["running"] for row in rows] == [False, True, True])
    end_s = time.monotonic() + PATIENCE_S
    while "x-clusterbroker-stale" not in (await asyncio.to_thread(managed.ask, "a", "/api/overview"))[2]:
        assert time.monotonic() < end_s, "nobody is told that what stands there is of the past"
        await asyncio.sleep(0.1)
    managed.fleet.node("a").send(signal.SIGCONT)
    for name in NAMES:
        await managed.until(name, "/api/nodes", lambda rows: all(row["running"] for row in rows))
    while "x-clusterbroker-stale" in (await asyncio.to_thread(managed.ask, "a", "/api/overview"))[2]:
        assert time.monotonic() < end_s + PATIENCE_S
        await asyncio.sleep(0.1)


async def test_it_goes_with_its_node(managed: Managed) -> None:
    """However the node goes: told to, or killed."""
    pids = {name: managed.pid(name) for name in NAMES}
    assert await managed.fleet.stop("a") == 0
    await managed.fleet.kill("b")
    end_s = time.monotonic() + PATIENCE_S
    for name in ("a", "b"):
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(pids[name]).status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < end_s, f"the management process of {name} still runs"
                await asyncio.sleep(0.05)
    managed.launch("a")
    await managed.fleet.ready("a")
    await managed.until("a", "/api/overview", lambda found: found["node"] == "a")
