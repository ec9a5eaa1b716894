"""Messages that all fall due at once, and an owner whose disk is damaged while they wait.

Faults 16 and 17 of the worker pools' page. The index of due times is in memory, made from the journal: so what can be
damaged is the journal and its index.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests import budget
from tests.faults.node import NodeProcess, wait_for
from tests.faults.test_cluster_damage import asides, cluster_of_three, connect, move

pytestmark = pytest.mark.processes
BURST = 1_000_000 if budget.ALL else 10_000
LEAD_S = 200.0 if budget.ALL else 4.0
"""Publishing takes less, as a rule."""
MEMORY_BYTES = 64 << 20
"""More than before at most, beside 200 bytes for each message."""
WAITING = 200


def wired(channel: BlockingChannel, **arguments: Any) -> None:
    kind = {"x-delayed-type": "direct"}
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=kind)
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.queue_bind("q", "later", "k")


def test_a_burst_of_due_messages_arrives_once_and_in_order(make_node: Callable[..., NodeProcess]) -> None:
    """1,000,000 in the tier `all`; nobody consumes them before the last is there."""
    node = make_node().start()
    with pika.BlockingConnection(pika.URLParameters(node.url)) as connection:
        channel = connection.channel()
        wired(channel)
        for attempt in range(4):  # what is over when it is published goes at once, before what is about to leave
            due_ms = int((time.time() + LEAD_S * 3**attempt) * 1000)
            for number in range(BURST):
                headers = {"x-deliver-at": due_ms + number * 1000 // BURST}
                about = pika.BasicProperties(headers=headers, delivery_mode=2)
                channel.basic_publish("later", "k", b"%d" % number, about)
            waiting = channel.queue_declare("q", passive=True).method.message_count
            if time.time() * 1000 < due_ms:
                break
            wait_for(
                lambda: channel.queue_declare("q", passive=True).method.message_count == BURST, "all are there", 600
            )
            channel.queue_purge("q")
        assert waiting == 0, "none is early"
        before_bytes = node.rss_bytes

        def count() -> int:
            return int(channel.queue_declare("q", passive=True).method.message_count)

        wait_for(lambda: count() == BURST, "all are there", 600)
        assert node.rss_bytes - before_bytes <= MEMORY_BYTES + 200 * BURST
        channel.basic_qos(prefetch_count=1000)
        found: list[int] = []
        for method, _, body in channel.consume("q", inactivity_timeout=30):
            assert method is not None, f"all come: {len(found)}"
            found.append(int(body))
            if len(found) % 500 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if len(found) == BURST:
                break
        assert found == list(range(BURST))
        channel.cancel()
        assert count() == 0


@pytest.mark.matrix
async def test_what_waits_survives_that_its_owners_index_is_damaged(tmp_path: Path) -> None:
    """Its copies serve, the damaged one is made anew, and delivers each message once when it owns the queue again."""
    async with cluster_of_three(tmp_path) as cluster:
        with connect(cluster, "a") as connection:
            channel = connection.channel()
            wired(channel)
            channel.confirm_delivery()
            due_ms = int((time.time() + 10) * 1000)
            for number in range(WAITING):
                about = pika.BasicProperties(headers={"x-deliver-at": due_ms + number}, delivery_mode=2)
                channel.basic_publish("later", "k", b"%d" % number, about)
        hurt = await cluster.owner("amq.delay.later")
        assert hurt is not None
        await cluster.stop(hurt)
        index = cluster.data_dir(hurt) / "journal" / "index" / "data.mdb"
        index.write_bytes(b"\xa5" * 8192 + index.read_bytes()[8192:])
        await cluster.start(hurt)
        assert len(asides(cluster, hurt)) == 1
        await move(cluster, "amq.delay.later", hurt)
        found = await asyncio.to_thread(_taken, cluster, hurt)
        assert sorted(found) == list(range(WAITING))
        assert time.time() * 1000 >= due_ms


def _taken(cluster: Any, name: str) -> list[int]:
    """All that comes until nothing more does."""
    found: list[int] = []
    with connect(cluster, name) as connection:
        channel = connection.channel()
        for method, _, body in channel.consume("q", auto_ack=True, inactivity_timeout=40):
            if method is None:
                break
            found.append(int(body))
            if len(found) == WAITING and not channel.queue_declare("q", passive=True).method.message_count:
                break
    return found
