"""Segments in a cluster of nodes in memory: who dies while rows are staged, committed and moved."""

from __future__ import annotations

import random

import pytest

from clusterbroker.broker.transactions import mover, moving
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, bodies
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.transactions.stager import Stager

QUEUES = ("q", "r")


def begin(at: str = "a", owner: str = "b") -> tuple[Cluster, Stager]:
    """A producer at one node, target queues at another: "q" gets all rows, "r" those of key "k.r"."""
    cluster = Cluster("a", "b", "c")
    there = cluster[owner].client()
    for queue, key in zip(QUEUES, ("k.#", "k.r"), strict=True):
        there.declare(queue, x_queue_leader_locator="client-local")
        there.ask(m.QueueBind(queue=queue, exchange="amq.topic", routing_key=key))
        assert cluster.queue(queue).owner == owner
    return cluster, Stager(cluster[at].client(channels=2))


def segment_queue(cluster: Cluster, name: str = "txn.a") -> QueueId:
    segment = cluster.running[0].map.segment("/", name)
    assert segment is not None
    return segment.queue_id


def check_seen(cluster: Cluster, rows: list[bytes]) -> None:
    """Every row is in its queues once, in order, and nothing is remembered of it."""
    reader = cluster.running[0].client(channels=2)
    assert bodies(reader.consume("q")) == rows
    assert bodies(reader.consume("r", tag="r")) == [row for row in rows if row.endswith(b"r")]
    for site in cluster.running:
        assert site.map.segments("/") == ()
        for queue in site.node.queues.values():
            assert not [name for name in queue.ring.attributes if name[:1] == b"t"]
    assert len(cluster.digests()) == 1


def stage(alice: Stager, name: str, rows: list[bytes]) -> None:
    assert alice.declare(name) == [m.ExchangeDeclareOk()]
    for row in rows:
        (ack,) = alice.stage(name, row, key="k.r" if row.endswith(b"r") else "k")
        assert isinstance(ack, m.BasicAck)


def named(name: str, count: int = 6) -> list[bytes]:
    return [b"%s%d%s" % (name.encode(), number, b"r" if number % 2 else b"") for number in range(count)]


def test_a_segment_is_where_its_client_is_and_moves_to_other_owners() -> None:
    cluster, alice = begin()
    stage(alice, "txn.a", named("a"))
    entity = cluster["c"].map.queue_by_id(segment_queue(cluster))
    assert entity is not None
    assert (entity.owner, entity.in_sync) == ("a", ("a", "b", "c"))
    assert alice.status()["open"][0]["rows"] == 6
    other = Stager(cluster["c"].client(channels=2))
    assert other.status()["open"][0]["rows"] == 6
    assert other.commit("txn.a")["outcome"] == "committed", "any node may be asked"
    assert alice.commit("txn.a")["outcome"] == "already"
    check_seen(cluster, named("a"))


def test_segments_of_several_owners_are_one_commit() -> None:
    cluster, alice = begin()
    bob = Stager(cluster["b"].client(channels=2))
    stage(alice, "txn.a", named("a"))
    stage(bob, "txn.b", named("b"))
    alice.commit("txn.a", "txn.b")
    reader = cluster["c"].client()
    assert sorted(bodies(reader.consume("q"))) == sorted(named("a") + named("b"))


def test_the_owner_of_a_segment_dies_before_the_commit() -> None:
    cluster, alice = begin("a", "b")
    stage(alice, "txn.a", named("a"))
    cluster.kill("a")
    cluster.wait(1000)
    again = Stager(cluster["c"].client(channels=2))
    assert again.commit("txn.a")["outcome"] == "committed"
    cluster.wait(1000)
    check_seen(cluster, named("a"))


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("rounds", range(0, 40, 2))
def test_a_node_dies_in_the_middle_of_the_move(victim: str, rounds: int) -> None:
    """Of the segment's owner (a) and of the targets' (b), after every second round of work."""
    cluster, alice = begin("a", "b")
    stage(alice, "txn.a", named("a"))
    stage(alice, "txn.b", named("b"))
    cluster.order(
        c.CommitTransaction(
            vhost="/", producer="p", epoch=0, run="r1", transactions=("txn.a", "txn.b"), user="guest", at_ms=1
        )
    )
    for _ in range(rounds):
        cluster._round()
    cluster.kill(victim)
    cluster.wait(2000)
    check_seen(cluster, named("a") + named("b"))
    cluster.restart(victim)
    cluster.wait(2000)
    check_none_left(cluster)


