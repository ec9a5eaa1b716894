"""Exchanges of type `x-message-deduplication`, as RabbitMQ's plug-in of this name, on one node and on three."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.broker.trial.nodes import LocalCluster
from clusterbroker.broker.wire.amqp10.performatives import Accepted
from clusterbroker.broker.wire.amqp10.types import Described, encode
from clusterbroker.broker.wire.numbers import UInt64
from tests.support.amqp10 import message

from .amqp10.conftest import connect10  # noqa: F401
from .amqp10.wire import Peer
from .channel import Channel
from .own_nodes import OwnNodes
from .target import Target
from .wire import Connection, eventually

Name = Callable[[str], str]
KIND, HEADER = "x-message-deduplication", "x-deduplication-header"


class Once:
    """Such an exchange, a queue that is bound to it, and what is published, with confirms."""

    def __init__(self, channel: Channel, exchange: str, queue: str, **arguments: Any) -> None:
        self.channel, self.exchange, self.queue = channel, exchange, queue
        self.published = 0
        said = {"x-cache-size": "100", **{key.replace("_", "-"): value for key, value in arguments.items()}}
        channel.exchange_declare(exchange, KIND, durable=True, arguments=said)
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, "any")
        channel.confirm_select()

    def publish(self, body: bytes, value: object = None, **more: Any) -> None:
        headers = {} if value is None else {HEADER: value}
        self.channel.basic_publish(self.exchange, "k", body, headers=headers, delivery_mode=2, **more)
        self.published += 1
        assert set(self.channel.confirms(self.published)) == {"ack"}

    def left(self, count: int) -> list[bytes]:
        """So many messages of the queue, and then nothing comes."""
        tag = self.channel.consume(self.queue, no_ack=True)
        found = self.channel.bodies(count)
        self.channel.nothing_delivered()
        self.channel.basic_cancel(tag)
        return found


@pytest.fixture
def once(channel: Channel, name: Name) -> Once:
    return Once(channel, name("once"), name("q"))


def test_the_first_of_each_value_passes(once: Once) -> None:
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b"), (b"4", 1), (b"5", "1"), (b"6", "b")):
        once.publish(body, value)
    assert once.left(4) == [b"1", b"3", b"4", b"5"]


def test_a_message_without_the_header_is_not_compared(once: Once) -> None:
    for body in (b"1", b"1"):
        once.publish(body)
    assert once.left(2) == [b"1", b"1"]


def test_publishers_of_both_protocols_are_compared(once: Once, connect10: Any) -> None:  # noqa: F811
    peer: Peer = connect10()
    sender = peer.session().sender(f"/exchanges/{once.exchange}/k")
    once.publish(b"1", "a")
    for body, value in ((b"2", "a"), (b"3", "b")):
        number = sender.transfer(encode(Described(UInt64(0x74), {HEADER: value})) + message(body))
        assert sender.outcome(number) == Accepted()
    once.publish(b"4", "b")
    assert once.left(2) == [b"1", b"3"]


def test_a_value_is_new_when_its_time_is_over(channel: Channel, name: Name) -> None:
    once = Once(channel, name("once"), name("q"), x_cache_ttl=100)
    once.publish(b"1", "a")

    def passes() -> bool:
        once.publish(b"2", "a")
        return channel.message_count(once.queue) > 1

    eventually(passes)


def test_repeats_are_counted_and_values_told(once: Once, target: Target) -> None:
    for body, value in ((b"1", "a"), (b"2", "a"), (b"3", "b")):
        once.publish(body, value)
    place = f"exchanges/%2F/{once.exchange}"

    def told() -> bool:
        exchange = target.api("GET", place).json()
        stats = exchange.get("message_stats", {})
        return (exchange.get("type"), exchange.get("cached_values"), stats.get("drop_repeated")) == (KIND, 2, 1)

    eventually(told)


def test_its_definition_of_rabbitmq_is_imported_and_exported(target: Target, name: Name, channel: Channel) -> None:
    exchange = name("once")
    arguments = {"x-cache-size": "5", "x-cache-ttl": 1000, "x-cache-persistence": "disk"}
    entry = {"vhost": "/", "name": exchange, "type": KIND, "durable": True, "auto_delete": False, "internal": False}
    whole = {"rabbit_version": "3.13.7", "exchanges": [{**entry, "arguments": arguments}]}
    assert target.api("POST", "definitions", whole).status_code == 204
    channel.exchange_declare(exchange, KIND, durable=True, arguments=arguments)
    told = target.api("GET", "definitions").json()
    assert {**entry, "arguments": arguments} in told["exchanges"]
    assert not [queue for queue in told["queues"] if queue["name"].startswith("amq.deduplication.")]


@pytest.mark.parametrize("size", [None, 0, "none", True])
def test_a_size_is_needed(channel: Channel, name: Name, size: object) -> None:
    with channel.closes(406, "invalid arg 'x-cache-size'"):
        channel.exchange_declare(name("once"), KIND, arguments={} if size is None else {"x-cache-size": size})


def test_its_queue_is_closed_and_goes_with_it(once: Once, connection: Connection) -> None:
    queue = f"amq.deduplication.{once.exchange}"
    once.publish(b"1", "a")
    with once.channel.closes(403, "holds the passing messages of exchange"):
        once.channel.basic_get(queue)
    again = connection.channel()
    again.exchange_delete(once.exchange)
    with again.closes(404, "no queue"):
        again.queue_declare(queue, passive=True)


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OwnNodes]:
    made = OwnNodes(LocalCluster(tmp_path, request.param))
    try:
        yield made
    finally:
        made.end()


@pytest.mark.skipif("CONFORMANCE_URL" in os.environ, reason="it kills a node of its own")
@pytest.mark.parametrize("nodes", [3], indirect=True)
def test_values_are_known_after_the_death_of_their_leader(nodes: OwnNodes) -> None:
    first = Once(nodes.channel("a"), "once", "q")
    for number in range(20):
        first.publish(b"%d" % number, number)
    owner = nodes.owner("amq.deduplication.once")
    once = Once(nodes.channel(nodes.other(owner)), "once", "q")
    nodes.kill(owner)
    for number in range(22):
        once.publish(b"again %d" % number, number)
    expected = [*(b"%d" % number for number in range(20)), b"again 20", b"again 21"]
    assert once.left(22) == expected
