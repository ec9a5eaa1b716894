"""Chaos on RabbitMQ's nodes with quorum queues: proves the trial itself on a broker that is known to keep its messages.

    python -m tests.faults.rabbitmq_trial [--rounds N] [--seed S]

Its consumers may lose what they hold when a leader dies, so that rule is not asked of it (`living=False`).
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.clusters import RabbitMqCluster
from bench.servers import ServerError
from clusterbroker.broker.trial.client import Target
from clusterbroker.broker.trial.clocks import Clocks
from clusterbroker.broker.trial.event_log import Line
from clusterbroker.broker.trial.faults import Nemesis
from clusterbroker.broker.trial.load import Load, LoadPlan
from clusterbroker.broker.trial.nodes import TrialError
from clusterbroker.broker.trial.relay import Wires
from clusterbroker.broker.trial.rounds import Round, Trial, run_rounds

NAMES = ["a", "b", "c"]


class RabbitMqTrial:
    """`broker.trial.nodes.Cluster`, carried out on RabbitMQ."""

    wires: Wires | None = None
    clocks: Mapping[str, Clocks] = {}
    names = NAMES

    def __init__(self, nodes: RabbitMqCluster) -> None:
        self.nodes = nodes
        self._down: set[str] = set()

    def _node(self, name: str):
        return self.nodes.nodes[NAMES.index(name)]

    def target(self, name: str) -> Target:
        return Target("127.0.0.1", self._node(name).port)

    def pid(self, name: str) -> int | None:
        return None if name in self._down else 1

    def events(self) -> list[Line]:
        return []

    def data_dir(self, name: str) -> Path:
        return self._node(name).directory

    async def owner(self, queue: str) -> str | None:
        try:
            return NAMES[await asyncio.to_thread(self.nodes.owner, queue)]
        except ServerError:
            return None

    async def maps(self) -> dict[str, tuple[int, str]]:
        return {}

    def signal(self, name: str, number: signal.Signals) -> None:
        self._node(name).send(number)

    async def kill(self, name: str) -> None:
        self._down.add(name)
        await asyncio.to_thread(self._node(name).kill)

    async def stop(self, name: str) -> None:
        self._down.add(name)
        await asyncio.to_thread(self._node(name).stop)

    async def start(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._node(name).start)
            await asyncio.to_thread(self._node(name).await_rejoined)
        except ServerError as error:
            raise TrialError(str(error)) from error
        self._down.discard(name)


async def trial(directory: Path, rounds: int, seed: int) -> Trial:
    with RabbitMqCluster(directory) as nodes:
        await asyncio.to_thread(nodes.start)
        cluster = RabbitMqTrial(nodes)
        plan = LoadPlan(tuple(map(cluster.target, NAMES)), f"chaos-{seed}")
        load = Load(plan, seed)
        await load.start()
        try:
            return await run_rounds(Nemesis(cluster, plan.queue(0)), load, seed, rounds, _tell, living=False)
        finally:
            await load.stop()


def _tell(done: Round) -> None:
    print(f"round {done.number}: {', '.join(done.done)}: {done.trouble or done.verdict.figures()}", flush=True)
    for finding in done.verdict.findings.values():
        print(f"    {finding}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="clusterbroker-chaos-") as where:
        result = asyncio.run(trial(Path(where), asked.rounds, asked.seed))
    print(result.verdict.figures(), "; ".join(map(str, result.verdict.findings.values())))
    sys.exit(0 if result.passed else 1)
