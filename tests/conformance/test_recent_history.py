"""Exchanges of type `x-recent-history`, as RabbitMQ's plug-in of this name, on one node and on three."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.trial.nodes import LocalCluster

from .channel import Channel
from .own_nodes import OwnNodes
from .wire import Connection

Name = Callable[[str], str]
KIND, LENGTH = "x-recent-history", "x-recent-history-length"


class Recent:
    """An exchange that keeps its last messages, and what is published to it, with confirms."""

    def __init__(self, channel: Channel, exchange: str, length: int | None = None) -> None:
        self.channel, self.exchange = channel, exchange
        self.published = 0
        arguments = {} if length is None else {LENGTH: length}
        channel.exchange_declare(exchange, KIND, durable=True, arguments=arguments)
        channel.confirm_select()

    def publish(self, *bodies: bytes, **properties: object) -> None:
        for body in bodies:
            self.channel.basic_publish(self.exchange, "k", body, **properties)
        self.published += len(bodies)
        assert set(self.channel.confirms(self.published)) == {"ack"}

    def bound(self, queue: str) -> list[bytes]:
        """What a new queue has when it is bound."""
        self.channel.queue_declare(queue, durable=True)
        self.channel.queue_bind(queue, self.exchange, "any")
        return self.left_in(queue)

    def left_in(self, queue: str) -> list[bytes]:
        found = []
        while (got := self.channel.basic_get(queue, no_ack=True)) is not None:
            found.append(got.body)
        return found


@pytest.fixture
def recent(channel: Channel, name: Name) -> Recent:
    return Recent(channel, name("recent"), 3)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


def test_a_new_binding_gets_the_last_messages_in_their_order(recent: Recent, name: Name) -> None:
    recent.publish(*numbers(0, 5))
    assert recent.bound(name("q")) == numbers(2, 5)
    assert recent.bound(name("q")) == numbers(2, 5), "each queue gets them"


def test_twenty_are_kept_where_nothing_is_said(channel: Channel, name: Name) -> None:
    recent = Recent(channel, name("recent"))
    recent.publish(*numbers(0, 25))
    assert recent.bound(name("q")) == numbers(5, 25)


def test_many_are_kept_if_that_is_said(channel: Channel, name: Name) -> None:
    recent = Recent(channel, name("recent"), 1500)
    recent.publish(*numbers(0, 1600))
    assert recent.bound(name("q")) == numbers(100, 1600), "more than one look at the history"


def test_what_is_published_later_comes_once_and_to_all(recent: Recent, name: Name) -> None:
    first, second = name("q"), name("q")
    assert recent.bound(first) == recent.bound(second) == []
    recent.publish(b"1")
    assert recent.left_in(first) == recent.left_in(second) == [b"1"]


def test_a_binding_that_is_there_gets_nothing_again(recent: Recent, name: Name) -> None:
    queue = name("q")
    recent.publish(b"1")
    assert recent.bound(queue) == [b"1"]
    assert recent.bound(queue) == []


def test_a_message_may_say_that_it_is_not_kept(recent: Recent, name: Name) -> None:
    queue = name("q")
    assert recent.bound(queue) == []
    recent.publish(b"1", headers={"x-recent-history-no-store": True})
    recent.publish(b"2", headers={"x-recent-history-no-store": False})
    assert recent.left_in(queue) == [b"1", b"2"]
    assert recent.bound(name("q")) == [b"2"]


def test_properties_and_key_are_those_of_the_publish(recent: Recent, name: Name) -> None:
    recent.publish(b"1", headers={"h": "v"}, message_id="m", delivery_mode=2)
    queue = name("q")
    recent.channel.queue_declare(queue)
    recent.channel.queue_bind(queue, recent.exchange, "any")
    got = recent.channel.basic_get(queue, no_ack=True)
    assert got is not None
    assert (got.exchange, got.routing_key) == (recent.exchange, "k")
    assert got.properties["message_id"] == "m"
    assert got.headers["h"] == "v"


def test_an_exchange_that_is_bound_hands_them_on(recent: Recent, name: Name) -> None:
    recent.publish(b"1", b"2")
    channel, onward, queue = recent.channel, name("onward"), name("q")
    channel.exchange_declare(onward, "direct")
    channel.queue_declare(queue)
    channel.queue_bind(queue, onward, "k")
    channel.exchange_bind(onward, recent.exchange, "")
    assert recent.left_in(queue) == [b"1", b"2"]


def test_a_mandatory_message_without_a_queue_is_returned_and_not_kept(recent: Recent, name: Name) -> None:
    recent.channel.basic_publish(recent.exchange, "k", b"1", mandatory=True)
    assert recent.channel.returns()[0].body == b"1"
    recent.published = 1
    assert recent.channel.confirms(1) == ["ack"]
    assert recent.bound(name("q")) == []


@pytest.mark.parametrize("length", [0, -1, 10_001, "three", True])
def test_a_length_is_a_positive_number(channel: Channel, name: Name, length: object) -> None:
    with channel.closes(406, f"invalid arg '{LENGTH}'"):
        channel.exchange_declare(name("recent"), KIND, arguments={LENGTH: length})


def test_a_declaration_again_says_the_same_length(recent: Recent) -> None:
    with recent.channel.closes(406, f"inequivalent arg '{LENGTH}'"):
        recent.channel.exchange_declare(recent.exchange, KIND, durable=True, arguments={LENGTH: 4})


def test_its_queue_is_closed_and_goes_with_it(recent: Recent, connection: Connection) -> None:
    queue = f"amq.history.{recent.exchange}"
    recent.publish(b"1")
    with recent.channel.closes(403, "holds the recent messages of exchange"):
        recent.channel.basic_get(queue)
    again = connection.channel()
    again.exchange_delete(recent.exchange)
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
def test_the_history_survives_the_leader_of_its_queue(nodes: OwnNodes) -> None:
    Recent(nodes.channel("a"), "recent", 3).publish(*numbers(0, 5), delivery_mode=2)
    owner = nodes.owner("amq.history.recent")
    other = next(one for one in nodes.cluster.names if one != owner)
    recent = Recent(nodes.channel(other), "recent", 3)
    nodes.kill(owner)
    assert recent.bound("q") == numbers(2, 5)
