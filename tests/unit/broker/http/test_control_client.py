"""The management process's line to a real node: the replica has what the node has, and says when that is past."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from clusterbroker.broker.http import control_client
from clusterbroker.broker.http.control_client import ControlClient
from clusterbroker.broker.http.operations import OrderError
from clusterbroker.broker.management.pool_definitions import PoolDraft
from clusterbroker.broker.management.replica import Replica
from clusterbroker.broker.server import counting, upkeep
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.broker.server.options import ServerOptions
from clusterbroker.broker.server.shell import NodeShell
from clusterbroker.broker.stats import rows
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.options import MIB, JournalOptions


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def until(reached: Callable[[], Any], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < end_s, "it did not happen in time"
        await asyncio.sleep(0.005)


@dataclass
class Beside:
    """A node, and what stands beside it; `shell` may be stopped and started again."""

    directory: Path
    shell: NodeShell
    replica: Replica
    client: ControlClient

    async def start_node(self) -> None:
        options = ServerOptions(
            data_dir=self.directory,
            amqp=(Address("127.0.0.1", 0),),
            journal=JournalOptions(segment_bytes=MIB, reserve_bytes=0, map_bytes=1 << 32),
            alarms=AlarmOptions(memory_fraction=0, disk_free_bytes=0),
            stop_grace_s=0.1,
            management=True,
        )
        self.shell = NodeShell(options, NodeLog(lambda *_: None, "debug"))
        await self.shell.start()

    def same(self) -> bool:
        return self.replica.map.digest() == self.shell.node.map.digest()


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    replica = Replica("node")
    made = Beside(tmp_path, None, replica, ControlClient(tmp_path, replica, now_ms, sample_s=0.05))  # type: ignore[arg-type]
    await made.start_node()
    running = asyncio.create_task(made.client.run())
    yield made
    running.cancel()
    await made.shell.stop()


async def test_the_replica_has_what_the_node_has(beside: Beside) -> None:
    assert beside.replica.stale_s(now_ms()) is not None, "before the first word nothing is certain"
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    assert beside.same()
    assert beside.replica.stale_s(now_ms()) is None
    queue = (await beside.shell.propose(c.DeclareQueue(vhost="/", name="q", durable=True))).result
    await until(beside.same)
    await beside.client.touched()
    await until(lambda: beside.replica.queue_track(queue) is not None)
    track = beside.replica.queue_track(queue)
    assert track is not None
    assert track.row.ready == 0
    row = next(beside.replica.node_rows())
    assert row.name == "node"


async def test_attempts_to_sign_in_at_the_process_are_its_nodes_to_tell(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)

    def told() -> list[rows.LoginSourceRow]:
        found = counting.rows(beside.shell, 0, 0)
        return [row for row in found if isinstance(row, rows.LoginSourceRow)]

    beside.replica.attempts.count("10.0.0.9", "bob", False)
    beside.replica.attempts.count("10.0.0.9", "bob", True)
    await until(lambda: told() == [rows.LoginSourceRow("http", "10.0.0.9", "bob", 1, 1)])
    node = next(counting.rows(beside.shell, 0, 0))
    assert isinstance(node, rows.NodeRow)
    assert rows.LoginTotals("http", 1, 1) in node.logins
    beside.replica.attempts.reset()
    await until(lambda: told() == [])
    beside.replica.attempts.count("10.0.0.9", "", False)
    await beside.shell.stop()
    await beside.start_node()
    await until(lambda: [row.user for row in told()] == [""])


async def test_who_ordered_finds_it_at_once(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    for number in range(20):
        assert await beside.client.order(c.AddVhost(name=f"v{number}")) is None
        assert beside.replica.map.vhost(f"v{number}") is not None
    refused = await beside.client.order(c.Bind(vhost="/", source="x", destination="y"))
    assert refused is not None
    assert refused.kind == "not_found"


@pytest.mark.long
async def test_all_of_many_commands_or_none(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    queues: list[c.Defining] = [c.DeclareQueue(vhost="/", name=f"q{n}", durable=True) for n in range(1250)]
    bad = c.Bind(vhost="/", source="nowhere", destination="q1")
    refused = await beside.client.import_all([*queues, bad])
    assert refused is not None
    assert refused.kind == "not_found"
    assert refused.text == (
        "binding from exchange 'nowhere' to queue 'q1' in vhost '/': no exchange 'nowhere' in vhost '/'"
    )
    assert not list(beside.shell.node.map.queues())
    assert beside.shell.node.map.importing is None
    assert await beside.client.import_all(queues) is None
    assert len(list(beside.replica.map.queues())) == 1250
    assert beside.replica.map.importing is None
    assert len(beside.shell.node.queues) == 1250
    assert await beside.client.import_all(queues) is None, "all is there already"


async def test_a_small_import_is_one_command(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    before = beside.shell.node.map.applied
    assert await beside.client.import_all([c.AddVhost(name="v"), c.DeclareQueue(vhost="v", name="q")]) is None
    assert beside.shell.node.map.applied == before + 1
    assert beside.replica.map.queue("v", "q") is not None


async def test_an_import_that_meets_others_begins_anew(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    other = c.ImportDefinitions(import_id="other", number=0, commands=(c.AddVhost(name="v"),), last=False)
    assert await beside.client.order(other) is None
    waits = asyncio.create_task(beside.client.import_all([c.AddVhost(name="w")]))
    await until(lambda: beside.shell.node.map.importing is not None)
    assert not waits.done()
    assert await beside.client.order(c.AddVhost(name="v")) is None, "which makes the other one void"
    assert await waits is None
    assert beside.replica.map.vhost("w") is not None


async def test_pools_wait_for_an_import_of_their_names(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    queues = (c.DeclareQueue(vhost="/", name="core-req-42"),)
    decided = c.ImportDefinitions(import_id="other", number=0, commands=queues, last=True, apply=0)
    pool = PoolDraft(c.DeclarePool(vhost="/", name="core"))
    told, refused = await asyncio.gather(beside.client.order(decided), beside.client.import_all([], [pool]))
    assert told is None
    assert refused is not None
    assert "queue 'core-req-42' in vhost '/' is there, and the pool would need its name" in refused.text
    assert beside.replica.map.pools.find("/", "core") is None
    assert await beside.client.import_all([], [PoolDraft(c.DeclarePool(vhost="/", name="other"))]) is None
    assert beside.replica.map.pools.find("/", "other") is not None


async def test_an_import_that_nobody_goes_on_with_is_dropped(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "ABANDONED_S", 0.2)
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    other = c.ImportDefinitions(import_id="other", number=0, commands=(c.AddVhost(name="v"),), last=False)
    assert await beside.client.order(other) is None
    await until(lambda: beside.shell.node.map.importing is None)
    assert beside.shell.node.map.vhost("v") is None


async def test_operations(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    assert await beside.client.carry_out("alarm.set", {"name": "memory", "raised": True}) == {"alarms": ["memory"]}
    refused = await beside.client.carry_out("connection.close", {"id": "a.1.1"})
    assert isinstance(refused, OrderError)
    assert "there is no connection" in refused.text
    refused = await beside.client.close_connection("a.1.1", "enough")
    assert refused is not None
    assert "there is no connection" in refused.text
    reader, writer = await asyncio.open_connection("127.0.0.1", beside.shell.listeners[0].addresses[0].port)
    writer.write(b"AMQP\x00\x00\x09\x01")
    await reader.readexactly(7)
    (connection_id,) = beside.shell.node.clients
    assert await beside.client.close_connection(connection_id, "enough") is None
    await asyncio.wait_for(reader.readuntil(b"enough"), 60)
    writer.close()


async def test_a_node_that_goes_and_comes_again(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    assert await beside.client.order(c.AddVhost(name="before")) is None
    await beside.shell.stop()
    await until(lambda: not beside.client.connected)
    assert beside.replica.stale_s(now_ms()) is not None
    assert beside.replica.map.vhost("before") is not None, "what was known is still known"
    refused = await beside.client.order(c.AddVhost(name="meanwhile"))
    assert refused is not None
    assert refused.kind == "unavailable"
    await beside.client.touched()

    await beside.start_node()
    await until(lambda: beside.replica.stale_s(now_ms()) is None)
    assert await beside.client.order(c.AddVhost(name="after")) is None
    await until(beside.same)


async def test_a_replica_that_cannot_follow_begins_anew(beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)

    def fails(*_: Any) -> None:
        monkeypatch.undo()
        raise AssertionError("a mistake of ours")

    monkeypatch.setattr(beside.replica, "applied", fails)
    with capture_logs() as said:
        await beside.shell.propose(c.AddVhost(name="v"))
        await until(beside.same)
    assert [line["event"] for line in said] == ["the mirror begins anew"]
    await until(lambda: beside.replica.stale_s(now_ms()) is None)


async def test_rows_of_a_newer_release_are_passed_over_and_no_others(beside: Beside) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    newer = m.encode(m.Rows(1, bytes((rows.VERSION + 1,)) + b"\x90", False))
    assert beside.shell.control is not None
    (line,) = beside.shell.control.lines
    with capture_logs() as said:
        for _ in range(3):
            line._transport.write(newer)
        await until(lambda: said)
        await beside.client.touched()
        assert beside.same()
    assert [(entry["event"], entry["why"]) for entry in said] == [
        ("rows.passed_over", f"rows of version {rows.VERSION + 1}, not {rows.VERSION}")
    ]
    assert next(beside.replica.node_rows()).name == "node"


async def test_the_past_is_let_go_when_nobody_was_interested_for_a_minute_more(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    member = beside.replica.members["node"]
    await beside.client.touched()
    await until(lambda: member.moved)
    monkeypatch.setattr(control_client, "MINUTE_MS", 1)
    monkeypatch.setattr(control_client, "INTEREST_S", 0.1)
    await until(lambda: not member.moved)
    await beside.client.touched()
    await until(lambda: member.moved)


async def test_rows_are_not_asked_for_while_nobody_is_interested(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "INTEREST_S", 0.1)
    await asyncio.wait_for(beside.client.ready.wait(), 60)
    row = next(beside.replica.node_rows())
    await asyncio.sleep(0.4)  # nothing can be waited for where nothing shall happen
    quiet = next(beside.replica.node_rows())
    await asyncio.sleep(0.4)
    assert next(beside.replica.node_rows()) == quiet
    await beside.client.touched()
    assert next(beside.replica.node_rows()).uptime_ms > row.uptime_ms + 500, "who comes again sees nothing old"
