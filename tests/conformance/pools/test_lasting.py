"""Requests over lost owners and restarts (rule 22), on nodes that the test starts for itself."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clusterbroker.broker.server.control.client import ask
from tests.authority import Authority

from ..channel import Channel
from ..cluster_target import WITH_HTTP, ServedCluster
from ..marks import rule
from ..wire import Connection

pytestmark = [pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills nodes of its own")]
PATIENCE_S = 60.0
KEYS = tuple(str(number) for number in range(10))
ANSWERS = "answers"


class Nodes:
    """Three nodes with a pool, and clients of theirs."""

    def __init__(self, directory: Path) -> None:
        Authority(directory)
        self.cluster = ServedCluster(directory, directory)
        self._opened: list[Connection] = []
        asyncio.run(self.cluster.begin())
        self._http = f"http://{self.cluster.listeners(WITH_HTTP)['http']}/api/pools/%2F/core"
        httpx.put(self._http, json={}, auth=("guest", "guest"), timeout=30, verify=False).raise_for_status()

    def act(self, action: str) -> None:
        httpx.post(
            f"{self._http}/{action}", json={}, auth=("guest", "guest"), timeout=30, verify=False
        ).raise_for_status()

    def channel(self, name: str) -> Channel:
        target = self.cluster.target(name)
        self._opened.append(Connection(f"amqp://guest:guest@{target.host}:{target.port}/"))
        return self._opened[-1].channel()

    def owner(self, queue: str) -> str:
        rows = (ask(self.cluster.data_dir("a"), "queues") or {})["queues"]
        return str(next(row["owner"] for row in rows if row["name"] == queue))

    def kill(self, name: str) -> None:
        asyncio.run(self.cluster.kill(name))

    async def start_all(self) -> None:
        await asyncio.gather(*map(self.cluster.start, self.cluster.names))

    def end(self) -> None:
        for connection in self._opened:
            connection.abandon()
        asyncio.run(self.cluster.end())


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        made.end()


def other(nodes: Nodes, name: str) -> str:
    return next(one for one in nodes.cluster.names if one != name)


def taken(channel: Channel, count: int) -> list[bytes]:
    for key in KEYS:
        channel.consume(f"core-req-{key}")
    channel.wait(lambda: len(channel.delivered) >= count, f"{count} requests", PATIENCE_S)
    bodies = [channel.delivered.popleft().body for _ in range(count)]
    channel.nothing_delivered(2)
    return bodies


@rule("22")
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_an_orphan_is_moved_once_though_its_owner_dies(nodes: Nodes, after_s: float) -> None:
    owner = nodes.owner("core-orphan")
    alive = other(nodes, owner)
    channel = nodes.channel(alive)
    channel.confirm_select()
    nodes.act("pause")
    bodies = [b"%d" % number for number in range(100)]
    for number, body in enumerate(bodies):
        channel.basic_publish("core", KEYS[number % len(KEYS)], body, delivery_mode=1 + number % 2)
    assert set(channel.confirms(len(bodies), PATIENCE_S)) == {"ack"}
    nodes.act("resume")
    time.sleep(after_s)
    nodes.kill(owner)
    assert sorted(taken(channel, len(bodies)), key=int) == bodies


@rule("22")
def test_what_waits_survives_that_all_nodes_end(nodes: Nodes) -> None:
    channel = nodes.channel("a")
    channel.confirm_select()
    nodes.act("pause")
    bodies = [b"%d" % number for number in range(20)]
    for number, body in enumerate(bodies):
        channel.basic_publish("core", KEYS[number % len(KEYS)], body)
    assert set(channel.confirms(len(bodies))) == {"ack"}
    nodes.act("resume")
    for name in nodes.cluster.names:
        nodes.kill(name)
    asyncio.run(nodes.start_all())
    assert sorted(taken(nodes.channel("b"), len(bodies)), key=int) == bodies


@rule("24")
def test_answers_come_once_though_the_responder_dies(nodes: Nodes) -> None:
    owner = nodes.owner("core-dl")
    channel = nodes.channel(other(nodes, owner))
    channel.confirm_select()
    channel.queue_declare(ANSWERS, durable=True)
    nodes.act("pause")
    for number in range(50):
        channel.basic_publish(
            "core", "42", b"x", reply_to=ANSWERS, correlation_id=str(number), expiration=str(2000 + 10 * number)
        )
    assert set(channel.confirms(50)) == {"ack"}
    time.sleep(2.2)  # some are answered, some on their way, some not due
    nodes.kill(owner)
    channel.consume(ANSWERS, no_ack=True)
    channel.wait(lambda: len(channel.delivered) >= 50, "all answers", PATIENCE_S)
    answers = [channel.delivered.popleft().properties["correlation_id"] for _ in range(50)]
    channel.nothing_delivered(2)
    assert sorted(answers, key=int) == [str(number) for number in range(50)]
