"""Delay queues with copies: the next owner goes on, at whichever step of what is due."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import Client, bodies
from tests.unit.broker.node.node_cluster import Cluster

DECLARE = m.ExchangeDeclare(
    0, "later", "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"}
)  # fmt: skip
DELAY_QUEUE = "amq.delay.later"


def wire(client: Client) -> None:
    client.ask(DECLARE)
    client.declare("q")
    client.ask(m.QueueBind(0, "q", "later", "k"))
    client.ask(m.ConfirmSelect())


def publish(client: Client, *delays: int) -> None:
    for number, delay in enumerate(delays):
        client.publish("later", "k", b"%d" % number, headers={"x-delay": delay})


def survivor(cluster: Cluster, lost: str) -> Client:
    return next(cluster[name] for name in cluster.sites if name != lost).client()


@pytest.mark.parametrize("step_ms", [0, 900, 1000, 1001, 1050, 2000, 3001, 4000])
def test_an_owner_that_dies_at_any_time_neither_loses_nor_doubles(step_ms: int) -> None:
    cluster = Cluster("a", "b", "c")
    owner = cluster["a"]
    wire(owner.client())
    owner_name = cluster.queue(DELAY_QUEUE).owner
    sender = survivor(cluster, owner_name)
    sender.ask(m.ConfirmSelect())
    publish(sender, 3000, 1000, 2000, 1000)
    cluster.wait(step_ms)
    cluster.kill(owner_name)
    cluster.wait(8000)
    assert cluster.queue(DELAY_QUEUE).owner != owner_name
    assert bodies(survivor(cluster, owner_name).consume("q")) == [b"1", b"3", b"2", b"0"]


def test_a_due_time_is_that_of_the_publish_whoever_owns_the_queue() -> None:
    """Published while no owner answers: it is due when it was."""
    cluster = Cluster("a", "b", "c")
    wire(cluster["a"].client())
    owner = cluster.queue(DELAY_QUEUE).owner
    sender = survivor(cluster, owner)
    consumer = survivor(cluster, owner)
    consumer.consume("q", no_ack=True)
    began_ms = sender.world.now_ms
    for other in cluster.sites:
        if other != owner:
            cluster.unlink(owner, other)
            cluster.cuts.add(tuple(sorted((owner, other))))  # type: ignore[arg-type]
    sender.publish("later", "k", b"x", headers={"x-delay": 4000})
    cluster.wait(1000)
    cluster.kill(owner)
    cluster.wait(began_ms + 3900 - sender.world.now_ms)
    assert bodies(consumer.hear()) == []
    cluster.wait(200)
    assert bodies(consumer.hear()) == [b"x"]
