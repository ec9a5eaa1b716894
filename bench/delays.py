"""Delayed messages at one node with a disk: what publishing, waiting and firing cost its processor.

    python -m bench.delays [--messages 50000]
    python -m bench.delays --waiting 1000000
    python -m bench.delays --killed 1000000

The same messages (100 bytes, persistent, with confirms) go straight to a queue, without and with numbers of their
producer, then to a delayed exchange with that queue behind it. Printed: processor time of the node for each message
published, and for each one that became due, with the rate that one core makes of it; and what a waiting message takes
of memory. The client writes windows of 1,000 and has two without confirms, so the node has the next one when it asks.
What the node takes while messages wait for their time is no part of the firing, and is printed by itself.

With `--waiting`: so many wait, the node is stopped and started, and the time is taken until a message that is due then
comes, for which the node has to have read all that waits.

With `--killed`: so many are due in one millisecond while nobody consumes, the node is killed when a third of them is in
the queue, and the queue has each of them once in the end; otherwise an AssertionError.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import psutil

from bench.confirmed import Confirmed
from clusterbroker.broker.trial.client import Client
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.wire.amqp091 import methods as m

BODY: Final = b"x" * 100
DAY_MS: Final = 86_400_000
WINDOW: Final = 1000
LEAD_S: Final = 0.2
"""The firing is watched from that long before on."""
EXCHANGE, QUEUE = "later", "q"


class Node:
    """Its process, and a client."""

    def __init__(self, pid: int, client: Client) -> None:
        self._process = psutil.Process(pid)
        self.client = client
        self._confirmed = Confirmed(client)

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def rss(self) -> int:
        return int(self._process.memory_info().rss)

    async def publish(self, count: int, exchange: str, tables: Iterator[dict[str, Any]]) -> float:
        """Processor time for each message, us."""
        began_s, before, sent = self.cpu_s(), 0, 0
        for first in range(0, count, WINDOW):
            before = sent
            sent = self.client.publish_all(QUEUE, BODY, islice(tables, min(WINDOW, count - first)), exchange)
            await self._confirmed.wait(before)
        await self._confirmed.wait(sent)
        return (self.cpu_s() - began_s) / count * 1e6

    async def ready(self) -> int:
        answer = await self.client.call(m.QueueDeclare(queue=QUEUE, passive=True))
        assert isinstance(answer, m.QueueDeclareOk)
        return answer.message_count

    async def purge(self) -> None:
        await self.client.call(m.QueuePurge(queue=QUEUE))


def told(what: str, us: float) -> None:
    print(f"{what:36} {us:8.1f} us a message {1e6 / us:12,.0f} /s of a core")


async def wire(client: Client) -> None:
    kind: dict[str, Any] = {"x-delayed-type": "direct"}
    await client.call(m.ExchangeDeclare(exchange=EXCHANGE, type="x-delayed-message", durable=True, arguments=kind))
    await client.call(m.QueueDeclare(queue=QUEUE, durable=True))
    await client.call(m.QueueBind(queue=QUEUE, exchange=EXCHANGE, routing_key=QUEUE))
    await client.call(m.ConfirmSelect())


async def restart(directory: Path, count: int) -> None:
    cluster = LocalCluster(directory, 1)
    await cluster.begin()
    try:
        node = await enter(cluster)
        await wire(node.client)
        at_ms = int(time.time() * 1000) + DAY_MS
        warm = count // 5  # what a node has at work is no part of what waits
        await node.publish(warm, EXCHANGE, repeat({"x-deliver-at": at_ms}))
        before = node.rss()
        await node.publish(count - warm, EXCHANGE, repeat({"x-deliver-at": at_ms}))
        print(f"{'memory of a waiting message':36} {(node.rss() - before) / (count - warm):8.0f} bytes (resident set)")
        node.client.abandon("over")
        await cluster.stop("a")
        began_s = time.time()
        await cluster.start("a")
        node = await enter(cluster)
        await node.client.call(m.ConfirmSelect())
        print(f"{'restart until clients come in':36} {time.time() - began_s:8.2f} s")
        await node.publish(1, EXCHANGE, repeat({"x-delay": 1}))
        while not await node.ready():  # noqa: ASYNC110 - only the broker knows
            await asyncio.sleep(0.02)
        print(f"{'restart until what is due comes':36} {time.time() - began_s:8.2f} s")
        print(f"{'processor time of the new process':36} {node.cpu_s():8.2f} s")
        print(f"{'memory of the new process':36} {node.rss() >> 20:8} MiB")
        node.client.abandon("over")
    finally:
        await cluster.end()


async def killed(directory: Path, count: int) -> None:
    cluster = LocalCluster(directory, 1)
    await cluster.begin()
    try:
        node = await enter(cluster)
        await wire(node.client)
        at_ms = int(time.time() * 1000) + 10_000 + count // 2
        await node.publish(count, EXCHANGE, repeat({"x-deliver-at": at_ms}))
        assert not await node.ready(), "they wait"
        while (there := await node.ready()) < count // 3:  # noqa: ASYNC110 - only the broker knows
            await asyncio.sleep(0.02)
        print(f"{'killed when the queue had':36} {there:8,}")
        await cluster.kill("a")
        node.client.abandon("killed")
        began_s = time.time()
        await cluster.start("a")
        node = await enter(cluster)
        while await node.ready() < count:  # noqa: ASYNC110 - only the broker knows
            await asyncio.sleep(0.1)
        print(f"{'all at the queue after':36} {time.time() - began_s:8.2f} s")
        print(f"{'processor time of the new process':36} {node.cpu_s():8.2f} s")
        print(f"{'memory of the new process':36} {node.rss() >> 20:8} MiB")
        await asyncio.sleep(5)
        assert await node.ready() == count, "none comes twice"
        node.client.abandon("over")
    finally:
        await cluster.end()


async def enter(cluster: LocalCluster) -> Node:
    pid = cluster.pid("a")
    assert pid is not None, "it has just begun"
    return Node(pid, await Client.open(cluster.target("a"), heartbeat_s=30))


async def trial(directory: Path, count: int) -> None:
    cluster = LocalCluster(directory, 1)
    await cluster.begin()
    try:
        node = await enter(cluster)
        client = node.client
        await wire(client)
        await node.publish(count // 10, EXCHANGE, repeat({"x-delay": -1}))  # warm
        told("published to a queue", await node.publish(count, "", repeat({"x-delay": -1})))
        numbers = itertools.count(1)
        numbered = await node.publish(count, "", ({"x-producer": "bench", "x-seq": number} for number in numbers))
        told("to a queue, numbered", numbered)
        told("to the exchange, without a delay", await node.publish(count, EXCHANGE, repeat({"x-delay": -1})))
        await node.purge()
        before = node.rss()
        at_ms = int(time.time() * 1000) + DAY_MS
        told("to the exchange, delayed", await node.publish(count, EXCHANGE, repeat({"x-deliver-at": at_ms})))
        await asyncio.sleep(2)
        print(f"{'memory of a waiting message':36} {(node.rss() - before) / count:8.0f} bytes (resident set)")
        at_ms = int(time.time() * 1000) + 10_000 + count // 4
        await node.publish(count, EXCHANGE, repeat({"x-deliver-at": at_ms}))
        assert not await node.ready(), "they wait"
        began_wall_s = at_ms / 1000
        began_s, rest_s = node.cpu_s(), began_wall_s - time.time()
        await asyncio.sleep(rest_s - LEAD_S)
        print(f"{'at rest until then':36} {(node.cpu_s() - began_s) / (rest_s - LEAD_S) * 100:8.1f} % of a core")
        began_s = node.cpu_s()
        while await node.ready() < count:  # noqa: ASYNC110 - only the broker knows
            await asyncio.sleep(0.25)
        told("fired", (node.cpu_s() - began_s) / count * 1e6)
        print(f"{'all at the queue after':36} {time.time() - began_wall_s:8.2f} s")
        client.abandon("over")
    finally:
        await cluster.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--waiting", type=int)
    parser.add_argument("--killed", type=int)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if given.killed is not None:
            asyncio.run(killed(Path(directory), given.killed))
        elif given.waiting is None:
            asyncio.run(trial(Path(directory), given.messages))
        else:
            asyncio.run(restart(Path(directory), given.waiting))


if __name__ == "__main__":
    main()
