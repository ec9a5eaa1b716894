"""Jobs that publish exactly once at a real cluster: the publisher of `pipeline`, without Spark."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pika
import pyarrow as pa

from clusterbroker.broker.trial.nodes import LOOPBACK
from clusterbroker.pipeline import task
from clusterbroker.pipeline.options import Options, parse
from clusterbroker.pipeline.task import Identity, Written
from clusterbroker.pipeline.transactions import Transaction, status
from tests.faults.fleet import Fleet

PATIENCE_S = 60.0


class Nodes(Fleet):
    """Three nodes, for tests that wait without a loop."""

    def begin(self) -> None:
        self.found("a", "b", "c")
        asyncio.run(self.ready("a", "b", "c"))

    def shoot(self, name: str) -> None:
        """kill -9, and not a moment later."""
        node = self.node(name)
        node.send(signal.SIGKILL)
        assert node.process is not None
        node.process.wait(10)

    def revive(self, name: str) -> None:
        self.launch(name, "--peers", self.peers("a", "b", "c"))
        asyncio.run(self.ready(name))

    def end(self) -> None:
        asyncio.run(self.kill_all())

    @property
    def leader(self) -> str:
        return str(asyncio.run(self.ask(self.alive[0], "status"))["leader"])

    def owner(self, queue: str) -> str:
        """Who owns the queue now; waits while nobody does."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            rows = asyncio.run(self.ask(self.alive[0], "queues"))["queues"]
            owners = [row["owner"] for row in rows if row["name"] == queue and row["owner"] in self.alive]
            if owners:
                return str(owners[0])
            assert time.monotonic() < end_s, rows
            time.sleep(0.05)

    @property
    def alive(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.running]

    def endpoints(self, *first: str) -> str:
        names = [*first, *(name for name in "abc" if name not in first)]
        return ",".join(f"{LOOPBACK}:{self.node(name).amqp_port}" for name in names)

    def options(self, *first: str, **more: str) -> Options:
        """Of a job that tries these nodes first."""
        return parse(
            {"endpoints": self.endpoints(*first), "deliveryGuarantee": "exactly-once", "exchange": "amq.topic",
             "reconnectAttempts": "20", **more}
        )  # fmt: skip

    def connected(self, name: str | None = None) -> pika.BlockingConnection:
        port = self.node(name or self.alive[0]).amqp_port
        return pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, port, connection_attempts=20))

    def declare(self, queue: str, key: str, owner: str = "a", **arguments: Any) -> None:
        """A queue that is bound to amq.topic, and owned by this node."""
        with self.connected(owner) as connection:
            channel = connection.channel()
            words = {"x-queue-leader-locator": "client-local"} | arguments
            channel.queue_declare(queue, durable=True, arguments=words)
            channel.queue_bind(queue, "amq.topic", key)

    def drained(self, queue: str) -> list[bytes]:
        """All that is in the queue, in its order; it is empty then."""
        found: list[bytes] = []
        with self.connected() as connection:
            channel = connection.channel()
            while (count := channel.queue_declare(queue, passive=True).method.message_count) > 0:
                for method, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=20):
                    assert method is not None, f"{len(found)} messages came, and {count} were there"
                    found.append(body)
                    count -= 1
                    if count == 0:
                        break
                channel.cancel()
        return found

    def at_rest(self, producer: str) -> dict[str, Any]:
        """What is told of a producer when nothing of it is on its way."""
        end_s = time.monotonic() + PATIENCE_S
        while True:
            told = status(self.options(*self.alive), producer)
            if told["moving"] == 0 and not told["open"]:
                return told
            assert time.monotonic() < end_s, told
            time.sleep(0.05)


def rows(numbers: Iterable[int], key: str = "k") -> Any:
    """A record batch: each row's body is its number."""
    values = [b"%d" % number for number in numbers]
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "routing_key": pa.array([key] * len(values), pa.string())}
    )


def attempt(
    options: Options, transaction: Transaction, batches: Iterable[Any], partition: int = 0, number: int = 0
) -> Written:
    """One attempt at a task."""
    identity = Identity(transaction.producer, transaction.epoch, partition, number)
    return task.write(batches, ["value", "routing_key"], options, identity, transaction)


def twice_or_never(found: Sequence[bytes], wanted: Iterable[int]) -> tuple[int, int]:
    """(rows too many, rows that are missing)."""
    have, want = Counter(map(int, found)), Counter(wanted)
    return sum((have - want).values()), sum((want - have).values())


def forget_connections() -> None:
    for publishers in task._kept.values():
        for publisher in publishers:
            publisher.abandon()
    task._kept.clear()


def directory_of(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
