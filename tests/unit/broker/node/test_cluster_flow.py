"""Who waits for whom when a queue cannot commit: those who publish to it, and nobody else."""

from __future__ import annotations

import pytest

from clusterbroker.broker.remote.remote_queues import QUEUE_BYTES_MAX
from clusterbroker.broker.wire.amqp091 import methods as m
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster

BODY = bytes(1 << 20)


@pytest.mark.long
def test_a_queue_that_cannot_commit_stops_its_own_publishers_only() -> None:
    cluster = Cluster("a", "b", "c", unwritten_bytes_max=16 << 20)
    cluster["a"].client().declare("stuck", x_queue_leader_locator="client-local", x_min_in_sync=3)
    cluster["b"].client().declare("free", x_queue_leader_locator="client-local")
    cluster.kill("c")
    stuck, free = cluster["b"].client(), cluster["b"].client()
    free.ask(m.ConfirmSelect())
    for _ in range(40):
        stuck.publish("", "stuck", BODY)
    remote_queues = cluster["b"].node.role.remote_queues  # type: ignore[union-attr]
    assert not stuck.connection.reading, "its bytes wait in its socket"
    held = next(iter(remote_queues.congested)).backlog_bytes
    assert QUEUE_BYTES_MAX < held <= QUEUE_BYTES_MAX + 3 * len(BODY)
    assert free.publish("", "free", b"x") == [m.BasicAck(1, True)]
    cluster.restart("c")
    cluster.wait(3000)
    assert stuck.connection.reading
    assert not remote_queues.congested
    assert remote_queues.unacknowledged_bytes == 0
    reader = cluster["a"].client()
    assert len(bodies(reader.consume("stuck", no_ack=True))) == 40


def test_a_node_without_a_lease_listens_to_nobody() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    fresh = cluster["b"].client()
    role = cluster["b"].node.role
    assert role is not None
    role.lease(False)
    cluster.turn()
    assert not fresh.connection.reading, "it has never published, and is not read either"
    assert fresh.publish("", "q", b"x") == []
    role.lease(True)
    cluster.turn()
    assert fresh.connection.reading
    cluster.wait(1000)
    assert cluster["c"].client().ask(m.QueueDeclare(queue="q", passive=True)).message_count == 1


def test_the_log_hears_how_copies_fare() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    queue = cluster.queue("q")
    owner = cluster[queue.owner]
    away = next(name for name in "abc" if name != queue.owner)
    cluster.kill(away)
    cluster.restart(away)
    cluster.wait(2000)
    told = [facts for event, facts in owner.events if event == "replica.caught_up"]
    assert told
    assert told[-1] == {"queue": "q", "vhost": "/", "queue_id": queue.queue_id, "epoch": queue.epoch, "node": away}
    assert owner.node.role is not None
    to = next(name for name in "abc" if name not in (queue.owner, away))
    cluster.kill(to, failed=False)
    assert owner.node.role.hand_over(queue.queue_id, to)
    cluster.wait(4000)
    failed = [facts for event, facts in owner.events if event == "owner.hand_over_failed"]
    assert [(facts["node"], facts["queue"], bool(facts["why"])) for facts in failed] == [(to, "q", True)]
