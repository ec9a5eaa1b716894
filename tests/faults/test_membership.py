"""What an operator does with members, on real processes: look, move, drain, join, leave, replace, restart all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.fleet import Fleet, until

pytestmark = pytest.mark.timeout(240)
BODIES = [b"message %d" % number for number in range(50)]


@pytest_asyncio.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    await fleet.kill_all()


async def found(fleet: Fleet, *names: str) -> None:
    fleet.found(*names)
    await fleet.ready(*(name.partition("/")[0] for name in names))


async def test_members_queues_and_moves(fleet: Fleet) -> None:
    await found(fleet, "a", "b", "c")
    for number in range(6):
        await fleet.publish("a", f"q{number}", BODIES[:3])
    code, out, err = await fleet.command("b", "members", "--json")
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)}
    assert sorted(rows) == ["a", "b", "c"]
    assert all(row["alive"] and row["voter"] for row in rows.values())
    assert sum(row["leader"] for row in rows.values()) == 1
    assert sum(row["owns"] for row in rows.values()) == 6
    queue = await fleet.queue("c", "q0")
    assert queue["messages"] == 3
    assert queue["in_sync"] == ["a", "b", "c"]
    for to in ("a", "b", "c"):  # asked at a member that may be neither
        code, out, err = await fleet.command("b", "queues", "move", "q0", to)
        assert (code, out.startswith(f"'q0' is owned by {to}, epoch ")) == (0, True), err
        assert (await fleet.queue("a", "q0"))["owner"] == to
    code, _, err = await fleet.command("b", "queues", "move", "q0", "d")
    assert (code, err) == (1, "clusterbroker: there is no member 'd': choose of a, b, c")
    for number in range(6):
        await fleet.ask("a", "queues.move", vhost="/", queue=f"q{number}", to="a")
    code, out, err = await fleet.command("c", "queues", "rebalance")
    assert (code, out) == (0, "moved 4 queues, 0 left"), err
    rows = await fleet.members("a")
    assert [rows[name]["owns"] for name in "abc"] == [2, 2, 2]
    maps = {(s["wiring_index"], s["wiring_digest"]) for s in [await fleet.ask(name, "status") for name in "abc"]}
    assert len(maps) == 1
    assert await fleet.consume("c", "q0", 3) == BODIES[:3]


async def test_a_newcomer_joins_gets_copies_votes_and_leaves(fleet: Fleet) -> None:
    await found(fleet, "a", "b")
    await fleet.publish("a", "q", BODIES)
    code, out, err = await fleet.join("c", "b")
    assert (code, err) == (0, ""), out
    assert out == f"c may join a, b: start it with --name c --cluster {fleet.at('c')}"
    fleet.launch("c", "--cluster", fleet.at("c"))
    await fleet.ready("c")
    await until(lambda: all_of(fleet, "a", "abc", "voter"), "c votes")
    await until(lambda: in_sync(fleet, "a", "q", "abc"), "c has a copy of q in sync")
    code, _, err = await fleet.join("c", "b")
    assert (code, "is in use by another process" in err) == (1, True), err
    # any member starts again without --peers: it knows the others
    for name in "abc":
        assert await fleet.stop(name) == 0
        code, _, err = await fleet.join(name, "b")
        assert (code, "is a member's already" in err) == (1, True), err
        fleet.launch(name, "--cluster", fleet.at(name))
        await fleet.ready(name)
    await fleet.ask("a", "queues.move", vhost="/", queue="q", to="c")
    leader = next(name for name, row in (await fleet.members("c")).items() if row["leader"])
    code, out, err = await fleet.command(leader, "leave")  # a leader cannot take its own vote away
    assert (code, out) == (0, "this node is a member no more"), err
    node = fleet.node(leader)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, 20) == 0
    left = [name for name in "abc" if name != leader]
    await until(lambda: all_of(fleet, left[0], left, "voter"), "two vote")
    fleet.launch(leader, "--cluster", fleet.at(leader))
    assert "to become one, clusterbroker join with an empty data directory" in await fleet.refused(leader)
    leader = next(name for name, row in (await fleet.members(left[0])).items() if row["leader"])
    code, out, err = await fleet.command(leader, "leave")  # the one who stays needs no other vote then
    assert (code, out) == (0, "this node is a member no more"), err
    last = next(name for name in left if name != leader)
    assert await fleet.consume(last, "q", len(BODIES)) == BODIES
    code, _, err = await fleet.command(last, "leave")
    assert (code, err) == (
        1,
        "clusterbroker: there is no other member that is alive and could take over: start or join one first",
    )


async def all_of(fleet: Fleet, at: str, names: Iterable[str], what: str) -> bool:
    rows = await fleet.members(at)
    return sorted(rows) == sorted(names) and all(row[what] for row in rows.values())


async def in_sync(fleet: Fleet, at: str, queue: str, names: Iterable[str]) -> bool:
    return (await fleet.queue(at, queue))["in_sync"] == sorted(names)
