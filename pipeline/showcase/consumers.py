"""Programs beside Spark that take from the broker: alarms as they come, and what each region used (waits).

They are told some messages again when a node dies before it heard their acknowledgement, so they know readings by
their id, as every consumer must.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import aio_pika

from clusterbroker.pipeline.showcase.frames import ARCHIVE, EXCHANGE, MALFORMED

ALARMS, TOTALS, WINDOWS, BROKEN = "alarms", "totals", "windows", "malformed"
_BINDINGS: Final = {
    ALARMS: ("*.alarm",),
    TOTALS: ("*.ok", "*.alarm"),
    WINDOWS: ("*.window",),
    ARCHIVE: ("*.ok", "*.alarm"),
}
RETRY_S: Final = 0.2
PREFETCH: Final = 2000
ACK_EVERY_S: Final = 0.05
PATIENCE_S: Final = 5.0
"""One acknowledgement for all that came meanwhile: one for each costs the consumer as much as the message."""


async def declare(endpoint: str) -> None:
    """The exchanges and queues of the showcase."""
    async with await aio_pika.connect(f"amqp://{endpoint}") as connection:
        channel = await connection.channel()
        readings = await channel.declare_exchange(EXCHANGE, aio_pika.ExchangeType.TOPIC, durable=True)
        malformed = await channel.declare_exchange(MALFORMED, aio_pika.ExchangeType.FANOUT, durable=True)
        for name, keys in _BINDINGS.items():
            arguments: dict[str, Any] = {"x-queue-type": "stream"} if name == ARCHIVE else {}
            queue = await channel.declare_queue(name, durable=True, arguments=arguments)
            for key in keys:
                await queue.bind(readings, key)
        await (await channel.declare_queue(BROKEN, durable=True)).bind(malformed)


class Consumers(threading.Thread):
    """All of them, on one loop. What they have seen may be read at any time."""

    def __init__(self, endpoints: str) -> None:
        super().__init__(daemon=True)
        self._endpoints = endpoints.split(",")
        self._loop = asyncio.new_event_loop()
        self._tasks: list[asyncio.Task[None]] = []
        self.alarms: set[str] = set()
        self.seen: set[str] = set()
        self.totals: Counter[str] = Counter()
        self.windows: dict[tuple[str, str], int] = {}
        self.malformed = 0
        self._lines: set[bytes] = set()
        self.again = 0
        """Readings and malformed lines that were delivered more than once."""

    def run(self) -> None:
        deeds = {ALARMS: self._alarm, TOTALS: self._total, WINDOWS: self._window, BROKEN: self._broken}
        asyncio.set_event_loop(self._loop)
        self._tasks = [self._loop.create_task(self._consume(queue, take)) for queue, take in deeds.items()]
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._tasks])
        self.join(10)

    def have(self, result: Mapping[str, Any]) -> bool:
        """Whether all have come that `reconcile.compare` found in the input."""
        wanted = result["readings"], result["alarms"], result["malformed"]
        return all(a >= b for a, b in zip((len(self.seen), len(self.alarms), self.malformed), wanted, strict=True))

    async def _consume(self, name: str, take: Callable[[Any], None]) -> None:
        for endpoint in itertools.cycle(self._endpoints):
            try:
                connection = await aio_pika.connect(f"amqp://{endpoint}", timeout=PATIENCE_S)
                try:
                    channel = await connection.channel()
                    await channel.set_qos(PREFETCH)
                    await self._take(channel, name, take)
                finally:
                    async with asyncio.timeout(PATIENCE_S):
                        await connection.close()
            except (TimeoutError, OSError, aio_pika.exceptions.AMQPError, RuntimeError):
                pass
            await asyncio.sleep(RETRY_S)

    async def _take(self, channel: Any, name: str, take: Callable[[Any], None]) -> None:
        """Until the channel is closed."""
        taken: list[Any] = []

        async def hear(message: Any) -> None:
            take(message)
            taken[:] = [message]

        await (await channel.get_queue(name)).consume(hear)
        while not channel.is_closed:
            await asyncio.sleep(ACK_EVERY_S)
            if taken:
                # of 120 nodes that were killed at such a moment two left aiormq waiting for its writer for ever
                async with asyncio.timeout(PATIENCE_S):
                    await taken.pop().ack(multiple=True)

    def _alarm(self, message: Any) -> None:
        self.alarms.add(message.message_id)

    def _total(self, message: Any) -> None:
        if message.message_id in self.seen:
            self.again += 1
            return
        self.seen.add(message.message_id)
        said = json.loads(message.body)
        self.totals[said["region"]] += said["wh"]

    def _window(self, message: Any) -> None:
        said = json.loads(message.body)
        self.windows[said["start"], said["region"]] = said["readings"]

    def _broken(self, message: Any) -> None:
        """They have no id, but none comes twice in the input."""
        if message.redelivered and message.body in self._lines:
            self.again += 1
            return
        self._lines.add(message.body)
        self.malformed += 1
