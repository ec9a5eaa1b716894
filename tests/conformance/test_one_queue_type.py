"""Where we keep more than RabbitMQ 4.3: one queue type carries the whole matrix (the page's last section)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .marks import differs_from_rabbitmq_3_10, rule
from .wire import Channel

Name = Callable[[str], str]
QUORUM_ONLY_DURABLE = "its quorum queues are durable, not exclusive, and without priorities"


@rule("more/transient-queue")
def test_transient_queues_need_not_be_exclusive(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=False, exclusive=False)
    channel.basic_publish("", queue, b"x")
    assert channel.basic_get(queue, no_ack=True).body == b"x"


MATRIX: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"durable": True}, {"x-max-priority": 10}),
    ({"durable": True}, {"x-queue-mode": "lazy"}),
    ({"exclusive": True}, {}),
    ({"auto_delete": True}, {}),
    ({}, {}),
    ({"durable": True}, {"x-message-ttl": 60000, "x-max-priority": 5, "x-single-active-consumer": True}),
]


@rule("more/one-queue-type", "more/x-queue-type")
@pytest.mark.parametrize(("flags", "arguments"), MATRIX)
@differs_from_rabbitmq_3_10(QUORUM_ONLY_DURABLE)
def test_quorum_queues_take_every_flag_and_argument(
    channel: Channel, name: Name, flags: dict[str, Any], arguments: dict[str, Any]
) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-queue-type": "quorum"} | arguments, **flags)
    channel.basic_publish("", queue, b"x")
    channel.consume(queue, no_ack=True)
    assert channel.delivery().body == b"x"


@rule("more/one-queue-type")
@differs_from_rabbitmq_3_10("refuses server-named quorum queues")
def test_server_named_quorum_queues(channel: Channel) -> None:
    queue = channel.queue_declare("", durable=True, arguments={"x-queue-type": "quorum"}).queue
    assert queue.startswith("amq.gen-")
    channel.queue_delete(queue)


@rule("more/one-queue-type", "more/global-qos")
@differs_from_rabbitmq_3_10("refuses a global prefetch on quorum queues")
def test_a_global_prefetch_on_quorum_queues(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    for _ in range(4):
        channel.basic_publish("", queue, b"x")
    channel.basic_qos(prefetch_count=2, global_=True)
    channel.consume(queue)
    channel.deliveries(2)
    channel.nothing_delivered()


@rule("more/one-queue-type")
@pytest.mark.parametrize("argument", ["x-delivery-limit", "x-quorum-initial-group-size"])
@differs_from_rabbitmq_3_10("refuses the arguments of quorum queues on classic ones")
def test_classic_queues_take_the_arguments_of_quorum_queues(channel: Channel, name: Name, argument: str) -> None:
    channel.queue_declare(name("q"), durable=True, arguments={argument: 3})


@rule("more/x-queue-type")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_both_types_are_accepted(channel: Channel, name: Name, kind: str) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
    channel.basic_publish("", queue, b"x", delivery_mode=2)
    channel.consume(queue, no_ack=True)
    assert channel.delivery().body == b"x"
