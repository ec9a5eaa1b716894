"""The clocks of a cluster's machines jump: one line each tells of it, and nothing else happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.trial.clocks import Clocks, build
from tests.faults.fleet import Fleet, until

BODIES = [b"message %d" % number for number in range(50)]
HOUR_S = 3600.0


@pytest.fixture
def library(tmp_path: Path) -> Path:
    built = build(tmp_path)
    if isinstance(built, str):
        pytest.skip(built)
    return built


async def found(fleet: Fleet, library: Path, walls_s: dict[str, float]) -> dict[str, Clocks]:
    """Three nodes whose wall clocks are so far ahead."""
    clocks = {}
    for name, wall_s in walls_s.items():
        clocks[name] = Clocks(fleet.directory, library, name)
        clocks[name].set(wall_s)
        fleet.launch(name, "--peers", fleet.peers(*walls_s), **clocks[name].environment)
    await fleet.ready(*walls_s)
    return clocks


def told(fleet: Fleet, name: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in fleet.node(name).log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


async def test_wall_clocks_jump(fleet: Fleet, library: Path) -> None:
    clocks = await found(fleet, library, dict.fromkeys("abc", 0.0))
    await fleet.publish("a", "q", BODIES)
    await fleet.publish("a", "brief", BODIES, arguments={"x-message-ttl": 600_000})
    for name, wall_s in (("a", HOUR_S), ("b", -HOUR_S), ("c", 24 * HOUR_S)):
        clocks[name].set(wall_s)
        lines = await until(lambda name=name: told(fleet, name, "clock.jumped"), f"{name} tells of its clock")
        assert [round(line["by_s"]) for line in lines] == [wall_s]
        await fleet.publish(name, "q", BODIES)
    assert await fleet.consume("b", "q", 200) == BODIES * 4
    for name in "abc":
        assert (await fleet.queue(name, "brief"))["messages"] == len(BODIES), "nothing has expired"
        assert [len(told(fleet, name, event)) for event in ("clock.jumped", "node.restarts")] == [1, 0]
    rows = await fleet.members("a")
    assert [(row["alive"], row["trouble"]) for row in rows.values()] == [(True, None)] * 3


async def test_machines_sleep(fleet: Fleet, library: Path) -> None:
    """CLOCK_BOOTTIME leaps by more than any lease, at the leader first: who slept blames nobody, and who slept for too
    long begins again."""
    clocks = await found(fleet, library, dict.fromkeys("abc", 0.0))
    await fleet.publish("a", "q", BODIES)
    leader = next(name for name, row in (await fleet.members("a")).items() if row["leader"])
    for name in sorted("abc", key=lambda name: name != leader):
        clocks[name].set(5.0, 5.0)
        await until(lambda name=name: told(fleet, name, "clock.jumped"), f"{name} tells of its clock")
        await until(lambda name=name: leased(fleet, name), f"{name} has its lease again")
        await fleet.publish(name, "q", BODIES)
    assert [told(fleet, name, "node.restarts") for name in "abc"] == [[], [], []]
    clocks[leader].set(65.0, 65.0)
    await until(lambda: len(told(fleet, leader, "node.ready")) == 2, "it begins again")
    (line,) = told(fleet, leader, "node.restarts")
    assert line["why"] == "this node was without a majority for too long"
    assert await fleet.consume(leader, "q", 200) == BODIES * 4


async def leased(fleet: Fleet, name: str) -> bool:
    try:
        return bool((await fleet.ask(name, "status")).get("lease") == "leased")
    except AssertionError:
        return False


async def test_messages_live_by_the_clock_of_the_queues_owner(fleet: Fleet, library: Path) -> None:
    """What comes through a node whose clock is behind is not older for it, through one ahead not younger. The queues
    are empty when they move: what lies in them goes by the clock of the next owner."""
    await found(fleet, library, {"a": 0.0, "b": -HOUR_S, "c": HOUR_S})
    for name, where in (("b", "behind"), ("c", "ahead of")):
        (line,) = await until(lambda name=name: differs(fleet, name), f"{name} tells of its clock")
        assert line["text"].startswith(f"the clock of {name} is ")
        assert f" {where} the other members'" in line["text"]
    assert await until(lambda: ahead(fleet, "a"), "a shows how far the others' clocks are") == [None, -60, 60]
    for name in "abc":
        await fleet.publish(name, f"long {name}", [], arguments={"x-message-ttl": 60_000})
        await fleet.publish(name, f"short {name}", [], arguments={"x-message-ttl": 500})
    for owner in "abc":
        for queue in ("long", "short"):
            await fleet.ask("a", "queues.move", vhost="/", queue=f"{queue} {owner}", to=owner)
        for name in "abc":
            await fleet.publish(name, f"long {owner}", BODIES, arguments={"x-message-ttl": 60_000})
            await fleet.publish(name, f"short {owner}", BODIES, arguments={"x-message-ttl": 500})
    await asyncio.gather(*(until(lambda o=owner: expired(fleet, f"short {o}"), "all expired") for owner in "abc"))
    for owner in "abc":
        assert (await fleet.queue("a", f"long {owner}"))["messages"] == 3 * len(BODIES)


def differs(fleet: Fleet, name: str) -> list[dict[str, Any]]:
    return [line for line in told(fleet, name, "alert.raised") if line["alert"] == "clock.differs"]


async def ahead(fleet: Fleet, name: str) -> list[int | None]:
    """By how many minutes the members' clocks are ahead of this one's; empty: not all have been heard."""
    rows = await fleet.members(name)
    found = [rows[each]["clock_ahead_ms"] for each in "abc"]
    return [one and round(one / 60_000) for one in found] if found.count(None) == 1 else []


async def expired(fleet: Fleet, queue: str) -> bool:
    return bool((await fleet.queue("a", queue))["messages"] == 0)
