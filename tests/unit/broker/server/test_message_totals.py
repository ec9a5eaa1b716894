"""What the census tells of messages: totals of channels, exchanges and queues, of one node and of a cluster."""

from __future__ import annotations

import pytest

from clusterbroker.broker.fronts.amqp091.rows import channel_row
from clusterbroker.broker.server import counting
from clusterbroker.broker.stats.rows import CopyLag
from clusterbroker.broker.stats.totals import MessageTotals
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, World
from tests.unit.broker.node.node_cluster import Cluster


def of_channel(client: Client, number: int = 1) -> MessageTotals:
    return channel_row("c", client.connection.channels[number]).messages


def of_queue(world: World, name: str) -> MessageTotals:
    return counting.queue_row(world.queue(name)).messages


@pytest.fixture
def world() -> World:
    return World()


def test_a_publish_is_counted_by_its_channel_its_exchange_and_each_queue(world: World) -> None:
    alice = world.client()
    for name in ("p", "q"):
        alice.declare(name)
        alice.ask(m.QueueBind(queue=name, exchange="amq.fanout"))
    alice.ask(m.ConfirmSelect())
    alice.publish("amq.fanout", "", b"1", b"2", b"3")
    assert of_channel(alice) == MessageTotals(publish=3, confirm=3)
    assert of_queue(world, "p") == of_queue(world, "q") == MessageTotals(publish=3, disk_writes=3)
    row = counting.exchange_row(world.node.vhosts["/"], "amq.fanout")
    assert (row.publish_in, row.publish_out, row.confirm) == (3, 6, 3)


def test_what_has_no_queue_to_go_to_is_returned_or_dropped(world: World) -> None:
    alice = world.client()
    alice.publish("", "nowhere", b"1", b"2", mandatory=True)
    alice.publish("", "nowhere", b"3")
    assert of_channel(alice) == MessageTotals(publish=3, return_unroutable=2, drop_unroutable=1)
    row = counting.exchange_row(world.node.vhosts["/"], "")
    assert (row.publish_in, row.publish_out, row.return_unroutable, row.drop_unroutable) == (3, 0, 2, 1)


def test_of_an_exchange_that_is_deleted_nothing_is_kept(world: World) -> None:
    """Also where no management process ever asks; nor when a transaction that staged a publish is committed later."""
    alice, bob = world.client(), world.client()
    alice.ask(m.ExchangeDeclare(exchange="x", type="fanout"))
    alice.publish("x", "", b"1")
    bob.ask(m.TxSelect())
    alice.ask(m.ExchangeDeclare(exchange="y", type="fanout"))
    bob.publish("y", "", b"2")
    assert "x" in world.node.vhosts["/"].exchanges
    for name in ("x", "y"):
        alice.ask(m.ExchangeDelete(exchange=name))
    bob.ask(m.TxCommit())
    assert not {"x", "y"} & world.node.vhosts["/"].exchanges.keys()


