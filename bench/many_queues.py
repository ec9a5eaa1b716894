"""A cluster with thousands of queues: what the death of a member costs clients, and how soon its copies are back.

    python -m bench.many_queues [--queues 10000] [--clients 10] [--kills 1] [--profile]

Three nodes, durable queues with three copies each, from a file of definitions. So many clients publish a message every
10 ms, wait for its confirm and consume it, to queues of each of the three owners, connected to the two nodes that live
on. One owner is killed (SIGKILL). Printed: the longest gap of a confirm or of a delivery, for clients of queues of the
dead owner and of others; the time from its next start until all copies are in sync; what the logs grew by; a drain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.client import Client, ClientLost, Delivery
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.wire.amqp091 import methods as m

PACE_S: Final = 0.01
BEFORE_S: Final = 3.0
AFTER_S: Final = 15.0


class Pair:
    """A publisher and a consumer of one queue; when something came, s."""

    def __init__(self, queue: str, owner: str) -> None:
        self.queue, self.owner = queue, owner
        self.confirms: list[float] = []
        self.deliveries: list[float] = []
        self.lost = ""
        self._due = asyncio.Event()

    async def run(self, cluster: LocalCluster, publisher: str, consumer: str, end: asyncio.Event) -> None:
        try:
            takes, gives = await Client.open(cluster.target(consumer)), await Client.open(cluster.target(publisher))
            takes.on_deliver = lambda delivery: self._delivered(takes, delivery)
            await takes.call(m.BasicQos(prefetch_count=100))
            await takes.call(m.BasicConsume(queue=self.queue))
            gives.on_confirm = lambda *_: self._confirmed()
            await gives.call(m.ConfirmSelect())
            while not end.is_set():
                self._due.clear()
                gives.publish(self.queue, b"x" * 100)
                await self._due.wait()
                await asyncio.sleep(PACE_S)
            takes.abandon("over")
            gives.abandon("over")
        except ClientLost as error:
            self.lost = str(error)

    def _confirmed(self) -> None:
        self.confirms.append(time.monotonic())
        self._due.set()

    def _delivered(self, client: Client, delivery: Delivery) -> None:
        self.deliveries.append(time.monotonic())
        client.acknowledge(delivery.tag)

    def gap_s(self, since_s: float, until_s: float) -> float:
        """The longest time without a confirm or without a delivery, between two moments."""
        longest = 0.0
        for times in (self.confirms, self.deliveries):
            inside = [since_s, *(at_s for at_s in times if since_s <= at_s <= until_s), until_s]
            longest = max(longest, *(after - before for before, after in pairwise(inside)))
        return longest


class Defined(LocalCluster):
    """Its nodes find so many queues in a file of definitions when they start."""

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__(directory)
        self._file = directory / "definitions.json"
        document = {
            "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
            "vhosts": [{"name": "/"}],
            "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
            "queues": [{"vhost": "/", "name": f"q{number}"} for number in range(count)],
        }
        self._file.write_text(json.dumps(document))

    def _environment(self, name: str) -> dict[str, str]:
        return super()._environment(name) | {"CLUSTERBROKER_DEFINITIONS_FILE": str(self._file)}


def queues(cluster: LocalCluster, name: str) -> list[dict[str, Any]]:
    """All queues, as a node knows them."""
    answer = ask(cluster.data_dir(name), "queues", timeout_s=60)
    return list(answer["queues"])


def stopwatch(cluster: LocalCluster, names: list[str], number: signal.Signals, wanted: bool) -> None:
    """Tells the nodes' sampler to begin or end, if they run under one."""
    for name in names if wanted else ():
        pid = cluster.pid(name)
        if pid is not None:
            os.kill(pid, number)


async def in_sync(cluster: LocalCluster, count: int, limit_s: float = 180) -> float:
    """How long it takes until every queue has an owner and three copies in sync, s."""
    began_s = time.monotonic()
    while True:
        asked_s = time.monotonic()
        rows = await asyncio.to_thread(queues, cluster, "a")
        left = sum(len(row["in_sync"]) < len(row["replicas"]) or not row["owner"] for row in rows)
        if not left and len(rows) >= count:
            return asked_s - began_s
        if time.monotonic() - began_s > limit_s:
            print(f"   {left} are not in sync after {limit_s} s")
            return limit_s
        await asyncio.sleep(1.0)


