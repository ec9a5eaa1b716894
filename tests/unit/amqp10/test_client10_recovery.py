"""Links that go on after their connection was lost, at a real node, over a relay that loses connections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pika
import pytest

from clusterbroker import Broker
from clusterbroker.amqp10.client import Backoff, ClientConnection, Message, NotRecoverable, connect
from tests.support.cutting import Cutter

QUICK = Backoff(first=0.001, longest=0.02)
MESSAGES = 400
CUTS = 12
HANGS_S = 60


@pytest.fixture
async def cutter(clusterbroker: Broker) -> AsyncIterator[Cutter]:
    wire = pika.BlockingConnection(pika.URLParameters(clusterbroker.url))
    wire.channel().queue_declare("q", durable=True)
    wire.close()
    async with Cutter(clusterbroker.port) as made:
        yield made


async def open_client(cutter: Cutter, name: str) -> ClientConnection:
    return await connect(cutter.url, container_id=name, backoff=QUICK)


async def recoverable_links(connection: ClientConnection) -> None:
    """Skips where the node does not keep links."""
    try:
        probe = await connection.sender("/queues/q", name="probe", recoverable="node")
    except NotRecoverable as error:
        pytest.skip(str(error))
    await probe.close()


def losses(cutter: Cutter, chance: random.Random) -> None:
    """The connection is lost now, and the next ones somewhere: in a handshake, a map, a message, or an answer."""
    cutter.limits.extend((chance.randrange(300, 9000), chance.randrange(300, 9000)) for _ in range(CUTS))
    cutter.cut()


@pytest.mark.parametrize("seed", range(8))
async def test_a_sender_loses_and_doubles_nothing(cutter: Cutter, seed: int) -> None:
    chance = random.Random(seed)
    async with await open_client(cutter, "c") as connection:
        await recoverable_links(connection)
        sender = await connection.sender("/queues/q", name="out", recoverable="node")
        losses(cutter, chance)
        futures = []
        for number in range(MESSAGES):
            body = b"%06d" % number + bytes(chance.choice((0, 10, 3000)))
            futures.append(sender.submit(Message(body=body)))
            if chance.random() < 0.05:
                await asyncio.sleep(chance.choice((0, 0.001)))
        outcomes = await asyncio.wait_for(asyncio.gather(*futures), HANGS_S)
        assert {type(outcome).__name__ for outcome in outcomes} == {"Accepted"}
        assert cutter.cuts == CUTS + 1
        receiver = await connection.receiver("/queues/q", credit=1000)
        found = []
        # the last one may be long in coming; one that comes twice would be behind it
        while (delivery := await receiver.receive(HANGS_S if len(found) < MESSAGES else 0.2)) is not None:
            found.append(int(delivery.body[:6]))
            await delivery.accept()
        assert found == list(range(MESSAGES))


@pytest.mark.parametrize("seed", range(8))
async def test_a_receiver_sees_each_delivery_once(cutter: Cutter, seed: int) -> None:
    chance = random.Random(seed)
    async with await open_client(cutter, "c") as connection:
        await recoverable_links(connection)
        sender = await connection.sender("/queues/q")
        await asyncio.gather(
            *(sender.submit(Message(body=b"%06d" % number + bytes(chance.choice((0, 3000)))))
              for number in range(MESSAGES))
        )  # fmt: skip
        receiver = await connection.receiver("/queues/q", name="in", credit=50, recoverable="node")
        losses(cutter, chance)
        found, answers = [], []
        while len(found) < MESSAGES:
            delivery = await receiver.receive(HANGS_S)
            assert delivery is not None, f"{len(found)} of {MESSAGES}"
            found.append(int(delivery.body[:6]))
            answers.append(asyncio.ensure_future(delivery.accept()))
        await asyncio.wait_for(asyncio.gather(*answers), HANGS_S)
        assert cutter.cuts == CUTS + 1
        assert found == list(range(MESSAGES))
        await receiver.close()
        other = await connection.receiver("/queues/q")
        assert await other.receive(0.1) is None, "nothing is left, and nothing came back"
