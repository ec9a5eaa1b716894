"""Exchanges that choose a destination, where queues have their leaders at three nodes."""

from __future__ import annotations

from collections import Counter

from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster


def test_a_local_exchange_gives_to_queues_that_are_led_here() -> None:
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    client.ask(m.ExchangeDeclare(0, "x", "x-local-random", durable=True))
    leaders = {}
    for name in cluster.sites:
        queue = f"of-{name}"
        cluster[name].client().declare(queue, **{"x-queue-leader-locator": "client-local"})
        client.ask(m.QueueBind(0, queue, "x", ""))
        leaders[cluster.queue(queue).owner] = queue
    assert len(leaders) == 3, "each node leads one"
    for name in cluster.sites:
        sender = cluster[name].client()
        sender.ask(m.ConfirmSelect())
        for number in range(6):
            sender.publish("x", "", b"%s %d" % (name.encode(), number))
        cluster.wait(200)
    for name, queue in leaders.items():
        got = Counter(body.split()[0] for body in bodies(cluster["a"].client().consume(queue, no_ack=True)))
        assert got == {name.encode(): 6}, "what was published at its leader, and nothing else"


def test_a_random_exchange_reaches_queues_of_all_nodes_from_any() -> None:
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    client.ask(m.ExchangeDeclare(0, "x", "x-random", durable=True))
    for name in "abc":
        client.declare(f"q{name}")
        client.ask(m.QueueBind(0, f"q{name}", "x", ""))
    sender = cluster["b"].client()
    sender.ask(m.ConfirmSelect())
    for number in range(60):
        sender.publish("x", "", b"%d" % number)
    cluster.wait(200)
    found = [bodies(cluster["c"].client().consume(f"q{name}", no_ack=True)) for name in "abc"]
    assert all(found), "each queue has some"
    assert sorted(int(body) for queue in found for body in queue) == list(range(60))
