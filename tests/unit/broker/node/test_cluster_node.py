"""Several nodes as one broker, in memory: what clients of any node see, through failures."""

from __future__ import annotations

import pytest

from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, bodies
from tests.unit.broker.node.node_cluster import Cluster


def test_any_node_sees_a_queue_that_was_declared_at_another() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    for name in "abc":
        assert cluster[name].client().ask(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 0, 0)
    assert len(cluster.digests()) == 1
    entity = cluster.queue("q")
    assert (len(entity.replicas), set(entity.in_sync)) == (3, {"a", "b", "c"})


def test_a_message_goes_from_any_node_to_any_node() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    reader = cluster["c"].client()
    reader.consume("q", no_ack=False)
    for name in "abc":
        writer = cluster[name].client()
        writer.ask(m.ConfirmSelect())
        heard = writer.publish("", "q", b"from " + name.encode())
        assert heard == [m.BasicAck(1, True)]
    assert sorted(bodies(reader.say())) == [b"from a", b"from b", b"from c"]


def test_a_killed_owner_loses_nothing_that_was_confirmed() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    others = [name for name in "abc" if name != owner]
    writer = cluster[others[0]].client()
    writer.ask(m.ConfirmSelect())
    writer.publish("", "q", *(b"%d" % i for i in range(10)))
    cluster.kill(owner)
    reader = cluster[others[1]].client()
    heard = reader.say(m.BasicConsume(queue="q", consumer_tag="t"))
    cluster.wait(3000)
    heard += reader.say()
    assert bodies(heard) == [b"%d" % i for i in range(10)]
    assert not any(said.method.redelivered for said in heard if isinstance(said, Content))


def test_a_consumer_of_a_surviving_node_keeps_what_it_holds_when_the_owner_dies() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    first, second = (name for name in "abc" if name != owner)
    writer, reader = cluster[first].client(), cluster[second].client()
    writer.ask(m.ConfirmSelect())
    writer.publish("", "q", b"1", b"2", b"3")
    reader.say(m.BasicQos(prefetch_count=2))
    held = reader.consume("q")
    assert bodies(held) == [b"1", b"2"]
    cluster.kill(owner)
    cluster.wait(2000)
    assert reader.say() == []
    other = cluster[first].client()
    assert [bodies(other.consume("q")), bodies(other.say(m.BasicAck(1)))] == [[b"3"], []]
    assert reader.say(m.BasicAck(2, True)) == []
    cluster.wait(1000)
    assert cluster[first].client().ask(m.QueueDeclare(queue="q", passive=True)).message_count == 0
    cluster.restart(owner)
    cluster.wait(3000)
    assert set(cluster.queue("q").in_sync) == {"a", "b", "c"}
    assert len(cluster.digests()) == 1


def test_messages_of_a_killed_nodes_clients_return_flagged() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    away, near = (name for name in "abc" if name != owner)
    cluster[near].client().publish("", "q", b"x")
    assert bodies(cluster[away].client().consume("q")) == [b"x"]
    cluster.kill(away)
    (again,) = cluster[near].client().consume("q")
    assert (again.body, again.method.redelivered) == (b"x", True)


