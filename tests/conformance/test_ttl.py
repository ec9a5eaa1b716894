"""Message and queue expiry (5.6)."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .conftest import Connect
from .marks import rule
from .test_declare import missing
from .wire import Channel, Connection, eventually

Name = Callable[[str], str]


def dead_letter_pair(channel: Channel, name: Name, **arguments: object) -> tuple[str, str]:
    """A queue whose dead letters go to a second one through the default exchange."""
    source, dead = name("source"), name("dead")
    channel.queue_declare(dead)
    target = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel.queue_declare(source, arguments=target | {k.replace("_", "-"): v for k, v in arguments.items()})
    return source, dead


@rule("5.6/ttl-minimum", "5.6/ttl-never-delivered")
@pytest.mark.parametrize(("queue_ttl", "message_ttl"), [(80, None), (None, "80"), (80, "60000"), (60000, "80")])
def test_the_smaller_ttl_counts(channel: Channel, name: Name, queue_ttl: int | None, message_ttl: str | None) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={} if queue_ttl is None else {"x-message-ttl": queue_ttl})
    channel.basic_publish("", queue, b"x", expiration=message_ttl)
    eventually(lambda: channel.message_count(queue) == 1)
    time.sleep(0.1)
    assert channel.basic_get(queue) is None, "expired, so never delivered"


@rule("5.6/ttl-never-delivered")
def test_a_message_with_time_left_is_delivered(channel: Channel, queue: str) -> None:
    channel.basic_publish("", queue, b"x", expiration="60000")
    assert channel.basic_get(queue, no_ack=True).properties == {"expiration": "60000"}


@rule("5.6/ttl-zero")
@pytest.mark.parametrize("by_message", [True, False])
def test_ttl_0_is_now_or_never(channel: Channel, name: Name, by_message: bool) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={} if by_message else {"x-message-ttl": 0})
    expiration = "0" if by_message else None
    channel.confirm_select()
    channel.basic_publish("", queue, b"nobody waits", expiration=expiration)
    channel.confirms(1)
    assert channel.basic_get(queue) is None
    channel.consume(queue, no_ack=True)
    channel.basic_publish("", queue, b"somebody waits", expiration=expiration)
    assert channel.delivery().body == b"somebody waits"


@rule("5.6/ttl-head-only")
def test_a_short_ttl_behind_a_long_one_waits(channel: Channel, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name)
    channel.basic_publish("", source, b"long", expiration="60000")
    channel.basic_publish("", source, b"short", expiration="30")
    time.sleep(0.15)
    assert channel.message_count(dead) == 0, "it is not at the head"
    assert channel.basic_get(source, no_ack=True).body == b"long"
    assert channel.basic_get(source) is None, "expired behind the head, and never delivered"
    eventually(lambda: channel.message_count(dead) == 1)


LONG_MS = [2**32 - 1, 2**32, 134_217_728_000, 315_360_000_000]
"""The third is the longest of Celery's native delayed delivery, the last is ten years: RabbitMQ 4.3 takes no more."""


@rule("5.6/ttl-any-integer")
@pytest.mark.parametrize("ttl_ms", LONG_MS)
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_times_of_more_than_32_bits(channel: Channel, name: Name, ttl_ms: int, kind: str) -> None:
    for argument in ("x-message-ttl", "x-expires"):
        queue, arguments = name("q"), {"x-queue-type": kind, argument: ttl_ms}
        for _ in range(2):
            channel.queue_declare(queue, durable=True, arguments=arguments)
        channel.confirm_select()
        channel.basic_publish("", queue, b"x")
        eventually(lambda queue=queue: channel.message_count(queue) == 1)  # type: ignore[misc]
        assert channel.basic_get(queue, no_ack=True).body == b"x"


@rule("5.6/ttl-any-integer")
@pytest.mark.parametrize("text", [*map(str, LONG_MS), "+60000", "0000000000000060000"])
def test_an_expiration_of_more_than_32_bits(channel: Channel, queue: str, text: str) -> None:
    channel.basic_publish("", queue, b"x", expiration=text)
    eventually(lambda: channel.message_count(queue) == 1)
    assert channel.basic_get(queue, no_ack=True).body == b"x"


