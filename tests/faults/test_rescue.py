"""The majority is lost for good: one survivor becomes a cluster of one, others join: real processes (operator a2)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.fleet import Fleet, until

BODIES = [b"%d" % number for number in range(200)]


async def test_two_of_three_disks_are_gone_for_good(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.found("a", "b", "c")
        await fleet.ready("a", "b", "c")
        await fleet.publish("a", "orders", BODIES)
        data = fleet.node("c").data_dir
        code, out, err = await fleet.command("c", "rescue", "--yes")
        assert (code, "is in use by another process" in err) == (1, True), err

        # journal tools know a member's names (operator a6), beside the running node as well
        code, out, err = await fleet.journal("check", str(data))
        assert (code, "whole" in out) == (0, True), (out, err)
        code, out, err = await fleet.journal("ls", str(data), "--json")
        (row,) = json.loads(out)
        assert (row["name"], row["ready"]) == ("orders", len(BODIES)), err

        await fleet.kill("a", "b", "c")
        fleet.wipe("a")
        fleet.wipe("b")
        before = sorted(path for path in data.rglob("*") if not path.name.endswith("lock"))
        code, out, err = await fleet.command("c", "rescue")
        assert (code, err) == (1, "clusterbroker: nothing was changed; to do it, say --yes")
        assert "Taken out for good: a, b." in out
        assert "durable queues: 1. Here of 1: all that this node had heard of" in out
        assert sorted(path for path in data.rglob("*") if not path.name.endswith("lock")) == before
        code, out, err = await fleet.command("c", "rescue", "--yes")
        assert (code, err) == (0, ""), out
        assert len(list(data.glob("raft.before-rescue-*"))) == 1
        code, out, err = await fleet.command("c", "rescue", "--yes")
        assert (code, err) == (0, ""), "a crash in between does no harm: it may be said again"

        fleet.launch("c", "--cluster", fleet.at("c"))
        await fleet.ready("c")
        await fleet.publish("c", "new", BODIES[:10])
        for name in "ab":
            code, out, err = await fleet.join(name, "c")
            assert code == 0, err
            fleet.launch(name, "--cluster", fleet.at(name))
        await fleet.ready("a", "b")

        async def in_sync() -> bool:
            rows = (await fleet.ask("a", "queues"))["queues"]
            return all(row["in_sync"] == ["a", "b", "c"] for row in rows)

        await until(in_sync, "the new members have copies")
        await fleet.kill("c")
        assert await fleet.consume("a", "orders", len(BODIES)) == BODIES
        assert await fleet.consume("b", "new", 10) == BODIES[:10]
    finally:
        await fleet.kill_all()
