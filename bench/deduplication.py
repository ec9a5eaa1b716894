"""Deduplication at one node with a disk: what it costs its processor.

    python -m bench.deduplication [--messages 20000]

The same messages (100 bytes, persistent, with confirms, each with a value of its own in `x-deduplication-header`) go to
a queue through a direct exchange and through one of type `x-message-deduplication`, to a queue with the argument of
that name, and then the same values again. Printed: processor time of the node for each message, until all are in the
queue, and its ratio to the first. The clock of the machine does not count: other work beside it makes no difference.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Any, Final

import psutil

from bench.confirmed import Confirmed
from clusterbroker.broker.trial.client import Client
from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.wire.amqp091 import methods as m

BODY: Final = b"x" * 100
WINDOW: Final = 1000
HEADER: Final = "x-deduplication-header"
KIND: Final = "x-message-deduplication"


async def measured(client: Client, process: psutil.Process, count: int) -> None:
    await client.call(m.ExchangeDeclare(exchange="plain", type="direct", durable=True))
    await client.call(
        m.ExchangeDeclare(exchange="once", type=KIND, durable=True, arguments={"x-cache-size": 10 * count})
    )
    for exchange, queue, arguments in (
        ("plain", "q", {}), ("once", "q once", {}), ("plain", "q with", {KIND: True}),
    ):  # fmt: skip
        await client.call(m.QueueDeclare(queue=queue, durable=True, arguments=arguments))
        await client.call(m.QueueBind(queue=queue, exchange=exchange, routing_key=queue))
    await client.call(m.ConfirmSelect())
    confirmed = Confirmed(client)

    def used_us() -> float:
        times = process.cpu_times()
        return (times.user + times.system) * 1e6

    async def ready(queue: str) -> int:
        answer = await client.call(m.QueueDeclare(queue=queue, passive=True))
        assert isinstance(answer, m.QueueDeclareOk)
        return answer.message_count

    first_us = 0.0

    async def told(what: str, exchange: str, queue: str) -> None:
        nonlocal first_us
        began_us = used_us()
        for number in range(count):
            headers: dict[str, Any] = {HEADER: f"value {number}"}
            sent = client.publish(queue, BODY, headers, exchange)
            if number % WINDOW == WINDOW - 1 or number == count - 1:
                await confirmed.wait(sent)
        while await ready(queue) < count:  # noqa: ASYNC110 - only the broker knows
            await asyncio.sleep(0.02)
        us = (used_us() - began_us) / count
        first_us = first_us or us
        print(f"{what:44} {us:7.1f} us a message {us / first_us:6.1f} x")

    await told("direct exchange", "plain", "q")
    await told("exchange x-message-deduplication", "once", "q once")
    await told("the same values again", "once", "q once")
    await told("queue with x-message-deduplication", "plain", "q with")
    await told("the same values again", "plain", "q with")


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        cluster = LocalCluster(Path(directory), 1)
        await cluster.begin()
        try:
            pid = cluster.pid("a")
            assert pid is not None, "it has just begun"
            client = await Client.open(cluster.target("a"), heartbeat_s=30)
            await measured(client, psutil.Process(pid), count)
            client.abandon("over")
        finally:
            await cluster.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    asyncio.run(main(parser.parse_args().messages))
