"""The owner is killed under load: how soon clients go on, and what those on surviving nodes do not notice."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from broker.trial.history import What
from broker.trial.judge import judge, judge_owners
from tests.faults.cluster_trial import OnTrial, needs_cluster, on_trial  # noqa: F401

pytestmark = [pytest.mark.usefixtures("needs_cluster"), pytest.mark.timeout(200)]

GAP_MAX_S = 1.0
FROZEN_GAP_MAX_S = 4.0


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
    async with on_trial(tmp_path, queues=1, publishers=3, consumers=3) as trial:
        trial.load.resume()
        for _ in range(3):
            await asyncio.sleep(1)
            owner = await owner_of(trial)
            killed_s = time.monotonic()
            await trial.cluster.kill(owner)
            assert await gap_after(trial, owner, killed_s) <= GAP_MAX_S
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


async def test_clients_of_surviving_nodes_keep_their_connections(tmp_path: Path) -> None:
    """Those of the killed node lose theirs, and nobody else."""
    async with on_trial(tmp_path, queues=1, publishers=3, consumers=3) as trial:
        trial.load.resume()
        await asyncio.sleep(1)
        owner = await owner_of(trial)
        at_owner = trial.cluster.target(owner).port
        clients = [client for client in trial.load.clients if client.port == at_owner]
        await trial.cluster.kill(owner)
        await asyncio.sleep(2)
        lost = [event for event in trial.load.history.events if event.what is What.LOST]
        assert sorted(event.client for event in lost) == sorted(client.name for client in clients)
        await trial.cluster.start(owner)
        await settled(trial)


async def test_rolling_restart(tmp_path: Path) -> None:
    """Every node once, by SIGTERM: nothing is lost, and nothing is handed out twice for it."""
    async with on_trial(tmp_path) as trial:
        trial.load.resume()
        for name in trial.cluster.names:
            await asyncio.sleep(1)
            await trial.cluster.stop(name)
            await trial.cluster.start(name)
        await asyncio.sleep(1)
        await settled(trial)
