"""Exchanges and queues of a pool, declared by hand as the protocol names them, and a library worker as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika

from tests.support.processes import popen

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 60.0


def until(holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    end_s = time.monotonic() + timeout_s
    while not (value := holds()):
        assert time.monotonic() < end_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return value


class HandMade:
    """A pool without a controller: its exchanges, its queues, and groups that a test makes."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self._connection.channel()
        declare = self.channel.exchange_declare
        declare(f"{name}-orphan-xchg", "fanout", durable=True)
        declare(f"{name}-dl-xchg", "fanout", durable=True)
        declare(f"{name}-activity-xchg", "fanout", durable=True)
        arguments = {"alternate-exchange": f"{name}-orphan-xchg"}
        declare(f"{name}-req-xchg", "direct", durable=True, arguments=arguments)
        declare(f"{name}-delayed", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
        self.channel.exchange_bind(f"{name}-req-xchg", f"{name}-delayed")
        for queue in ("orphan", "dl", "activity"):
            self.channel.queue_declare(f"{name}-{queue}", durable=True)
            self.channel.queue_bind(f"{name}-{queue}", f"{name}-{queue}-xchg")

    def group(self, key: str, **arguments: Any) -> str:
        """The queue of a key, bound."""
        queue = f"{self.name}-req-{key}"
        self.channel.queue_declare(
            queue, durable=True, arguments={"x-dead-letter-exchange": f"{self.name}-dl-xchg", **arguments}
        )
        self.channel.queue_bind(queue, f"{self.name}-req-xchg", key)
        return queue

    def get(self, queue: str) -> tuple[Any, bytes] | None:
        """The next message of a queue: (properties, body)."""
        method, properties, body = self.channel.basic_get(queue, auto_ack=True)
        return None if method is None else (properties, body)

    def depth(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def consumers(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.consumer_count)

    def events(self) -> list[str]:
        """Activity since the last call, as `event` or `event:worker`."""
        found = []
        while (message := self.get(f"{self.name}-activity")) is not None:
            found.append(str(message[0].headers["x-event"]))
        return found

    @staticmethod
    def properties(headers: dict[str, Any], **more: Any) -> pika.BasicProperties:
        return pika.BasicProperties(headers=headers, delivery_mode=2, **more)

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()


class WorkerProcess:
    """`python -m clusterbroker_workers` with the variables that a driver sets."""

    def __init__(self, pool: HandMade, key: str, worker: str, directory: Path, url: str = "", **variables: str) -> None:
        self.log = directory / f"worker-{key}-{time.monotonic_ns()}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "WORKER_ID": f"w1-{key}",
            "WORKER_KEY": key,
            "WORKER_POOL": pool.name,
            "WORKER_REQUESTS_QUEUE": f"{pool.name}-req-{key}",
            "WORKER_ACTIVITY_EXCHANGE": f"{pool.name}-activity-xchg",
            "WORKER_AMQP_URI": url or pool.url,
            "WORKER_NOTES": str(directory),
            **variables,
        }
        with open(self.log, "wb") as out:
            self.process = popen(
                [sys.executable, "-m", "clusterbroker_workers", worker],
                env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def exit(self) -> int:
        return int(self.process.wait(WAIT_S))


@contextmanager
def worker(pool: HandMade, key: str, name: str, directory: Path, **options: Any) -> Iterator[WorkerProcess]:
    """A worker that consumes."""
    found = WorkerProcess(pool, key, f"tests.unit.workers.sample:{name}", directory, **options)
    try:
        until(
            lambda: pool.consumers(f"{pool.name}-req-{key}") or found.process.poll() is not None, "the worker is ready"
        )
        assert found.process.poll() is None, found.text
        yield found
    finally:
        if found.process.poll() is None:
            found.kill()
