"""The trial itself, on one real node: faults are done and survived, and a disk that went back in time is noticed."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import generator
from clusterbroker.broker.trial.client import target
from clusterbroker.broker.trial.clocks import Clocks, build
from clusterbroker.broker.trial.faults import OWNER, Kind, Nemesis, Step, mount_small_disk, unmount
from clusterbroker.broker.trial.load import Load, LoadPlan
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.trial.rounds import Round, run_rounds
from tests.conftest import run_command
from tests.faults.node import NodeProcess
from tests.support import processes


def plan_of(cluster: LocalCluster, **settings: float) -> LoadPlan:
    targets = tuple(map(cluster.target, cluster.names))
    return LoadPlan(targets, "trial", queues=2, publishers=2, rate_per_s=300, **settings)  # type: ignore[arg-type]


async def test_one_node_through_everything_that_one_node_can_meet(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, count=1)
    disk = cluster.data_dir("a")
    refused = mount_small_disk(disk, 192)
    kinds = [Kind.KILL, Kind.STOP, Kind.BLINK, Kind.FREEZE] + ([] if refused else [Kind.FULL_DISK])
    steps = [Step(kind, "a", 0.5, 5.0 if kind is Kind.FREEZE else 0.5) for kind in kinds]
    load: Load | None = None
    told: list[Round] = []
    try:
        await cluster.begin()
        load = Load(plan_of(cluster), 1)
        await load.start()
        nemesis = Nemesis(cluster, "trial-0", () if refused else ("a",))
        trial = await run_rounds(nemesis, load, 1, len(steps), told.append, evidence=tmp_path, planned=steps)
    finally:
        if load is not None:
            await load.stop()
        await cluster.end()
        if not refused:
            unmount(disk)
    assert trial.passed, [trial.trouble, *map(str, trial.verdict.findings.values())]
    assert [round_.done[0].split(" (")[0] for round_ in told] == [kind.value for kind in kinds]
    assert trial.verdict.confirmed > 100 * len(steps)


@pytest.mark.matrix
async def test_three_nodes_with_bad_disks_and_clocks(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    library = build(tmp_path)
    if isinstance(library, str):
        pytest.skip(library)
    cluster.clocks = {name: Clocks(tmp_path, library, name) for name in cluster.names}
    kinds = [Kind.DAMAGE, Kind.WRONG_CLOCK, Kind.STAND_STILL]
    steps = [Step(kind, OWNER, 0.5, 1.0) for kind in kinds]
    load: Load | None = None
    try:
        await cluster.begin()
        load = Load(plan_of(cluster), 1)
        await load.start()
        nemesis = Nemesis(cluster, "trial-0")
        trial = await run_rounds(nemesis, load, 1, len(steps), lambda _: None, evidence=tmp_path, planned=steps)
    finally:
        if load is not None:
            await load.stop()
        await cluster.end()
    assert trial.passed, [trial.trouble, *map(str, trial.verdict.findings.values())]
    assert trial.verdict.confirmed > 100 * len(steps)


async def test_a_disk_that_went_back_in_time_is_noticed(tmp_path: Path) -> None:
    """What was settled comes back, although everything seemed well: the next history's judge says so."""
    cluster = LocalCluster(tmp_path, count=1)
    await cluster.begin()
    load = Load(plan_of(cluster, hold_s=0.5), 1)
    old = tmp_path / "old"

    class Rewinds(Nemesis):
        async def carry_out(self, step: Step, chance: random.Random) -> str:
            await asyncio.sleep(1)
            await cluster.kill("a")
            if old.exists():
                shutil.rmtree(cluster.data_dir("a"))
                shutil.copytree(old, cluster.data_dir("a"), ignore=shutil.ignore_patterns("*.sock"))
            else:
                shutil.copytree(cluster.data_dir("a"), old, ignore=shutil.ignore_patterns("*.sock"))
            await cluster.start("a")
            return "rewound"

    steps = [Step(Kind.KILL, "a", 0, 0)] * 2
    try:
        await load.start()
        nemesis = Rewinds(cluster, "trial-0")
        trial = await run_rounds(nemesis, load, 1, 2, lambda _: None, evidence=tmp_path, planned=steps)
    finally:
        await load.stop()
        await cluster.end()
    first, second = trial.rounds
    assert first.passed, first.verdict.findings
    assert second.verdict.count("unexpected") > 0
    assert (tmp_path / "history-2.jsonl").exists()


def test_verify(node: NodeProcess) -> None:
    done = run_command("verify", "--url", node.url, "--seconds", "2", "--queues", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verify passed: " in done.stdout.splitlines()[-1]
    assert " 0 lost" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--url", "http://x"), "--url: a URL is amqp://"),
        (("--url", "amqp://localhost", "--log", "/nowhere/node.log"), "--log /nowhere/node.log: there is no such file"),
    ],
)
def test_verify_says_what_is_wrong_with_its_arguments(words: tuple[str, ...], said: str) -> None:
    done = run_command("verify", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_chaos_refuses_an_even_number_of_nodes() -> None:
    done = run_command("chaos", "--nodes", "4")
    assert (done.returncode, "--nodes" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("url", "host", "port", "vhost"),
    [
        ("amqp://h", "h", 5672, "/"),
        ("amqps://u:p%2F@h:1/v%2Fw", "h", 1, "v/w"),
        ("amqp://[::1]:5/%2F", "::1", 5, "/"),
    ],
)
def test_urls(url: str, host: str, port: int, vhost: str) -> None:
    found = target(url)
    assert (found.host, found.port, found.vhost, found.tls) == (host, port, vhost, url.startswith("amqps"))


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_the_benchmarks_surviving_load_through_kills(make_node: Callable[..., NodeProcess]) -> None:
    """`amqpload survive`, which measures failovers: it comes back, loses nothing, and its gaps are the outages."""
    node = make_node().start()
    options = ["--publishers", "2", "--consumers", "2", "--rate", "400", "--seconds", "60", "--drain", "20"]
    argv = generator.command("survive", node.port, [*options, "--gap-ms", "100"])
    with processes.popen(argv, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None, "its output is read"
        assert load.stdout.readline() == "running\n"
        outages_s = []
        for _ in range(2):
            time.sleep(0.5)
            began_s = time.monotonic()
            node.kill()
            node.start()
            outages_s.append(time.monotonic() - began_s)
        time.sleep(0.5)
        load.terminate()
        result = json.loads(load.stdout.readlines()[-1])
    assert result["clean"], result
    assert result["confirmed"] == result["published"] > 200
    assert result["reconnects"] == 8, "four clients, two kills"
    longest_s = max((gap["to_ns"] - gap["from_ns"]) / 1e9 for gap in result["gaps"])
    assert min(outages_s) <= longest_s <= max(outages_s) + 1
