"""aio-pika: robust connections, confirms, RPC, iterators, priorities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aio_pika
import pytest
from aio_pika.abc import AbstractRobustConnection
from aio_pika.exceptions import DeliveryError
from aio_pika.patterns import RPC, Master

from tests.faults.node import NodeProcess, until

Name = Callable[[str], str]
PERSISTENT = aio_pika.DeliveryMode.PERSISTENT


@pytest.fixture
async def connection(node: NodeProcess) -> AsyncIterator[AbstractRobustConnection]:
    async with await aio_pika.connect_robust(node.url) as connection:
        yield connection


async def test_confirms_queue_iterator(connection: AbstractRobustConnection, name: Name) -> None:
    channel = await connection.channel(publisher_confirms=True)
    await channel.set_qos(prefetch_count=10)
    queue = await channel.declare_queue(name("iterated"), durable=True)
    await asyncio.gather(
        *(
            channel.default_exchange.publish(aio_pika.Message(b"%d" % n, delivery_mode=PERSISTENT), queue.name)
            for n in range(100)
        )
    )
    got = []
    async with queue.iterator(timeout=60) as messages:
        async for message in messages:
            async with message.process():
                got.append(int(message.body))
            if len(got) == 100:
                break
    assert got == list(range(100))


async def test_unroutable(connection: AbstractRobustConnection, name: Name) -> None:
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    with pytest.raises(DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b""), name("nowhere"), mandatory=True)


async def test_priority(connection: AbstractRobustConnection, name: Name) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(name("priority"), arguments={"x-max-priority": 10})
    for priority in (1, 5, 3, 10, 5):
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % priority, priority=priority), queue.name)
    got = [int((await queue.get(no_ack=True)).body) for _ in range(5)]
    assert got == [10, 5, 5, 3, 1]


async def test_rpc_by_direct_reply_to(connection: AbstractRobustConnection, name: Name) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(name("square"))

    async def answer(message: aio_pika.abc.AbstractIncomingMessage) -> None:
        async with message.process():
            assert message.reply_to is not None
            reply = aio_pika.Message(b"%d" % int(message.body) ** 2, correlation_id=message.correlation_id)
            await channel.default_exchange.publish(reply, message.reply_to)

    await queue.consume(answer)
    async with connection.channel() as client:
        replies = await client.get_queue("amq.rabbitmq.reply-to", ensure=False)
        got: asyncio.Queue[tuple[str | None, bytes]] = asyncio.Queue()

        async def on_reply(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            got.put_nowait((message.correlation_id, message.body))

        tag = await replies.consume(on_reply, no_ack=True)
        for n in range(10):
            question = aio_pika.Message(b"%d" % n, correlation_id=str(n), reply_to="amq.rabbitmq.reply-to")
            await client.default_exchange.publish(question, queue.name)
        answers = {await asyncio.wait_for(got.get(), 5) for _ in range(10)}
        assert answers == {(str(n), b"%d" % n**2) for n in range(10)}
        await replies.cancel(tag)


async def test_patterns_rpc_and_master(connection: AbstractRobustConnection, name: Name) -> None:
    channel = await connection.channel()
    rpc = await RPC.create(channel)

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    method = name("multiply")
    await rpc.register(method, multiply, auto_delete=True)
    assert await rpc.call(method, kwargs={"x": 6, "y": 7}) == 42
    with pytest.raises(aio_pika.exceptions.MessageProcessError):
        await rpc.call(name("missing"), kwargs={}, expiration=2)
    await rpc.close()

    done: asyncio.Queue[int] = asyncio.Queue()
    master = Master(await connection.channel())

    async def work(*, task_id: int) -> None:
        await done.put(task_id)

    task = name("task")
    worker = await master.create_worker(task, work, auto_delete=True)
    for n in range(5):
        await master.create_task(task, {"task_id": n})
    assert [await asyncio.wait_for(done.get(), 5) for _ in range(5)] == list(range(5))
    await worker.close()


async def test_transaction(connection: AbstractRobustConnection, name: Name) -> None:
    channel = await connection.channel(publisher_confirms=False)
    queue = await channel.declare_queue(name("tx"))
    async with channel.transaction():
        await channel.default_exchange.publish(aio_pika.Message(b"in"), queue.name)
    with pytest.raises(RuntimeError):
        async with channel.transaction():
            await channel.default_exchange.publish(aio_pika.Message(b"out"), queue.name)
            raise RuntimeError
    message = await queue.get()
    assert message.body == b"in"
    await message.ack()
    assert await queue.get(fail=False) is None


async def test_robust_across_a_restart(own_node: NodeProcess) -> None:
    """A kill and a start: declarations, consumers and publishers come back by themselves."""
    async with await aio_pika.connect_robust(own_node.url, reconnect_interval=0.2) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=5)
        exchange = await channel.declare_exchange("events", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue("robust", durable=True)
        await queue.bind(exchange, "a.#")
        got: dict[bytes, list[bool]] = {}

        async def on_message(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            got.setdefault(message.body, []).append(bool(message.redelivered))
            await asyncio.sleep(0.01)
            await message.ack()

        await queue.consume(on_message)
        confirmed = set()

        async def publish(number: int) -> None:
            while True:
                body = b"%d" % number
                try:
                    await exchange.publish(aio_pika.Message(body, delivery_mode=PERSISTENT), "a.b")
                except (aio_pika.exceptions.AMQPError, ConnectionError, RuntimeError):
                    await asyncio.sleep(0.1)  # a user's own retry interval
                    continue
                confirmed.add(body)
                return

        async def restart() -> None:
            await until(lambda: len(got) >= 20, "20 deliveries")
            own_node.kill()
            await asyncio.to_thread(own_node.start)

        await asyncio.gather(restart(), *(publish(number) for number in range(200)))
        await until(lambda: got.keys() >= confirmed, "all that was confirmed")
        assert len(confirmed) == 200
