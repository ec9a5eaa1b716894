"""What a node writes again, and when its index must hear of it."""

from __future__ import annotations

from broker.amqp import methods as m
from journal.layout import RUN_ENTRY
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.session.harness import bodies


def test_a_copy_that_moved_while_its_group_waited_for_others_is_in_the_next_checkpoint() -> None:
    """The move counts when all copies have the group, and a checkpoint came between that and the own disk. The next one
    let go of the old segment, though the index still named it."""
    cluster = Cluster("a", "b")
    site = cluster["a"]
    site.journal.segment_bytes = 8 << 10
    alice = site.client()
    alice.declare("q", x_queue_leader_locator="client-local")
    alice.ask(m.ConfirmSelect())
    for number in range(20):
        alice.publish("", "q", b"%2d" % number + bytes(1000))
    site.checkpoint()
    assert site.journal.end.segment > 2
    cluster["b"].disk_waits = True
    site.copy_forward(1)
    cluster.turn()
    site.checkpoint()  # the move is durable here, and not committed
    cluster["b"].disk_waits = False
    cluster.turn()
    site.checkpoint()
    named = {entry[4] for entries in site.journal.runs.values() for entry in RUN_ENTRY.iter_unpack(entries)}
    assert named <= set(site.journal.segments), "what the index names is there"
    cluster.kill("b", failed=False)
    cluster.kill("a", failed=False)
    cluster.restart("a")
    cluster.restart("b")
    cluster.wait(3000)
    assert [int(body[:2]) for body in bodies(site.client().consume("q"))] == list(range(20))
