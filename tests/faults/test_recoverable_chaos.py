"""Programs with recoverable links of AMQP 1.0, beside the others, while nodes and programs are killed.

`scripts/chaos` does the same by chance, for as long as one likes.
"""

from __future__ import annotations

from pathlib import Path

from clusterbroker.broker.trial.faults import OWNER, Kind, Step
from tests.faults.cluster_trial import on_trial


async def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    steps = [Step(Kind.KILL, OWNER, 0.3, 1.0), Step(Kind.FREEZE, OWNER, 0.3, 4.0)]
    async with on_trial(tmp_path, links=True) as trial:
        await trial.put_through(steps)
    lines = written(tmp_path)
    accepted = sum(line.endswith(" accepted") for line in lines)
    assert accepted > 100, "the programs were at work"
    assert sum(line.startswith("took ") for line in lines) >= accepted


def written(directory: Path) -> list[str]:
    """By all programs."""
    return [line for log in directory.glob("*.log") for line in log.read_text().splitlines()]
