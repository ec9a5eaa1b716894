"""What the census tells of a queue besides its depths: what is kept, what is in memory, whether consumers keep up."""

from __future__ import annotations

from collections.abc import Container

import pytest

from clusterbroker.broker.server import counting
from clusterbroker.broker.stats.rows import Key, LeaseRow, QueueRow
from clusterbroker.broker.stats.totals import MessageTotals
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.fronts.amqp091.leasing_reader import Reader
from tests.unit.broker.node.node_cluster import Cluster

KEY = ("queue", 7)


def row(world: World, name: str = "q") -> QueueRow:
    return counting.queue_row(world.queue(name))


def test_messages_that_are_kept_are_told_apart() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", b"22")
    assert (row(world).persistent, row(world).persistent_bytes) == (2, 3)
    alice.publish("", "q", b"3", transient=True)
    assert (row(world).persistent, row(world).persistent_bytes) == (2, 0)
    alice.say(m.BasicConsume(queue="q", consumer_tag="t"))
    assert (row(world).unacknowledged, row(world).persistent) == (3, 2)
    alice.say(m.BasicAck(3, False))
    assert (row(world).unacknowledged, row(world).persistent, row(world).in_memory) == (2, 2, 2)
    alice.say(m.BasicAck(2, True))
    assert (row(world).persistent, row(world).in_memory) == (0, 0)


def told(world: World, kept: Container[Key] = (KEY,)) -> QueueRow | Key:
    """What a sample meets of the one queue."""
    (found,) = counting.queue_rows(world.node, kept)
    return found


def test_of_a_queue_at_rest_the_key_is_told_until_something_changes() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")

    def changed() -> QueueRow:
        found = told(world)
        assert isinstance(found, QueueRow)
        return found

    assert changed().ready == 0
    assert told(world) == KEY
    assert isinstance(told(world, kept=()), QueueRow), "who keeps no row is told it"
    alice.publish("", "q", b"1")
    assert changed().ready == 1
    assert changed().ready == 1, "a queue with messages is not at rest"
    alice.say(m.QueuePurge(queue="q"))
    assert (after := changed()).ready == 0
    assert after.messages.publish == 1
    assert told(world) == KEY
    alice.ask(m.BasicGet(queue="q"))
    assert changed().messages.get_empty == 1
    assert told(world) == KEY
    alice.say(m.BasicConsume(queue="q", consumer_tag="t"))
    assert changed().consumers == 1
    assert changed().consumers == 1, "of one with consumers, the time in which they had room"
    alice.ask(m.BasicCancel("t", False))
    assert changed().consumers == 0
    assert told(world) == KEY
    world.queue("q").set_aside(broken=True)
    world.wait(1)
    changed()
    assert isinstance(told(world), QueueRow), "one that is set aside is not at rest"


def test_a_lease_wakes_a_queue_at_rest() -> None:
    world = World()
    world.client().declare("q")
    assert isinstance(told(world), QueueRow)
    assert told(world) == KEY
    Reader(world.client(), "r1").take(rows=2, ttl_ms=5000)
    found = told(world)
    assert isinstance(found, QueueRow)
    assert found.lease is not None
    assert found.lease.run == "r1"


def test_a_transient_queue_keeps_nothing() -> None:
    world = World()
    alice = world.client()
    alice.ask(m.QueueDeclare(queue="q", exclusive=True))
    alice.publish("", "q", b"1")
    assert (row(world).persistent, row(world).in_memory) == (0, 1)


def test_what_is_paged_out_is_not_in_memory() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    world.queue("q").ring.resident_bytes_max = 0
    alice.publish("", "q", b"1", b"2", b"3")
    world.wait(10)
    told = row(world)
    assert (told.ready, told.persistent) == (3, 3)
    assert told.in_memory < 3
    assert told.in_memory == (told.in_memory_bytes > 0)


def test_the_head_has_the_time_that_its_publisher_gave_it() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    assert row(world).head_timestamp_s is None
    alice.publish("", "q", b"1", timestamp=1_700_000_000)
    alice.publish("", "q", b"2")
    assert row(world).head_timestamp_s == 1_700_000_000
    alice.say(m.BasicGet(queue="q", no_ack=True))
    assert row(world).head_timestamp_s is None


def test_the_capacity_of_consumers_is_the_time_in_which_one_had_room() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    assert row(world).consumer_capacity == 0, "there is none"
    alice.say(m.BasicQos(prefetch_count=1))
    alice.say(m.BasicConsume(queue="q", consumer_tag="t"))
    assert row(world).consumer_capacity == 1
    world.wait(1000)
    assert row(world).consumer_capacity == 1
    world.wait(250)
    alice.publish("", "q", b"1", b"2")
    world.wait(750)
    assert row(world).consumer_capacity == pytest.approx(0.25, abs=0.02), "one message waits while one is held"
    world.wait(500)
    alice.say(m.BasicAck(1, False))
    alice.say(m.BasicAck(2, False))
    world.wait(500)
    assert row(world).consumer_capacity == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("queue", ["kept", "transient"])
def test_what_clients_do_not_acknowledge_is_not_counted_as_acknowledged_in_a_cluster(queue: str) -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().say(m.QueueDeclare(queue="q", durable=queue == "kept"))
    owner = cluster.queue("q").owner
    other = next(name for name in "abc" if name != owner)
    writer, reader = cluster[owner].client(), cluster[other].client()
    writer.publish("", "q", *(b"%d" % i for i in range(6)))
    cluster.wait(50)
    assert reader.say(m.BasicGet(queue="q"))
    reader.say(m.BasicAck(1, False))
    assert reader.say(m.BasicGet(queue="q", no_ack=True))
    cluster.wait(50)
    reader.say(m.BasicConsume(queue="q", consumer_tag="t", no_ack=True))
    cluster.wait(100)
    (found,) = cluster[owner].node.queues.values()
    told = counting.queue_row(found).messages
    assert (told.publish, told.get, told.get_no_ack, told.deliver, told.deliver_no_ack, told.ack) == (6, 1, 1, 0, 4, 1)
    assert isinstance(told, MessageTotals)
    assert found.ring.auto_acks == 0
    assert found.ring.ready + found.ring.unacked == 0


def test_a_leased_queue_tells_who_reads_it() -> None:
    world = World()
    alice = world.client()
    alice.declare("q")
    alice.publish("", "q", b"1", b"2", b"3")
    assert row(world).lease is None
    reader = Reader(world.client(), "r1")
    reader.take(rows=2, ttl_ms=5000)
    assert row(world).lease == LeaseRow("n", "r1", 1, 3, 2, world.now_ms + 5000)
    reader.word("settle", upto=2)
    told = row(world)
    assert told.lease == LeaseRow("n", "r1", 2, 3, 1, world.now_ms + 5000)
    assert (told.ready, told.unacknowledged) == (1, 1)
    world.crash()
    lease = row(world).lease
    assert lease is not None
    assert (lease.run, lease.start, lease.end, lease.rows) == ("r1", 2, 3, 1)
    Reader(world.client()).word("release")
    assert row(world).lease is None
