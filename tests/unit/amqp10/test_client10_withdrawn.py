"""What a recoverable receiver held for too long while it was away: the client hears that it is lost, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from clusterbroker import Broker
from clusterbroker.amqp10.client import Backoff, DeliveryLost, Message, connect
from tests.support.cutting import Cutter

QUICK = Backoff(first=0.01, longest=0.05)
AWAY = 100_000
"""Connections that are lost at once."""


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Broker]:
    """A node with a disk: its queues have logs."""
    with Broker(tmp_path / "node") as broker:
        yield broker


async def test_a_delivery_that_was_withdrawn_is_lost(lasting: Broker) -> None:
    wire = pika.BlockingConnection(pika.URLParameters(lasting.url))
    wire.channel().queue_declare("q", durable=True, arguments={"x-consumer-timeout": 200})
    wire.close()
    async with (
        Cutter(lasting.port) as cutter,
        await connect(lasting.url) as other,
        await connect(cutter.url, container_id="c", backoff=QUICK) as connection,
    ):
        sender = await other.sender("/queues/q")
        for body in (b"1", b"2", b"failed"):
            await sender.send(Message(body=body))
        receiver = await connection.receiver("/queues/q", name="in", credit=5, recoverable=True, second=True)
        first, second, failed = await receiver.receive(5), await receiver.receive(5), await receiver.receive(5)
        assert first is not None
        assert second is not None
        assert failed is not None
        cutter.limits.extend([(0, 0)] * AWAY)
        cutter.cut()
        answer = asyncio.ensure_future(first.accept())
        agreed = asyncio.ensure_future(failed.modify())
        elsewhere = await other.receiver("/queues/q")
        for _ in range(3):
            again = await elsewhere.receive(10)
            assert again is not None
            assert again.message.header.delivery_count == 1
            await again.accept()
        await elsewhere.close()
        assert not answer.done(), "its client knows nothing of it yet"
        cutter.limits.clear()
        with pytest.raises(DeliveryLost):
            await asyncio.wait_for(answer, 10)
        with pytest.raises(DeliveryLost):
            await second.accept()
        await asyncio.wait_for(agreed, 10)  # that is what has become of it
        await sender.send(Message(body=b"3"))
        third = await receiver.receive(10)
        assert third is not None
        assert third.body == b"3"
        await asyncio.wait_for(third.accept(), 10)
