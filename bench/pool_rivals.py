"""Calls to a running worker, beside what people do without pools: RabbitMQ and Celery.

    python -m bench.pool_rivals [--calls 500] [--rounds 2]

One call after the other, one worker, one node on loopback, in turns:

    pool, raw             a pool of this broker; worker and caller in one process, answers to an exclusive queue
    pool, library         by `clusterbroker_workers`: a worker process that a pool has started, and `Pool.call`
    Celery                `task.delay(x).get()`, result backend `rpc://`, a worker of Celery with one process (`solo`)
    queue, raw, RabbitMQ  the first by a quorum queue of RabbitMQ
    Celery, RabbitMQ      as on this broker

Printed: p50 and p99 of a call, ms; processor time of the broker, us a call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Final

from celery import Celery

from bench.migrations import url
from bench.pools import PATIENCE_S, one_by_one, one_node, processor_s, raw_calls, spread
from bench.servers import SERVERS, Server
from clusterbroker.broker.trial.client import Client, target
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker_workers import Pool

BROKER_URL: Final = "BENCH_BROKER_URL"
WARM: Final = 10
"""Calls before those that are timed."""

app = Celery("rivals", broker=os.environ.get(BROKER_URL, "amqp://localhost"), backend="rpc://")


@app.task(name="echo")
def echo(body: str) -> str:
    """What it got."""
    return body


@contextmanager
def celery_worker(address: str) -> Iterator[None]:
    """A process that serves `echo`."""
    argv = [sys.executable, "-m", "celery", "-A", "bench.pool_rivals:app", "worker", "-P", "solo", "-l", "error"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*argv, "-n", "w@bench"], env={**os.environ, BROKER_URL: address}, **quiet)  # type: ignore[call-overload]
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def celery_calls(address: str, count: int) -> list[float]:
    """One after the other, s."""
    times = []
    with celery_worker(address), Celery("caller", broker=address, backend="rpc://") as caller:
        for number in range(-WARM, count):
            began_s = time.perf_counter()
            assert caller.send_task("echo", [f"{number}"]).get(timeout=PATIENCE_S) == f"{number}"
            if number >= 0:
                times.append(time.perf_counter() - began_s)
    return times


def library_calls(address: str, count: int) -> list[float]:
    """By a worker that its pool has started."""
    with Pool(address, "echo") as pool:
        one_by_one(pool, repeat("k", WARM))
        return one_by_one(pool, repeat("k", count))


def pool_calls(address: str, count: int) -> list[float]:
    """By the pool's exchange, of the pool `raw`."""
    return asyncio.run(raw_calls(address, address, count))


def queue_calls(address: str, count: int) -> list[float]:
    """By the default exchange."""
    asyncio.run(declared(address))
    return asyncio.run(raw_calls(address, address, count, "requests", "", "requests"))


async def declared(address: str) -> None:
    """A quorum queue."""
    client = await Client.open(target(address))
    await client.call(m.QueueDeclare(queue="requests", durable=True, arguments={"x-queue-type": "quorum"}))
    await client.close()


def printed(name: str, server: Server, calls: Callable[[str, int], list[float]], count: int) -> None:
    """One row."""
    used_s = processor_s(server)
    found: dict[str, Any] = spread(name, calls(url(server), count))
    used_us = (processor_s(server) - used_s) / found["count"] * 1e6
    print(f"{name:24}{found['p50']:8.2f}{found['p99']:8.2f}{used_us:10.0f}{found['count']:8}", flush=True)


def main(count: int, rounds: int) -> None:
    print(f"{'':24}{'p50 ms':>8}{'p99':>8}{'broker us':>10}{'calls':>8}")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory, one_node(Path(directory) / "ours") as (node, broker):
            broker.declare("raw")
            broker.declare("echo", "echo")
            for name, calls in (("pool, raw", pool_calls), ("pool, library", library_calls), ("Celery", celery_calls)):
                printed(name, node, calls, count)
        with tempfile.TemporaryDirectory() as directory, SERVERS["rabbitmq"](Path(directory) / "server") as peer:
            peer.start()
            for name, calls in (("queue, raw, RabbitMQ", queue_calls), ("Celery, RabbitMQ", celery_calls)):
                printed(name, peer, calls, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    main(asked.calls, asked.rounds)