def check_none_left(cluster: Cluster) -> None:
    for site in cluster.running:
        assert site.map.staging_queues("/") == ()
        for ring in [queue.ring for queue in site.node.queues.values()]:
            assert not [name for name in ring.attributes if name[:1] == b"t"]


@pytest.mark.parametrize("seed", range(30))
def test_links_break_and_nodes_die_while_rows_move(seed: int) -> None:
    chance = random.Random(seed)
    cluster, alice = begin(chance.choice("abc"), chance.choice("abc"))
    rows: list[bytes] = []
    for epoch in range(3):
        name = f"txn.{epoch}"
        some = named(f"e{epoch}.", chance.randrange(1, 9))
        rows += some
        alice.declare(name, epoch=epoch)
        for row in some:
            alice.stage(name, row, key="k.r" if row.endswith(b"r") else "k")
        cluster.order(
            c.CommitTransaction(
                vhost="/", producer="p", epoch=epoch, run="r1", transactions=(name,), user="guest", at_ms=1
            )
        )
        for _ in range(chance.randrange(12)):
            cluster._round()
            if chance.random() < 0.3:
                one, other = sorted(chance.sample("abc", 2))
                cluster.unlink(one, other)
                cluster.relink()
        if chance.random() < 0.5 and len(cluster.running) == 3:
            victim = chance.choice([site.name for site in cluster.running])
            cluster.kill(victim)
            cluster.wait(chance.choice([0, 500, 1500]))
            cluster.restart(victim)
            alice = Stager(cluster[chance.choice("abc")].client(channels=2))
        cluster.turn()
    cluster.wait(3000)
    check_seen(cluster, rows)


def test_so_many_producers_move_at_once_and_full_targets_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "ACTIVE_MAX", 2)
    monkeypatch.setattr(mover, "ROWS_MAX", 2)
    cluster, _ = begin("a", "b")
    cluster["b"].client().declare("full", x_max_length=1, x_overflow="reject-publish")
    expected = []
    for number in range(8):
        stager = Stager(cluster["a"].client(channels=2), f"p{number}")
        target, key = ("", "full") if number < 4 else ("amq.topic", "k")
        rows = [b"%d.%d" % (number, row) for row in range(5)]
        assert stager.declare(f"txn.{number}", target=target) == [m.ExchangeDeclareOk()]
        stager.stage(f"txn.{number}", *rows, key=key)
        stager.commit(f"txn.{number}")
        expected += rows if number >= 4 else []
    assert sorted(bodies(cluster["c"].client().consume("q"))) == expected, "the others had their turn"
    held = [mover for mover in cluster["a"].node.moving._movers.values() if mover.holds]
    assert len(held) <= 2
    reader, found = cluster["c"].client(), []
    for _ in range(200):
        found += [said.body for said in reader.say(m.BasicGet(queue="full", no_ack=True)) if isinstance(said, Content)]
        cluster.wait(1000, 500)
        if len(found) == 20:
            break
    for number in range(4):
        mine = [row for row in found if row.startswith(b"%d." % number)]
        assert mine == [b"%d.%d" % (number, row) for row in range(5)]
    cluster.wait(1000)
    check_none_left(cluster)


def test_an_epoch_waits_for_the_one_before_wherever_that_is() -> None:
    cluster, alice = begin("a", "b")
    carol = Stager(cluster["c"].client(channels=2))
    stage(alice, "txn.a", [b"0"])
    cluster["a"].node.alarms["disk"] = None  # what it owns does not move
    assert alice.commit("txn.a")["outcome"] == "committed"
    assert carol.declare("txn.c", epoch=1) == [m.ExchangeDeclareOk()]
    carol.stage("txn.c", b"1")
    carol.order_commit("txn.c", epoch=1)
    cluster.wait(1000)
    assert alice.status()["moving"] == 2
    assert carol.client.hear(2) == [], "it is answered when the epoch before is moved"
    cluster["a"].node.alarms.clear()
    cluster.wait(2000)
    assert carol.answer()["outcome"] == "committed"
    check_seen(cluster, [b"0", b"1"])


