"""More was lost than the minimum in sync allows: what is left says what it cannot know."""

from __future__ import annotations

import pytest

from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, bodies
from tests.unit.broker.node.node_cluster import Cluster


def behind(durability: str) -> Cluster:
    """c has ten messages of a queue, of which it does not know that they were handed out at a, and acknowledged; b died
    last of those who know. c owns nothing yet."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local", x_durability=durability)
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", *(b"%d" % number for number in range(10)))
    cluster.cuts.update({("a", "c"), ("b", "c")})
    for other in "ab":
        cluster.unlink(other, "c")
    cluster.wait(1000)
    assert cluster.queue("q").in_sync == ("a", "b")
    assert len(bodies(alice.consume("q"))) == 10
    alice.say(m.BasicAck(5, True))
    cluster.turn()
    assert cluster.queue("q").owner == "a"
    return cluster


@pytest.mark.parametrize("crash", [False, True], ids=["", "and-begins-again"])
def test_what_an_operator_has_left_may_have_been_handed_out(crash: bool) -> None:
    """The copy that was forced has messages that its former owners may have handed out since it left."""
    cluster = behind("fsync")
    cluster.kill("a")
    cluster.kill("b")
    cluster.wait(3000)
    assert cluster.queue("q").owner is None
    cluster.order(c.ForceOwner(queue_id=cluster.queue("q").queue_id, node=NodeId("c")))
    if crash:
        cluster["c"].disk_waits = True
        cluster.turn()
        cluster.kill("c", failed=False)
        cluster["c"].disk_waits = False
        cluster.restart("c")
    cluster.cuts.clear()
    cluster.restart("a")
    cluster.wait(3000)
    carol = cluster["c"].client()
    heard = [said for said in carol.consume("q") if isinstance(said, Content)]
    assert [said.body for said in heard] == [b"%d" % number for number in range(10)]
    assert all(said.method.redelivered for said in heard)
    (new,) = [said for said in carol.publish("", "q", b"new") if isinstance(said, Content)]
    assert not new.method.redelivered


def test_a_queue_in_memory_begins_empty_where_its_messages_are_not_known() -> None:
    cluster = behind("memory")
    cluster.kill("a")
    cluster.kill("b")
    cluster.wait(3000)
    assert cluster.queue("q").owner == "c"
    cluster.cuts.clear()
    cluster.restart("a")
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "c")
    carol = cluster["c"].client()
    assert bodies(carol.consume("q")) == [], "what was acknowledged does not come back"
    (new,) = [said for said in carol.publish("", "q", b"new") if isinstance(said, Content)]
    assert (new.body, new.method.redelivered) == (b"new", False)


def test_a_queue_whose_loss_was_accepted_begins_empty_at_who_once_had_a_copy() -> None:
    """Its copy was removed while it was away, and it is the only one left to put the queue to."""
    cluster = Cluster("a", "b")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", *(b"%d" % number for number in range(10)))
    cluster.kill("b")
    cluster.order(c.MoveReplica(queue_id=cluster.queue("q").queue_id, remove=(NodeId("b"),)))
    cluster.wait(1000)
    assert cluster.queue("q").replicas == ("a",)
    assert len(bodies(alice.consume("q"))) == 10
    alice.say(m.BasicAck(0, True))
    cluster.turn()
    cluster.kill("a")
    cluster.order(c.ForgetNode(node=NodeId("a"), accept_loss=True))
    cluster.restart("b")
    cluster.wait(3000)
    assert cluster.queue("q").owner == "b"
    bob = cluster["b"].client()
    assert bodies(bob.consume("q")) == [], "what was acknowledged does not come back"
    (new,) = [said for said in bob.publish("", "q", b"new") if isinstance(said, Content)]
    assert (new.body, new.method.redelivered) == (b"new", False)
    cluster.kill("b", failed=False)
    cluster.restart("b")
    cluster.wait(3000)
    bob = cluster["b"].client()
    assert bodies(bob.consume("q")) == [b"new"], "nor does it after a crash"


@pytest.mark.parametrize("again", [False, True])
def test_who_owns_a_queue_before_its_empty_copy_is_on_the_disk_finds_nothing_older_there(again: bool) -> None:
    """c had a copy, which was removed while c was away. It gets a new one, and at once the queue."""
    cluster = Cluster("a", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", *(b"%d" % number for number in range(10)))
    queue_id = cluster.queue("q").queue_id
    cluster.kill("c")
    cluster.order(c.MoveReplica(queue_id=queue_id, remove=(NodeId("c"),)))
    cluster.wait(1000)
    assert len(bodies(alice.consume("q"))) == 10
    alice.say(m.BasicAck(0, True))
    cluster.turn()
    cluster.restart("c")
    cluster["c"].disk_waits = True
    cluster.turn()
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("c"),)))
    for _ in range(1 + again):
        cluster.order(c.ForceOwner(queue_id=queue_id, node=NodeId("c")))
    cluster["c"].disk_waits = False
    cluster.wait(3000)
    assert cluster.queue("q").owner == "c"
    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())
    carol.publish("", "q", b"new")
    cluster.turn()
    cluster.kill("a")
    cluster.kill("c", failed=False)
    cluster.restart("c")
    cluster.wait(3000)
    assert bodies(cluster["c"].client().consume("q")) == [b"new"]


def emptied(cluster: Cluster) -> None:
    """The only copy of a queue in memory ends with its process, which comes back: it begins empty."""
    cluster.kill("a")
    cluster.restart("a")
    cluster.wait(2000)
    assert cluster.queue("q").owner == "a"


@pytest.mark.parametrize("early", [False, True], ids=["", "published-before-it-opens"])
def test_what_a_client_holds_of_a_lost_queue_is_not_taken_for_a_new_message(early: bool) -> None:
    """Its seqs began at 1 again: the new message was passed over at the client's node, which had that seq already, and
    the acknowledgement of the old one took it."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local", x_durability="memory", x_replicas=1)
    bob = cluster["b"].client()
    bob.consume("q")
    alice.publish("", "q", b"1", b"2", b"3")
    assert bodies(bob.hear()) == [b"1", b"2", b"3"]
    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())
    if early:
        cluster.kill("a")
        cluster.cuts.add(("a", "b"))
        carol.publish("", "q", b"new")
        cluster.restart("a")
        cluster.cuts.clear()
        cluster.relink()
        cluster.turn()
        cluster.wait(2000)
        assert carol.hear() == [m.BasicAck(1, True)]
    else:
        emptied(cluster)
        assert carol.publish("", "q", b"new") == [m.BasicAck(1, True)]
    (new,) = [said for said in bob.hear() if isinstance(said, Content)]
    assert (new.body, new.method.redelivered) == (b"new", False)
    bob.say(m.BasicAck(3, True))
    bob.leave()
    cluster.wait(2000)
    assert bodies(cluster["c"].client().consume("q")) == [b"new"], "it was not acknowledged"


