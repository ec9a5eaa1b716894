"""Many who look into queues at once: what is left of the loop for everybody else."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest
from server_support import until

from clusterbroker.broker.node.inspecting import Inspection
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.server import inspecting
from clusterbroker.broker.server.control import protocol as m
from clusterbroker.broker.server.control.calls import Calls
from clusterbroker.broker.server.control.service import LOOKS_MAX, Service
from clusterbroker.broker.server.inspecting import AT_ONCE_MAX, BUSY, Inspector, Unanswered
from clusterbroker.broker.stats.inspection import Request, encode
from clusterbroker.broker.wire.amqp091 import methods
from clusterbroker.cluster.wiring import commands as c


async def filled(start: Any, connect: Any, count: int) -> tuple[Any, Request]:
    shell = await start()
    peer = await (await connect(shell)).open()
    peer.send(1, methods.QueueDeclare(queue="q"))
    await peer.receive()
    peer.publish("q", b"1", count)
    queue = shell.node.map.queue("/", "q")
    await until(lambda: shell.node.queues[queue.queue_id].ring.ready == count)
    return shell, Request(what="browse", queue_id=queue.queue_id, filter="payload=2")


async def test_they_take_turns_and_the_loop_has_as_long_for_others(
    start: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, request = await filled(start, connect, 500)
    spent: list[tuple[float, float]] = []
    step = Inspection.step

    def slow(self: Inspection, now_ms: int) -> bool:
        began_s = time.monotonic()
        more = step(self, now_ms)
        time.sleep(0.003)  # as one that has long payloads to look at
        spent.append((began_s, time.monotonic()))
        return more

    monkeypatch.setattr(Inspection, "step", slow)
    # on a machine with other work, sixteen would not come to their end within the time of one
    monkeypatch.setattr(inspecting, "LOOKED_MS_MAX", 600_000)
    inspector = Inspector(shell, None)
    results = await asyncio.gather(*(inspector.ask(request) for _ in range(AT_ONCE_MAX)))
    assert {(result.looked_at, result.next) for result in results} == {(500, 0)}
    assert len(spent) > AT_ONCE_MAX
    for (began_s, ended_s), (next_s, _) in itertools.pairwise(spent):
        assert next_s - ended_s > (ended_s - began_s) / 2


async def test_who_waited_for_long_gets_on_all_the_same(start: Any, connect: Any) -> None:
    shell, request = await filled(start, connect, 2000)
    inspection = Inspection(shell.node, shell.node.queues[request.queue_id], request, end_ms=0)
    while not inspection.over:
        inspection.step(shell.clock.now_ms())
    assert 0 < inspection.result.looked_at < 2000
    assert inspection.result.next == inspection.result.looked_at + 1


async def test_they_leave_room_for_other_operations(start: Any, connect: Any) -> None:
    shell, request = await filled(start, connect, 1)
    service = Service(shell, Calls(shell), None)
    told: list[Any] = []
    for number in range(LOOKS_MAX * 5):
        service.call(m.Call(number, "messages", {"request": encode(request)}), told.append)
    service.call(m.Call(1000, "members", {}), told.append)
    await until(lambda: any(answer.number == 1000 for answer in told))
    (members,) = (answer for answer in told if answer.number == 1000)
    assert "too many" not in members.error
    service.close()


async def test_reasons_of_a_pool_take_turns_as_well(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = await start()
    pool = (await shell.propose(c.DeclarePool(vhost="/", name="core", template="core"))).result
    await until(lambda: pool.orphans in shell.node.queues)
    spent: list[tuple[float, float]] = []

    def slow(*_: Any) -> dict[str, Any]:
        began_s = time.monotonic()
        time.sleep(0.02)  # as of ten thousand keys
        spent.append((began_s, time.monotonic()))
        return {}

    monkeypatch.setattr(OrphanQueue, "explained", slow)
    monkeypatch.setattr(inspecting, "PATIENCE_S", 0.0)
    inspector, request = Inspector(shell, None), Request(what="explain", queue_id=pool.orphans)
    results = await asyncio.gather(*(inspector.ask(request) for _ in range(AT_ONCE_MAX + 1)), return_exceptions=True)
    assert [str(one) for one in results if isinstance(one, Unanswered)] == [BUSY]
    assert len(spent) == AT_ONCE_MAX
    for (began_s, ended_s), (next_s, _) in itertools.pairwise(spent):
        assert next_s - ended_s > (ended_s - began_s) / 2
