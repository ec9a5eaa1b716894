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
from collections.abc import Callable
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


async def run(server: Server, send: Send, count: int, seed: int, kept_once: bool) -> str:
    """One row."""
    where = target(url(server))
    publisher = await Client.open(where, timeout_s=30, heartbeat_s=60)
    consumer = await Client.open(where, timeout_s=30, heartbeat_s=60)
    if send is send_delayed:
        await make_exchange(publisher)
    else:
        await asyncio.to_thread(make_levels, server)
    if kept_once:
        await asyncio.to_thread(keep_once, server)
    await publisher.call(m.ConfirmSelect())
    arrivals, confirms, dice = Arrivals(count), Confirmed(publisher), random.Random(seed)
    arrivals.client, consumer.on_deliver = consumer, arrivals.on_deliver
    await consumer.call(m.BasicQos(prefetch_count=WINDOW))
    await consumer.call(m.BasicConsume(queue=QUEUE, consumer_tag="c"))
    idle_s = server.processor_s()
    await asyncio.sleep(IDLE_S)
    idle = (server.processor_s() - idle_s) / IDLE_S
    began_s, used_s = time.perf_counter(), server.processor_s()
    for number in range(count):
        due_s = dice.choice(DUE_S)
        last = send(publisher, due_s, f"{number} {time.time() + due_s} ".encode().ljust(100, b"x"))
        if number % WINDOW == WINDOW - 1 or number == count - 1:
            await confirms.wait(last)
    published_s = time.perf_counter() - began_s
    await asyncio.wait_for(arrivals.over.wait(), LATE_S + published_s)
    whole_s = time.perf_counter() - began_s
    used = server.processor_s() - used_s - idle * whole_s
    cuts = quantiles(arrivals.late_s, n=100)
    await publisher.close()
    await consumer.close()
    times = f"{cuts[49] * 1e3:10.1f}{cuts[98] * 1e3:10.1f}{max(arrivals.late_s) * 1e3:10.1f}"
    return f"{count / published_s:14,.0f}{used / count * 1e6:12.0f}{times}"


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
