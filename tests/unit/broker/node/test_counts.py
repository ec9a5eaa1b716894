"""What flows from exchanges into queues is counted while somebody asks, and not otherwise."""

from __future__ import annotations

from clusterbroker.broker.fronts.amqp091.rows import channel_row, consumer_row
from clusterbroker.broker.node import counts
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import World


def test_nobody_counts_unless_somebody_asks() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1")
    assert (world.node.flows.counting, world.node.flows.totals) == (False, {})
    world.node.flows.asked(world.now_ms)
    alice.publish("", "q", b"2", b"3")
    queue_id = world.queue("q").entity.queue_id
    assert world.node.flows.totals == {("/", b"", queue_id): 2}
    world.now_ms += counts.WANTED_MS
    alice.publish("", "q", b"4")
    assert (world.node.flows.counting, world.node.flows.totals) == (False, {})


def test_each_queue_of_a_route_is_a_flow_of_its_own() -> None:
    world = World()
    world.node.flows.asked(world.now_ms)
    alice = world.client()
    for name in ("p", "q"):
        alice.declare(name)
        alice.ask(m.QueueBind(queue=name, exchange="amq.fanout"))
    alice.publish("amq.fanout", "", b"1", b"2")
    alice.publish("", "q", b"3")
    ids = {name: world.queue(name).entity.queue_id for name in ("p", "q")}
    assert world.node.flows.totals == {
        ("/", b"amq.fanout", ids["p"]): 2, ("/", b"amq.fanout", ids["q"]): 2, ("/", b"", ids["q"]): 1,
    }  # fmt: skip


def test_flows_are_bounded() -> None:
    counted = counts.Flows()
    counted.asked(0)
    channel = ChannelCounts()
    world = World()
    world.client().declare("q")
    for number in range(counts.FLOWS_MAX + 5):
        counted.published(channel, "/", b"%d" % number, [world.queue("q")], 1, 1)
    assert len(counted.totals) == counts.FLOWS_MAX
    assert len(channel.publishes) == counts.EXCHANGES_MAX


def test_a_channel_tells_what_it_published_to_which_exchange() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"0")
    world.node.flows.asked(world.now_ms)
    alice.publish("", "q", b"1", b"2")
    alice.publish("amq.fanout", "nobody", b"3")
    row = channel_row("c", alice.connection.channels[1])
    assert dict(row.publishes) == {"": 2, "amq.fanout": 1}
    assert row.messages.publish == 4


def test_a_consumer_tells_what_it_was_handed() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", b"2", b"3")
    alice.say(m.BasicConsume(queue="q", consumer_tag="t"))
    (subscription,) = alice.connection.channels[1].consumers.values()
    assert consumer_row("c", 1, subscription).delivered == 3
