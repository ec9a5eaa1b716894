"""`clusterbroker demo`, `chaos` and `verify` as users call them, on real clusters: the last line is the verdict."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.faults.cluster_trial import on_trial
from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "clusterbroker.broker.cli.main", *words]
    return processes.run(line, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)


def call(*words: str) -> tuple[int, str]:
    """Exit code and last line."""
    done = run(*words)
    return done.returncode, (done.stdout.strip().splitlines() or [done.stderr])[-1]


def test_demo() -> None:
    done = run("demo", "--seconds", "1")
    *story, verdict = done.stdout.strip().splitlines()
    assert done.returncode == 0, verdict
    assert "dead" not in "".join(story), "its last picture shows three nodes that live"
    assert verdict.startswith("demo passed: ")
    assert " 0 lost" in verdict


def test_chaos() -> None:
    code, verdict = call("chaos", "--rounds", "1", "--seed", "706")
    assert code == 0, verdict
    assert verdict.startswith("chaos passed: 1 round, ")


async def test_verify_while_a_node_is_killed(tmp_path: Path) -> None:
    async with on_trial(tmp_path) as trial:
        urls = [f"--url=amqp://guest:guest@{trial.cluster.target(name)}/" for name in trial.cluster.names]
        logs = [f"--log={node.log}" for node in trial.cluster.nodes.values()]
        verifying = asyncio.create_task(asyncio.to_thread(call, "verify", *urls, *logs, "--seconds", "4"))
        await asyncio.sleep(1)
        await trial.cluster.kill("a")
        await asyncio.sleep(1)
        await trial.cluster.start("a")
        code, verdict = await verifying
    assert code == 0, verdict
    assert verdict.startswith("verify passed: ")
