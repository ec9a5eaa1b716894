"""x-ownership=rotating on nodes in memory: everybody gets a turn, also those who can never own the queue."""

from __future__ import annotations

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import hand_over, owner_of


def test_the_token_goes_round_the_nodes_that_have_consumers() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_ownership="rotating", x_ownership_hold_ms=200)
    readers = {name: cluster[name].client() for name in "abc"}
    for reader in readers.values():
        reader.consume("q", no_ack=True)
    writer = cluster["a"].client()
    owners, heard = [], dict.fromkeys("abc", 0)
    for round_ in range(40):
        writer.publish("", "q", b"%d" % round_)
        cluster.wait(100)
        owners.append(cluster.queue("q").owner)
        for name, reader in readers.items():
            heard[name] += len(bodies(reader.say()))
    assert set(owners) == {"a", "b", "c"}
    assert sum(heard.values()) == 40
    assert min(heard.values()) > 5, heard


def test_consumers_of_a_node_that_cannot_own_the_queue_are_served() -> None:
    cluster = Cluster("a", "b", "c", "d")
    cluster["a"].client().declare("q", x_ownership="rotating", x_ownership_hold_ms=200)
    (outside,) = {"a", "b", "c", "d"} - set(cluster.queue("q").replicas)
    reader = cluster[outside].client()
    reader.consume("q", no_ack=True)
    writer = cluster["a"].client()
    writer.publish("", "q", b"1", b"2")
    cluster.wait(1000)
    assert bodies(reader.say()) == [b"1", b"2"]


def test_the_token_does_not_go_to_a_node_that_drains_and_its_consumers_are_served_all_the_same() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_ownership="rotating", x_ownership_hold_ms=200)
    readers = {name: cluster[name].client() for name in "abc"}
    for reader in readers.values():
        reader.consume("q", no_ack=True)
    if owner_of(cluster, "q") == "b":
        hand_over(cluster, "q", "a")
    cluster.order(c.DrainNode(node=NodeId("b"), draining=True))
    cluster.turn()
    writer = cluster["a"].client()
    owners, heard = [], dict.fromkeys("abc", 0)
    for round_ in range(40):
        writer.publish("", "q", b"%d" % round_)
        cluster.wait(100)
        owners.append(cluster.queue("q").owner)
        for name, reader in readers.items():
            heard[name] += len(bodies(reader.say()))
    assert set(owners) == {"a", "c"}
    assert sum(heard.values()) == 40
    assert min(heard.values()) > 5, heard
