"""Every kind of fault once, at the owner of a loaded queue, and at a node that does not own it; all that clients saw is
judged. `scripts/chaos` does the same by chance, for as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.trial.faults import NETWORK_FAULTS, OWNER, PROCESS_FAULTS, Kind, Step
from tests.faults.cluster_trial import needs_cluster, on_trial  # noqa: F401

pytestmark = [pytest.mark.usefixtures("needs_cluster"), pytest.mark.timeout(400)]

LASTS_S = {Kind.BLINK: 0.7, Kind.FREEZE: 4.0}


def steps(kinds: tuple[Kind, ...], node: str) -> list[Step]:
    return [Step(kind, node, 0.5, LASTS_S.get(kind, 1.5)) for kind in kinds]


async def test_processes_at_the_owner(tmp_path: Path) -> None:
    async with on_trial(tmp_path) as trial:
        result = await trial.put_through(steps(PROCESS_FAULTS, OWNER))
        assert result.owners > len(PROCESS_FAULTS) / 2, "the nodes' logs tell of new owners"


async def test_processes_at_one_node(tmp_path: Path) -> None:
    async with on_trial(tmp_path) as trial:
        await trial.put_through(steps(PROCESS_FAULTS, "b"))


async def test_wires_of_the_owner(tmp_path: Path) -> None:
    async with on_trial(tmp_path, wired=True) as trial:
        await trial.put_through(steps(NETWORK_FAULTS, OWNER))


async def test_wires_of_one_node(tmp_path: Path) -> None:
    async with on_trial(tmp_path, wired=True) as trial:
        await trial.put_through(steps(NETWORK_FAULTS, "b"))


async def test_the_disk_of_one_node_is_full(tmp_path: Path) -> None:
    async with on_trial(tmp_path, small_disks=("c",)) as trial:
        await trial.put_through([Step(Kind.FULL_DISK, "c", 0.5, 2.0), Step(Kind.FULL_DISK, "c", 0.5, 4.0)])


async def test_chance(tmp_path: Path) -> None:
    async with on_trial(tmp_path, wired=True) as trial:
        await trial.put_through(rounds=4, seed=20)


async def test_five_nodes(tmp_path: Path) -> None:
    async with on_trial(tmp_path, nodes=5, wired=True) as trial:
        await trial.put_through(rounds=2, seed=21)
