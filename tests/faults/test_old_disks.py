"""A machine of a cluster returns with the disk that it had some time ago: real processes (operator a1).

Its queue had been confirmed to 300 messages, its disk holds 100, and it owns fewest queues, so it would be elected."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
from pathlib import Path

import pytest

from clusterbroker.broker.wire.amqp091 import methods
from tests.faults.fleet import Fleet, until

NEAR = {"x-queue-leader-locator": "client-local"}
OLD, ALL = 100, 300


async def test_a_disk_that_went_back_destroys_no_good_copy(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    try:
        fleet.found("a", "b", "c")
        await fleet.ready("a", "b", "c")
        for name in "ab":
            client = await fleet.client(name)
            await client.call(methods.QueueDeclare(queue=f"of-{name}", durable=True, arguments=NEAR))
            await client.close()
        await fleet.publish("c", "z", [b"%d" % number for number in range(OLD)], arguments=NEAR)
        stale, snapshot = fleet.node("c"), tmp_path / "snapshot"
        stale.send(signal.SIGSTOP)
        shutil.copytree(stale.data_dir, snapshot, ignore=shutil.ignore_patterns("*.sock"))
        stale.send(signal.SIGCONT)
        await fleet.publish("c", "z", [b"%d" % number for number in range(OLD, ALL)], arguments=NEAR)
        assert (await fleet.queue("a", "z"))["owner"] == "c"
        await fleet.kill("a", "b", "c")
        fleet.wipe("c")
        snapshot.rename(stale.data_dir)
        fleet.found("c", "a", "b")
        await fleet.ready("a", "b", "c")

        async def rebuilt() -> bool:
            row = await fleet.queue("a", "z")
            return row["owner"] in ("a", "b") and len(row["in_sync"]) == 3

        await until(rebuilt, "the copy at c is rebuilt from the others")
        alerts = (await fleet.ask("c", "status"))["alerts"]
        assert [(alert["kind"], alert["subject"]) for alert in alerts] == [("replica.rolled_back", "c")]
        assert "replica.rolled_back" in stale.log.read_text()
        assert await fleet.consume("b", "z", ALL) == [b"%d" % number for number in range(ALL)]
    finally:
        await fleet.kill_all()


@pytest.mark.parametrize("made", ["stopped", "running"])
async def test_a_copy_of_a_members_directory_that_is_put_back_is_rebuilt_at_once(tmp_path: Path, made: str) -> None:
    """Its parts agree, and its start has the number of one that was (operator a4). It waited 43 s for a leader to take
    note of it, for what it proposed had been applied long ago. A copy of the start that was the last one voted on."""
    fleet = Fleet(tmp_path)
    try:
        fleet.found("a", "b", "c")
        await fleet.ready("a", "b", "c")
        await fleet.publish("a", "z", [b"%d" % number for number in range(OLD)])
        node = fleet.node("c")
        if made == "stopped":
            assert await fleet.stop("c") == 0
            shutil.copytree(node.data_dir, tmp_path / "copy")
            fleet.launch("c", "--cluster", fleet.at("c"))
            await fleet.ready("c")
        else:
            node.send(signal.SIGSTOP)
            shutil.copytree(node.data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("*.sock"))
            node.send(signal.SIGCONT)
            await fleet.publish("b", "later", [b"0"])
        await fleet.publish("a", "z", [b"%d" % number for number in range(OLD, ALL)])
        assert await fleet.stop("c") == 0
        fleet.wipe("c")
        (tmp_path / "copy").rename(node.data_dir)
        fleet.launch("c", "--cluster", fleet.at("c"))
        await asyncio.wait_for(fleet.ready("c"), 60)
        assert "is a copy of an earlier time: the cluster knows of a later life of this node" in node.log.read_text()
        assert re.search(r"later life of this node: [ab] heard of term \d+ and entry \d+ of it", node.log.read_text())
        assert list(node.data_dir.glob("raft.damaged-*")), "its old log is set aside"
        assert not (node.data_dir / "raft.lost").exists()

        async def whole() -> bool:
            row, members = await fleet.queue("a", "z"), await fleet.members("a")
            return len(row["in_sync"]) == 3 and members["c"]["voter"]

        await until(whole, "c has its copy and its vote again")
        await fleet.kill("a")
        assert await fleet.consume("c", "z", ALL) == [b"%d" % number for number in range(ALL)]
    finally:
        await fleet.kill_all()
