"""Links that go on after their connection was lost, at a real node, over a relay that loses connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import pika
import pytest

from clusterbroker import Broker
from clusterbroker.amqp10.client import (
    Accepted,
    Backoff,
    ClientConnection,
    ClientError,
    FileStore,
    Message,
    Receiver,
    Sender,
    StoreError,
    connect,
)
from clusterbroker.amqp10.client.store import LinkId
from tests.support.cutting import Cutter
from tests.unit.amqp10.test_client10_broker import bodies

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


def losses(cutter: Cutter, chance: random.Random) -> None:
    """The connection is lost now, and the next ones somewhere: in a handshake, a map, a message, or an answer."""
    cutter.limits.extend((chance.randrange(300, 9000), chance.randrange(300, 9000)) for _ in range(CUTS))
    cutter.cut()


@pytest.mark.parametrize("seed", range(8))
async def test_a_sender_loses_and_doubles_nothing(cutter: Cutter, seed: int) -> None:
    chance = random.Random(seed)
    async with await open_client(cutter, "c") as connection:
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


async def test_what_the_store_was_given_is_written_though_the_connection_goes(cutter: Cutter, tmp_path: Path) -> None:
    """The work waits for a thread when the connection is lost: it is done all the same, before any that comes later."""
    loop, gate, path = asyncio.get_running_loop(), threading.Event(), tmp_path / "unsettled"
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    store = FileStore(path)
    async with await connect(cutter.url, container_id="c", backoff=QUICK, store=store) as connection:
        sender = await connection.sender("/queues/q", name="out", recoverable="node", settle="manual")
        await sender.send(Message(body=b"first"), tag=b"1")
        sender.settle(b"1")
        while store._pending:  # noqa: ASYNC110 - until the work is taken
            await asyncio.sleep(0.001)
        await loop.run_in_executor(None, int)  # and done
        busy = loop.run_in_executor(None, gate.wait)
        second = sender.submit(Message(body=b"second"), tag=b"2")
        before = connection.reconnects
        while not executor._work_queue.qsize():  # noqa: ASYNC110 - a queue has no event
            await asyncio.sleep(0.001)
        cutter.cut()
        while connection.reconnects == before:  # noqa: ASYNC110 - a number has no event
            await asyncio.sleep(0.001)
        third = sender.submit(Message(body=b"third"), tag=b"3")
        gate.set()
        await busy
        assert await asyncio.wait_for(asyncio.gather(second, third), 20) == [Accepted(), Accepted()]
    kept = FileStore(path).load(LinkId("c", "out", False))
    assert kept is not None
    assert [(tag, b"second" in one.payload, b"third" in one.payload) for tag, one in kept.items()] == [
        (b"2", True, False),
        (b"3", False, True),
    ]


HELD = 2000
SMALL = 512
"""max-frame-size: some thirty deliveries of an unsettled map."""


async def test_nothing_is_sent_that_the_file_could_not_take(cutter: Cutter, tmp_path: Path) -> None:
    """The next life of the program knows nothing of it, and would send it a second time."""
    store = FileStore(tmp_path / "s")
    connection = await connect(cutter.url, container_id="c", backoff=QUICK, store=store)
    sender = await connection.sender("/queues/q", name="out", recoverable="node")
    reads_only = os.open(store.path, os.O_RDONLY)
    os.dup2(reads_only, store._file)
    os.close(reads_only)
    first = sender.submit(Message(body=b"1"))
    while connection._saving is None:  # noqa: ASYNC110 - its next step, and no other
        await asyncio.sleep(0)
    second = sender.submit(Message(body=b"2"))  # while the file is written
    for future in (first, second):
        with pytest.raises(StoreError):
            await future
    with contextlib.suppress(StoreError):
        await connection.close()
    async with await open_client(cutter, "other") as other:
        assert await bodies(other) == []


@pytest.fixture
async def durable(tmp_path: Path) -> AsyncIterator[Cutter]:
    """At a node with a disk: its queues' logs keep links."""
    with Broker(tmp_path / "node") as broker:
        wire = pika.BlockingConnection(pika.URLParameters(broker.url))
        wire.channel().queue_declare("q", durable=True)
        wire.channel().queue_bind("q", "amq.fanout", "")
        wire.close()
        async with Cutter(broker.port) as made:
            yield made


