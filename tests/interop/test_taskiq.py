"""TaskIQ with its RabbitMQ broker and the delayed-message plug-in that it asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from taskiq.receiver import Receiver
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

from tests.faults.node import NodeProcess

Name = Callable[[str], str]


async def test_tasks_with_a_delay_run_when_they_are_due(node: NodeProcess, name: Name) -> None:
    ran: list[tuple[str, float]] = []
    done = asyncio.Event()
    broker = AioPikaBroker(
        node.url, exchange=Exchange(name=name("taskiq")), task_queues=[Queue(name=name("tasks"), durable=True)],
        delayed_message_exchange_plugin=True,
    )  # fmt: skip

    @broker.task
    async def note(label: str) -> None:
        ran.append((label, time.time()))
        if len(ran) == 3:
            done.set()

    broker.is_worker_process = True
    await broker.startup()
    began = time.time()
    await note.kicker().with_labels(delay=2).kiq("second")
    await note.kicker().with_labels(delay=1).kiq("first")
    await note.kiq("now")
    finish = asyncio.Event()
    receiver = Receiver(broker, max_async_tasks=5)
    listening = asyncio.create_task(receiver.listen(finish))
    await asyncio.wait_for(done.wait(), 30)
    finish.set()
    await listening
    await broker.shutdown()
    assert [label for label, _ in ran] == ["now", "first", "second"]
    assert ran[1][1] - began >= 1
    assert ran[2][1] - began >= 2