async def trial(directory: Path, count: int, clients: int, kills: int, profile: bool) -> None:
    cluster = Defined(directory, count)
    task = asyncio.current_task()
    assert task is not None, "a trial is a task"
    # its nodes have sessions of their own: who ends this process ends them as well, on the way out
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        began_s = time.monotonic()
        await cluster.begin()
        print(f"started, with {count} queues, in {time.monotonic() - began_s:.1f} s")
        print(f"in sync after {await in_sync(cluster, count):.1f} s more")
        for number in range(kills):
            await one_kill(cluster, count, clients, "bc"[number % 2], profile)
        await drain(cluster, "a")
    finally:
        await cluster.end()


async def one_kill(cluster: LocalCluster, count: int, clients: int, victim: str, profile: bool) -> None:
    alive = [name for name in cluster.names if name != victim]
    by_owner: dict[str, list[str]] = defaultdict(list)
    for row in await asyncio.to_thread(queues, cluster, "a"):
        by_owner[row["owner"]].append(row["name"])
    print({owner: len(names) for owner, names in by_owner.items()}, "victim", victim)
    pairs = [
        Pair(queue, owner)
        for owner, names in by_owner.items()
        for queue in names[:: max(1, len(names) // clients)][:clients]
    ]
    end = asyncio.Event()
    running = [
        asyncio.create_task(pair.run(cluster, alive[n % 2], alive[(n + n // 2) % 2], end))
        for n, pair in enumerate(pairs)
    ]
    await asyncio.sleep(BEFORE_S)
    base_s = time.monotonic()
    await asyncio.sleep(BEFORE_S)
    stopwatch(cluster, alive, signal.SIGUSR1, profile)
    killed_s = time.monotonic()
    lines = logged(cluster)
    await cluster.kill(victim)
    await asyncio.sleep(AFTER_S)
    stopwatch(cluster, alive, signal.SIGUSR2, profile)
    await asyncio.sleep(0.5)
    report("before", pairs, victim, base_s, killed_s)
    report("kill", pairs, victim, killed_s, killed_s + AFTER_S)
    stopwatch(cluster, alive, signal.SIGUSR1, profile)
    launched_s = time.monotonic()
    await cluster.start(victim)
    ready_s = time.monotonic() - launched_s
    stopwatch(cluster, [victim], signal.SIGUSR1, profile)
    await in_sync(cluster, count)
    done_s = time.monotonic()
    stopwatch(cluster, cluster.names, signal.SIGUSR2, profile)
    print(f"   start: ready after {ready_s:.1f} s, in sync after {done_s - launched_s:.1f} s")
    print(f"   log: {logged(cluster) - lines} lines more")
    report("start", pairs, victim, launched_s, done_s)
    end.set()
    await asyncio.sleep(0.5)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def logged(cluster: LocalCluster) -> int:
    """Lines in all logs."""
    return sum(node.log.read_bytes().count(b"\n") for node in cluster.nodes.values())


def report(what: str, pairs: list[Pair], victim: str, since_s: float, until_s: float) -> None:
    for title, of in (
        ("its queues", [pair for pair in pairs if pair.owner == victim]),
        ("others' queues", [pair for pair in pairs if pair.owner != victim]),
    ):
        gaps = sorted(pair.gap_s(since_s, until_s) for pair in of)
        lost = [pair.lost for pair in of if pair.lost]
        if gaps:
            print(f"   {what}: {title}: median {gaps[len(gaps) // 2]:.2f} s, longest {gaps[-1]:.2f} s", *lost[:1])


async def drain(cluster: LocalCluster, name: str) -> None:
    began_s, lines = time.monotonic(), logged(cluster)
    words = [sys.executable, "-m", "clusterbroker.broker.cli.main", "drain", "--data-dir", str(cluster.data_dir(name))]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True)
    failed = cluster.nodes[name].log.read_text().count('"owner.hand_over_failed"')
    print(f"drain {name}: {time.monotonic() - began_s:.1f} s; log: {logged(cluster) - lines} lines more")
    print(f"   {failed} failed hand-overs; {done.stdout.strip()}{done.stderr.strip()}")


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="send SIGUSR1 and SIGUSR2 to nodes around each phase")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-queues-") as directory:
        asyncio.run(trial(Path(directory), given.queues, given.clients, given.kills, given.profile))


if __name__ == "__main__":
    main()
