"""connection.blocked and connection.unblocked (5.2). Alarms are raised through the hook `set_alarm` of target.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from .conftest import Connect
from .marks import rule
from .target import HookMissing, Target
from .wire import Connection, eventually


@pytest.fixture
def alarms(target: Target) -> Iterator[Target]:
    yield target
    with suppress(HookMissing):
        for kind in ("memory", "disk"):
            target.set_alarm(kind, False)


def said(connection: Connection) -> list[str]:
    return [method.name for method in connection.blocked]


@rule("5.2/blocked-publishers", "5.2/unblocked-when-all-clear", "5.2/blocked-not-consumers")
def test_publishers_are_blocked_until_all_alarms_are_clear(connect: Connect, alarms: Target, queue: str) -> None:
    publishing, consuming = connect(), connect()
    publisher, consumer = publishing.channel(), consuming.channel()
    publisher.basic_publish("", queue, b"before")
    consumer.consume(queue, no_ack=True)
    assert consumer.delivery().body == b"before"

    alarms.set_alarm("memory", True)
    during = publishing.publish_until_blocked(publisher, "", queue, b"during")
    assert publishing.blocked[0].reason

    alarms.set_alarm("disk", True)
    alarms.set_alarm("memory", False)
    publishing.read_for(0.2)
    assert said(publishing) == ["connection.blocked"], "once, and until all alarms are clear"
    consuming.is_usable()
    assert said(consuming) == []

    alarms.set_alarm("disk", False)
    publishing.wait(lambda: len(publishing.blocked) == 2, "connection.unblocked")
    assert said(publishing) == ["connection.blocked", "connection.unblocked"]
    assert consumer.bodies(during) == [b"during"] * during
    publisher.basic_publish("", queue, b"after")
    assert consumer.delivery().body == b"after"
    assert said(consuming) == []


@rule("5.2/blocked-publishers")
def test_a_client_without_the_capability_is_slowed_but_not_told(connect: Connect, alarms: Target, queue: str) -> None:
    old = connect(capabilities={"publisher_confirms": True})
    channel = old.channel()
    told = connect()
    alarms.set_alarm("memory", True)
    told.publish_until_blocked(told.channel(), "amq.fanout", "", b"x")
    for _ in range(20):
        channel.basic_publish("", queue, b"held")
        old.read_for(0.01)
    probe = connect().channel()
    assert probe.message_count(queue) < 20, "its socket is no longer read"
    assert old.blocked == []
    alarms.set_alarm("memory", False)
    eventually(lambda: probe.message_count(queue) == 20)
    assert old.blocked == []


@rule("5.2/blocked-cluster-wide")
def test_an_alarm_blocks_publishers_of_every_node(connect: Connect, alarms: Target, name: Callable[[str], str]) -> None:
    """Those who publish to the node's queues: six of them are spread over all nodes."""
    channel, exchange = connect().channel(), name("everywhere")
    channel.exchange_declare(exchange, "fanout")
    for _ in range(6):
        queue = name("q")
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "")
    publishers = [connect() for _ in range(3)]
    alarms.set_alarm_at_one_node("memory", True)
    for publisher in publishers:
        publisher.publish_until_blocked(publisher.channel(), exchange, "", b"x")
    alarms.set_alarm_at_one_node("memory", False)
    for publisher in publishers:
        publisher.wait(lambda one=publisher: len(one.blocked) == 2, "connection.unblocked")  # type: ignore[misc]
