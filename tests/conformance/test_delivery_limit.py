"""x-delivery-limit: a message that fails too often is dead-lettered or dropped (5.5, 5.6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Connect
from .marks import differs_from_rabbitmq_3_10, rule
from .wire import Channel, eventually

Name = Callable[[str], str]
CLASSIC = pytest.param("classic", marks=differs_from_rabbitmq_3_10("refuses x-delivery-limit on classic queues"))
TYPES = pytest.mark.parametrize("kind", ["quorum", CLASSIC])


def limited(channel: Channel, name: Name, kind: str, limit: int) -> tuple[str, str]:
    queue, dead = name("limited"), name("dead")
    channel.queue_declare(dead)
    arguments = {"x-queue-type": kind, "x-delivery-limit": limit}
    arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    return queue, dead


@TYPES
@rule("5.6/reasons", "5.5/delivery-count", "more/one-queue-type")
def test_beyond_the_limit_a_message_is_dead_lettered(channel: Channel, name: Name, kind: str) -> None:
    queue, dead = limited(channel, name, kind, 2)
    channel.basic_publish("", queue, b"poison")
    channel.consume(queue)
    for attempt in range(3):
        got = channel.delivery()
        assert got.headers.get("x-delivery-count", 0) == attempt
        channel.basic_reject(got.delivery_tag, requeue=True)
    eventually(lambda: channel.message_count(dead) == 1)
    letter = channel.basic_get(dead, no_ack=True)
    death = letter.headers["x-death"][0]
    assert (death["queue"], death["reason"], death["count"]) == (queue, "delivery_limit", 1)
    channel.nothing_delivered()


@rule("more/x-queue-type")
@differs_from_rabbitmq_3_10("has no delivery limit by default", hangs=True)
def test_quorum_queues_have_a_limit_of_20_by_default(channel: Channel, name: Name) -> None:
    queue, dead = name("quorum"), name("dead")
    channel.queue_declare(dead)
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.basic_publish("", queue, b"poison")
    channel.consume(queue)
    for _ in range(21):
        channel.basic_reject(channel.delivery().delivery_tag, requeue=True)
    eventually(lambda: channel.message_count(dead) == 1)


@TYPES
@rule("5.5/delivery-count")
def test_a_lost_client_counts_as_a_failure(connect: Connect, channel: Channel, name: Name, kind: str) -> None:
    queue, dead = limited(channel, name, kind, 1)
    channel.basic_publish("", queue, b"poison")
    for _ in range(2):
        client = connect()
        consumer = client.channel()
        consumer.consume(queue)
        consumer.delivery()
        client.abandon()
    eventually(lambda: channel.message_count(dead) == 1)


@rule("more/delayed-retry")
@differs_from_rabbitmq_3_10("delayed retry came with 4.3", hangs=True)
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_delayed_retry_holds_a_failed_message_back(channel: Channel, name: Name, kind: str) -> None:
    """The delay is min(x-delayed-retry-min x delivery count, x-delayed-retry-max)."""
    queue = name("retry")
    arguments: dict[str, Any] = {"x-queue-type": kind, "x-delayed-retry-type": "all"}
    arguments |= {"x-delayed-retry-min": 200, "x-delayed-retry-max": 300}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.basic_publish("", queue, b"first fails")
    channel.consume(queue)
    for least_s in (0.19, 0.29, 0.29):
        tag = channel.delivery().delivery_tag
        channel.basic_reject(tag, requeue=True)
        began = time.monotonic()
        channel.wait(lambda: channel.delivered, "the retry")
        assert time.monotonic() - began >= least_s
    assert channel.delivery().redelivered is True