def test_a_segment_beyond_its_limit_is_refused_by_its_owner() -> None:
    cluster, alice = begin("a", "b")
    alice.declare("txn.a", x_max_staged_bytes=1000)
    cluster.order(c.DrainNode(node=NodeId("a")))
    part = cluster["a"].node.role
    assert part is not None
    assert part.hand_over(segment_queue(cluster), "c")
    cluster.turn()
    entity = cluster["a"].map.queue_by_id(segment_queue(cluster))
    assert entity is not None
    assert entity.owner == "c"
    assert alice.stage("txn.a", bytes(900)) == [m.BasicAck(1, True)]
    assert alice.stage("txn.a", bytes(900)) == [m.BasicNack(2, False, False)]
    assert alice.status()["open"][0]["rows"] == 1
    alice.commit("txn.a")
    assert bodies(cluster["b"].client().consume("q")) == [bytes(900)]


@pytest.mark.parametrize("seed", range(20))
def test_queues_are_handed_over_while_rows_move(seed: int) -> None:
    chance = random.Random(seed)
    cluster, alice = begin(chance.choice("abc"), chance.choice("abc"))
    rows: list[bytes] = []
    for epoch in range(3):
        name = f"txn.{epoch}"
        some = named(f"e{epoch}.", 8)
        rows += some
        alice.declare(name, epoch=epoch)
        for row in some:
            alice.stage(name, row, key="k.r" if row.endswith(b"r") else "k")
        cluster.order(
            c.CommitTransaction(
                vhost="/", producer="p", epoch=epoch, run="r1", transactions=(name,), user="guest", at_ms=1
            )
        )
        for _ in range(chance.randrange(20)):
            cluster._round()
            if chance.random() < 0.3:
                site = cluster[chance.choice("abc")]
                owned = [queue for queue in site.node.queues.values() if queue.ring.replicated]
                if owned:
                    assert site.node.role is not None
                    to = chance.choice([other for other in "abc" if other != site.name])
                    site.node.role.hand_over(chance.choice(owned).entity.queue_id, to)
    cluster.wait(5000)
    check_seen(cluster, rows)


def test_a_row_that_is_longer_than_its_target_is_taken_as_any_publish() -> None:
    cluster, alice = begin("a", "b")
    limits = {"x_max_length_bytes": 100, "x_overflow": "reject-publish", "x_queue_leader_locator": "client-local"}
    cluster["b"].client().declare("small", **limits)
    alice.declare("txn.a", target="")
    rows = [b"%d" % number * 300 for number in range(3)]
    for row in rows:
        alice.stage("txn.a", row, key="small")
    assert alice.commit("txn.a")["outcome"] == "committed"
    reader, got = cluster["c"].client(), list[bytes]()
    for _ in range(3):
        cluster.wait(4000)
        got += bodies(
            [said for said in reader.say(m.BasicGet(queue="small", no_ack=True)) if isinstance(said, Content)]
        )
    assert got == rows


def test_a_target_without_an_owner_holds_up_its_own_producers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "ACTIVE_MAX", 2)
    cluster = Cluster("a", "b", "c")
    cluster["c"].client().declare("down", x_queue_leader_locator="client-local", x_replicas=1)
    cluster["b"].client().declare("q", x_queue_leader_locator="client-local")
    cluster.kill("c")
    for producer, queue in (("p0", "down"), ("p1", "down"), ("other", "q")):
        stager = Stager(cluster["a"].client(channels=2), producer)
        stager.declare(f"txn.{producer}", target="")
        stager.stage(f"txn.{producer}", producer.encode(), key=queue)
        assert stager.commit(f"txn.{producer}")["outcome"] == "committed"
    cluster.wait(moving.PATIENCE_MS + 1000)
    assert bodies(cluster["a"].client().consume("q")) == [b"other"]
    cluster.restart("c")
    cluster.wait(2000)
    assert sorted(bodies(cluster["a"].client().consume("down"))) == [b"p0", b"p1"]
