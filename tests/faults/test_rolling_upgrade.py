"""The last release without feature levels beside this one: a rolling upgrade, a way back, and the end of it.

The clients are at work all the time, and what each of them saw is judged in the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from clusterbroker.broker.trial.judge import judge, judge_maps
from clusterbroker.broker.trial.load import CONFIRMS, NUMBERED, Load, LoadPlan
from clusterbroker.broker.trial.nodes import LOOPBACK, Target
from clusterbroker.broker.version import VERSION
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.performatives import Begin, Close, Open
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.raft.outcomes import Outcomes
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.conformance.amqp10.wire import Peer
from tests.faults.fleet import ROOT, Fleet, until
from tests.support import releases
from tests.unit.cluster.wiring.test_recorded_fold import Log

pytestmark = [pytest.mark.long, pytest.mark.processes]
CLIENTS = 8
DECLARED = 40
"""Exchanges that each of the clients declares and deletes: more commands than two windows of outcomes (outcomes.py)."""


@pytest.fixture(scope="module")
def before() -> Path:
    """The tree of the release before."""
    try:
        return releases.tree(releases.BEFORE_LEVELS)
    except releases.NoHistory as error:
        pytest.skip(str(error))


@asynccontextmanager
async def at_work(fleet: Fleet, names: str) -> AsyncIterator[Load]:
    """Publishers with confirms and consumers, until the end of the block; then all must have come through."""
    targets = tuple(Target(LOOPBACK, fleet.node(name).amqp_port) for name in names)
    plan = LoadPlan(targets, "rolling", queues=2, publishers=2, consumers=4, rate_per_s=200, kinds=(CONFIRMS, NUMBERED))
    load = Load(plan, seed=1)
    try:
        await load.start(60)
        load.resume()
        yield load
        unsettled = await load.settle(90)
        assert (unsettled, load.mistakes) == ("", [])
        verdict = judge(load.history.events, numbered=plan.numbered)
        assert verdict.passed, "\n".join(map(str, verdict.findings.values()))
    finally:
        await load.stop()


async def replaced(fleet: Fleet, load: Load, name: str, release: Path) -> None:
    """One step of a rolling upgrade, or of the way back."""
    assert await fleet.stop(name) == 0
    fleet.launch(name, "--cluster", fleet.at(name), release=release)
    await fleet.ready(name)
    code, _, err = await fleet.command(name, "health", "--in-sync", "--wait", "60")
    assert code == 0, err
    done = load.confirmed, load.delivered
    await until(lambda: load.confirmed > done[0] + 50 and load.delivered > done[1] + 50, "the load goes on")


async def same_maps(fleet: Fleet, names: str = "abc") -> dict[str, Any]:
    """The status of the first, once all have applied the same; their maps must be equal."""

    async def level() -> dict[str, Any] | None:
        told = {name: await fleet.ask(name, "status") for name in names}
        maps = {name: (int(one["wiring_index"]), str(one["wiring_digest"])) for name, one in told.items()}
        verdict = judge_maps(maps)
        assert verdict.passed, verdict.findings
        assert not [alert for one in told.values() for alert in one["alerts"] if alert["kind"] == "wiring.diverged"]
        return told[names[0]] if len({index for index, _ in maps.values()}) == 1 else None

    status: dict[str, Any] = await until(level, "all have applied the same")
    return status


async def many_commands(fleet: Fleet, name: str) -> None:
    """So many that members compare what came of them."""

    async def one(number: int) -> None:
        client = await fleet.client(name)
        for exchange in (f"x{number}.{count}" for count in range(DECLARED)):
            await client.call(m.ExchangeDeclare(exchange=exchange, type="topic", durable=True), 60)
            await client.call(m.ExchangeDelete(exchange=exchange), 60)
        await client.close()

    await asyncio.gather(*map(one, range(CLIENTS)))


async def supported(fleet: Fleet, name: str) -> dict[str, int]:
    return {member: row["feature_level"] for member, row in (await fleet.members(name)).items()}


def refusal_of_amqp10(fleet: Fleet, name: str) -> str:
    """Why a client of AMQP 1.0 is not let in; empty: it is."""
    peer = Peer(f"amqp://guest:guest@{LOOPBACK}:{fleet.node(name).amqp_port}/", stop_before="open")
    peer.say(Open(container_id="upgraded"))
    peer.wait(Open)
    peer.say(Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1))
    answer = peer.find(lambda known: isinstance(known.body, (Begin, Close))).body
    peer.abandon()
    return str(answer.error.description) if isinstance(answer, Close) else ""


def below(name: str, asked: str) -> str:
    return (
        f"'{name}' runs clusterbroker {VERSION}, which knows level 1: install the release of '{asked}' "
        f"(clusterbroker {VERSION}) or a newer one on it"
    )


async def test_up_and_back_and_up_under_load_then_the_level_is_raised(fleet: Fleet, before: Path) -> None:
    for name in "abc":
        fleet.launch(name, "--peers", fleet.peers(*"abc"), release=before)
    await fleet.ready(*"abc")
    async with at_work(fleet, "abc") as load:
        await replaced(fleet, load, "a", ROOT)
        assert (await same_maps(fleet))["feature_level"] == 1
        assert await supported(fleet, "a") == {"a": LEVEL, "b": 1, "c": 1}
        code, _, err = await fleet.command("a", "cluster", "raise-level")
        wanting = f"{below('b', 'a')}; {below('c', 'a')}"
        assert (code, err) == (1, f"clusterbroker: feature level {LEVEL} needs all members: {wanting}")
        await many_commands(fleet, "a")  # one of the older ones leads the metadata log: a has stopped leading
        await same_maps(fleet)
        await replaced(fleet, load, "b", ROOT)
        await replaced(fleet, load, "c", ROOT)
        assert (await same_maps(fleet))["feature_level"] == 1, "nobody has raised it"
        refused = await asyncio.to_thread(refusal_of_amqp10, fleet, "a")
        assert "feature level 1, AMQP 1.0 needs 2" in refused, "an older member could not read its messages"
        await replaced(fleet, load, "b", before)
        await many_commands(fleet, "b")  # and here one of the newer
        await same_maps(fleet)
        code, _, err = await fleet.command("c", "cluster", "raise-level")
        assert (code, err) == (1, f"clusterbroker: feature level {LEVEL} needs all members: {below('b', 'c')}")
        await replaced(fleet, load, "b", ROOT)
        assert await fleet.stop("c") == 0
        code, _, err = await fleet.command("a", "cluster", "raise-level")
        assert (code, "'c' is not linked with 'a', so its release is not known: start it" in err) == (1, True), err
        fleet.launch("c", "--cluster", fleet.at("c"))
        await fleet.ready("c")
        code, out, err = await fleet.command("b", "cluster", "raise-level")
        assert (code, out) == (0, f"the cluster is at feature level {LEVEL}, it was at 1"), err
        assert (await same_maps(fleet))["feature_level"] == LEVEL
        assert [await asyncio.to_thread(refusal_of_amqp10, fleet, name) for name in "abc"] == [""] * 3
        code, out, err = await fleet.command("a", "cluster", "raise-level", str(LEVEL))
        assert (code, out) == (0, f"the cluster is at feature level {LEVEL} already"), err

        # no way back, neither for a member nor for a newcomer
        assert await fleet.stop("b") == 0
        fleet.launch("b", "--cluster", fleet.at("b"), release=before)
        said = await fleet.refused("b")
        assert "it comes from a newer release; upgrade this node" in said or refusal("b") in said, said
        code, _, err = await fleet.join("d", "a", release=before)
        assert (code, refusal("d") in err) == (1, True), err
        events = [json.loads(line) for line in fleet.node("a").log.read_text().splitlines()]
        assert any(refusal("d") in event["why"] for event in events if event["event"] == "cluster.refused")
        fleet.launch("b", "--cluster", fleet.at("b"))
        await fleet.ready("b")
        code, _, err = await fleet.command("b", "health", "--in-sync", "--wait", "60")
        assert code == 0, err
        assert (await same_maps(fleet))["feature_level"] == LEVEL


async def test_a_cluster_that_an_older_release_founds_too_begins_at_its_level(fleet: Fleet, before: Path) -> None:
    fleet.launch("a", "--peers", fleet.peers(*"abc"))
    fleet.launch("b", "--peers", fleet.peers(*"abc"))
    fleet.launch("c", "--peers", fleet.peers(*"abc"), release=before)
    await fleet.ready(*"abc")
    assert (await same_maps(fleet))["feature_level"] == 1
    assert await supported(fleet, "b") == {"a": LEVEL, "b": LEVEL, "c": 1}
    code, _, err = await fleet.join("d", "a", release=before)
    assert code == 0, err
    fleet.launch("d", "--cluster", fleet.at("d"), release=before)
    await fleet.ready("d")
    await same_maps(fleet, "abcd")


FOLD = """
import sys, msgspec
from clusterbroker.cluster.raft.outcomes import Outcomes
from clusterbroker.cluster.wiring import commands as c, snapshot
from clusterbroker.cluster.wiring.map import ClusterMap