async def held(connection: ClientConnection, kind: bool | Literal["node"]) -> Receiver:
    """A link that holds HELD deliveries without an outcome."""
    sender = await connection.sender("/queues/q")
    await asyncio.gather(*(sender.submit(Message(body=b"%d" % number)) for number in range(HELD)))
    receiver = await connection.receiver("/queues/q", name="in", credit=HELD, recoverable=kind)
    while len(receiver.link.unsettled) < HELD:  # noqa: ASYNC110 - a dict has no event
        await asyncio.sleep(0.01)
    return receiver


@pytest.mark.long
@pytest.mark.parametrize("kind", ["node", True])
async def test_thousands_that_a_client_never_saw_come_through_small_frames(
    durable: Cutter, tmp_path: Path, kind: bool | Literal["node"]
) -> None:
    """The program was killed: its map is empty, and complete; what the link holds are new deliveries to it."""

    async def life() -> ClientConnection:
        store = FileStore(tmp_path / "unsettled")
        return await connect(durable.url, container_id="c", frame_max=SMALL, store=store)

    first = await life()
    await held(first, kind)
    await first.close()
    async with await life() as connection:
        receiver = await connection.receiver("/queues/q", name="in", credit=100, recoverable=kind)
        found, answers = [], []
        while len(found) < HELD:
            delivery = await receiver.receive(5)
            assert delivery is not None, f"{len(found)} of {HELD}"
            found.append(int(delivery.body))
            answers.append(asyncio.ensure_future(delivery.accept()))
        await asyncio.wait_for(asyncio.gather(*answers), 20)
        assert found == list(range(HELD))
        assert connection.error is None


@pytest.mark.long
@pytest.mark.parametrize("kind", ["node", True])
async def test_thousands_of_outcomes_come_through_small_frames(durable: Cutter, kind: bool | Literal["node"]) -> None:
    """The client's map fits its frame, and the answer does not: some thirty are decided by each attach."""
    async with await connect(durable.url, container_id="c", frame_max=SMALL, backoff=QUICK) as connection:
        receiver = await held(connection, kind)
        deliveries = [await anext(receiver) for _ in range(HELD)]
        durable.cut()
        await asyncio.wait_for(asyncio.gather(*(delivery.accept() for delivery in deliveries)), 60)
        sender = await connection.sender("/queues/q")
        await sender.send(Message(body=b"new"))
        delivery = await receiver.receive(10)
        assert delivery is not None
        assert delivery.body == b"new"
        assert connection.reconnects == 1


@pytest.mark.long
async def test_a_program_that_collects_before_it_accepts_gets_new_ones(durable: Cutter) -> None:
    """What it has in hand has no room in a map, and no outcome that could make room: the maps leave it out."""
    async with await connect(durable.url, container_id="c", frame_max=SMALL, backoff=QUICK) as connection:
        receiver = await held(connection, True)
        deliveries = [await anext(receiver) for _ in range(HELD)]
        durable.cut()
        early = [asyncio.ensure_future(each.accept()) for each in deliveries[::7]]
        sender = await connection.sender("/queues/q")
        await sender.send(Message(body=b"new"))
        delivery = await receiver.receive(HANGS_S)
        assert delivery is not None
        assert delivery.body == b"new"
        rest = [each.accept() for place, each in enumerate(deliveries) if place % 7]
        await asyncio.wait_for(asyncio.gather(delivery.accept(), *early, *rest), HANGS_S)
        assert not receiver.link.unsettled
        await receiver.close()
        other = await connection.receiver("/queues/q")
        assert await other.receive(0.1) is None, "each was accepted, and came once"


