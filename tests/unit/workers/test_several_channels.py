"""Keys of a worker that serves several, whose channels the broker closes; against a real broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from clusterbroker.broker.embedded import Broker
from clusterbroker_workers import Worker
from clusterbroker_workers.connecting import GONE
from clusterbroker_workers.several import Several
from clusterbroker_workers.spare import Assigned, Keys, Line

from .protocol import HandMade

pytestmark = pytest.mark.processes


class Quiet(Line):
    """Nothing changes."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def keys(self, known: Keys) -> Keys:
        self.asked.set()
        await asyncio.Event().wait()
        return known


async def _call(work: Callable[[str], Awaitable[None] | None], key: str) -> None:
    work(key)


def test_a_key_whose_channel_is_closed_is_consumed_again() -> None:
    """As after a time-out of a request, or an answer that is refused."""

    class Sample(Worker):
        loads = 0

        def load(self, key: str) -> None:
            self.loads += 1

    async def served(url: str, queues: dict[str, str]) -> None:
        worker, answered = Sample(), asyncio.Queue[bytes]()

        async def process(channel: AbstractChannel, message: AbstractIncomingMessage) -> None:
            if not message.redelivered and message.body == b"closes":
                with contextlib.suppress(*GONE):
                    exchange = await channel.get_exchange("there is none", ensure=False)
                    await exchange.publish(aio_pika.Message(b""), "")
                return
            await message.ack()
            await answered.put(message.body)

        async with await aio_pika.connect(url) as connection:
            several = Several(worker, "w1-0", 1, _call, process)
            keys = {key: Assigned(queue, 1) for key, queue in queues.items()}
            following = asyncio.create_task(several.follow(connection, Quiet(), keys))
            async with connection.channel() as channel:
                for queue, body in ((queues["1"], b"closes"), (queues["2"], b"other"), (queues["1"], b"next")):
                    await channel.default_exchange.publish(aio_pika.Message(body), queue)
                async with asyncio.timeout(20):
                    got = [await answered.get() for _ in range(3)]
            assert sorted(got) == [b"closes", b"next", b"other"]
            assert worker.loads == 2, "it stays loaded"
            following.cancel()
            await several.drain()

    with Broker() as broker:
        made = HandMade(broker.url, "core")
        try:
            asyncio.run(served(broker.url, {key: made.group(key) for key in "12"}))
        finally:
            made.close()
