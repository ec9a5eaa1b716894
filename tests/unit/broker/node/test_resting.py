"""What comes for a queue whose last group is on its way to the copies costs its owner no turn, and loses none."""

from __future__ import annotations

import gc
from collections import deque
from typing import Any

import pytest

from clusterbroker.broker.remote.messages import Publish
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.replication.messages import AppendAck
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster, Site
from tests.unit.broker.node.places import declared, three


def watched(site: Site) -> list[tuple[type, bool]]:
    """What comes to the node from now on, and whether it is at rest behind it, before any turn."""
    role = site.node.role
    assert role is not None
    came: list[tuple[type, bool]] = []
    for kind in (Publish, AppendAck):
        inner = role.hub.handlers[kind]

        def handle(peer: str, message: Any, payload: memoryview, inner: Any = inner, kind: type = kind) -> None:
            inner(peer, message, payload)
            came.append((kind, site.node.at_rest))

        role.hub.handlers[kind] = handle
    return came


def test_publishes_wait_for_the_commit_before_them_without_a_turn() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_queue_leader_locator="client-local")
    consumer = cluster["c"].client()
    publishers = [cluster[name].client() for name in ("b", "c")]
    consumer.consume("q", no_ack=True)
    for publisher in publishers:
        publisher.ask(m.ConfirmSelect())
    came = watched(cluster["a"])
    cluster["c"].disk_waits = True
    for number, publisher in enumerate(publishers):
        assert publisher.publish("", "q", b"%d" % number) == []
    assert [rests for kind, rests in came if kind is Publish] == [False, True]
    assert [rests for kind, rests in came if kind is AppendAck] == [True], "one of two copies has it"
    cluster["c"].disk_waits = False
    cluster.turn()
    assert bodies(consumer.hear()) == [b"0", b"1"]
    assert [publisher.hear() for publisher in publishers] == [[m.BasicAck(1, True)]] * 2
    assert [rests for kind, rests in came if kind is AppendAck][-1] is False


def test_publishes_of_a_node_wait_there_and_share_the_next_frame() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_queue_leader_locator="client-local")
    consumer, publisher = cluster["c"].client(), cluster["b"].client()
    consumer.consume("q", no_ack=True)
    publisher.ask(m.ConfirmSelect())
    came = watched(cluster["a"])
    cluster["c"].disk_waits = True
    for number in range(3):
        assert publisher.publish("", "q", b"%d" % number) == []
    assert [kind for kind, _ in came if kind is Publish] == [Publish]
    assert cluster["b"].node.at_rest
    cluster["c"].disk_waits = False
    cluster.turn()
    assert bodies(consumer.hear()) == [b"0", b"1", b"2"]
    assert publisher.hear() == [m.BasicAck(1, True), m.BasicAck(3, True)]
    assert [kind for kind, _ in came if kind is Publish] == [Publish] * 2


def test_a_group_of_settlements_alone_wakes_the_queue_for_what_came_meanwhile() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_queue_leader_locator="client-local")
    consumer, publisher = cluster["c"].client(), cluster["b"].client()
    consumer.consume("q")
    publisher.publish("", "q", b"0")
    assert bodies(consumer.hear()) == [b"0"]
    came = watched(cluster["a"])
    cluster["c"].disk_waits = True
    consumer.say(m.BasicAck(delivery_tag=1))
    publisher.publish("", "q", b"1")
    assert [rests for kind, rests in came if kind is Publish] == [True]
    copying = cluster["a"].node.role.copying  # type: ignore[union-attr]
    queue = cluster["a"].node.queues[cluster.queue("q").queue_id]
    marked: list[bool] = []
    committed = copying.committed

    def commit(queue_id: int, group: int) -> None:
        committed(queue_id, group)
        marked.append(queue.ring.marked)

    copying.committed = commit  # type: ignore[method-assign]
    before = cluster["a"].node.newest_group
    cluster["c"].disk_waits = False
    cluster.turn()
    assert bodies(consumer.hear()) == [b"1"]
    assert cluster["a"].node.newest_group == before + 1
    assert marked[0], "it may need a reservation, which goes with the next group"
    assert queue.ring.committed == queue.ring.next_seq


@pytest.mark.long
def test_a_queue_that_rests_has_no_empty_deques() -> None:
    """Each weighs 760 bytes, and there may be 10,000 such queues at each of three nodes."""
    cluster = three()
    declared(cluster, "first")
    before = deques()
    for number in range(20):
        declared(cluster, f"q{number}")
    assert deques() - before < 20


def deques() -> int:
    gc.collect()
    return sum(type(each) is deque for each in gc.get_objects())
