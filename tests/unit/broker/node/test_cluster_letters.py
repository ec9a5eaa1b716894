"""Very many dead letters of a queue that cannot commit, and whose owner dies."""

from __future__ import annotations

import pytest

from clusterbroker.broker.queues.producers import DEAD_SPREAD
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster

LETTERS = 2 * DEAD_SPREAD


@pytest.mark.long
def test_letters_go_no_further_than_targets_remember_before_that_they_left_is_committed() -> None:
    """All were answered, and the queue could not commit that they had left: its next owner sent them again, and the
    target knew the last ones only."""
    cluster = Cluster("a", "b", "c")
    carol = cluster["c"].client()
    carol.declare("graves", x_queue_leader_locator="client-local", x_replicas=1)
    alice = cluster["a"].client()
    alice.declare(
        "q", x_queue_leader_locator="client-local", x_replicas=2,
        x_dead_letter_exchange="", x_dead_letter_routing_key="graves",
    )  # fmt: skip
    assert cluster.queue("q").replicas == ("a", "b")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", *(b"%d" % number for number in range(LETTERS)))
    cluster.cuts.add(("a", "c"))
    cluster.unlink("a", "c")
    assert len(bodies(alice.consume("q"))) == LETTERS
    alice.say(m.BasicNack(0, True, False))
    cluster["b"].disk_waits = True
    cluster.cuts.clear()
    cluster.relink()
    cluster.turn()
    cluster.kill("a")
    cluster["b"].disk_waits = False
    cluster.turn()
    cluster.wait(5000)
    assert cluster.queue("q").owner == "b"
    letters = [int(body) for body in bodies(cluster["c"].client().consume("graves"))]
    assert len(letters) == len(set(letters)), "each once"
    assert letters == list(range(LETTERS))
