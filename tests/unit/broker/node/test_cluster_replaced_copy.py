"""A copy that ends and begins anew while its owner says that it is in sync."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster


def test_a_copy_that_began_anew_is_not_taken_for_the_one_that_had_caught_up() -> None:
    """c had caught up; the command that says so is late. Before it c's copy is removed and made anew: the command was
    taken all the same, and the empty copy could be elected."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    bob = cluster["b"].client()
    bob.declare("other", x_queue_leader_locator="client-local")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", b"1", b"2", b"3")
    cluster.cuts.update({("a", "c"), ("b", "c")})
    for other in "ab":
        cluster.unlink(other, "c")
    cluster.wait(1000)
    assert cluster.queue("q").in_sync == ("a", "b")
    cluster["a"].wiring_waits = True
    cluster.cuts.clear()
    cluster.relink()
    cluster.wait(200)
    assert cluster["a"].node.proposals, "the owner says that c has caught up"
    cluster.cuts.update({("a", "c"), ("b", "c")})
    for other in "ab":
        cluster.unlink(other, "c")
    queue_id = cluster.queue("q").queue_id
    cluster.order(c.MoveReplica(queue_id=queue_id, remove=(NodeId("c"),)))
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("c"),)))
    cluster.turn()
    cluster["a"].wiring_waits = False
    cluster.turn()
    assert "c" not in cluster.queue("q").in_sync
    cluster.kill("a")
    cluster.cuts.clear()
    cluster.relink()
    cluster.wait(3000)
    assert bodies(cluster["b"].client().consume("q")) == [b"1", b"2", b"3"]
