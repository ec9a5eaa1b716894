"""Celery on classic queues with `use_delays` of the workers' library: an ETA waits in the broker, not in a worker."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pika

from tests.faults.node import NodeProcess, wait_for
from tests.interop.celery_worker import Worker

EARLY_S = 0.1


def test_countdowns_wait_in_the_broker(own_node: NodeProcess, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    settings = {"INTEROP_URL": own_node.url, "INTEROP_NOTES": str(notes)}
    os.environ.update(settings)
    from tests.interop import celery_use_delays_app as tasks

    tasks.app.conf.broker_url = own_node.url

    def ran(label: str) -> list[float]:
        file = notes / label
        wait_for(lambda: file.exists() and file.read_text().endswith("\n"), f"{label} to run", 60)
        return [float(line) for line in file.read_text().split()]

    worker = Worker(tmp_path, "tests.interop.celery_use_delays_app", "classic", "-Q", "classic,topical", **settings)
    connection = pika.BlockingConnection(pika.URLParameters(own_node.url))
    try:
        channel = connection.channel()
        for number in range(10):  # more than the worker's prefetch of 2
            tasks.noted.apply_async((f"hour{number}",), countdown=3_600)
        began_s = time.time()
        tasks.noted.apply_async(("soon",), countdown=3)
        tasks.noted.apply_async(("topical",), countdown=2, queue="topical")
        tasks.retried.delay("retried")
        tasks.noted.delay("at-once")
        assert ran("at-once")[0] < began_s + 60, "it is not behind those of an hour"
        assert ran("soon")[0] >= began_s + 3 - EARLY_S
        assert ran("topical")[0] >= began_s + 2 - EARLY_S
        wait_for(lambda: len(ran("retried")) == 2, "the retry", 60)
        first, second = ran("retried")
        assert second >= first + 2 - EARLY_S
        assert not (notes / "hour0").exists()
        worker.kill()
        wait_for(
            lambda: not channel.queue_declare("classic", passive=True).method.consumer_count, "the worker's end", 60
        )
        held = channel.queue_declare("classic", passive=True).method.message_count
        assert held == 0, "the worker held none of them: they would have come back"
    finally:
        connection.close()
        worker.kill()
        tasks.app.close()
