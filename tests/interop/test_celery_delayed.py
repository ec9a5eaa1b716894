"""Celery on quorum queues: tasks with a countdown wait in 28 queues of the broker, one for each bit of the seconds.

That is Kombu's native delayed delivery: topic exchanges, TTLs of 1 s to 134,217,728,000 ms, dead letters at least once.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Queue

from clusterbroker.broker.trial.nodes import LocalCluster
from tests.faults.node import wait_for
from tests.interop.celery_worker import Worker

WAIT_S = 30
EARLY_S = 0.1
"""Queues count whole milliseconds from when a message came, at a node's own clock."""


class Delayed:
    """Three nodes and a worker, which both know all of them, and what the worker did when."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory)
        asyncio.run(self.cluster.begin())
        ports = [self.cluster.nodes[name].amqp_port for name in self.cluster.names]
        self.urls = ";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in ports)
        self.notes = directory / "notes"
        self.notes.mkdir()
        settings = {"INTEROP_URLS": self.urls, "INTEROP_NOTES": str(self.notes)}
        os.environ.update(settings)
        self.worker = Worker(directory, "tests.interop.celery_delayed_app", "delayed", **settings)

    def ran(self, *labels: str) -> list[list[float]]:
        """When each of these ran, once all have."""
        files = [self.notes / label for label in labels]
        wait_for(
            lambda: all(file.exists() and file.stat().st_size for file in files), f"{', '.join(labels)} to run", WAIT_S
        )
        return [[float(line) for line in file.read_text().split()] for file in files]

    def still_waits(self) -> None:
        """134,217,728 s are not over."""
        with Connection(self.urls) as connection:
            waiting = Queue("celery_delayed_27", channel=connection.default_channel).queue_declare(passive=True)
        assert waiting.message_count == 1
        assert not (self.notes / "never").exists()


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Delayed]:
    made = Delayed(tmp_path_factory.mktemp("delayed"))
    yield made
    made.worker.kill()
    asyncio.run(made.cluster.end())


@pytest.fixture(scope="module")
def tasks(delayed: Delayed) -> Any:
    celery_delayed_app = importlib.import_module("tests.interop.celery_delayed_app")
    celery_delayed_app.app.conf.broker_url = delayed.urls
    celery_delayed_app.noted.apply_async(("never",), countdown=2**28 - 1)
    yield celery_delayed_app
    celery_delayed_app.app.close()


def test_countdown_eta_and_retry(delayed: Delayed, tasks: Any) -> None:
    began_s = time.time()
    due = {}
    for seconds in (1, 2, 3):  # one bit, another one, both
        due[f"countdown-{seconds}"] = began_s + seconds
        tasks.noted.apply_async((f"countdown-{seconds}",), countdown=seconds)
    due["routed"] = began_s + 1
    tasks.noted.apply_async(("routed",), countdown=1, queue="orders", routing_key="orders.eu.north")
    due["plain"] = began_s + 2
    tasks.noted.apply_async(("plain",), countdown=2, queue="plain")
    due["eta"] = began_s + 2  # whole seconds of what is left
    tasks.noted.apply_async(("eta",), eta=datetime.fromtimestamp(began_s, UTC) + timedelta(seconds=3))
    tasks.noted.delay("at-once")
    tasks.retried.apply_async(
        ("retried", 3, 1), countdown=1
    )  # the retry passes a queue in which the first one has died
    delayed.ran("at-once")
    for label, times in zip(due, delayed.ran(*due), strict=True):
        assert len(times) == 1, f"{label} ran {len(times)} times, and nothing died"
        assert times[0] > due[label] - EARLY_S, f"{label} ran {due[label] - times[0]:.3f} s early"
    [first], [second] = delayed.ran("retried.0", "retried.1")
    assert first > began_s + 1 - EARLY_S
    assert second > first + 3 - EARLY_S
    delayed.still_waits()
    assert "ERROR" not in delayed.worker.said


@pytest.mark.parametrize("node", ["c", pytest.param("a", marks=pytest.mark.matrix)])
def test_no_task_is_lost_with_a_node(delayed: Delayed, tasks: Any, node: str) -> None:
    """It owns a third of the queues, with all kinds of tasks in them. To `a` client and worker are connected."""
    began_s = time.time()
    due: dict[str, float] = {}
    for number in range(30):
        seconds, queue = 2 + number % 4, ("celery", "orders", "plain")[number % 3]
        label = f"{node}-{queue}-{number}"
        due[label] = began_s + seconds
        routing = {"queue": "orders", "routing_key": "orders.eu"} if queue == "orders" else {"queue": queue}
        tasks.noted.apply_async((label,), countdown=seconds, **routing)
    retried = f"{node}-retried"
    tasks.retried.delay(retried, 2, 2)
    delayed.ran(f"{retried}.0")
    asyncio.run(delayed.cluster.kill(node))
    policy = {"max_retries": 60, "interval_max": 0.2}
    tasks.noted.apply_async((f"{node}-afterwards",), countdown=1, retry=True, retry_policy=policy)
    for label, times in zip(due, delayed.ran(*due), strict=True):
        assert times[0] > due[label] - EARLY_S, f"{label} ran {due[label] - times[0]:.3f} s early"
    delayed.ran(f"{retried}.2", f"{node}-afterwards")
    delayed.still_waits()
    asyncio.run(delayed.cluster.start(node))