stored, chunks = msgspec.msgpack.decode(sys.stdin.buffer.read())
map_, outcomes = ClusterMap(), Outcomes()
for index, command in enumerate(stored, start=1):
    outcomes.add(index, map_.apply(index, c.decode(command)))
restored = ClusterMap.restored(snapshot.decode(map_.applied, chunks))
told = map_.digest(), restored.digest(), outcomes.last, list(snapshot.encode(map_.snapshot()))
sys.stdout.buffer.write(msgspec.msgpack.encode(told))
"""
"""What a release makes of a log, and of another one's snapshot of the same."""


def test_both_releases_fold_a_log_alike_and_read_each_others_snapshots(before: Path) -> None:
    """What a snapshot of the older one would drop must not be there below its level: members' maps would differ."""
    log, outcomes, stored = Log(), Outcomes(), []
    for _ in range(3000):
        command = log.of(log._kinds)()
        if isinstance(command, c.RegisterNode):
            command = replace(command, level=LEVEL)
        stored.append(c.encode(command))
        index = LogIndex(log.map.applied + 1)
        outcomes.add(index, log.map.apply(index, c.decode(stored[-1])))
    assert log.map.is_cluster
    chunks = list(snapshot.encode(log.map.snapshot()))
    done = subprocess.run(
        [sys.executable, "-c", FOLD], input=msgspec.msgpack.encode((stored, chunks)), capture_output=True, cwd=before,
        env={**os.environ, "PYTHONPATH": str(before)}, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr.decode()
    digest, restored, window, theirs = msgspec.msgpack.decode(done.stdout)
    assert digest == restored == log.map.digest()
    assert tuple(window) == outcomes.last
    assert theirs == chunks
    members = tuple((member.name, member.incarnation) for member in log.map.members())
    raised = c.RaiseLevel(level=LEVEL, members=members)
    again = ClusterMap.restored(snapshot.decode(log.map.applied, theirs))
    for map_ in (log.map, again):
        assert map_.apply(LogIndex(map_.applied + 1), raised).ok
    assert again.digest() == log.map.digest()


def refusal(name: str) -> str:
    """What a member says of the older release of another one; the end of it says what to do."""
    return f"{name} runs clusterbroker {VERSION}, which knows feature level 1, and the cluster is at level {LEVEL}: "
