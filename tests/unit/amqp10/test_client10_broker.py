"""The client at a real node: what a program does with links that are not lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest

from clusterbroker import Broker
from clusterbroker.amqp10.client import (
    Accepted,
    AuthenticationFailed,
    Backoff,
    ClientConnection,
    ClientError,
    ClosedHere,
    ConnectFailed,
    DeliveryInDoubt,
    DeliveryLost,
    LinkDetached,
    Message,
    NotRecoverable,
    Properties,
    Released,
    connect,
)
from clusterbroker.amqp10.client.filters import stream_offset
from clusterbroker.amqp10.client.management import Management, Refused
from clusterbroker.amqp10.client.transactions import Coordinator, TransactionFailed
from tests.support.cutting import Cutter

QUICK = Backoff(first=0.001, longest=0.02)


@pytest.fixture
async def connection(clusterbroker: Broker) -> AsyncIterator[ClientConnection]:
    async with await connect(clusterbroker.url, container_id="c") as opened:
        async with await Management.open(opened) as management:
            await management.declare_queue("q")
        yield opened


async def bodies(connection: ClientConnection, address: str = "/queues/q") -> list[bytes]:
    """All that is ready, taken."""
    found = []
    receiver = await connection.receiver(address, credit=0)
    await receiver.drain(1000)
    while (delivery := await receiver.receive(0)) is not None:
        found.append(delivery.body)
        await delivery.accept()
    await receiver.close()
    return found


async def test_a_message_is_sent_and_received(connection: ClientConnection) -> None:
    sender = await connection.sender("/queues/q")
    sent = Message(
        body=bytes(range(256)) * 3000,
        properties=Properties(message_id="1", subject="s", content_type="text/plain"),
        annotations={"x-a": 1},
        application={"k": "v", "n": 5},
    )
    assert await sender.send(sent) == Accepted()
    receiver = await connection.receiver("/queues/q")
    delivery = await receiver.receive(5)
    assert delivery is not None
    got = delivery.message
    assert (got.body, got.properties, got.application) == (sent.body, sent.properties, sent.application)
    assert got.annotations["x-a"] == 1
    assert got.durable
    await delivery.accept()
    await delivery.accept()  # once more: it is settled, and nothing happens
    assert await bodies(connection) == []


async def test_values_and_sequences_come_as_they_went(connection: ClientConnection) -> None:
    sender = await connection.sender("/queues/q")
    receiver = await connection.receiver("/queues/q")
    for message in (Message(value={"k": [1, None]}), Message(value=None), Message(sequence=[1, "two"])):
        await sender.send(message)
        delivery = await receiver.receive(5)
        assert delivery is not None
        assert (delivery.message.value, delivery.message.sequence) == (message.value, message.sequence)


async def test_many_at_once_keep_their_order(connection: ClientConnection) -> None:
    sender = await connection.sender("/queues/q", second=True)
    futures = [sender.submit(b"\0\x53\x75\xa0\x04%04d" % number) for number in range(3000)]
    assert set(map(type, await asyncio.gather(*futures))) == {Accepted}
    assert not sender.sending.unsettled
    receiver = await connection.receiver("/queues/q", credit=100, second=True)
    found = []
    async for delivery in receiver:
        found.append(delivery.body)
        answer = delivery.dispose(Accepted())
        if len(found) == 3000:
            await asyncio.wait_for(answer, 5)
            break
    assert found == [b"%04d" % number for number in range(3000)]
    assert not receiver.receiving.unsettled


async def test_outcomes(connection: ClientConnection) -> None:
    async with await Management.open(connection) as management:
        await management.declare_queue("dead")
        dlx = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        await management.declare_queue("with-dlx", dlx)
    sender = await connection.sender("/queues/with-dlx")
    receiver = await connection.receiver("/queues/with-dlx", credit=1, second=True)
    await sender.send(Message(body=b"m"))
    counts = []
    for _ in range(3):
        delivery = await receiver.receive(5)
        assert delivery is not None
        counts.append(delivery.message.header.delivery_count)
        if len(counts) == 1:
            await delivery.release()
        elif len(counts) == 2:
            await delivery.modify(failed=True)
        else:
            await delivery.reject("amqp:not-allowed", "no")
    assert counts == [0, 0, 1]
    dead = await connection.receiver("/queues/dead")
    assert (found := await dead.receive(5)) is not None
    assert found.body == b"m"


async def test_a_message_that_no_queue_wants_is_released(connection: ClientConnection) -> None:
    sender = await connection.sender("/exchanges/amq.direct/none")
    assert await sender.send(Message()) == Released()


async def test_the_anonymous_target_goes_by_each_message(connection: ClientConnection) -> None:
    sender = await connection.sender(None)
    await sender.send(Message(body=b"m", properties=Properties(to="/queues/q")))
    assert await bodies(connection) == [b"m"]


async def test_sent_settled_is_answered_by_nobody(connection: ClientConnection) -> None:
    sender = await connection.sender("/queues/q", mode="settled")
    for number in range(3):
        assert await sender.send(Message(body=b"%d" % number), settled=True) == Accepted()
    await (await connection.sender("/queues/q")).send(Message(body=b"last"))
    assert await bodies(connection) == [b"0", b"1", b"2", b"last"]


async def test_transactions_count_as_a_whole(connection: ClientConnection) -> None:
    sender = await connection.sender("/queues/q")
    async with await Coordinator.open(connection) as coordinator:
        async with await coordinator.declare() as transaction:
            await sender.send(Message(body=b"a"), transaction=transaction)
            await sender.send(Message(body=b"b"), transaction=transaction)
            assert await bodies(connection) == []
        with pytest.raises(ZeroDivisionError):
            async with await coordinator.declare() as transaction:
                await sender.send(Message(body=b"never"), transaction=transaction)
                raise ZeroDivisionError
        receiver = await connection.receiver("/queues/q", credit=1)
        delivery = await receiver.receive(5)
        assert delivery is not None
        async with await coordinator.declare() as transaction:
            await delivery.accept(transaction)
            await sender.send(Message(body=b"c"), transaction=transaction)
        await receiver.close()
        with pytest.raises(TransactionFailed, match="unknown-id"):
            await transaction.commit()
    assert await bodies(connection) == [b"b", b"c"]


async def test_a_stream_is_read_from_where_it_is_wanted(connection: ClientConnection) -> None:
    async with await Management.open(connection) as management:
        await management.declare_queue("s", {"x-queue-type": "stream"})
    sender = await connection.sender("/queues/s")
    for number in range(5):
        await sender.send(Message(body=b"%d" % number))
    receiver = await connection.receiver("/queues/s", filter=stream_offset(2), credit=3)
    found = []
    for _ in range(3):
        delivery = await receiver.receive(5)
        assert delivery is not None
        found.append((delivery.message.annotations["x-stream-offset"], delivery.body))
        await delivery.accept()
    assert found == [(2, b"2"), (3, b"3"), (4, b"4")]


async def test_errors_say_whose_fault_they_are(clusterbroker: Broker, connection: ClientConnection) -> None:
    with pytest.raises(LinkDetached, match="amqp:not-found") as refused:
        await connection.receiver("/queues/none")
    assert (refused.value.fault, refused.value.may_retry) == ("client", False)
    with pytest.raises(AuthenticationFailed):
        await connect(clusterbroker.url.replace("guest:guest", "guest:wrong"))
    with pytest.raises(AuthenticationFailed, match=r"offers .*PLAIN.*not ANONYMOUS"):
        await connect(clusterbroker.url, sasl="ANONYMOUS")
    with pytest.raises(ConnectFailed, match=r"none of .* took the connection") as failed:
        await connect("amqp://127.0.0.1:1", timeout=0.3)
    assert (failed.value.fault, failed.value.may_retry) == ("network", True)
    with pytest.raises(ConnectFailed, match="TLS") as failed:
        await connect(clusterbroker.url.replace("amqp:", "amqps:"), tls=ssl.create_default_context())
    assert not failed.value.may_retry
    async with await Management.open(connection) as management:
        with pytest.raises(Refused, match="404"):
            await management._done("GET", "/queues/none")
    with pytest.raises(ClientError, match="no address"):
        await connect("http://localhost")


async def test_a_name_is_used_once(connection: ClientConnection) -> None:
    await connection.sender("/queues/q", name="n")
    with pytest.raises(ClientError, match="a name is used once"):
        await connection.sender("/queues/q", name="n")
    await connection.receiver("/queues/q", name="n")


async def test_a_link_that_the_peer_does_not_keep_is_refused_with_words(connection: ClientConnection) -> None:
    """What a stream's receiver has read is its client's to know: the answering attach does not offer to keep it."""
    async with await Management.open(connection) as management:
        await management.declare_queue("stream", arguments={"x-queue-type": "stream"})
    assert connection.offers_link_recovery
    with pytest.raises(NotRecoverable, match="clusterbroker:link-recovery for 'r'"):
        await connection.receiver("/queues/stream", name="r", recoverable=True)
    sender = await connection.sender("/queues/stream", recoverable=True)
    assert await sender.send(Message(body=b"m")) == Accepted()
    receiver = await connection.receiver("/queues/stream", name="r", filter=stream_offset("first"))
    assert (await anext(receiver)).body == b"m"


async def test_what_is_closed_here_ends_its_loops(connection: ClientConnection) -> None:
    receiver = await connection.receiver("/queues/q")
    sender = await connection.sender("/queues/q")
    loop = asyncio.create_task(_all(receiver))
    await sender.send(Message(body=b"m"))
    await receiver.close()
    assert len(await asyncio.wait_for(loop, 5)) == 1
    await connection.close()
    with pytest.raises(ClosedHere):
        await sender.send(Message())


async def _all(receiver: object) -> list[object]:
    return [delivery async for delivery in receiver]  # type: ignore[attr-defined]


async def test_a_plain_link_comes_back_and_says_what_is_in_doubt(clusterbroker: Broker) -> None:
    async with Cutter(clusterbroker.port) as cutter, await connect(cutter.url, backoff=QUICK) as connection:
        async with await Management.open(connection) as management:
            await management.declare_queue("q")
        sender = await connection.sender("/queues/q")
        await sender.send(Message(body=b"first"))
        receiver = await connection.receiver("/queues/q", second=True)
        delivery = await receiver.receive(5)
        assert delivery is not None
        future = sender.submit(Message(body=b"second"))
        cutter.cut()
        with pytest.raises(DeliveryInDoubt) as doubt:
            await future
        assert doubt.value.may_retry
        with pytest.raises(DeliveryLost):
            await delivery.accept()
        again = await receiver.receive(5)
        assert again is not None
        assert again.body in (b"first", b"second")
        await again.accept()
        assert await sender.send(Message(body=b"third")) == Accepted()
        assert connection.reconnects == 1


async def test_a_link_is_left_though_the_connection_is_lost_meanwhile(clusterbroker: Broker) -> None:
    async with Cutter(clusterbroker.port) as cutter, await connect(cutter.url, backoff=QUICK) as connection:
        async with await Management.open(connection) as management:
            await management.declare_queue("q")
        sender = await connection.sender("/queues/q", name="n")
        leaving = asyncio.create_task(sender.close())
        await asyncio.sleep(0)
        cutter.cut()
        await asyncio.wait_for(leaving, 5)
        assert connection.reconnects == 1
        with pytest.raises(ClosedHere):
            await sender.send(Message())
        again = await connection.sender("/queues/q", name="n")
        assert await again.send(Message()) == Accepted()
