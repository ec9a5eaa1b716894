"""What a node writes again, and when its index must hear of it."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.journal.layout import RUN_ENTRY
from tests.unit.broker.fronts.amqp091.harness import Client, bodies
from tests.unit.broker.node.node_cluster import Cluster


def moving() -> tuple[Cluster, Client]:
    """The first messages of a queue are written again, and the other copy does not answer."""
    cluster = Cluster("a", "b")
    site = cluster["a"]
    site.journal.segment_bytes = 8 << 10
    alice = site.client()
    alice.declare("q", x_queue_leader_locator="client-local")
    alice.declare("other", x_queue_leader_locator="client-local", x_replicas=1)
    alice.ask(m.ConfirmSelect())
    for number in range(20):
        alice.publish("", "q", b"%2d" % number + bytes(1000))
    site.checkpoint()
    assert site.journal.end.segment > 2
    cluster["b"].disk_waits = True
    site.copy_forward(1)
    cluster.turn()
    return cluster, alice


def all_there(cluster: Cluster) -> None:
    site = cluster["a"]
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


def test_a_message_that_moved_while_its_group_waited_for_others_is_in_the_next_checkpoint() -> None:
    """The move counted when all copies had the group, and a checkpoint came between that and the own disk. The next one
    let go of the old segment, though the index still named it."""
    cluster, _ = moving()
    cluster["a"].checkpoint()  # the move is durable here, and not committed
    all_there(cluster)


def test_a_segment_lives_by_the_messages_that_moved_into_it() -> None:
    """Until all copies had the group nothing seemed to live in its segment, and a checkpoint let go of it."""
    cluster, alice = moving()
    site = cluster["a"]
    moved_to = site.journal.end.segment
    while site.journal.end.segment < moved_to + 2:
        alice.publish("", "other", bytes(1000))
    other = site.client()
    other.consume("other")
    other.say(m.BasicAck(0, True))
    site.checkpoint()
    all_there(cluster)
