"""Every kind of fault once, most of them at the owner of a loaded queue; all that clients saw is judged.

`scripts/chaos` does the same by chance, for as long as one likes.
"""

from __future__ import annotations

from pathlib import Path

from clusterbroker.broker.trial.faults import OWNER, Kind, Step
from tests.faults.cluster_trial import on_trial

LASTS_S = {Kind.BLINK: 0.7, Kind.FREEZE: 3.0}


def steps(node: str, *kinds: Kind) -> list[Step]:
    return [Step(kind, node, 0.3, LASTS_S.get(kind, 1.0)) for kind in kinds]


async def test_processes(tmp_path: Path) -> None:
    async with on_trial(tmp_path) as trial:
        result = await trial.put_through(steps(OWNER, Kind.FREEZE, Kind.KILL_ALL, Kind.BLINK))
        assert result.owners >= 3, "the nodes' logs tell of new owners"


async def test_wires(tmp_path: Path) -> None:
    async with on_trial(tmp_path, wired=True) as trial:
        at_owner = steps(OWNER, Kind.MUTE, Kind.PAIR, Kind.RESET)
        await trial.put_through([*at_owner, *steps("b", Kind.ISOLATE, Kind.DEAF, Kind.DELAY)])


async def test_the_disk_of_one_node_is_full(tmp_path: Path) -> None:
    async with on_trial(tmp_path, small_disks=("c",)) as trial:
        await trial.put_through([Step(Kind.FULL_DISK, "c", 0.3, 3.0)])


async def test_five_nodes(tmp_path: Path) -> None:
    async with on_trial(tmp_path, nodes=5, wired=True) as trial:
        await trial.put_through(steps(OWNER, Kind.KILL_TWO, Kind.ISOLATE))
