"""Celery's countdowns and ETAs on classic queues, kept by the broker instead of by workers.

A worker of Celery takes a task with an ETA at once and holds it, unacknowledged, in its memory: it counts against the
prefetch, and a long one loses its channel to the consumer timeout (celery #6760). With `use_delays(app)` such a task
waits in an `x-delayed-message` exchange, and its queue gets it when it is due.
"""

from __future__ import annotations

import datetime
import functools
import importlib
from typing import Any, Final

EXCHANGE: Final = "celery.delayed"


def use_delays(app: Any, exchange: str = EXCHANGE, at_least_s: float = 1.0) -> None:
    """Send tasks of `app` that are due in more than `at_least_s` seconds through a delayed exchange.

    Call it where tasks are sent, workers that retry tasks included; workers need nothing else. The queue is bound to
    `exchange` by its own name. Tasks with an exchange of their own and no queue, and broadcasts, go as ever.
    """
    kombu: Any = importlib.import_module("kombu")  # without types
    broadcast = importlib.import_module("kombu.common").Broadcast

    amqp: Any = app.amqp
    send = amqp.send_task_message
    delayed = kombu.Exchange(exchange, type="x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})

    class Bound(kombu.Queue):  # type: ignore[misc]
        """Kombu declares a queue once by the hash of its name; this one is declared beside it, for its binding."""

        __eq__ = kombu.Queue.__eq__

        def __hash__(self) -> int:
            return hash(f"{exchange}|{self.name}")

    @functools.wraps(send)
    def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
        queue = options.get("queue")
        if queue is None and options.get("exchange") is None:
            queue = amqp.default_queue
        if isinstance(queue, str):
            queue = amqp.queues[queue]
        due = _due(message.headers.get("eta"))
        now = datetime.datetime.now(datetime.UTC)
        if due is None or queue is None or isinstance(queue, broadcast) or (due - now).total_seconds() <= at_least_s:
            return send(producer, name, message, **options)
        bound = Bound(
            queue.name,
            delayed,
            routing_key=queue.name,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            queue_arguments=queue.queue_arguments,
        )
        message.headers["eta"] = None  # the worker begins it when it comes
        message.headers["x-deliver-at"] = round(due.timestamp() * 1_000)
        options.update(
            queue=None, exchange=delayed.name, routing_key=queue.name, exchange_type="direct", declare=[queue, bound]
        )
        return send(producer, name, message, **options)

    amqp.send_task_message = send_task_message


def _due(eta: Any) -> datetime.datetime | None:
    """The header `eta`, ISO 8601; without a zone it is UTC. None: at once, or unreadable."""
    if not isinstance(eta, str):
        return None
    try:
        due = datetime.datetime.fromisoformat(eta)
    except ValueError:
        return None
    return due if due.tzinfo is not None else due.replace(tzinfo=datetime.UTC)
