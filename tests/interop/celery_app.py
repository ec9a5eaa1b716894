"""The application that test_celery.py's worker processes run; stock settings but for what a test is about."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

app = Celery("interop", broker=os.environ.get("INTEROP_URL", "amqp://"), backend="rpc://")
app.conf.update(
    task_routes={"tests.interop.celery_app.routed": {"queue": "special"}},
    task_queue_max_priority=None,
    result_expires=60,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def routed() -> Any:
    return routed.request.delivery_info["routing_key"]


@app.task(bind=True, max_retries=3)
def flaky(self: Any) -> int:
    """Succeeds at the third attempt."""
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def clock() -> float:
    return time.time()


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def slow_once(self: Any, directory: str) -> bool:
    """Says that it began, and returns only when it was delivered again."""
    redelivered = bool(self.request.delivery_info["redelivered"])
    if not redelivered:
        Path(directory, "began").write_text(str(os.getpid()))
        time.sleep(60)
    return redelivered


@app.task(bind=True, acks_late=True)
def rejects(self: Any) -> None:
    raise Reject("no", requeue=False)
