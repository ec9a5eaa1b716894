"""The firehose of a vhost: what clients publish and get there is told to `amq.rabbitmq.trace`, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Client, Content, World, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, declared, owner_of, three


def opened(world: Any, tracing: bool = True) -> None:
    order = world.order if isinstance(world, Cluster) else world.command
    order(c.AddVhost(name="/", tracing=tracing))
    world.turn()


def listener(client: Client, key: str = "#", queue: str = "trace") -> None:
    client.declare(queue)
    client.ask(m.QueueBind(queue=queue, exchange="amq.rabbitmq.trace", routing_key=key))


def told(client: Client, queue: str = "trace") -> list[tuple[str, dict[str, Any], bytes]]:
    heard = []
    while isinstance(got := client.ask(m.BasicGet(queue=queue, no_ack=True)), Content):
        assert got.method.exchange == "amq.rabbitmq.trace"
        heard.append((got.method.routing_key, dict(got.properties.headers or {}), got.body))
    return heard


def test_it_is_shut_unless_it_is_opened() -> None:
    world = World()
    alice = world.client()
    listener(alice)
    alice.declare("q")
    alice.publish("", "q", b"1")
    assert told(alice) == []
    assert not world.node.watches
    opened(world)
    assert list(world.node.watches) == ["/"]
    opened(world, False)
    alice.publish("", "q", b"2")
    assert told(alice) == []
    assert not world.node.watches
    assert not world.queue("q").ring.annotates_all


def test_publishes_and_deliveries_are_told_with_all_their_headers() -> None:
    world = World()
    opened(world)
    alice = world.client()
    listener(alice)
    alice.declare("q")
    alice.say(m.ExchangeDeclare(exchange="x", type="fanout"))
    alice.ask(m.QueueBind(queue="q", exchange="x"))
    alice.publish("x", "k", b"body", headers={"CC": ["more"], "a": 1}, message_id="7", priority=3)
    alice.say(m.BasicConsume(queue="q", consumer_tag="t"))
    (publish, deliver) = told(alice)
    about = {
        "exchange_name": "x",
        "routing_keys": ["k", "more"],
        "properties": {"headers": {"CC": ["more"], "a": 1}, "delivery_mode": 2, "message_id": "7", "priority": 3},
        "node": "node",
        "vhost": "/",
        "connection": "192.0.2.1:5",
        "channel": 1,
        "user": "guest",
    }
    assert publish == ("publish.x", about | {"routed_queues": ["q"]}, b"body")
    assert deliver == ("deliver.q", about | {"redelivered": 0}, b"body")


def test_blind_copies_stay_blind() -> None:
    world = World()
    opened(world)
    alice = world.client()
    listener(alice)
    alice.declare("q")
    alice.declare("hidden")
    alice.publish("", "q", b"1", headers={"BCC": ["hidden"], "a": 1})
    alice.ask(m.BasicGet(queue="q", no_ack=True))
    assert [headers["properties"]["headers"] for _, headers, _ in told(alice)] == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_consumers_and_gets_have_is_told_once_each(no_ack: bool) -> None:
    world = World()
    alice, bob = world.client(), world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", b"2", b"3")
    opened(world)
    listener(bob, "deliver.#")
    assert alice.ask(m.BasicGet(queue="q", no_ack=no_ack)).body == b"1"
    alice.say(m.BasicConsume(queue="q", consumer_tag="t", no_ack=no_ack))
    assert [(key, headers["redelivered"], body) for key, headers, body in told(bob)] == [
        ("deliver.q", 0, b"1"), ("deliver.q", 0, b"2"), ("deliver.q", 0, b"3"),
    ]  # fmt: skip
    if not no_ack:
        alice.say(m.BasicReject(2, True))
        assert [(headers["redelivered"], body) for _, headers, body in told(bob)] == [(1, b"2")]


def test_a_trace_is_not_traced() -> None:
    world = World()
    opened(world)
    alice, bob = world.client(), world.client()
    listener(bob)
    heard = bodies(bob.say(m.BasicConsume(queue="trace", consumer_tag="t", no_ack=True)))
    alice.declare("q")
    alice.publish("", "q", b"1")
    heard += bodies(bob.say())
    world.wait(100)
    assert [*heard, *bodies(bob.say())] == [b"1"]


def test_a_queue_may_hear_of_itself() -> None:
    world = World()
    opened(world)
    alice = world.client()
    listener(alice, queue="q")
    alice.publish("", "q", b"1")
    heard = alice.say(m.BasicConsume(queue="q", consumer_tag="t", no_ack=True))
    keys = [said.method.routing_key for said in heard if isinstance(said, Content)]
    assert keys == ["q", "publish.", "deliver.q"]


def test_of_a_transaction_it_is_told_when_it_is_committed() -> None:
    world = World()
    opened(world)
    alice, bob = world.client(), world.client()
    listener(bob)
    alice.declare("q")
    alice.ask(m.TxSelect())
    alice.publish("", "q", b"1")
    assert told(bob) == []
    alice.ask(m.TxCommit())
    assert [key for key, _, _ in told(bob)] == ["publish."]


def test_what_no_frame_could_hold_is_told_without_its_properties() -> None:
    world = World()
    opened(world)
    alice = world.client()
    listener(alice)
    alice.declare("q")
    alice.publish("", "q", b"1", headers={"long": "x" * 127_500})
    deep: Any = 1
    for _ in range(28):
        deep = {"a": deep}
    alice.publish("", "q", b"2", headers=deep)
    long, nested = told(alice)
    assert (long[1]["properties"], long[2]) == ({}, b"1")
    assert (nested[1]["exchange_name"], nested[2]) == ("", b"2")


def test_a_route_that_no_frame_could_hold_is_told_without_its_queues() -> None:
    world = World()
    opened(world)
    alice = world.client()
    listener(alice)
    alice.say(m.ExchangeDeclare(exchange="x", type="fanout"))
    for number in range(60):
        queue = f"{number:0200}"
        alice.declare(queue)
        alice.ask(m.QueueBind(queue=queue, exchange="x"))
    world.node.options = replace(world.node.options, frame_max_bytes=12_288)
    alice.publish("x", "k", b"1", priority=3)
    ((key, headers, body),) = told(alice)
    assert (key, headers["exchange_name"], headers["routed_queues"], body) == ("publish.x", "x", [], b"1")


def test_listeners_that_cannot_take_more_hold_up_nobody() -> None:
    world = World()
    opened(world)
    alice = world.client()
    alice.declare("trace", x_max_length=1, x_overflow="reject-publish")
    alice.ask(m.QueueBind(queue="trace", exchange="amq.rabbitmq.trace", routing_key="#"))
    alice.declare("q")
    alice.publish("", "q", b"1", b"2", b"3")
    assert len(told(alice)) == 1
    assert world.queue("q").ring.ready == 3


def test_the_vhost_keeps_it_over_a_restart_and_until_it_is_deleted() -> None:
    world = World()
    world.command(c.AddVhost(name="v", tracing=True))
    world.command(c.AddVhost(name="v", description="changed"))
    assert list(world.node.watches) == ["v"]
    world.crash()
    assert list(world.node.watches) == ["v"]
    world.command(c.DeleteVhost(name="v"))
    assert not world.node.watches


@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_node_of_a_cluster_tells_of_its_own_clients(prefetch: int) -> None:
    cluster = three()
    declared(cluster, "q")
    declared(cluster, "trace", owner_of(cluster, "q"))
    opened(cluster)
    writer, reader = away(cluster, "q")
    alice, bob = cluster[writer].client(), cluster[reader].client()
    alice.ask(m.QueueBind(queue="trace", exchange="amq.rabbitmq.trace", routing_key="#"))
    alice.publish("", "q", b"1", b"2")
    cluster.wait(50)
    if prefetch:
        bob.ask(m.BasicQos(prefetch_count=prefetch, global_qos=True))
    heard = bob.say(m.BasicConsume(queue="q", consumer_tag="t"))
    cluster.wait(50)
    assert bodies([*heard, *bob.say()]) == [b"1", b"2"]
    cluster.wait(50)
    carol = cluster[writer].client()
    opened(cluster, False)
    heard = carol.say(m.BasicConsume(queue="trace", consumer_tag="t", no_ack=True))
    cluster.wait(100)
    heard += carol.say()
    got = [(said.method.routing_key, said.properties.headers["node"], said.body) for said in heard[1:]]
    assert got == [
        ("publish.", writer, b"1"), ("publish.", writer, b"2"),
        ("deliver.q", reader, b"1"), ("deliver.q", reader, b"2"),
    ]  # fmt: skip
