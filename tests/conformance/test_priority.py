"""Message priorities (the page's last section, and x-max-priority)."""

from __future__ import annotations

from collections.abc import Callable

from .marks import differs_from_rabbitmq_3_10, rule
from .wire import Channel, eventually

Name = Callable[[str], str]


def publish(channel: Channel, queue: str, *priorities: int | None) -> None:
    """One message for each priority; its body is its position and priority."""
    for i, priority in enumerate(priorities):
        channel.basic_publish("", queue, b"%d:%d" % (i, priority or 0), priority=priority)
    eventually(lambda: channel.message_count(queue) == len(priorities))


def drain(channel: Channel, queue: str) -> list[bytes]:
    bodies = []
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        bodies.append(message.body)
    return bodies


@rule("more/one-queue-type")
def test_higher_priorities_come_first_and_equal_ones_in_order(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-priority": 10})
    publish(channel, queue, 1, None, 9, 1, 10, 0, 9)
    assert drain(channel, queue) == [b"4:10", b"2:9", b"6:9", b"0:1", b"3:1", b"1:0", b"5:0"]


def test_a_priority_beyond_the_maximum_is_the_maximum(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-priority": 3})
    publish(channel, queue, 3, 200, 2)
    assert drain(channel, queue) == [b"0:3", b"1:200", b"2:2"]


def test_a_requeued_message_keeps_its_priority(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-priority": 5})
    publish(channel, queue, 1, 5, 3)
    first = channel.basic_get(queue)
    channel.basic_nack(first.delivery_tag, requeue=True)
    eventually(lambda: channel.message_count(queue) == 3)
    assert drain(channel, queue) == [b"1:5", b"2:3", b"0:1"]


@rule("more/x-queue-type")
def test_without_priorities_the_property_changes_nothing(channel: Channel, queue: str) -> None:
    """A classic queue without x-max-priority is FIFO, whatever the property says."""
    publish(channel, queue, 0, 9, 5)
    assert drain(channel, queue) == [b"0:0", b"1:9", b"2:5"]


@rule("more/priorities")
@differs_from_rabbitmq_3_10("quorum queues know priorities since 4.0, 32 of them since 4.3")
def test_32_priorities_without_declaration(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
    publish(channel, queue, *range(32))
    assert drain(channel, queue) == [b"%d:%d" % (i, i) for i in reversed(range(32))]
