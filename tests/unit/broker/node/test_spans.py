"""Spans of sampled messages: who is in them, whose children they are; and that the others have none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from clusterbroker.broker.node.spans import Span, Spans
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, declared, three

TRACE, PARENT = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
SAMPLED = f"00-{TRACE:032x}-{PARENT:016x}-01"


class Receiver:
    """A world without waiting: every question for the time takes one µs."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000
        self.random = random.Random(7)
        self.spans: list[Span] = []

    def now_ns(self) -> int:
        self.ns += 1000
        return self.ns

    def chance(self, bits: int) -> int:
        return self.random.getrandbits(bits)

    def ended(self, span: Span) -> None:
        self.spans.append(span)

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span


def traced(world: Any, receiver: Receiver, sampled: float = 0.0, most: int = 100) -> None:
    node = world.node
    node.watching.trace(Spans(node.options, receiver, sampled, most))


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.mark.parametrize("header", [SAMPLED, SAMPLED.encode()], ids=["text", "bytes"])
def test_a_message_of_a_sampled_trace_is_seen_to_its_end(receiver: Receiver, header: str | bytes) -> None:
    world = World()
    traced(world, receiver)
    alice, bob = world.client(), world.client()
    alice.declare("q")
    alice.ask(m.ConfirmSelect())
    world.disk_waits = True
    properties = {"traceparent": header, "other": 1}
    alice.publish("", "q", b"body", headers=properties, message_id="7", correlation_id="c")
    assert receiver.names() == ["publish amq.default"], "nobody was told that it is safe"
    world.disk_waits = False
    world.commit()
    (said,) = bob.say(m.BasicConsume(queue="q", consumer_tag="t"))[1:]
    assert (said.body, said.properties.headers) == (b"body", properties)
    bob.say(m.BasicAck(1, False))
    publish, commit, deliver, settle = receiver.spans
    assert receiver.names() == ["publish amq.default", "commit amq.default", "deliver q", "settle q"]
    assert {span.trace_id for span in receiver.spans} == {TRACE}
    assert (publish.parent_id, commit.parent_id) == (PARENT, publish.span_id)
    assert (deliver.parent_id, settle.parent_id) == (PARENT, deliver.span_id)
    assert publish.began_ns == commit.began_ns < publish.ended_ns < commit.ended_ns
    assert deliver.began_ns == settle.began_ns < settle.ended_ns
    assert publish.attributes == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.destination.name": "amq.default",
        "messaging.rabbitmq.destination.routing_key": "q",
        "messaging.message.body.size": 4,
        "messaging.message.id": "7",
        "messaging.message.conversation_id": "c",
        "network.peer.address": "192.0.2.1",
        "network.peer.port": 5,
        "clusterbroker.node": "node",
        "clusterbroker.vhost": "/",
        "clusterbroker.user": "guest",
        "clusterbroker.queues": ["q"],
    }
    assert deliver.attributes["messaging.destination.name"] == "q"
    assert deliver.attributes["messaging.rabbitmq.message.delivery_tag"] == 1
    assert deliver.attributes["clusterbroker.consumer_tag"] == "t"
    assert settle.attributes["clusterbroker.outcome"] == "ack"


@pytest.mark.parametrize(
    "header",
    [
        None,
        f"00-{TRACE:032x}-{PARENT:016x}-00",
        f"ff-{TRACE:032x}-{PARENT:016x}-01",
        f"00-{0:032x}-{PARENT:016x}-01",
        f"00-{TRACE:032x}-{0:016x}-01",
        SAMPLED.upper(),
        SAMPLED + "-",
        "traceparent",
        5,
    ],
)
def test_what_is_not_sampled_has_no_span(receiver: Receiver, header: Any) -> None:
    world = World()
    traced(world, receiver)
    alice = world.client()
    alice.declare("q")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", b"1", headers={"traceparent": header} if header else {"a": "traceparent"})
    alice.say(m.BasicGet(queue="q"), m.BasicAck(1, False))
    assert receiver.spans == []


def test_by_chance_a_trace_begins_here_and_its_message_says_so(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver, sampled=0.5, most=1000)
    alice = world.client()
    alice.declare("q")
    for number in range(100):
        alice.publish("", "q", b"%d" % number)
    begun = {span.trace_id: span for span in receiver.spans}
    assert 30 < len(begun) < 70
    heard = alice.say(m.BasicConsume(queue="q", consumer_tag="t", no_ack=True))
    told = [said for said in heard if type(said) is Content]
    assert len(told) == 100
    traces = [said.properties.headers["traceparent"] for said in told if said.properties.headers]
    assert traces == [f"00-{span.trace_id:032x}-{span.span_id:016x}-01" for span in begun.values()]
    delivered = [span for span in receiver.spans if span.name == "deliver q"]
    assert [span.parent_id for span in delivered] == [span.span_id for span in begun.values()]
    assert "settle q" not in receiver.names(), "nobody will acknowledge"


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        ([m.BasicAck(0, True)], "ack"),
        ([m.BasicNack(1, False, True)], "requeue"),
        ([m.BasicReject(1, False)], "reject"),
        ([m.BasicRecover(True)], "requeue"),
        ([m.ChannelClose(200, "", 0, 0)], "closed"),
        ([m.TxSelect(), m.BasicAck(1, False), m.TxCommit()], "ack"),
    ],
)
def test_each_end_of_a_delivery_is_told_once(receiver: Receiver, ends: list[Any], outcome: str) -> None:
    world = World()
    traced(world, receiver)
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    alice.say(m.BasicGet(queue="q"))
    for method in ends:
        alice.say(method)
    assert receiver.one("settle q").attributes["clusterbroker.outcome"] == outcome


