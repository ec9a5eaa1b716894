"""How much exactly once costs: the publisher of `pipeline` in two processes, with and without transactions, in turn.

    python -m bench.exactly_once [--rows 50000] [--batches 10] [--rounds 3] [--nodes 1|3]

A batch is a micro-batch of Spark's without Spark: two tasks write half of it each, then the driver commits. `rows/s`
counts until the last commit is answered, as a query does; `seen/s` until the last row is in its queue. `us` are the
nodes' processor time for each row, all of them together.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import pika
import psutil

from clusterbroker.broker.trial.nodes import LOOPBACK, LocalCluster
from clusterbroker.pipeline import task
from clusterbroker.pipeline.options import parse
from clusterbroker.pipeline.task import Identity
from clusterbroker.pipeline.transactions import Transaction, commit, status

WRITERS = 2
BODY = bytes(200)
CHUNK = 5000
POLL_S = 0.05
"""Seldom enough: each question is a connection, which the nodes pay for."""


def write(asked: tuple[dict[str, str], Transaction | None, int, int, int]) -> tuple[str, ...]:
    """One task of one batch."""
    import pyarrow as pa

    given, transaction, epoch, partition, count = asked
    batches = [
        pa.RecordBatch.from_pydict({"value": pa.array([BODY] * min(CHUNK, count - at), pa.binary())})
        for at in range(0, count, CHUNK)
    ]
    identity = Identity("bench", epoch, partition)
    return task.write(batches, ["value"], parse(given), identity, transaction).segments


def depth(target: tuple[str, int], queue: str) -> int:
    with pika.BlockingConnection(pika.ConnectionParameters(*target)) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def used_s(cluster: LocalCluster) -> float:
    """Processor seconds of the nodes so far."""
    times = [psutil.Process(cluster.pid(name)).cpu_times() for name in cluster.names]
    return sum(one.user + one.system for one in times)


def measured(pool: Any, cluster: LocalCluster, exactly: bool, batches: int, rows: int) -> tuple[float, float, float]:
    """(rows/s, seen/s, us a row)"""
    targets = [(LOOPBACK, cluster.nodes[name].amqp_port) for name in cluster.names]
    queue = f"bench-{uuid.uuid4().hex[:8]}"
    with pika.BlockingConnection(pika.ConnectionParameters(*targets[0])) as connection:
        connection.channel().queue_declare(queue, durable=True)
    given = {"endpoints": ",".join(f"{host}:{port}" for host, port in targets), "routingKey": queue}
    given["deliveryGuarantee"] = "exactly-once" if exactly else "at-least-once"
    options, share = parse(given), rows // WRITERS
    before_s = used_s(cluster)
    began_s = time.perf_counter()
    commits_s = 0.0
    for epoch in range(batches):
        transaction = Transaction(queue, epoch, "run") if exactly else None
        names = pool.map(write, [(given, transaction, epoch, partition, share) for partition in range(WRITERS)])
        if transaction is not None:
            asked_s = time.perf_counter()
            commit(options, transaction, [name for some in names for name in some], rows)
            commits_s += time.perf_counter() - asked_s
    done_s = time.perf_counter() - began_s
    if exactly:
        print(f"a commit takes {commits_s / batches * 1000:.0f} ms, all of a batch {done_s / batches * 1000:.0f} ms")
    total = batches * share * WRITERS
    while (exactly and status(options, queue)["moving"] != 0) or depth(targets[0], queue) < total:
        time.sleep(POLL_S)
    seen_s = time.perf_counter() - began_s
    cpu_us = (used_s(cluster) - before_s) / total * 1e6
    assert depth(targets[0], queue) == total, "every row is there once"
    with pika.BlockingConnection(pika.ConnectionParameters(*targets[0])) as connection:
        connection.channel().queue_delete(queue)
    return total / done_s, total / seen_s, cpu_us


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--rows", type=int, default=50_000, help="of a batch")
    given.add_argument("--batches", type=int, default=10)
    given.add_argument("--rounds", type=int, default=3)
    given.add_argument("--nodes", type=int, choices=(1, 3), default=3)
    asked = given.parse_args()
    with tempfile.TemporaryDirectory() as directory, multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        cluster = LocalCluster(Path(directory), asked.nodes)
        try:
            asyncio.run(cluster.begin())
            found: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
            for exactly in (False, True):
                measured(pool, cluster, exactly, 2, asked.rows)  # warm
            for number in range(asked.rounds):
                for exactly in (False, True):
                    found[exactly].append(measured(pool, cluster, exactly, asked.batches, asked.rows))
                    rate, seen, cpu_us = found[exactly][-1]
                    name = "exactly once " if exactly else "at least once"
                    print(
                        f"round {number + 1}  {name}  {rate:9,.0f} rows/s  {seen:9,.0f} seen/s  {cpu_us:5.1f} us",
                        flush=True,
                    )
            middle = {
                how: [statistics.median(column) for column in zip(*each, strict=True)] for how, each in found.items()
            }
            for place, name in enumerate(("rows/s", "seen/s", "us")):
                times = middle[True][place] / middle[False][place]
                print(f"{name}: exactly once is {times:.2f} x of at least once (medians)")
        finally:
            asyncio.run(cluster.end())


if __name__ == "__main__":
    main()
