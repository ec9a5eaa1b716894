"""The application of test_celery_use_delays.py: classic queues, whose tasks with an ETA the broker keeps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

from clusterbroker_workers.celery import use_delays

app = Celery("classic", broker=os.environ.get("INTEROP_URL", "amqp://"))
app.conf.update(
    task_queues=[
        Queue("classic", Exchange("classic"), routing_key="classic"),
        Queue("topical", Exchange("topical", type="topic"), routing_key="orders.#"),
    ],
    task_default_queue="classic",
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
)
use_delays(app)


def note(label: str) -> None:
    with open(Path(os.environ["INTEROP_NOTES"], label), "a", encoding="ascii") as file:
        file.write(f"{time.time()}\n")


@app.task
def noted(label: str) -> None:
    note(label)


@app.task(bind=True, max_retries=3)
def retried(self: Any, label: str) -> None:
    note(label)
    if self.request.retries < 1:
        raise self.retry(countdown=2)
