"""A cluster of real processes with a load on it, for the fault tests of clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.trial.faults import Nemesis, Step, mount_small_disk, unmount
from clusterbroker.broker.trial.load import Load, LoadPlan
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.trial.recoverable_load import RecoverableLoad
from clusterbroker.broker.trial.rounds import Trial, run_rounds

SMALL_DISK_MIB = 192


@dataclass(slots=True)
class OnTrial:
    """A started cluster and the load that runs on it."""

    cluster: LocalCluster
    load: Load
    directory: Path
    small_disks: tuple[str, ...] = ()
    links: RecoverableLoad | None = None

    async def put_through(self, steps: Sequence[Step] = (), rounds: int = 0, seed: int = 1) -> Trial:
        """Carries out the steps, a round each (or rounds by chance), and asserts that every round passed."""
        nemesis = Nemesis(self.cluster, self.load.plan.queue(0), self.small_disks)
        trial = await run_rounds(
            nemesis, self.load, seed, rounds or len(steps), lambda _: None,
            evidence=self.directory, planned=steps, links=self.links,
        )  # fmt: skip
        told = [f"{r.number} {r.done}: {r.trouble or r.verdict.figures()}" for r in trial.rounds if not r.passed]
        assert trial.passed, "\n".join([*told, *map(str, trial.verdict.findings.values())])
        assert trial.verdict.confirmed > 50 * len(trial.rounds), "the load was at work"
        assert trial.maps >= len(trial.rounds), "`status` tells the wiring's index and digest"
        return trial


@asynccontextmanager
async def on_trial(
    directory: Path,
    nodes: int = 3,
    wired: bool = False,
    small_disks: tuple[str, ...] = (),
    links: bool = False,
    **plan: Any,
) -> AsyncIterator[OnTrial]:
    """A cluster in the directory, gone behind the block; with `links`, clients of AMQP 1.0 at it as well. Skips where
    small disks are asked for and cannot be had."""
    cluster = LocalCluster(directory, nodes, wired)
    load: Load | None = None
    programs: RecoverableLoad | None = None
    try:
        for name in small_disks:
            if refused := mount_small_disk(cluster.data_dir(name), SMALL_DISK_MIB):
                pytest.skip(refused)
        await cluster.begin()
        settings = {"rate_per_s": 300.0, **plan}
        load = Load(LoadPlan(tuple(map(cluster.target, cluster.names)), "trial", **settings), seed=1)
        await load.start()
        if links:
            programs = RecoverableLoad(directory, load.plan.targets, load.plan.prefix)
            await programs.start()
        yield OnTrial(cluster, load, directory, small_disks, programs)
    finally:
        if programs is not None:
            await programs.stop()
        if load is not None:
            await load.stop()
        await cluster.end()
        for name in small_disks:
            unmount(cluster.data_dir(name))
