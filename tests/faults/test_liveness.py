"""Real nodes whose network or clock lies about who is alive: nobody is handed again, unmarked, what another one was
handed, and who can be served is served."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.client import Client, ClientLost, Delivery
from clusterbroker.broker.trial.clocks import Clocks
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.faults.fleet import until
from tests.faults.test_clocks import library

MESSAGES = 6000
UNSURE_S = 0.2
"""What came to two sockets while this process was not run is read in any order."""
NEAR: dict[str, Any] = {"x-queue-leader-locator": "client-local"}

__all__ = ["library"]


class TwoReaders:
    """A queue at `a`, read slowly at `a`, and by a client of another node as fast as it can."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.old: dict[int, list[tuple[float, bool]]] = {}
        """message -> when it was handed to the reader at `a`, and whether it was marked."""
        self.new: dict[int, float] = {}
        """message -> when the other reader was handed it first."""
        self.at_a: Client
        self.other: Client
        self._held: list[int] = []
        self._slow: asyncio.Task[None]

    async def begin(self) -> None:
        self.at_a = await Client.open(self.cluster.target("a"), heartbeat_s=60)
        await self.at_a.call(m.QueueDeclare(queue="orders", durable=True, arguments=NEAR))
        await self.at_a.call(m.ConfirmSelect())
        confirmed = asyncio.Event()

        def on_confirm(ok: bool, tag: int, _: bool) -> None:
            if ok and tag == MESSAGES:
                confirmed.set()

        self.at_a.on_confirm = on_confirm
        for number in range(MESSAGES):
            self.at_a.publish("orders", b"%d" % number)
        await asyncio.wait_for(confirmed.wait(), 60)
        self.at_a.on_deliver = self._at_a
        await self.at_a.call(m.BasicQos(prefetch_count=5))
        await self.at_a.call(m.BasicConsume(queue="orders", consumer_tag="a"))
        self._slow = asyncio.create_task(self._acknowledge())
        await until(lambda: len(self.old) > 50)

    def _at_a(self, delivery: Delivery) -> None:
        self.old.setdefault(int(delivery.body), []).append((time.monotonic(), delivery.flagged))
        self._held.append(delivery.tag)

    async def _acknowledge(self) -> None:
        with contextlib.suppress(ClientLost):
            while not self.at_a.lost.is_set():
                if self._held:
                    self.at_a.acknowledge(self._held.pop(0))
                await asyncio.sleep(0.002)  # what a consumer does with a message

    async def read_elsewhere(self, name: str) -> None:
        """From now on, as soon as anybody hands out."""
        self.other = await Client.open(self.cluster.target(name), heartbeat_s=60)

        def on_deliver(delivery: Delivery) -> None:
            self.new.setdefault(int(delivery.body), time.monotonic())
            self.other.acknowledge(delivery.tag)

        self.other.on_deliver = on_deliver
        await self.other.call(m.BasicQos(prefetch_count=2000))
        self._reading = asyncio.create_task(self.other.call(m.BasicConsume(queue="orders", consumer_tag="other"), 30))

    def twice(self) -> list[int]:
        """Handed to the reader at `a`, not marked, though the other one had been handed it."""
        return [
            number
            for number, times in self.old.items()
            for at_s, marked in times
            if not marked and self.new.get(number, at_s) < at_s - UNSURE_S
        ]

    def end(self) -> None:
        self._slow.cancel()
        for task in (getattr(self, "_reading", None),):
            if task is not None:
                task.cancel()
        for client in (self.at_a, getattr(self, "other", None)):
            if client is not None:
                client.abandon("the trial is over")


@asynccontextmanager
async def readers(cluster: LocalCluster) -> AsyncIterator[TwoReaders]:
    await cluster.begin()
    two = TwoReaders(cluster)
    try:
        await two.begin()
        yield two
    finally:
        two.end()
        await cluster.end()


async def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    return await asyncio.to_thread(ask, cluster.data_dir(name), "status") or {}


def told(cluster: LocalCluster, name: str, event: str) -> int:
    return (cluster.directory / name / "node.log").read_text().count(f'"{event}"')


