"""Length limits and what happens beyond them (5.6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .marks import rule
from .test_ttl import dead_letter_pair
from .wire import Channel, eventually

Name = Callable[[str], str]


def publish(channel: Channel, queue: str, count: int) -> list[str]:
    channel.confirm_select()
    sent = len(channel.confirmed)
    for i in range(count):
        channel.basic_publish("", queue, b"%d" % i)
    return channel.confirms(sent + count)[sent:]


@rule("5.6/drop-head")
def test_the_head_is_dropped(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-length": 2})
    assert publish(channel, queue, 5) == ["ack"] * 5
    assert [channel.basic_get(queue, no_ack=True).body for _ in range(2)] == [b"3", b"4"]
    assert channel.basic_get(queue) is None


@rule("5.6/drop-head")
def test_bytes_count_bodies(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-length-bytes": 10})
    channel.confirm_select()
    for body in (b"12345", b"67890", b"abc"):
        channel.basic_publish("", queue, body, headers={"not": "counted" * 10})
    channel.confirms(3)
    assert channel.basic_get(queue, no_ack=True).body == b"67890"


@rule("5.6/max-length-ready")
def test_only_ready_messages_count(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-length": 2})
    publish(channel, queue, 2)
    tags = [channel.basic_get(queue).delivery_tag for _ in range(2)]
    publish(channel, queue, 2)
    assert channel.message_count(queue) == 2, "the two unacknowledged take no room"
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    eventually(lambda: channel.message_count(queue) == 2)


@rule("5.6/reject-publish")
def test_reject_publish_nacks(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    assert publish(channel, queue, 4) == ["ack", "ack", "nack", "nack"]
    assert [channel.basic_get(queue, no_ack=True).body for _ in range(2)] == [b"0", b"1"]
    assert publish(channel, queue, 1) == ["ack"], "room again"


@rule("5.6/reject-publish")
@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_only_reject_publish_dlx_dead_letters(channel: Channel, name: Name, overflow: str) -> None:
    source, dead = dead_letter_pair(channel, name, x_max_length=1, x_overflow=overflow)
    assert publish(channel, source, 2) == ["ack", "nack"]
    if overflow == "reject-publish":
        channel.nothing_delivered()
        assert channel.message_count(dead) == 0
    else:
        eventually(lambda: channel.message_count(dead) == 1)
        letter = channel.basic_get(dead, no_ack=True)
        assert (letter.body, letter.headers["x-death"][0]["reason"]) == (b"1", "maxlen")


def test_a_length_of_0_serves_waiting_consumers_only(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-max-length": 0})
    publish(channel, queue, 1)
    assert channel.basic_get(queue) is None
    channel.consume(queue, no_ack=True)
    publish(channel, queue, 1)
    assert channel.delivery().body == b"0"
