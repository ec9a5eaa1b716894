"""Delayed messages beside Celery's 28 levels of queues, on this broker and on RabbitMQ.

    python -m bench.delay_rivals [--messages 2000] [--rounds 2] [--peer none]

The same persistent messages of 100 bytes, with confirms, each due after 1 to 8 whole seconds by chance (the levels know
whole seconds only), in turns:

    exchange            an exchange `x-delayed-message` of this broker, and `x-delay`
    levels              Celery's topology (kombu), quorum queues, on this broker
    levels, kept once   the same with the policy keys `delay-bits` and `delay-exchange`: the publishes are the same
    levels, RabbitMQ    the same on RabbitMQ

Printed: confirmed publishes a second; processor time of the broker from the first publish until the last arrival, us a
message, less what the idle broker takes in that time; lateness (arrival less due time by one clock), ms. Every message
has to come, once. The plug-in for RabbitMQ is archived, and runs on none of the releases that are still supported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import kombu
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    calculate_routing_key,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from bench.confirmed import Confirmed
from bench.migrations import url
from bench.servers import SERVERS, OurNode, Server
from clusterbroker.broker.trial.client import Client, Delivery, target
from clusterbroker.broker.wire.amqp091 import methods as m

QUEUE, EXCHANGE, KEY = "tasks", "celery", "tasks"
LEVEL: Final = "celery_delayed_27"
ONCE: Final = "levels, kept once"
WINDOW: Final = 500
DUE_S: Final = range(1, 9)
IDLE_S: Final = 3.0
LATE_S: Final = 60.0

Send = Callable[[Client, int, bytes], int]
"""A message of this body, due after so many seconds; its publish's number."""
KEPT_ONCE: Final = {"delay-bits": 28, "delay-exchange": "celery_delayed_delivery"}


async def make_exchange(client: Client) -> None:
    kind: dict[str, Any] = {"x-delayed-type": "topic"}
    await client.call(m.ExchangeDeclare(exchange=EXCHANGE, type="x-delayed-message", durable=True, arguments=kind))
    await client.call(m.QueueDeclare(queue=QUEUE, durable=True, arguments={"x-queue-type": "quorum"}))
    await client.call(m.QueueBind(queue=QUEUE, exchange=EXCHANGE, routing_key=KEY))


def make_levels(server: Server) -> None:
    with kombu.Connection(url(server)) as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        exchange = kombu.Exchange(EXCHANGE, type="topic")
        queue = kombu.Queue(QUEUE, exchange, routing_key=KEY, queue_arguments={"x-queue-type": "quorum"})
        queue.bind(connection.channel()).declare()
        bind_queue_to_native_delayed_delivery_exchange(connection, queue)


def keep_once(server: Server) -> None:
    """From then on the highest level keeps messages once."""
    assert isinstance(server, OurNode)
    line = [sys.executable, "-m", "clusterbroker.broker.cli.main", "policies", "set", "celery", f"^{LEVEL}$"]
    line += [json.dumps(KEPT_ONCE), "--apply-to", "exchanges", "--data-dir", str(server.directory / "data")]
    subprocess.run(line, check=True)


def send_delayed(client: Client, due_s: int, body: bytes) -> int:
    return client.publish(KEY, body, {"x-delay": due_s * 1000}, EXCHANGE)


def send_by_levels(client: Client, due_s: int, body: bytes) -> int:
    return client.publish(calculate_routing_key(due_s, KEY), body, None, LEVEL)


class Arrivals:
    """What came, and how late."""

    def __init__(self, count: int) -> None:
        self.late_s: list[float] = []
        self.over = asyncio.Event()
        self._seen: set[bytes] = set()
        self._count = count
        self.client: Client

    def on_deliver(self, delivery: Delivery) -> None:
        now_s = time.time()
        number, due_s, _ = delivery.body.split(b" ", 2)
        assert number not in self._seen, f"message {number!r} came twice"
        self._seen.add(number)
        self.late_s.append(now_s - float(due_s))
        self.client.acknowledge(delivery.tag)
        if len(self._seen) == self._count:
            self.over.set()