async def test_datagrams_to_the_leaders_host_are_blocked(tmp_path: Path) -> None:
    """a3: `iptables -A INPUT -p udp -j DROP` where the leader is; the whole cluster was down until that was healed."""
    cluster = LocalCluster(tmp_path, 3, wired=True)
    await cluster.begin()
    try:
        assert cluster.wires is not None
        leader = (await status(cluster, "a"))["leader"]
        near, far = sorted({"a", "b", "c"} - {leader})
        cluster.wires.block([(near, leader), (far, leader)])
        await cluster.kill(far)
        await cluster.start(far)  # its beats are answered over its link

        async def blocked(name: str) -> Any:
            return (await status(cluster, name)).get("blocked")

        here = [f"no datagrams from {x} arrive here: UDP is blocked from {x} to {leader}" for x in (near, far)]
        await until(lambda: equal(blocked(leader), here), "the leader names what is blocked")
        there = [f"no datagrams of this node arrive at {leader}: UDP is blocked from {near} to {leader}"]
        await until(lambda: equal(blocked(near), there), "a follower names it")

        async def alerts() -> int:
            return sum(alert["kind"] == "udp.blocked" for alert in (await status(cluster, leader))["alerts"])

        await until(lambda: equal(alerts(), 2), "it is an alert")
        for name in "abc":
            client = await Client.open(cluster.target(name), heartbeat_s=60)
            await client.call(m.QueueDeclare(queue=f"q-{name}", durable=True, arguments=NEAR), 20)
            client.abandon("served")
        assert [told(cluster, name, "node.restarts") for name in "abc"] == [0, 0, 0]
        cluster.wires.heal()
        await until(lambda: equal(blocked(leader), []), "nothing is blocked any more")
    finally:
        await cluster.end()


async def equal(asked: Any, wanted: Any) -> bool:
    return bool(await asked == wanted)


async def test_a_port_that_refuses_for_a_moment_ends_nobody(tmp_path: Path) -> None:
    """p2b, then p2: what carries the owner's TCP ends for a moment, then for good; its beats arrive all the while."""
    cluster = LocalCluster(tmp_path, 3, wired=True)
    async with readers(cluster) as two:
        assert cluster.wires is not None
        await cluster.wires.refuse("a", True, both_ways=True)
        await asyncio.sleep(0.25)  # two probes, and then some
        await cluster.wires.refuse("a", False, both_ways=True)
        before = len(two.old)
        await until(lambda: len(two.old) > before + 200, "the owner goes on")
        assert not two.at_a.lost.is_set()
        assert [told(cluster, name, "node.restarts") for name in "abc"] == [0, 0, 0]
        await cluster.wires.refuse("a", True, both_ways=True)
        await two.read_elsewhere("b")
        await until(lambda: len(two.new) > 100, "another owner hands out")
        assert two.twice() == []


async def test_a_firewall_that_resets_and_drops(tmp_path: Path) -> None:
    """p2 with beats cut as well: nothing tells such an owner from a dead one, so it must be silent by itself, before
    another one takes its place after 0.3 s."""
    cluster = LocalCluster(tmp_path, 3, wired=True)
    async with readers(cluster) as two:
        assert cluster.wires is not None
        cluster.wires.block([pair for pair in cluster.wires.directions if "a" in pair])
        await cluster.wires.refuse("a", True, both_ways=True)
        await two.read_elsewhere("b")
        leases = told(cluster, "a", "cluster.lease")
        await until(lambda: len(two.new) > 100, "another owner hands out")
        await until(lambda: told(cluster, "a", "cluster.lease") > leases, "the old owner's lease is over as well")
        assert two.twice() == []


async def test_a_virtual_machine_that_was_paused(tmp_path: Path, library: Path) -> None:
    """p8: no clock of the owner's has counted the pause but the wall clock, which its hypervisor's agent has set."""
    cluster = LocalCluster(tmp_path, 3)
    clocks = Clocks(tmp_path, library, "a")
    cluster.clocks["a"] = clocks
    async with readers(cluster) as two:
        began_s = time.monotonic()
        cluster.signal("a", signal.SIGSTOP)
        await two.read_elsewhere("b")
        await until(lambda: len(two.new) > 200, "another owner hands out")
        woke_s = time.monotonic()
        clocks.set(0.0, began_s - woke_s, began_s - woke_s)
        cluster.signal("a", signal.SIGCONT)
        await until(lambda: told(cluster, "a", "node.restarts"), "it hears that it was taken for dead")
        assert two.twice() == []
