"""Bindings (5.3) as far as no type of exchange is concerned."""

from __future__ import annotations

from collections.abc import Callable

from .marks import rule
from .wire import Channel

Name = Callable[[str], str]


@rule("5.3/idempotent-declare")
def test_a_repeated_binding_is_one_binding(channel: Channel, queue: str) -> None:
    for _ in range(3):
        channel.queue_bind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"once")
    assert channel.basic_get(queue, no_ack=True).body == b"once"
    assert channel.basic_get(queue) is None
    channel.queue_unbind(queue, "amq.direct", queue)
    channel.basic_publish("amq.direct", queue, b"never")
    assert channel.basic_get(queue) is None


def test_two_bindings_that_match_deliver_once(channel: Channel, queue: str) -> None:
    channel.queue_bind(queue, "amq.topic", f"{queue}.*")
    channel.queue_bind(queue, "amq.topic", f"{queue}.#")
    channel.basic_publish("amq.topic", f"{queue}.x", b"once")
    assert channel.basic_get(queue, no_ack=True).body == b"once"
    assert channel.basic_get(queue) is None


def test_bindings_differ_by_their_arguments(channel: Channel, queue: str) -> None:
    """On a direct exchange the arguments do not route, but they make another binding."""
    channel.queue_bind(queue, "amq.direct", queue, arguments={"a": 1})
    channel.queue_bind(queue, "amq.direct", queue, arguments={"a": 2})
    channel.queue_unbind(queue, "amq.direct", queue, arguments={"a": 1})
    channel.basic_publish("amq.direct", queue, b"still bound")
    assert channel.basic_get(queue, no_ack=True).body == b"still bound"


def test_a_deleted_queue_leaves_no_binding(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue)
    channel.queue_bind(queue, "amq.direct", queue)
    channel.queue_delete(queue)
    channel.queue_declare(queue)
    channel.basic_publish("amq.direct", queue, b"x")
    assert channel.basic_get(queue) is None


def test_every_queue_is_bound_to_the_default_exchange(channel: Channel, queue: str) -> None:
    channel.basic_publish("", queue, b"by name")
    got = channel.basic_get(queue, no_ack=True)
    assert (got.body, got.exchange, got.routing_key) == (b"by name", "", queue)


def test_binding_without_waiting(channel: Channel, queue: str) -> None:
    channel.queue_bind(queue, "amq.direct", queue, nowait=True)
    channel.basic_publish("amq.direct", queue, b"x")
    assert channel.basic_get(queue, no_ack=True).body == b"x"