@rule("5.6/ttl-any-integer")
@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires"])
@pytest.mark.parametrize("value", [-1, "60000", 1.5, True])
def test_what_is_no_time(channel: Channel, name: Name, argument: str, value: object) -> None:
    with channel.closes(406, argument):
        channel.queue_declare(name("q"), arguments={argument: value})


@rule("5.6/ttl-any-integer")
@pytest.mark.usefixtures("provisioned")
def test_a_policy_of_more_than_32_bits(channel: Channel, name: Name) -> None:
    queue = name("policy-long")
    channel.queue_declare(queue, durable=True)
    channel.basic_publish("", queue, b"x", expiration="315360000000")
    eventually(lambda: channel.message_count(queue) == 1)
    assert channel.basic_get(queue, no_ack=True).body == b"x"


@rule("5.6/expiration-string", "5.6/expiration-cleared")
def test_dead_lettering_moves_expiration_to_original_expiration(channel: Channel, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name)
    channel.basic_publish("", source, b"x", expiration="20", message_id="m")
    channel.consume(dead, no_ack=True)
    letter = channel.delivery()
    assert "expiration" not in letter.properties
    assert letter.properties["message_id"] == "m"
    assert letter.headers["x-death"][0]["original-expiration"] == "20"


@rule("5.6/ttl-minimum")
def test_a_requeued_message_keeps_its_deadline(channel: Channel, name: Name) -> None:
    queue = name("q")
    channel.queue_declare(queue, arguments={"x-message-ttl": 150})
    channel.basic_publish("", queue, b"x")
    tag = channel.basic_get(queue).delivery_tag
    time.sleep(0.2)
    channel.basic_nack(tag, requeue=True)
    eventually(lambda: channel.message_count(queue) == 0)
    assert channel.basic_get(queue) is None


@rule("5.6/expires-disuse")
def test_an_unused_queue_expires(connection: Connection, name: Name) -> None:
    queue = name("q")
    connection.channel().queue_declare(queue, arguments={"x-expires": 100})
    time.sleep(0.1)
    eventually(lambda: missing(connection, queue), pause_s=0.25)


@rule("5.6/expires-disuse")
@pytest.mark.parametrize("use", ["consumer", "redeclare", "get"])
def test_a_used_queue_does_not_expire(connection: Connection, name: Name, use: str) -> None:
    queue = name("q")
    channel = connection.channel()
    arguments = {"x-expires": 300}
    channel.queue_declare(queue, arguments=arguments)
    if use == "consumer":
        channel.consume(queue)
    for _ in range(5):
        time.sleep(0.12)
        if use == "redeclare":
            channel.queue_declare(queue, arguments=arguments)
        elif use == "get":
            channel.basic_get(queue)
    assert not missing(connection, queue)


@rule("5.6/expires-no-dead-letter")
def test_an_expired_queue_does_not_dead_letter(connection: Connection, name: Name) -> None:
    channel = connection.channel()
    source, dead = dead_letter_pair(channel, name, x_expires=80)
    channel.basic_publish("", source, b"x")
    time.sleep(0.1)
    eventually(lambda: missing(connection, source), pause_s=0.25)
    assert channel.message_count(dead) == 0


def test_expired_messages_leave_while_a_consumer_has_no_credit(channel: Channel, connect: Connect, name: Name) -> None:
    source, dead = dead_letter_pair(channel, name, x_message_ttl=100)
    channel.basic_qos(prefetch_count=1)
    channel.consume(source)
    channel.basic_publish("", source, b"held")
    channel.basic_publish("", source, b"expires")
    assert channel.delivery().body == b"held"
    other = connect().channel()
    eventually(lambda: other.message_count(dead) == 1)
    channel.basic_ack(1)
    channel.nothing_delivered()
