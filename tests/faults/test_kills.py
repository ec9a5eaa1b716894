"""kill -9 in the middle of a confirmed load; `kill_rounds` does the accounting."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from pika import spec

from tests.faults.client import Client, Delivery
from tests.faults.kill_rounds import Ledger, Load, declare, drain, run
from tests.faults.node import NodeProcess, until

MakeNode = Callable[..., NodeProcess]


async def test_rounds(make_node: MakeNode) -> None:
    """A few rounds, one of them ended by SIGTERM; `python -m tests.faults.kill_rounds` runs many."""
    totals = await run(make_node(), rounds=5, seed=20)
    assert not totals.problems, "\n".join([str(totals), *totals.problems[:20]])
    assert totals.kills >= 4
    assert totals.counts["confirmed"] > 1000
    assert totals.counts["redelivered"]
    assert totals.counts["transactions"]
    assert totals.counts["dead"]


async def test_killed_at_every_start(make_node: MakeNode) -> None:
    """Recovery itself is killed again and again: what was confirmed outlives all of it."""
    node = make_node().start()
    await declare(node.port)
    ledger = Ledger()
    load = Load(node.port, 0, ledger, seed=7)
    await load.start()
    await until(lambda: len(ledger.confirmed["backlog"]) >= 3000, "3000 confirms")
    node.kill()
    await load.finish()
    for milliseconds in range(100, 500, 50):
        node.launch()
        await asyncio.sleep(milliseconds / 1000)
        node.kill()
    node.start()
    await drain(node.port, ledger)
    assert not ledger.verdict()


async def test_counts_and_flags_survive(node: NodeProcess) -> None:
    """What a consumer was seen to fail at is counted after the crash, in its place, and flagged; what nobody was
    handed is not counted (it may be flagged: redelivered means "may have been seen")."""
    client = await Client.open(node.port)
    channel = await client.channel(confirm=True)
    await channel.declare("counted", **{"x-queue-type": "quorum", "x-delivery-limit": 10})
    confirmed = asyncio.Event()
    channel.on_confirm = lambda ack, tag, multiple: confirmed.set() if tag == channel.published else None

    async def publish(*bodies: bytes) -> None:
        confirmed.clear()
        for body in bodies:
            channel.publish("", "counted", body)
        await asyncio.wait_for(confirmed.wait(), 60)

    await publish(b"1", b"2", b"3")
    for _ in range(3):
        got = await channel.call(spec.Basic.Get(queue="counted"))
        assert got.body == b"1"
        channel.reject(got.tag, requeue=True)
    await publish(b"4")  # its group holds what happened before
    node.kill()
    await client.close()
    node.start()
    client = await Client.open(node.port)
    channel = await client.channel()
    got = [await channel.call(spec.Basic.Get(queue="counted")) for _ in range(4)]
    assert [delivery.body for delivery in got] == [b"1", b"2", b"3", b"4"]
    assert got[0].redelivered
    assert got[0].properties.headers == {"x-delivery-count": 3}
    assert [delivery.properties.headers for delivery in got[1:]] == [None, None, None]
    await client.close()


async def test_unacked_at_the_kill_come_back_flagged(node: NodeProcess) -> None:
    client = await Client.open(node.port)
    channel = await client.channel(confirm=True)
    await channel.declare("held")
    for number in range(100):
        channel.publish("", "held", b"%d" % number)
    seen: list[Delivery] = []
    channel.on_deliver = seen.append
    await channel.consume("held", prefetch=30)
    await until(lambda: len(seen) >= 30, "30 deliveries")
    channel.ack(10, multiple=True)
    await until(lambda: len(seen) >= 40, "40 deliveries")
    node.kill()
    await client.close()
    node.start()
    client = await Client.open(node.port)
    channel = await client.channel()
    again: list[Delivery] = []
    channel.on_deliver = again.append
    await channel.consume("held", prefetch=0)
    await until(lambda: again and again[-1].body == b"99", "the last message")
    numbers = [int(delivery.body) for delivery in again]
    assert numbers == list(range(numbers[0], 100)), "in order, none missing, none twice"
    assert numbers[0] <= 10, "acknowledged ones may come back, others must"
    assert all(delivery.redelivered for delivery in again if int(delivery.body) < 40)
    await client.close()


async def test_term_during_load_is_clean(make_node: MakeNode, tmp_path: Path) -> None:
    """SIGTERM: exit 0, clients are told (320), and nothing that was acknowledged comes back."""
    node = make_node().start()
    await declare(node.port)
    ledger = Ledger()
    load = Load(node.port, 0, ledger, seed=11)
    await load.start()
    await until(lambda: len(ledger.confirmed["backlog"]) >= 2000, "2000 confirms")
    node.signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.wait) == 0
    await load.finish()
    node.start()
    await drain(node.port, ledger)
    assert not ledger.verdict()
