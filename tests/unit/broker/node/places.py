"""Where queues and clients are, for tests of clusters: a queue's owner, and nodes that are not."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, bodies
from tests.unit.broker.node.node_cluster import Cluster


def three() -> Cluster:
    return Cluster("a", "b", "c")


def owner_of(cluster: Cluster, queue: str) -> str:
    owner = cluster.queue(queue).owner
    assert owner is not None
    return str(owner)


def away(cluster: Cluster, queue: str) -> list[str]:
    """The running nodes that do not own the queue."""
    return [site.name for site in cluster.running if site.name != owner_of(cluster, queue)]


def declared(cluster: Cluster, queue: str, owner: str | None = None, **arguments: Any) -> str:
    """Declares a durable queue and lets `owner` have it; returns who has."""
    cluster["a"].client().declare(queue, **arguments)
    if owner is not None:
        hand_over(cluster, queue, owner)
    return owner_of(cluster, queue)


def hand_over(cluster: Cluster, queue: str, to: str) -> None:
    owner = owner_of(cluster, queue)
    if owner != to:
        role = cluster[owner].node.role
        assert role is not None
        assert role.hand_over(cluster.queue(queue).queue_id, to)
        cluster.turn()
    assert owner_of(cluster, queue) == to


def confirming(cluster: Cluster, node: str) -> Client:
    client = cluster[node].client()
    client.ask(m.ConfirmSelect())
    return client


def count(cluster: Cluster, queue: str, node: str | None = None) -> int:
    """Messages ready, as a passive declare at a node tells."""
    site = cluster.running[0] if node is None else cluster[node]
    client = site.client()
    heard = client.say(m.QueueDeclare(queue=queue, passive=True))
    for _ in range(100):
        if heard:
            break
        cluster.wait(100)
        heard = client.say()
    (answer,) = heard
    assert isinstance(answer, m.QueueDeclareOk), answer
    client.leave()
    return int(answer.message_count)


def drained(cluster: Cluster, queue: str, node: str | None = None) -> list[bytes]:
    """All that is ready, consumed without acknowledgement at a node."""
    site = cluster.running[0] if node is None else cluster[node]
    client = site.client()
    heard = client.say(m.BasicConsume(queue=queue, consumer_tag="drain", no_ack=True))
    cluster.wait(2000)
    heard += client.say()
    client.leave()
    return bodies(heard)


def gone(cluster: Cluster, queue: str) -> bool:
    return all(site.map.queue("/", queue) is None for site in cluster.running)