def test_a_refused_publish_is_a_failed_commit(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver)
    alice = world.client()
    alice.declare("q", x_max_length=0, x_overflow="reject-publish")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    assert receiver.one("commit amq.default").failed


def test_publishers_do_not_decide_how_much_is_sampled(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver, most=3)
    alice = world.client()
    alice.declare("q")
    for _ in range(10):
        alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    assert len(receiver.spans) == 3
    receiver.ns += 1_000_000_000
    alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    assert len(receiver.spans) == 4


def test_a_batch_longer_than_the_stack_is_deep_is_seen_to_its_end(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver, most=10_000)
    alice = world.client()
    alice.declare("q")
    alice.ask(m.ConfirmSelect())
    world.disk_waits = True
    alice.publish("", "q", *[b"1"] * 2000, headers={"traceparent": SAMPLED})
    world.disk_waits = False
    world.commit()
    assert receiver.names().count("commit amq.default") == 2000


def test_no_header_is_put_where_no_frame_has_room_for_it(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver, sampled=1.0)
    alice = world.client()
    alice.declare("q")
    for length in (130_700, 131_000):
        alice.publish("", "q", b"1", headers={"x": "y" * length})
    short, long = (one.properties.headers for one in alice.say(m.BasicConsume(queue="q", consumer_tag="t"))[1:])
    assert ("traceparent" in short, "traceparent" in long) == (True, False)


def test_of_a_long_route_some_queues_are_named(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver)
    alice = world.client()
    for number in range(150):
        alice.declare(f"q{number}")
        alice.ask(m.QueueBind(queue=f"q{number}", exchange="amq.fanout"))
    alice.publish("amq.fanout", "", b"1", headers={"traceparent": SAMPLED})
    queues = receiver.one("publish amq.fanout").attributes["clusterbroker.queues"]
    assert isinstance(queues, list)
    assert len(queues) == 100


def test_a_message_is_seen_after_a_restart(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver)
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    world.crash()
    traced(world, receiver)
    bob = world.client()
    assert bodies(bob.say(m.BasicConsume(queue="q", consumer_tag="t"))) == [b"1"]
    assert receiver.one("deliver q").trace_id == TRACE


def test_a_traced_vhost_tells_both(receiver: Receiver) -> None:
    world = World()
    traced(world, receiver)
    world.command(c.AddVhost(name="/", tracing=True))
    alice = world.client()
    alice.declare("q")
    alice.declare("trace")
    alice.ask(m.QueueBind(queue="trace", exchange="amq.rabbitmq.trace", routing_key="#"))
    alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    alice.say(m.BasicGet(queue="q", no_ack=True))
    assert world.queue("trace").ring.ready == 2
    assert receiver.names() == ["publish amq.default", "deliver q"]


def test_nodes_of_a_cluster_see_their_parts_of_a_trace() -> None:
    cluster = three()
    declared(cluster, "q")
    receivers = {name: Receiver() for name in "abc"}
    for name, one in receivers.items():
        one.random = random.Random(name)
        traced(cluster[name], one)
    writer, reader = away(cluster, "q")
    alice, bob = cluster[writer].client(), cluster[reader].client()
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", b"1", headers={"traceparent": SAMPLED})
    alice.publish("", "q", b"2")
    cluster.wait(50)
    heard = bob.say(m.BasicConsume(queue="q", consumer_tag="t"))
    cluster.wait(50)
    heard += bob.say()
    bob.say(m.BasicAck(2, True))
    assert bodies(heard) == [b"1", b"2"]
    assert receivers[writer].names() == ["publish amq.default", "commit amq.default"]
    assert receivers[reader].names() == ["deliver q", "settle q"]
    assert {span.trace_id for one in receivers.values() for span in one.spans} == {TRACE}
    assert isinstance(cluster, Cluster)


def test_headers_that_take_no_more_get_no_trace(receiver: Receiver) -> None:
    """A consumer could not publish again what it got."""
    world = World()
    traced(world, receiver, sampled=1.0)
    client = world.client()
    client.declare("q")
    client.publish("", "q", b"full", headers={str(n): None for n in range(10_000)})
    client.publish("", "q", b"one left", headers={str(n): None for n in range(9_999)})
    full, left = client.consume("q")
    assert (len(full.properties.headers), len(left.properties.headers)) == (10_000, 10_000)
    assert "traceparent" in left.properties.headers
