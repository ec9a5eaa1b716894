"""A bridge in a cluster of three: the node that runs it is killed under load, twice, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.faults.brokers import depth_of, taken
from tests.faults.managed import NAMES, Managed, running
from tests.faults.node import until, wait_for

BATCH, LEAST = 100, 4_000
PATIENCE_S = 90.0


class Publisher:
    """Publishes batch after batch, each when the one before is confirmed, until it is told to stop."""

    def __init__(self, url: str, queue: str) -> None:
        self.url, self.queue = url, queue
        self.confirmed = 0
        self.stopped = False

    async def run(self) -> None:
        client = await Client.open(target(self.url), timeout_s=30, heartbeat_s=30)
        batch = asyncio.Event()

        def on_confirm(ack: bool, tag: int, multiple: bool) -> None:
            assert ack, "the source takes what a test has for it"
            if tag == self.confirmed + BATCH:
                batch.set()

        client.on_confirm = on_confirm
        await client.call(m.QueueDeclare(queue=self.queue, durable=True))
        await client.call(m.ConfirmSelect())
        while not self.stopped:
            batch.clear()
            for number in range(self.confirmed, self.confirmed + BATCH):
                client.publish(self.queue, b"%07d" % number)
            await asyncio.wait_for(batch.wait(), PATIENCE_S)
            self.confirmed += BATCH
            await until(self._has_room, "the bridge keeps up", PATIENCE_S)
        await client.close()

    def _has_room(self) -> bool:
        """A load, and no flood."""
        return self.stopped or depth_of(self.url, self.queue) < 20 * BATCH


def metrics_of(place: Managed, name: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{place.ports[name]}/metrics", timeout=20) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


async def rows(place: Managed, name: str) -> dict[str, Any]:
    """The bridge as this node sees it; empty while it cannot be asked."""
    try:
        status, said, _ = await asyncio.to_thread(place.ask, name, "/api/bridges")
    except OSError:
        return {}
    return dict(said["bridges"][0]) if status == 200 and said["bridges"] else {}


async def runner(place: Managed, names: tuple[str, ...]) -> str:
    """The node that runs it, and has moved something."""
    end_s = time.monotonic() + PATIENCE_S
    seen: dict[str, Any] = {}
    while time.monotonic() < end_s:
        for name in names:
            seen[name] = row = await rows(place, name)
            if row.get("state") == "running" and row["moved"] > BATCH:
                return name
        await asyncio.sleep(0.1)
    raise AssertionError(f"no node runs the bridge: {seen}")


@pytest.mark.timeout(400)
async def test_the_node_that_runs_a_bridge_is_killed_under_load(brokers: Callable[[str], Any], tmp_path: Path) -> None:
    source = brokers("ours")
    (tmp_path / "cluster").mkdir()
    async with running(Managed(tmp_path / "cluster")) as place:
        urls = {name: f"amqp://guest:guest@127.0.0.1:{place.fleet.node(name).amqp_port}" for name in NAMES}
        value = {
            "src-uri": source.url, "src-queue": "orders", "src-prefetch-count": 500, "reconnect-delay": 0.2,
            "dest-uri": "amqp://guest:guest@", "dest-queue": "arrived",
        }  # fmt: skip
        publisher = Publisher(source.url, "orders")
        load = asyncio.ensure_future(publisher.run())
        await until(lambda: publisher.confirmed, "the source has messages")
        status, said, _ = await asyncio.to_thread(
            place.ask, "a", "/api/parameters/shovel/%2F/in", "PUT", {"value": value}
        )
        assert status in (201, 204), said
        for _ in range(2):
            name = await runner(place, NAMES)
            told = 'clusterbroker_bridge_state{vhost="/",bridge="in",state="running"} 1'
            # rows are seconds old
            await asyncio.to_thread(wait_for, lambda: told in metrics_of(place, name), "the metrics tell it")  # noqa: B023
            await place.fleet.node(name).end(signal.SIGKILL)
            rest = tuple(other for other in NAMES if other != name)
            assert await runner(place, rest) in rest
            place.launch(name)
            await place.fleet.ready(name)
        await until(lambda: publisher.confirmed > LEAST, "the load was at work", PATIENCE_S)
        publisher.stopped = True
        await asyncio.wait_for(load, PATIENCE_S)
        count = publisher.confirmed
        await until(lambda: depth_of(source.url, "orders") == 0, "the source is empty", PATIENCE_S)
        await until(lambda: any(depth_of(url, "arrived") >= count for url in urls.values()), "all arrived", PATIENCE_S)
        found = Counter(await asyncio.to_thread(taken, urls["a"], "arrived"))
        there = Counter(b"%07d" % number for number in range(count))
        assert (there - found, found - there) == (Counter(), Counter()), "lost, doubled"