class Trial:
    """A publisher with confirms and a consumer, at one broker of whose time for them the idle time is no part."""

    def __init__(self, server: Server, publisher: Client, consumer: Client, count: int) -> None:
        self._server, self._consumer = server, consumer
        self.publisher, self.confirmed, self.arrivals = publisher, Confirmed(publisher), Arrivals(count)
        self.arrivals.client, consumer.on_deliver = consumer, self.arrivals.on_deliver
        self.began_s = self._idle = self._used_s = 0.0

    async def begin(self) -> None:
        """Messages may come from now on, and are to be published when it returns."""
        await self._consumer.call(m.BasicQos(prefetch_count=WINDOW))
        await self._consumer.call(m.BasicConsume(queue=QUEUE, consumer_tag="c"))
        idle_s = self._server.processor_s()
        await asyncio.sleep(IDLE_S)
        self._idle = (self._server.processor_s() - idle_s) / IDLE_S
        self.began_s, self._used_s = time.perf_counter(), self._server.processor_s()

    async def end(self, patience_s: float) -> float:
        """When all have come; seconds of processor time that they took."""
        await asyncio.wait_for(self.arrivals.over.wait(), patience_s)
        whole_s = time.perf_counter() - self.began_s
        return self._server.processor_s() - self._used_s - self._idle * whole_s

    def lateness(self) -> str:
        """Cells: p50, p99 and most, ms."""
        cuts = quantiles(self.arrivals.late_s, n=100)
        return "".join(f"{late_s * 1e3:10.1f}" for late_s in (cuts[49], cuts[98], max(self.arrivals.late_s)))


@asynccontextmanager
async def opened(server: Server, levels: bool, count: int) -> AsyncIterator[Trial]:
    """With the exchange, or the levels, and the queue."""
    where = target(url(server))
    publisher = await Client.open(where, timeout_s=30, heartbeat_s=60)
    consumer = await Client.open(where, timeout_s=30, heartbeat_s=60)
    if levels:
        await asyncio.to_thread(make_levels, server)
    else:
        await make_exchange(publisher)
    await publisher.call(m.ConfirmSelect())
    yield Trial(server, publisher, consumer, count)
    await publisher.close()
    await consumer.close()


async def run(server: Server, send: Send, count: int, seed: int, kept_once: bool) -> str:
    """One row."""
    async with opened(server, send is send_by_levels, count) as trial:
        if kept_once:
            await asyncio.to_thread(keep_once, server)
        dice = random.Random(seed)
        await trial.begin()
        for number in range(count):
            due_s = dice.choice(DUE_S)
            body = f"{number} {time.time() + due_s} ".encode().ljust(100, b"x")
            last = send(trial.publisher, due_s, body)
            if number % WINDOW == WINDOW - 1 or number == count - 1:
                await trial.confirmed.wait(last)
        published_s = time.perf_counter() - trial.began_s
        used_s = await trial.end(LATE_S + published_s)
    return f"{count / published_s:14,.0f}{used_s / count * 1e6:12.0f}{trial.lateness()}"


async def main(count: int, rounds: int, peer: bool) -> None:
    print(f"{'':18}{'published/s':>14}{'us/message':>12}{'late p50':>10}{'p99':>10}{'most, ms':>10}")
    ways: list[tuple[str, type[Server], Send]] = [
        ("exchange", OurNode, send_delayed),
        ("levels", OurNode, send_by_levels),
        (ONCE, OurNode, send_by_levels),
    ]
    if peer:
        ways.append(("levels, RabbitMQ", SERVERS["rabbitmq"], send_by_levels))
    for round_ in range(rounds):
        for name, kind, send in ways:
            with tempfile.TemporaryDirectory() as directory, kind(Path(directory) / "server") as server:
                server.start()
                print(f"{name:18}{await run(server, send, count, round_, name == ONCE)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", choices=("rabbitmq", "none"), default="rabbitmq")
    asked = parser.parse_args()
    asyncio.run(main(asked.messages, asked.rounds, asked.peer == "rabbitmq"))
