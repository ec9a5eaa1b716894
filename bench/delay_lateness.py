"""Lateness of delayed messages while many others wait, beside Celery's 28 levels on RabbitMQ.

    python -m bench.delay_lateness [--waiting 1000000] [--rate 1000] [--seconds 10] [--rounds 1] [--peer rabbitmq|none]
                                   [--peer-waiting 20000]

So many persistent messages of 100 bytes wait for tomorrow. Then others are published at a steady rate, each due DUE_S
later, so after that time as many come due a second as are published. In turns: an exchange `x-delayed-message` of this
broker; Celery's topology (bench.delay_rivals) on RabbitMQ, where each hop is a quorum queue. It takes messages at less
than a thousand a second, so fewer of them wait there: a million would take half an hour.

Printed: confirmed publishes a second of those that wait; lateness (arrival at the consumer less due time, one clock),
ms; processor time of the broker from the first of the others until the last has come, us each, less what it takes at
rest in that time. Each has to come, once, and none early.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from kombu.transport.native_delayed_delivery import calculate_routing_key

from bench.confirmed import Confirmed
from bench.delay_rivals import EXCHANGE, KEY, LEVEL, opened
from bench.servers import SERVERS, OurNode, Server
from clusterbroker.broker.trial.client import Client

DUE_S: Final = 5
WAIT_S: Final = 86_400
TURN_S: Final = 0.01
LATE_S: Final = 120.0
BATCH: Final = 1000


async def fill(client: Client, confirmed: Confirmed, levels: bool, count: int) -> float:
    """Those that wait; confirmed publishes a second."""
    began_s, last, before = time.perf_counter(), 0, 0
    key, exchange = (calculate_routing_key(WAIT_S, KEY), LEVEL) if levels else (KEY, EXCHANGE)
    table: dict[str, Any] | None = None if levels else {"x-delay": WAIT_S * 1000}
    for first in range(0, count, BATCH):
        before, last = last, client.publish_all(key, b"x" * 100, repeat(table, min(BATCH, count - first)), exchange)
        await confirmed.wait(before)
    await confirmed.wait(last)
    return count / (time.perf_counter() - began_s)


async def steadily(client: Client, levels: bool, count: int, rate: float) -> None:
    """Those that come due, each TURN_S a few."""
    key, exchange = (calculate_routing_key(DUE_S, KEY), LEVEL) if levels else (KEY, EXCHANGE)
    table: dict[str, Any] | None = None if levels else {"x-delay": DUE_S * 1000}
    began_s = time.perf_counter()
    for number in range(count):
        while (early_s := began_s + number / rate - time.perf_counter()) > 0:  # noqa: ASYNC110 - until a moment
            await asyncio.sleep(max(early_s, TURN_S))
        client.publish(key, f"{number} {time.time() + DUE_S} ".encode().ljust(100, b"x"), table, exchange)


async def run(server: Server, waiting: int, rate: float, seconds: float) -> str:
    """One row."""
    levels, count = not isinstance(server, OurNode), round(rate * seconds)
    async with opened(server, levels, count) as trial:
        filled = await fill(trial.publisher, trial.confirmed, levels, waiting) if waiting else 0.0
        await trial.begin()
        await steadily(trial.publisher, levels, count, rate)
        used_s = await trial.end(DUE_S + LATE_S)
        assert min(trial.arrivals.late_s) > -0.001, "none is early, but for the ms in which it is due"
    return f"{filled:14,.0f}{trial.lateness()}{used_s / count * 1e6:12.0f}{count:8}"


async def main(said: argparse.Namespace) -> None:
    """Rows in turns."""
    heads = f"{'waiting':>10}{'published/s':>14}{'late p50':>10}{'p99':>10}{'most, ms':>10}{'us/message':>12}{'due':>8}"
    print(f"{'':18}{heads}", flush=True)
    ways: list[tuple[str, type[Server]]] = [("exchange", OurNode)]
    if said.peer == "rabbitmq":
        ways.append(("levels, RabbitMQ", SERVERS["rabbitmq"]))
    for _ in range(said.rounds):
        for name, kind in ways:
            with tempfile.TemporaryDirectory() as directory, kind(Path(directory) / "server") as server:
                server.start()
                waiting = said.waiting if kind is OurNode else said.peer_waiting
                print(f"{name:18}{waiting:10,}{await run(server, waiting, said.rate, said.seconds)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--peer-waiting", type=int, default=20_000, help="on RabbitMQ")
    parser.add_argument("--rate", type=float, default=1000, help="due a second")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer", choices=("rabbitmq", "none"), default="rabbitmq")
    asyncio.run(main(parser.parse_args()))