def test_a_refused_publish_is_not_confirmed(world: World) -> None:
    alice = world.client()
    alice.declare("q", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", b"1", b"2", b"3")
    assert of_channel(alice) == MessageTotals(publish=3, confirm=1)
    assert of_queue(world, "q").publish == 1


def test_deliveries_are_counted_by_how_they_are_acknowledged(world: World) -> None:
    alice, bob = world.client(), world.client()
    alice.declare("q")
    alice.publish("", "q", *(b"%d" % i for i in range(6)))
    alice.say(m.BasicQos(prefetch_count=4))
    alice.say(m.BasicConsume(queue="q", consumer_tag="t"))
    alice.say(m.BasicAck(2, True), m.BasicNack(3, False, True))  # two are acknowledged, one returns and comes again
    assert of_channel(alice) == MessageTotals(publish=6, deliver=7, redeliver=1, ack=2)
    assert of_queue(world, "q") == MessageTotals(publish=6, deliver=7, redeliver=1, ack=2, disk_writes=6)
    alice.say(m.ChannelClose(200, "", 0, 0))
    bob.consume("q", no_ack=True)
    assert of_channel(bob) == MessageTotals(deliver_no_ack=4, redeliver=4)
    told = of_queue(world, "q")
    assert (told.deliver, told.deliver_no_ack, told.redeliver, told.ack) == (7, 4, 5, 2)


def test_gets_are_counted_apart(world: World) -> None:
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", b"2")
    alice.say(m.BasicGet(queue="q"), m.BasicAck(1, False))
    alice.say(m.BasicGet(queue="q", no_ack=True))
    alice.say(m.BasicGet(queue="q"))
    expected = MessageTotals(publish=2, get=1, get_no_ack=1, get_empty=1, ack=1)
    assert of_channel(alice) == expected
    told = of_queue(world, "q")
    assert (told.get, told.get_no_ack, told.get_empty, told.ack, told.deliver) == (1, 1, 1, 1, 0)


def test_a_transaction_counts_when_it_is_committed(world: World) -> None:
    alice = world.client()
    alice.declare("q")
    alice.ask(m.TxSelect())
    alice.publish("", "q", b"1", b"2")
    assert of_channel(alice) == MessageTotals()
    alice.ask(m.TxCommit())
    alice.say(m.BasicGet(queue="q"), m.BasicAck(1, False))
    assert of_channel(alice) == MessageTotals(publish=2, get=1)
    alice.ask(m.TxCommit())
    assert of_channel(alice) == MessageTotals(publish=2, get=1, ack=1)
    assert of_queue(world, "q").ack == 1


def test_a_nodes_totals_outlive_its_channels(world: World) -> None:
    alice, bob = world.client(channels=2), world.client()
    alice.declare("q")
    alice.publish("", "q", b"1")
    alice.publish("", "q", b"2", channel=2)

    def told() -> int:
        channels = (one.totals for connection in world.node.clients.values() for one in connection.channels.values())
        return world.node.churn.messages(channels).publish

    assert told() == 2
    alice.say(m.ChannelClose(200, "", 0, 0))
    assert told() == 2
    alice.connection.lost(world.now_ms)
    bob.publish("", "q", b"3")
    assert told() == 3


def test_an_owner_counts_what_comes_from_all_nodes_and_the_next_one_begins_anew() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    other, third = (name for name in "abc" if name != owner)
    writer, reader = cluster[other].client(), cluster[third].client()
    writer.ask(m.ConfirmSelect())
    writer.publish("", "q", b"1", b"2", b"3", b"4")
    reader.say(m.BasicQos(prefetch_count=2))
    reader.say(m.BasicConsume(queue="q", consumer_tag="t"))
    reader.say(m.BasicAck(1, False))
    reader.say(m.BasicCancel("t"))
    writer.say(m.BasicGet(queue="q"))
    writer.say(m.BasicGet(queue="q"))
    cluster.turn()

    def told(name: str) -> MessageTotals:
        (queue,) = cluster[name].node.queues.values()
        return counting.queue_row(queue).messages

    assert told(owner) == MessageTotals(publish=4, deliver=3, get=1, get_empty=1, ack=1, disk_writes=4)
    assert of_channel(reader) == MessageTotals(deliver=3, ack=1)
    assert of_channel(writer) == MessageTotals(publish=4, confirm=4, get=1, get_empty=1)
    cluster.kill(owner)
    cluster.wait(3000)
    after = told(cluster.queue("q").owner)
    assert (after.publish, after.ack) == (0, 0)


def test_an_owner_tells_how_far_each_copy_is_behind() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    first, second = (name for name in "abc" if name != owner)

    def told() -> dict[str, CopyLag]:
        node = cluster[owner].node
        (queue,) = node.queues.values()
        return {lag.node: lag for lag in counting.lags(node, queue)}

    cluster["a"].client().publish("", "q", b"1", b"2")
    assert told() == {first: CopyLag(first), second: CopyLag(second)}
    cluster.kill(first)
    cluster.wait(3000)
    cluster[second].client().publish("", "q", b"3")
    assert told()[first].in_sync is False
    assert told()[first].records_behind == 3
    assert told()[second] == CopyLag(second)
