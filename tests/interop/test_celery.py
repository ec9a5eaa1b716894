"""Celery with real worker processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group

from tests.faults.node import NodeProcess, wait_for
from tests.interop.celery_worker import Worker

WAIT_S = 20


def worker_of(node: NodeProcess, host: str, *options: str) -> Worker:
    return Worker(node.directory, "tests.interop.celery_app", host, *options, INTEROP_URL=node.url)


@pytest.fixture(scope="module")
def app(node: NodeProcess) -> Iterator[Celery]:
    os.environ["INTEROP_URL"] = node.url
    from tests.interop.celery_app import app

    app.conf.broker_url = node.url
    yield app
    app.close()


@pytest.fixture(scope="module")
def worker(node: NodeProcess, app: Celery) -> Iterator[Worker]:
    worker = worker_of(node, "w1", "-Q", "celery,special")
    yield worker
    worker.stop()


@pytest.fixture
def tasks(worker: Worker) -> Any:
    from tests.interop import celery_app

    return celery_app


def test_results(tasks: Any) -> None:
    results = [tasks.add.delay(number, 1) for number in range(20)]
    assert [result.get(timeout=WAIT_S) for result in results] == list(range(1, 21))


def test_canvas(tasks: Any) -> None:
    assert chain(tasks.add.s(1, 2), tasks.add.s(3))().get(timeout=WAIT_S) == 6
    assert group(tasks.add.s(n, n) for n in range(5))().get(timeout=WAIT_S) == [0, 2, 4, 6, 8]


def test_retries_with_countdown(tasks: Any) -> None:
    assert tasks.flaky.delay().get(timeout=WAIT_S) == 2


def test_eta_and_countdown_beyond_the_prefetch(tasks: Any) -> None:
    """Celery raises its prefetch for each task that waits; a broker where that has no effect starves it."""
    for wait_s in (1.5, 6, 24):  # a machine that is slower gets more time
        due = datetime.now(UTC) + timedelta(seconds=wait_s)
        waiting = [tasks.clock.apply_async(eta=due) for _ in range(20)]
        assert tasks.add.delay(1, 1).get(timeout=WAIT_S) == 2
        overtook = datetime.now(UTC) < due
        assert all(result.get(timeout=WAIT_S) >= due.timestamp() for result in waiting)
        if overtook:
            break
    assert overtook, "one that is due now overtakes them"


def test_routing(tasks: Any) -> None:
    assert tasks.routed.delay().get(timeout=WAIT_S) == "special"


def test_reject(tasks: Any, worker: Worker) -> None:
    result = tasks.rejects.delay()
    wait_for(lambda: f"{result.id}] reject requeue=False" in worker.said, "the rejection")


def test_remote_control(app: Celery, worker: Worker) -> None:
    replies = wait_for(lambda: app.control.ping(timeout=1.0), "a pong")
    assert replies == [{"w1@test": {"ok": "pong"}}]
    inspected = app.control.inspect(timeout=1.0)
    assert {queue["name"] for queue in inspected.active_queues()["w1@test"]} == {"celery", "special"}
    app.control.add_consumer("added", reply=True, timeout=1.0)
    assert "added" in {queue["name"] for queue in inspected.active_queues()["w1@test"]}
    app.control.cancel_consumer("added", reply=True, timeout=1.0)


def test_killed_worker_redelivers(node: NodeProcess, app: Celery, tasks: Any, tmp_path: Path) -> None:
    """acks_late: what a killed worker was at work on is done by another, flagged."""
    first = worker_of(node, "first", "-Q", "late", "--without-mingle", "--without-gossip")
    result = tasks.slow_once.apply_async((str(tmp_path),), queue="late")
    wait_for((tmp_path / "began").exists, "the task to begin")
    first.kill()
    second = worker_of(node, "second", "-Q", "late", "--without-mingle", "--without-gossip")
    try:
        assert result.get(timeout=WAIT_S) is True
    finally:
        second.stop()


def test_worker_outlives_a_restart_of_the_node(own_node: NodeProcess) -> None:
    """kill -9 of the node: the worker reconnects, and tasks sent meanwhile and after are done."""
    worker = worker_of(own_node, "robust", "--without-mingle", "--without-gossip")
    try:
        app = Celery("outside", broker=own_node.url, backend="rpc://")
        name = "tests.interop.celery_app.add"
        assert app.send_task(name, (1, 2)).get(timeout=WAIT_S) == 3
        own_node.kill()
        own_node.start()
        app.close()
        again = Celery("outside", broker=own_node.url, backend="rpc://")
        assert again.send_task(name, (3, 4)).get(timeout=WAIT_S) == 7
        again.close()
    finally:
        worker.stop()


def test_chord_needs_no_other_backend_to_fail_clearly(tasks: Any) -> None:
    """rpc:// has no chords: the client says so, and the broker stays out of it."""
    with pytest.raises(NotImplementedError):
        chord([tasks.add.s(1, 1)])(tasks.add.s(1))
