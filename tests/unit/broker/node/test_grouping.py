"""A group commit is full at some size; what belongs together is not divided."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node import grouping
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, World
from tests.unit.broker.node.node_cluster import Cluster

QUEUES = 30
FULL = 5_000
BODY = bytes(1_000)
MOST = FULL + 1_500
"""A group is full, and one queue more."""


def bound(client: Client, **arguments: Any) -> None:
    client.say(m.ExchangeDeclare(exchange="f", type="fanout", durable=True))
    for number in range(QUEUES):
        client.declare(f"q{number}", **arguments)
        client.say(m.QueueBind(queue=f"q{number}", exchange="f", routing_key=""))


def groups(world: World) -> list[int]:
    """How many queues each group has; they are completed one by one."""
    counts = []
    while world.group is not None:
        counts.append(len(world.group.queues))
        world.commit()
    return counts


@pytest.fixture
def world() -> World:
    return World(group_bytes_max=FULL)


def committing(world: World) -> Client:
    """A client of a bound exchange, of a node with a disk that is asked for each group."""
    client = world.client()
    bound(client)
    world.disk_waits = True
    return client


def lasting(client: Client) -> bytes:
    return client.content("f", "", BODY, delivery_mode=2)


def test_a_message_to_many_queues_is_written_in_several_groups(world: World) -> None:
    client = world.client()
    bound(client)
    client.ask(m.ConfirmSelect())
    world.disk_waits = True
    client.raw(lasting(client))
    world.turn()
    counts = []
    while world.group is not None:
        assert client.hear(1) == [], "some queues have it on the disk, others not"
        assert world.node.group_bytes() <= MOST
        counts.append(len(world.group.queues))
        world.commit()
    assert sum(counts) == QUEUES
    assert max(counts) <= MOST // len(BODY)
    assert client.hear(1) == [m.BasicAck(1, True)]
    world.crash()
    assert {world.queue(f"q{number}").ring.ready for number in range(QUEUES)} == {1}


def test_no_group_is_expected_that_no_file_has_room_for(world: World) -> None:
    """It once ended the node: 16 MB to 280 queues."""
    client = committing(world)
    client.publish("", "q0", b"a group is under way")
    client.raw(lasting(client))
    world.turn()
    assert 0 < world.node.group_bytes() <= MOST


def test_publishers_wait_for_what_is_not_written(world: World) -> None:
    client = committing(world)
    client.raw(lasting(client))
    world.turn()
    assert world.node.unwritten_bytes > (QUEUES - 10) * len(BODY)
    groups(world)
    assert world.node.unwritten_bytes == 0


def test_a_transaction_is_not_divided(world: World) -> None:
    client = world.client()
    bound(client)
    client.say(m.TxSelect())
    client.raw(lasting(client))
    world.disk_waits = True
    client.say(m.TxCommit())
    assert groups(world) == [QUEUES]
    assert client.hear(1) == [m.TxCommitOk()]


def test_what_belongs_together_is_divided_when_no_group_would_take_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "TOGETHER_BYTES_MAX", 2 * FULL)
    client = world.client()
    bound(client)
    client.say(m.TxSelect())
    client.raw(lasting(client))
    world.disk_waits = True
    client.say(m.TxCommit())
    counts = []
    while world.group is not None:
        assert client.hear(1) == [], "all of it is durable before it is said"
        counts.append(len(world.group.queues))
        world.commit()
    assert len(counts) > 2
    assert sum(counts) == QUEUES
    assert client.hear(1) == [m.TxCommitOk()]


@pytest.mark.parametrize("transient", [False, True])
def test_members_divide_what_is_replicated(transient: bool) -> None:
    """With a journal and without."""
    cluster = Cluster("a", "b", "c", group_bytes_max=FULL)
    client = cluster["a"].client()
    bound(client, **({"x_durability": "memory"} if transient else {}))
    client.ask(m.ConfirmSelect())
    client.raw(lasting(client) * 2)
    cluster.turn()
    assert client.hear(1)[-1] == m.BasicAck(2, True)
    for number in range(QUEUES):
        assert client.ask(m.QueueDeclare(queue=f"q{number}", passive=True)) == m.QueueDeclareOk(f"q{number}", 2, 0)


def test_copies_that_waited_for_a_slow_disk_are_written_in_portions() -> None:
    """Each is acknowledged when its own group is durable: nobody hears of more than is on the disk."""
    cluster = Cluster("a", "b", "c", group_bytes_max=FULL // 2)
    client = cluster["a"].client()
    bound(client)
    owned = [name for name in (f"q{number}" for number in range(QUEUES)) if cluster.queue(name).owner == "a"]
    client.ask(m.ConfirmSelect())
    slow = cluster["b"]
    slow.disk_waits = True
    for name in owned:
        client.raw(client.content("", name, BODY, delivery_mode=2))
        cluster.turn()
    assert len(owned) * len(BODY) > 1.5 * FULL
    acked = []
    while slow.group is not None:
        assert 0 <= slow.node.group_bytes() <= MOST
        acked += [said.delivery_tag for said in client.hear(1)]
        assert (acked or [0])[-1] < len(owned)
        slow.complete()
        cluster.turn()
    acked += [said.delivery_tag for said in client.hear(1)]
    assert len(acked) >= 3, "several groups"
    assert acked[-1] == len(owned)
    slow.disk_waits = False
    cluster.kill("b")
    cluster.restart("b")
    role = slow.node.role
    assert role is not None
    assert {role.copying.replicas[cluster.queue(name).queue_id].next_seq for name in owned} == {2}
