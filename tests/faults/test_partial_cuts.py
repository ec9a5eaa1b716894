"""Real processes that reach a majority and the leader, or only the one of them: who serves whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.client import Client, ClientLost
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.trial.relay import Wires
from clusterbroker.broker.wire.amqp091 import methods as m


class Cut:
    """Three nodes with a queue each, the leader first among them, and a client at every node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster = LocalCluster(directory, 3, wired=True)
        self.names: list[str] = []
        self.clients: dict[str, Client] = {}

    async def __aenter__(self) -> Cut:
        await self.cluster.begin()
        one = self.cluster.names[0]
        status = await asyncio.to_thread(ask, self.cluster.data_dir(one), "status") or {}
        self.names = sorted(self.cluster.names, key=lambda name: (name != status["leader"], name))
        for name in self.names:
            client = self.clients[name] = await Client.open(self.cluster.target(name), heartbeat_s=60)
            near: dict[str, Any] = {"x-queue-leader-locator": "client-local"}
            await client.call(m.QueueDeclare(queue=f"q-{name}", durable=True, arguments=near))
            await client.call(m.ConfirmSelect())
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients.values():
            client.abandon("the trial is over")
        await self.cluster.end()

    @property
    def wires(self) -> Wires:
        assert self.cluster.wires is not None, "this cluster is wired"
        return self.cluster.wires

    async def exchange(self, names: list[str], timeout_s: float) -> None:
        """All of these publish to every queue and have it confirmed, then each queue is read at another node."""
        for name in names:
            numbers = [self.clients[name].publish(f"q-{other}", f"{name} to {other}".encode()) for other in self.names]
            confirmed = asyncio.Event()

            def on_confirm(ok: bool, tag: int, _: bool, confirmed: Any = confirmed, last: int = numbers[-1]) -> None:
                if ok and tag >= last:
                    confirmed.set()

            self.clients[name].on_confirm = on_confirm
            await asyncio.wait_for(confirmed.wait(), timeout_s)
        for place, name in enumerate(self.names):
            reader = self.clients[names[(place + 1) % len(names)]]
            found: list[bytes] = []

            def on_deliver(delivery: Any, found: list[bytes] = found) -> None:
                found.append(delivery.body)

            reader.on_deliver = on_deliver
            await reader.call(m.BasicConsume(queue=f"q-{name}", consumer_tag=name, no_ack=True))
            await until(lambda found=found: len(found) >= len(names), timeout_s)  # type: ignore[misc]
            await reader.call(m.BasicCancel(consumer_tag=name))
            assert sorted(found) == sorted(f"{writer} to {name}".encode() for writer in names)

    def told(self, name: str, event: str) -> int:
        return (self.directory / name / "node.log").read_text().count(f'"{event}"')


async def until(condition: Callable[[], object], timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {timeout_s:g} s"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("ways", ["both", *(pytest.param(way, marks=pytest.mark.matrix) for way in ("one", "other"))])
async def test_two_followers_that_are_cut_off_from_each_other_are_served(tmp_path: Path, ways: str) -> None:
    async with Cut(tmp_path) as trial:
        _, one, other = trial.names
        pairs = {"both": [(one, other), (other, one)], "one": [(one, other)], "other": [(other, one)]}
        trial.wires.cut(pairs[ways])
        await trial.exchange(trial.names, 15)
        await until(lambda: trial.told(one, "link.relayed") == trial.told(other, "link.relayed") == 1, 60)
        assert trial.told(one, "node.begins_again") == trial.told(other, "node.begins_again") == 0
        trial.wires.heal()
        await until(lambda: trial.told(one, "link.relay_ended") and trial.told(other, "link.relay_ended"), 60)
        await trial.exchange(trial.names, 15)


async def test_a_follower_without_the_leader_leaves_and_comes_back_once(tmp_path: Path) -> None:
    async with Cut(tmp_path) as trial:
        leader, lost, near = trial.names
        trial.wires.cut([(leader, lost), (lost, leader)])
        await until(lambda: trial.told(lost, "node.begins_again"), 60)
        await trial.exchange([leader, near], 15)
        assert trial.told(lost, "node.begins_again") == 1, "it waits and does not try again and again"
        with pytest.raises(ClientLost):
            await Client.open(trial.cluster.target(lost))
        trial.wires.heal()

        async def back() -> Client:
            while True:
                try:
                    return await Client.open(trial.cluster.target(lost), heartbeat_s=60)
                except ClientLost:
                    await asyncio.sleep(0.1)

        client = trial.clients[lost] = await asyncio.wait_for(back(), 20)
        await client.call(m.ConfirmSelect())
        await trial.exchange(trial.names, 15)
        assert trial.told(lost, "node.begins_again") == 1