def test_an_owner_that_may_do_nothing_rests() -> None:
    """Seed 2000002 of the simulation: a message expired while nobody might be told, and the node turned without end."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_message_ttl=500)
    owner = cluster[cluster.queue("q").owner]
    writer = owner.client()
    writer.ask(m.ConfirmSelect())
    assert writer.publish("", "q", b"x") == [m.BasicAck(1, True)]
    assert owner.node.role is not None
    owner.node.role.lease(False)
    cluster.wait(600)
    assert owner.node.next_wake_ms is None
    owner.node.role.lease(True)
    cluster.wait(50)
    ring = owner.node.queues[cluster.queue("q").queue_id].ring
    assert (ring.ready, ring.unacked) == (0, 0)


def test_all_nodes_killed_at_once_find_what_was_confirmed() -> None:
    cluster = Cluster("a", "b", "c")
    writer = cluster["b"].client()
    writer.declare("q")
    writer.ask(m.ConfirmSelect())
    writer.publish("", "q", *(b"%d" % i for i in range(5)))
    for site in cluster.running:
        site.crash()
    cluster.links.clear()
    for site in cluster.sites.values():
        site.start()
    cluster.relink()
    cluster.turn()
    cluster.wait(1000)
    heard = cluster["c"].client().consume("q")
    assert bodies(heard) == [b"%d" % i for i in range(5)]


def test_ownership_moves_on_demand_and_nobody_notices() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    owner = cluster.queue("q").owner
    to = next(name for name in "abc" if name != owner)
    writer, reader = cluster[owner].client(), cluster[owner].client()
    writer.ask(m.ConfirmSelect())
    reader.say(m.BasicQos(prefetch_count=1))
    reader.consume("q")
    writer.publish("", "q", b"1", b"2")
    assert bodies(reader.say()) == [b"1"]
    queue_id = cluster.queue("q").queue_id
    assert cluster[owner].node.role.hand_over(queue_id, to)
    cluster.turn()
    assert cluster.queue("q").owner == to
    assert bodies(reader.say()) == []
    assert bodies(reader.say(m.BasicAck(1))) == [b"2"]
    assert writer.publish("", "q", b"3") == [m.BasicAck(3, True)]
    assert bodies(reader.say(m.BasicAck(2))) == [b"3"]


def test_exclusive_queues_are_gone_everywhere_when_close_ok_is_heard() -> None:
    cluster = Cluster("a", "b", "c")
    owner = cluster["a"].client()
    owner.ask(m.QueueDeclare(queue="mine", exclusive=True))
    other = cluster["b"].client()
    assert other.code(m.QueueDeclare(queue="mine", passive=True)) == 405
    owner.raw_method(0, m.ConnectionClose(200, "bye"))
    cluster["a"].node.turn(cluster.now_ms)
    owner.flush()
    assert owner.hear(0) == [], "the wiring has not applied it yet"
    assert owner.say(channel=0) == [m.ConnectionCloseOk()]
    assert cluster["b"].client().code(m.QueueDeclare(queue="mine", passive=True)) == 404


def test_an_owner_tells_who_leaves_the_in_sync_set_and_who_is_back() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    queue = cluster.queue("q")
    away = next(name for name in "abc" if name != queue.owner)
    cluster.kill(away)
    cluster.restart(away)
    cluster.wait(3000)
    told = [(event, facts["node"], facts["epoch"]) for event, facts in cluster[queue.owner].events]
    assert [one for one in told if one[0] != "replica.caught_up"] == [
        ("owner.began", queue.owner, 1),
        ("replica.out_of_sync", away, 1),
        ("replica.in_sync", away, 1),
    ]


def test_a_replica_that_is_taken_away_is_told_to_leave_the_in_sync_set() -> None:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_queue_leader_locator="client-local")
    cluster.order(c.MoveReplica(queue_id=cluster.queue("q").queue_id, remove=(NodeId("c"),)))
    cluster.turn()
    assert cluster.queue("q").in_sync == ("a", "b")
    told = [(event, facts["node"]) for event, facts in cluster["a"].events if event.startswith("replica.")]
    assert told[-1] == ("replica.out_of_sync", "c")
    assert told.count(("replica.out_of_sync", "c")) == 1


def test_what_a_copy_means_does_not_change_with_a_policy() -> None:
    """A queue that was declared in memory stays there; one that was declared on the disk stays on the disk."""
    cluster = Cluster("a", "b", "c")

    def policy(durability: str) -> None:
        definition = {"durability": durability}
        cluster.order(c.PutPolicy(vhost="/", name="p", pattern="d", apply_to="queues", definition=definition))
        cluster.turn()

    alice = cluster["a"].client()
    alice.declare("disk")
    policy("memory")
    alice.declare("d-memory")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "disk", b"1")
    policy("fsync")
    alice.publish("", "disk", b"2")
    alice.publish("", "d-memory", b"3")
    for name in "abc":
        cluster.kill(name)
    for name in "abc":
        cluster.restart(name)
    cluster.wait(3000)
    reader = cluster["b"].client()
    assert bodies(reader.consume("disk", "one")) == [b"1", b"2"]
    assert bodies(reader.consume("d-memory", "two")) == []
    assert (cluster.queue("disk").volatile, cluster.queue("d-memory").volatile) == (False, True)


def test_a_group_gives_no_turn_to_the_queues_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One when it is published to, one when that is committed, one when it was settled. More would cost all of them."""
    turns: list[str] = []
    turn = Queue.turn
    monkeypatch.setattr(Queue, "turn", lambda queue, now_ms: (turns.append(queue.name), turn(queue, now_ms))[1])
    cluster = Cluster("a", "b", "c")
    writer, reader = cluster["a"].client(), cluster["a"].client()
    writer.declare("q", x_queue_leader_locator="client-local")
    writer.ask(m.ConfirmSelect())
    reader.consume("q", no_ack=True)
    cluster.wait(500)
    for _ in range(3):
        turns.clear()
        assert isinstance(writer.publish("", "q", b"1")[0], m.BasicAck)
        assert len(turns) <= 3
