"""Celery's countdowns with the policy keys `delay-bits` and `delay-exchange`: as by its 28 levels, and written once."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection, Queue

from tests.faults.node import wait_for
from tests.interop.test_celery_delayed import EARLY_S, WAIT_S, Delayed

ENTRY = "celery_delayed_27"
APPLICATION = "tests.interop.celery_delayed_app"
DELAY_QUEUE = f"amq.delay.{ENTRY}"
POLICY = {"delay-bits": 28, "delay-exchange": "celery_delayed_delivery"}


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Delayed]:
    made = Delayed(tmp_path_factory.mktemp("bits"))
    yield made
    made.worker.kill()
    asyncio.run(made.cluster.end())


@pytest.fixture(scope="module")
def tasks(delayed: Delayed) -> Iterator[Any]:
    # an application of its own: one that has published keeps its connections to the nodes of another module
    sys.modules.pop(APPLICATION, None)
    application = importlib.import_module(APPLICATION)
    application.app.conf.broker_url = delayed.urls
    os.environ["INTEROP_NOTES"] = str(delayed.notes)
    yield application
    application.app.close()
    sys.modules.pop(APPLICATION, None)


def command(delayed: Delayed, *words: str) -> None:
    line = [sys.executable, "-m", "clusterbroker.broker.cli.main", *words]
    subprocess.run([*line, "--data-dir", delayed.cluster.data_dir("a")], check=True, timeout=60)


def in_levels(delayed: Delayed) -> int:
    """Messages in the queues of all levels."""
    with Connection(delayed.urls) as connection:
        channel = connection.default_channel
        names = [f"celery_delayed_{level}" for level in range(28)]
        return sum(Queue(name, channel=channel).queue_declare(passive=True).message_count for name in names)


def told(delayed: Delayed, label: str) -> dict[str, Any]:
    def here() -> bool:
        return (delayed.notes / label).exists() and bool((delayed.notes / label).read_text())

    wait_for(here, f"{label} to run", WAIT_S)
    return dict(json.loads((delayed.notes / label).read_text()))


def test_a_task_comes_as_by_the_levels(delayed: Delayed, tasks: Any) -> None:
    routings: tuple[dict[str, str], ...] = ({}, {"queue": "orders", "routing_key": "orders.eu.north"})

    def sent(way: str) -> list[dict[str, Any]]:
        labels = []
        for place, routing in enumerate(routings):
            for seconds in (1, 2, 3):
                labels.append(f"{way}-{place}-{seconds}")
                tasks.seen.apply_async((labels[-1],), countdown=seconds, **routing)
        return [told(delayed, label) for label in labels]

    right = sent("levels")
    command(delayed, "policies", "set", "celery", f"^{ENTRY}$", json.dumps(POLICY), "--apply-to", "exchanges")
    wait_for(lambda: asyncio.run(delayed.cluster.owner(DELAY_QUEUE)) is not None, "the delay queue", WAIT_S)
    assert sent("once") == right
    assert right[0]["exchange"] == "celery_delayed_delivery"
    assert right[1]["exchange"] == "celery_delayed_0"


def test_countdown_eta_and_retry_with_a_node_killed_while_they_wait(delayed: Delayed, tasks: Any) -> None:
    began_s, due = time.time(), dict[str, float]()
    tasks.noted.apply_async(("never",), countdown=2**28 - 1)
    for number in range(12):
        seconds, label = 3 + number % 4, f"killed-{number}"
        due[label] = began_s + seconds
        routing = {"queue": "orders", "routing_key": "orders.eu.north"} if number % 2 else {"queue": "celery"}
        tasks.noted.apply_async((label,), countdown=seconds, **routing)
    due["eta"] = began_s + 3
    tasks.noted.apply_async(("eta",), eta=datetime.fromtimestamp(began_s, UTC) + timedelta(seconds=4))
    tasks.retried.apply_async(("retried", 3, 1), countdown=1)
    assert in_levels(delayed) == 0, "each is written once"
    owner = asyncio.run(delayed.cluster.owner(DELAY_QUEUE))
    assert owner is not None
    asyncio.run(delayed.cluster.kill(owner))
    for label, times in zip(due, delayed.ran(*due), strict=True):
        assert times[0] > due[label] - EARLY_S, f"{label} ran {due[label] - times[0]:.3f} s early"
    [first, *_], [second, *_] = delayed.ran("retried.0", "retried.1")
    assert second > first + 3 - EARLY_S
    assert not (delayed.notes / "never").exists()
    assert in_levels(delayed) == 0
    asyncio.run(delayed.cluster.start(owner))
