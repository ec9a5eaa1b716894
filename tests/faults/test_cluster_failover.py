"""The owner is killed under load: how soon clients go on, and what those on surviving nodes do not notice."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

from clusterbroker.broker.trial.history import What
from clusterbroker.broker.trial.judge import judge, judge_owners
from tests.faults.cluster_trial import OnTrial, on_trial

GAP_MAX_S = 1.0
FROZEN_GAP_MAX_S = 3.5


async def owner_of(trial: OnTrial) -> str:
    owner = await trial.cluster.owner(trial.load.plan.queue(0))
    assert owner is not None, "the nodes log who owns the queue"
    return owner


async def gap_after(trial: OnTrial, owner: str, since_s: float, timeout_s: float = 30) -> float:
    """Seconds from the fault until another one owns the queue, and a confirm and a delivery came after that."""
    load, heir_s = trial.load, 0.0
    while heir_s == 0 or min(load.last_confirm_s, load.last_delivery_s) <= heir_s:
        if heir_s == 0 and await owner_of(trial) != owner:
            heir_s = time.monotonic()
        assert time.monotonic() - since_s < timeout_s, "nothing moves any more"
        await asyncio.sleep(0.005)
    return min(load.last_confirm_s, load.last_delivery_s) - since_s


async def settled(trial: OnTrial) -> None:
    assert await trial.load.settle(60) == ""
    verdict = judge(trial.load.history.events)
    verdict.add(judge_owners(trial.cluster.events()))
    assert verdict.passed, verdict.findings


async def test_gap_after_kills(tmp_path: Path) -> None:
    """Clients of the killed node lose their connections, and nobody else."""
    async with on_trial(tmp_path, queues=1, publishers=3, consumers=3) as trial:
        trial.load.resume()
        for _ in range(2):
            await asyncio.sleep(0.5)
            owner = await owner_of(trial)
            at_owner = trial.cluster.target(owner).port
            clients = [client.name for client in trial.load.clients if client.port == at_owner]
            before = len(trial.load.history.events)
            killed_s = time.monotonic()
            await trial.cluster.kill(owner)
            assert await gap_after(trial, owner, killed_s) <= GAP_MAX_S
            lost = [event.client for event in trial.load.history.events[before:] if event.what is What.LOST]
            assert sorted(lost) == sorted(clients)
            await trial.cluster.start(owner)
        await settled(trial)


async def test_gap_after_a_freeze(tmp_path: Path) -> None:
    async with on_trial(tmp_path, queues=1, publishers=3, consumers=3) as trial:
        trial.load.resume()
        await asyncio.sleep(1)
        owner = await owner_of(trial)
        frozen_s = time.monotonic()
        trial.cluster.signal(owner, signal.SIGSTOP)
        assert await gap_after(trial, owner, frozen_s) <= FROZEN_GAP_MAX_S
        assert await owner_of(trial) != owner
        trial.cluster.signal(owner, signal.SIGCONT)
        await settled(trial)


async def test_rolling_restart(tmp_path: Path) -> None:
    """Every node once, by SIGTERM: nothing is lost, and nothing is handed out twice for it."""
    async with on_trial(tmp_path) as trial:
        trial.load.resume()
        for name in trial.cluster.names:
            await asyncio.sleep(0.5)
            await trial.cluster.stop(name)
            await trial.cluster.start(name)
        await asyncio.sleep(1)
        await settled(trial)