DOUBTED = 4000
"""With tags of 32 bytes more than an attach has room for."""


@pytest.mark.long
async def test_more_in_doubt_than_an_attach_has_room_for_is_behind_an_exchange_once(
    durable: Cutter, tmp_path: Path
) -> None:
    """The program was killed, and its file has no outcome: whether a queue behind the exchange has a delivery, only
    that delivery tells, in whichever of the maps it is named."""
    address, link_id, store = "/exchanges/amq.fanout", LinkId("c", "out", False), FileStore(tmp_path / "unsettled")
    payloads = {b"%032d" % number: Message(body=b"%d" % number).encoded() for number in range(DOUBTED)}
    async with await connect(durable.url, container_id="c") as connection:
        sender = await connection.sender(address, name="out", recoverable=True, settle="manual")
        await asyncio.gather(*(sender.submit(payload, tag) for tag, payload in payloads.items()))
    store.open(link_id)
    for tag, payload in payloads.items():
        store.put(link_id, tag, None, payload)
    attaches = []
    async with await connect(durable.url, container_id="c", store=store) as connection:
        sender = await connection.sender(address, name="out", recoverable=True)
        attaches.append(sender.attach)
        outcomes = await asyncio.wait_for(asyncio.gather(*sender.recovered.values()), HANGS_S)
        assert outcomes == [Accepted()] * DOUBTED
        assert sender.attach is not attaches[0], "one map has no room for all of them"
        receiver = await connection.receiver("/queues/q", credit=1000)
        found = []
        while (delivery := await receiver.receive(HANGS_S if len(found) < DOUBTED else 0.2)) is not None:
            found.append(int(delivery.body))
            await delivery.accept()
        assert found == list(range(DOUBTED))


async def free(sender: Sender, tag: bytes) -> None:
    """The node has forgotten the delivery that had this tag."""
    while tag in sender.sending.spent:  # noqa: ASYNC110 - a set has no event
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("address", ["/queues/q", "/exchanges/amq.fanout"])
async def test_a_tag_is_used_again_when_the_node_has_forgotten_it(durable: Cutter, address: str) -> None:
    """Used at once, and lost on the way, it would be answered for the delivery before."""
    async with await connect(durable.url, container_id="c", backoff=QUICK) as connection:
        sender = await connection.sender(address, name="out", recoverable=True)
        assert await sender.send(Message(body=b"1"), tag=b"t") == Accepted()
        with pytest.raises(ClientError, match="use another"):
            sender.submit(Message(body=b"2"), tag=b"t")
        await asyncio.wait_for(free(sender, b"t"), HANGS_S)
        future = sender.submit(Message(body=b"3"), tag=b"t")
        durable.cut()
        assert await asyncio.wait_for(future, HANGS_S) == Accepted()
        receiver = await connection.receiver("/queues/q")
        assert [(await anext(receiver)).body for _ in range(2)] == [b"1", b"3"]


async def test_a_tag_that_was_settled_on_a_lost_connection_stays_used(durable: Cutter) -> None:
    async with await connect(durable.url, container_id="c", backoff=QUICK) as connection:
        sender = await connection.sender("/queues/q", name="out", recoverable=True, settle="manual")
        assert await sender.send(Message(body=b"1"), tag=b"t") == Accepted()
        sender.settle(b"t")
        durable.cut()
        assert await sender.send(Message(body=b"2"), tag=b"u") == Accepted()
        sender.settle(b"u")
        await asyncio.wait_for(free(sender, b"u"), HANGS_S)
        with pytest.raises(ClientError, match="use another"):
            sender.submit(Message(body=b"3"), tag=b"t")
        await sender.close()
        again = await connection.sender("/queues/q", name="out", recoverable=True)
        assert await again.send(Message(body=b"3"), tag=b"t") == Accepted(), "of another life of the link"
