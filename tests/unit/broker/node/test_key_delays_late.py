"""Delays in routing keys in a cluster: what is on its way to the queue when that ends is not lost, and not doubled."""

from __future__ import annotations

import pytest

from clusterbroker.broker.delay.key_delays import IDLE_MS, UNROUTED_MS
from clusterbroker.broker.queues.handle import CommitPart
from clusterbroker.broker.queues.ticket import FULL, Ticket
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_cluster_delays import beside
from tests.unit.broker.node.test_key_delays import BITS, DELIVERY, ENTRY, QUEUE, calculate_routing_key, part_of, wire
from tests.unit.broker.transactions.stager import Stager

END = c.DeletePolicy(vhost="/", name="bits")


def begun(*names: str) -> tuple[Cluster, str, str]:
    """A cluster, the queue's owner, and another node."""
    cluster = Cluster(*(names or ("a", "b", "c")))
    wire(cluster["a"].client())
    cluster.order(c.PutPolicy(vhost="/", name="bits", pattern=f"^{ENTRY}$", definition=BITS, apply_to="exchanges"))
    cluster.order(c.KeepDelays(vhost="/", exchange=ENTRY))
    cluster.turn()
    owner = str(cluster.queue(QUEUE).owner)
    return cluster, owner, next(name for name in cluster.sites if name != owner)


def has_ended(cluster: Cluster) -> bool:
    return cluster.running[0].map.queue("/", QUEUE) is None


def ready(cluster: Cluster, name: str) -> int:
    owner = str(cluster.queue(name).owner)
    return cluster[owner].node.queues[cluster.queue(name).queue_id].ring.ready


@pytest.mark.parametrize("numbered", [{}, {"x-producer": "p", "x-seq": 1}])
def test_what_waits_for_room_at_an_owner_that_ends_the_queue_is_not_confirmed(numbered: dict[str, object]) -> None:
    cluster, owner, other = begun()
    client = cluster[other].client()
    client.ask(m.ConfirmSelect())
    cluster[owner].node.set_alarm("memory", True)
    cluster.turn()
    assert client.publish(ENTRY, calculate_routing_key(100, "tasks"), b"x", headers=dict(numbered)) == []
    cluster.order(END)
    cluster.wait(IDLE_MS + 2000, step_ms=1000)
    assert has_ended(cluster)
    assert [type(one) for one in client.hear()] == [m.BasicNack]


def test_rows_of_a_segment_that_were_on_their_way_go_another_way() -> None:
    cluster, owner, other = begun()
    stager = Stager(cluster[other].client(channels=2))
    assert stager.declare("txn.a", target=ENTRY) == [m.ExchangeDeclareOk()]
    (ack,) = stager.stage("txn.a", b"x", key=calculate_routing_key(100, "tasks"))
    assert isinstance(ack, m.BasicAck)
    cluster[owner].node.set_alarm("memory", True)
    stager.order_commit("txn.a")
    cluster.turn()
    cluster.order(END)
    cluster.wait(IDLE_MS + 2000, step_ms=1000)
    assert has_ended(cluster)
    cluster[owner].node.set_alarm("memory", False)
    cluster.wait(2000)
    assert ready(cluster, "bound") == 1
    assert all(site.map.segments("/") == () for site in cluster.running)


def test_a_part_over_several_queues_is_asked_about_and_not_taken_by_a_queue_that_ends() -> None:
    cluster, owner, other = begun()
    cluster[owner].wiring_waits = True
    cluster.order(END)
    cluster.wait(IDLE_MS + 2000, step_ms=1000)
    face = cluster[other].node.vhosts["/"].queues[QUEUE]
    answers: list[str] = []
    face.judge(part_of(b"x"), cluster.now_ms, answers.append)
    cluster.turn()
    assert answers == [FULL]
    part: CommitPart = part_of(b"x")
    part.judged = True
    done: list[Ticket] = []
    ticket = Ticket(1, 1, done.append)
    face.commit(part, ticket, cluster.now_ms)
    ticket.pass_()
    cluster.turn()
    assert [one.rejected for one in done] == [True]


def test_what_one_queue_has_does_not_come_to_it_again_with_the_next_owner() -> None:
    """The letter waits for the other queue alone, which is deleted while nobody owns the letter."""
    cluster, owner, _ = begun("a", "b", "c", "d", "e")
    slow = beside(cluster, QUEUE, "tasks")
    local = cluster[slow].client()
    local.declare("slow", x_queue_leader_locator="client-local", x_replicas=1)
    local.ask(m.QueueBind(0, "slow", DELIVERY, "#.tasks"))
    entity = cluster.queue("slow")
    sender = next(cluster[name] for name in cluster.sites if name not in (owner, slow)).client()
    sender.ask(m.ConfirmSelect())
    sender.publish(ENTRY, calculate_routing_key(1, "tasks"), b"x")
    cluster[slow].disk_waits = True
    cluster.wait(4000)
    assert ready(cluster, "tasks") == 1
    cluster.kill(owner, failed=False)
    cluster.order(c.DeleteQueue(vhost="/", name="slow", queue_id=entity.queue_id))
    cluster.order(c.FailNode(node=owner, incarnation=cluster[owner].incarnation))  # type: ignore[arg-type]
    cluster[slow].disk_waits = False
    cluster.turn()
    cluster.wait(UNROUTED_MS + 5000, step_ms=1000)
    assert bodies(sender.consume("tasks")) == [b"x"]
    assert str(cluster.queue(QUEUE).owner) != owner
    assert ready(cluster, QUEUE) == 0
