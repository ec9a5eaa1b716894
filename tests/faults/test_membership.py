"""What an operator does with members, on real processes: look, move, drain, join, leave, replace, restart all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from broker.amqp import methods
from broker.trial.client import ClientLost
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
