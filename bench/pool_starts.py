"""From a first request to its worker: a pool, beside a controller that polls, on RabbitMQ.

    python -m bench.pool_starts [--nodes 1,3] [--keys 200] [--rounds 2] [--peer rabbitmq|none]

Keys that nobody serves get a request each, persistent, with a confirm, one after the other, with a random pause of up
to PAUSE_S in between, so that a loop that polls is met at any of its moments. The worker is a process of the same
compiled program (bench/load/worker.cc) at both, started by

    pool        this broker, its foreman and its driver `subprocess`
    polling     bench/polling_controller.py (500 ms) on RabbitMQ

Printed, p50 and p99 in ms, by CLOCK_REALTIME of this machine, which worker and caller share:

    accepted -> main    from the publisher's confirm to the first line of the worker's main. So the driver's call is in
                        it, and its fork and exec. A confirm that comes later than that counts as 0
    published -> main   the same from the publish on
    main -> request     the worker connects, signs in, and gets the request
    call                from the publish to the answer at the caller, in an exclusive queue

and processor time of the broker with its foreman, and of the controller, us a call. Started workers stay: there are as
many at the end as keys.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench.confirmed import Confirmed
from bench.generator import compiled
from bench.migrations import url
from bench.polling_controller import NAME
from bench.pools import PATIENCE_S, nodes_with_pools, processor_s, spread
from bench.servers import RabbitMqNode, Server
from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.properties import Properties

PAUSE_S: Final = 0.5
WARM: Final = 3
ANSWERS: Final = "bench-answers"
FIGURES: Final = ("accepted -> main", "published -> main", "main -> request", "call")


@dataclass(frozen=True)
class Served:
    """Where first requests go, and what serving them has taken of the processor, s."""

    address: str
    exchange: str
    used_s: Callable[[], float]


@contextmanager
def pool(directory: Path, nodes: int) -> Iterator[Served]:
    """Of this broker."""
    with nodes_with_pools(directory, nodes) as (servers, broker):
        broker.declare("starts", "native")
        yield Served(broker.url(), "starts", lambda: sum(used_s(server) for server in servers))


def used_s(server: Server) -> float:
    """Of a node and its foreman, without the workers."""
    used: Any = server.processor_s()
    return processor_s(server) + used["foreman"] if isinstance(used, dict) else processor_s(server)


@contextmanager
def polling(directory: Path, nodes: int) -> Iterator[Served]:
    """RabbitMQ, and the controller that polls."""
    assert nodes == 1, "the rival is on one node"
    with RabbitMqNode(directory) as server:
        server.start()
        argv = [sys.executable, "-m", "bench.polling_controller", url(server), str(compiled("worker"))]
        controller = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        try:
            assert controller.stdout is not None, "it is piped"
            assert controller.stdout.readline() == "ready\n", "the controller serves"

            def used() -> float:
                times = psutil.Process(controller.pid).cpu_times()
                return server.processor_s() + times.user + times.system

            yield Served(url(server), f"{NAME}-req-xchg", used)
        finally:
            controller.send_signal(signal.SIGTERM)
            controller.wait(PATIENCE_S)


async def first_calls(served: Served, count: int, seed: int) -> list[tuple[float, ...]]:
    """FIGURES of each call, s."""
    client, dice = await Client.open(target(served.address), timeout_s=30, heartbeat_s=60), random.Random(seed)
    confirmed, answers = Confirmed(client), asyncio.Queue[tuple[bytes, int]]()
    client.on_deliver = lambda delivery: answers.put_nowait((delivery.body, time.time_ns()))
    await client.call(m.QueueDeclare(queue=ANSWERS, exclusive=True))
    await client.call(m.BasicConsume(queue=ANSWERS, consumer_tag="c", no_ack=True))
    await client.call(m.ConfirmSelect())
    found = []
    for number in range(count + WARM):
        await asyncio.sleep(dice.uniform(0, PAUSE_S))
        about = Properties(reply_to=ANSWERS, delivery_mode=2)
        published_ns = time.time_ns()
        sequence = client.publish(f"key-{number}", b"0", exchange=served.exchange, properties=about)
        await asyncio.wait_for(confirmed.wait(sequence), PATIENCE_S)
        accepted_ns = time.time_ns()
        body, answered_ns = await asyncio.wait_for(answers.get(), PATIENCE_S)
        began_ns, came_ns, *_ = map(int, body.split())
        assert published_ns < began_ns < came_ns < answered_ns, "one clock"
        stages = (
            max(0, began_ns - accepted_ns),
            began_ns - published_ns,
            came_ns - began_ns,
            answered_ns - published_ns,
        )
        if number >= WARM:
            found.append(tuple(stage / 1e9 for stage in stages))
    assert answers.empty(), "each call has one answer"
    await client.close()
    return found


BROKERS: Final = {"pool": pool, "polling": polling}


def measured(name: str, nodes: int, count: int, seed: int) -> str:
    """One row."""
    with (
        tempfile.TemporaryDirectory() as directory,
        BROKERS[name](Path(directory) / "server", nodes) as served,
    ):
        before_s = served.used_s()
        found = asyncio.run(first_calls(served, count, seed))
        us = (served.used_s() - before_s) / (count + WARM) * 1e6
    cells = [spread(what, list(times)) for what, times in zip(FIGURES, zip(*found, strict=True), strict=True)]
    times = "".join(f"{cell['p50']:10.1f}{cell['p99']:8.1f}" for cell in cells)
    return f"{f'{nodes}, {name}':14}{times}{us:12.0f}{count:7}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.pool_starts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", default="1,3", help="1, 3 or both, with a comma")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", choices=("rabbitmq", "none"), default="rabbitmq")
    said = parser.parse_args()
    print(f"{'nodes':14}" + "".join(f"{what:>18}" for what in FIGURES) + f"{'us a call':>12}{'calls':>7}", flush=True)
    for nodes in map(int, said.nodes.split(",")):
        names = [name for name in BROKERS if name == "pool" or (said.peer != "none" and nodes == 1)]
        for round_ in range(said.rounds):
            for name in names:
                print(measured(name, nodes, said.keys, round_), flush=True)


if __name__ == "__main__":
    main()
