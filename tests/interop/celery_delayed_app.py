"""The application of test_celery_delayed.py: quorum queues, so Celery delays tasks by 28 queues of the broker (Kombu's
native delayed delivery) where their exchange is a topic exchange, and in the worker where it is a direct one.

Each task notes in INTEROP_NOTES when it ran: results would need a queue that outlives the node which has it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Exchange, Queue

QUORUM = {"x-queue-type": "quorum"}

app = Celery("delayed", broker=os.environ.get("INTEROP_URLS", "amqp://"))
app.conf.update(
    task_default_queue_type="quorum",
    task_default_exchange_type="topic",
    task_default_queue="celery",
    task_queues=[
        Queue("celery", Exchange("celery", type="topic"), routing_key="celery", queue_arguments=QUORUM),
        Queue("orders", Exchange("orders", type="topic"), routing_key="orders.eu.#", queue_arguments=QUORUM),
        Queue("plain", Exchange("plain", type="direct"), routing_key="plain", queue_arguments=QUORUM),
    ],
    task_ignore_result=True,
    task_acks_late=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
)


def note(label: str) -> None:
    """This ran now, whatever ran before under the same name."""
    with open(Path(os.environ["INTEROP_NOTES"], label), "a", encoding="ascii") as file:
        file.write(f"{time.time()}\n")


@app.task
def noted(label: str) -> None:
    note(label)


@app.task(bind=True)
def seen(self: Any, label: str) -> None:
    """Notes how the message came."""
    came = self.request.delivery_info
    note = {"exchange": came["exchange"], "key": came["routing_key"], "redelivered": came["redelivered"]}
    Path(os.environ["INTEROP_NOTES"], label).write_text(json.dumps(note), encoding="ascii")


@app.task(bind=True, max_retries=5)
def retried(self: Any, label: str, countdown: float, times: int) -> None:
    note(f"{label}.{self.request.retries}")
    if self.request.retries < times:
        raise self.retry(countdown=countdown)
