"""Ends of links and of sole connections that the metadata log could not take are ordered again, by time alone."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp10.performatives import Open
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring_log import unlogged
from tests.support.amqp10 import HEADER, frame
from tests.unit.broker.fronts.amqp10.harness import Peer
from tests.unit.broker.node.link_clients import Receiver, message
from tests.unit.broker.node.node_cluster import Cluster


def refusing(patch: pytest.MonkeyPatch, node: Any, kind: type) -> None:
    """No majority takes commands of this kind from the node."""
    propose = node.propose

    def refuse(command: c.AnyCommand, done: Any) -> None:
        if isinstance(command, kind):
            done(unlogged(command, Unavailable("no majority")))
        else:
            propose(command, done)

    patch.setattr(node, "propose", refuse)


def test_a_link_is_suspended_when_there_is_a_majority_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_consumer_timeout=5000)
    owner = next(site for site in cluster.running if "q" in {queue.name for queue in site.node.queues.values()})
    site = next(site for site in cluster.running if site is not owner)
    receiver = Receiver(cluster, site.name)
    receiver.consume(prefetch=10)
    owner.node.vhosts["/"].queues["q"].publish([message(b"in")], None, owner.now_ms)
    cluster.turn()
    assert receiver.bodies() == [b"in"]
    with monkeypatch.context() as patch:
        refusing(patch, site.node, c.SuspendLink)
        receiver.leave()
    assert [link.suspended for link in site.map.links()] == [False]
    for _ in range(5):
        cluster.wait(60_000, 5_000)
    assert [link.suspended for link in site.map.links()] == [True]
    [queue] = [queue for queue in owner.node.queues.values() if queue.name == "q"]
    assert queue.ring.ready == 1, "the consumer timeout reaches it"


def test_a_container_is_free_when_there_is_a_majority_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b", "c")

    def entered(name: str) -> tuple[Peer, list[str]]:
        peer = Peer(cluster[name])
        peer.login()
        wish = Open(container_id="k", desired_capabilities=("sole-connection-for-container",))
        heard = peer.raw(HEADER + frame(0, wish))
        cluster.turn()
        heard += peer.raw(b"")
        return peer, [type(each.body).__name__ for each in heard if each.channel != -1]

    peer, heard = entered("a")
    assert heard == ["Open"]
    with monkeypatch.context() as patch:
        refusing(patch, cluster["a"].node, c.ReleaseContainer)
        peer.leave()
        cluster.turn()
    for _ in range(2):
        cluster.wait(5_000, 1_000)
    assert entered("b")[1] == ["Open"]


def test_exclusive_queues_go_when_there_is_a_majority_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b", "c")
    site = cluster["a"]
    cluster.wait(3_000, 1_000)
    client = site.client()
    client.ask(m.QueueDeclare(queue="mine", exclusive=True))
    assert site.map.queue("/", "mine") is not None
    told: list[str] = []
    with monkeypatch.context() as patch:
        refusing(patch, site.node, c.RemoveConnection)
        site.node.remove_connection(client.connection.id, lambda: told.append("tried"))
    assert told == ["tried"], "who waits for it hears when it was tried"
    due_ms = site.node.next_wake_ms
    assert due_ms is not None
    assert due_ms <= site.now_ms + 1_000, "the node takes a turn for it, whatever else happens"
    cluster.wait(2_000, 1_000)
    assert site.map.queue("/", "mine") is None
    assert told == ["tried"]