@pytest.mark.parametrize("named", [False, True], ids=["", "named"])
def test_what_comes_again_to_a_queue_that_begins_empty_may_have_been_handed_out(named: bool) -> None:
    """It was handed out, and its owner ended before the publisher's node heard that it is committed. That node sends it
    again, and nobody has its number any more."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local", x_durability="memory", x_replicas=1)
    bob = cluster["b"].client()
    bob.consume("q")
    carol = cluster["c"].client()
    carol.ask(m.ConfirmSelect())
    assert carol.publish("", "q", b"0") == [m.BasicAck(1, True)]
    assert bodies(bob.hear()) == [b"0"]
    headers = {"x-producer": "carol", "x-seq": 1} if named else {}
    deliver = cluster._deliver

    def lost(source: str, target: str, frame: bytes) -> None:
        if (source, target) != ("a", "c"):
            deliver(source, target, frame)

    cluster._deliver = lost  # type: ignore[method-assign]
    assert carol.publish("", "q", b"1", headers=headers) == []
    cluster.wait(500)
    (first,) = [said for said in bob.hear() if isinstance(said, Content)]
    assert (first.body, first.method.redelivered) == (b"1", False)
    cluster.kill("a")
    cluster._deliver = deliver  # type: ignore[method-assign]
    carol.publish("", "q", b"2")
    cluster.restart("a")
    cluster.wait(2000)
    heard = [(said.body, said.method.redelivered) for said in bob.hear() if isinstance(said, Content)]
    assert heard == [(b"1", True), (b"2", False)]


def test_letters_of_a_queue_that_begins_empty_are_new_ones() -> None:
    """Their numbers began at 1 again, and their target had these: it confirmed them and stored nothing."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["b"].client()
    alice.declare("graves", x_queue_leader_locator="client-local")
    alice = cluster["a"].client()
    alice.declare(
        "q", x_queue_leader_locator="client-local", x_durability="memory", x_replicas=1,
        x_dead_letter_exchange="", x_dead_letter_routing_key="graves",
    )  # fmt: skip
    bob = cluster["b"].client()
    bob.ask(m.ConfirmSelect())

    def die(*bodies: bytes) -> None:
        bob.publish("", "q", *bodies)
        channel = cluster["c"].client()
        channel.consume("q")
        channel.say(m.BasicNack(0, True, False))
        cluster.wait(1000)
        channel.leave()

    die(b"1", b"2", b"3")
    emptied(cluster)
    die(b"4", b"5", b"6")
    emptied(cluster)
    die(b"7")
    assert bodies(cluster["c"].client().consume("graves")) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
