"""Sequences of events that once broke a promise of the cluster, each as short as it could be made."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.node.hub import ROUNDS_MAX, Hub
from clusterbroker.broker.remote.messages import Answer, Ask
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.numbers import Float32
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.journal.layout import CUT, ENQ
from clusterbroker.journal.record import scan_group
from clusterbroker.replication.places import PLACE
from tests.unit.broker.fronts.amqp091.harness import bodies
from tests.unit.broker.node.node_cluster import Cluster


def test_a_node_may_say_very_much_to_itself_in_one_turn() -> None:
    """Many consumers of one client, or a failover of many queues: a frame each, and an answer to each."""
    hub = Hub("a", lambda: 1)
    heard: list[int] = []
    hub.handlers[Ask] = lambda _peer, ask, _: hub.send("a", Answer(1, 1, ask.request)) and None
    hub.handlers[Answer] = lambda _peer, answer, _: heard.append(answer.request)
    for request in range(ROUNDS_MAX + 1):
        hub.send("a", Ask(1, 1, 1, request, 0, False, False))
    assert hub.turn()
    assert heard == list(range(ROUNDS_MAX + 1))


def test_a_node_that_answers_itself_for_ever_is_stopped() -> None:
    hub = Hub("a", lambda: 1)
    hub.handlers[Ask] = lambda _peer, ask, _: hub.send("a", ask) and None
    hub.send("a", Ask(1, 1, 1, 1, 0, False, False))
    with pytest.raises(AssertionError, match="comes to an end"):
        hub.turn()


@pytest.mark.parametrize("away", [True, False], ids=["while-down", "while-alive"])
@pytest.mark.parametrize("checkpoint", [True, False], ids=["in-the-index", "in-the-log"])
def test_a_copy_that_went_away_and_came_back_brings_nothing_back(away: bool, checkpoint: bool) -> None:
    """What its journal had of the queue before is of the past, also when it crashes before its next checkpoint."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    queue_id = cluster.queue("q").queue_id
    alice.ask(m.ConfirmSelect())
    alice.publish("", "q", *(b"%d" % number for number in range(10)))
    if checkpoint:
        cluster["c"].checkpoint()
    if away:
        cluster.kill("c")
    cluster.order(c.MoveReplica(queue_id=queue_id, remove=(NodeId("c"),)))
    cluster.turn()
    if away:
        cluster.restart("c")
    assert len(bodies(alice.consume("q"))) == 10
    alice.say(m.BasicAck(0, True))
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("c"),)))
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "b", "c")
    for name in "abc":
        cluster.kill(name, failed=False)
    cluster.restart("c")
    for name in "ba":
        cluster.order(c.FailNode(node=NodeId(name), incarnation=Incarnation(cluster[name].incarnation)))
    cluster.restart("b")
    cluster.wait(3000)
    assert cluster.queue("q").owner == "c"
    assert bodies(cluster["b"].client().consume("q")) == []


def test_the_log_of_a_copy_that_went_and_came_back_while_its_node_was_down_says_so_itself() -> None:
    """Seed 3001433 of the simulation: a page of the index was lost, the log was read from its beginning, and the copy
    that had been forgotten stood in it before the new one."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    queue_id = cluster.queue("q").queue_id
    alice.publish("", "q", b"1", b"2")
    cluster.order(c.MoveReplica(queue_id=queue_id, remove=(NodeId("c"),)))
    cluster.turn()
    cluster["c"].checkpoint()
    cluster.kill("c")
    assert len(bodies(alice.consume("q"))) == 2
    alice.say(m.BasicAck(0, True))
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("c"),)))
    cluster.restart("c")
    cluster.wait(1000)
    assert cluster.queue("q").in_sync == ("a", "b", "c")
    log = b"".join(bytes(data) for _, data in sorted(cluster["c"].journal.segments.items()))
    live, at = set[int](), 0
    while at < len(log):
        _, length, records = scan_group(log, at)
        at += length
        for record in (record for record in records if record.queue_id == queue_id):
            live |= {record.seq} if record.kind == ENQ else set()
            live -= {seq for seq in live if record.kind == CUT and seq >= record.seq}
    assert live == set()


@pytest.mark.parametrize("checkpoint", [True, False], ids=["in-the-index", "in-the-log"])
def test_a_copy_that_came_back_does_not_know_of_publishes_that_nobody_has(checkpoint: bool) -> None:
    """It had a numbered message that was never committed; the message's repeat was confirmed and not stored."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    queue_id = cluster.queue("q").queue_id
    alice.ask(m.ConfirmSelect())
    for pair in (("a", "b"), ("b", "c")):
        cluster.unlink(*pair)
        cluster.cuts.add(pair)
    headers = {"x-producer": "press", "x-seq": 1}
    assert alice.publish("", "q", b"once", headers=headers) == [], "b does not hear of it"
    if checkpoint:
        cluster["c"].checkpoint()
    queue = cluster.queue("q")
    cluster.order(
        c.TransferOwner(
            node=NodeId("a"), incarnation=queue.incarnation, queue_id=queue_id, epoch=queue.epoch,
            version=queue.version, to=NodeId("b"),
        )
    )  # fmt: skip
    cluster.kill("a")
    cluster.order(c.MoveReplica(queue_id=queue_id, remove=(NodeId("c"),)))
    cluster.turn()
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("c"),)))
    cluster.cuts.clear()
    cluster.relink()
    cluster.wait(1000)
    assert cluster.queue("q").in_sync == ("b", "c")
    for name in "bc":
        cluster.kill(name, failed=False)
    cluster["c"].start()
    cluster.order(c.FailNode(node=NodeId("b"), incarnation=cluster["b"].incarnation))
    for name in "ab":
        cluster.restart(name)
    cluster.wait(2000)
    assert cluster.queue("q").owner == "c"
    again = cluster["c"].client()
    again.ask(m.ConfirmSelect())
    assert again.publish("", "q", b"once", headers=headers) == [m.BasicAck(1, True)]
    assert bodies(again.consume("q")) == [b"once"]


def test_a_copy_that_begins_anew_counts_when_its_past_is_durably_over() -> None:
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    queue_id = cluster.queue("q").queue_id
    cluster.order(c.MoveReplica(queue_id=queue_id, remove=(NodeId("c"),)))
    cluster.turn()
    cluster["c"].disk_waits = True
    cluster.order(c.MoveReplica(queue_id=queue_id, add=(NodeId("c"),)))
    cluster.wait(1000)
    assert cluster.queue("q").in_sync == ("a", "b")
    cluster["c"].disk_waits = False
    cluster.wait(1000)
    assert cluster.queue("q").in_sync == ("a", "b", "c")


@pytest.mark.long
def test_a_group_that_is_longer_than_a_frame_ends_nobody() -> None:
    """All nodes publish as much as they may while a commit is held up: that is one group, and one Append."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    body = bytes(15 << 20)
    writers = [cluster[name].client() for name in "abc"]
    cluster["a"].disk_waits = True
    for writer in writers:
        writer.ask(m.ConfirmSelect())
        writer.publish("", "q", b"first")
        assert writer.publish("", "q", body, body) == []
    cluster["a"].disk_waits = False
    cluster.wait(100)
    assert all(writer.hear()[-1] == m.BasicAck(3, True) for writer in writers)
    assert alice.ask(m.QueueDeclare(queue="q", passive=True)).message_count == 9
    assert cluster.bad_frames == []
    cluster.kill("a")
    cluster.wait(1000)
    assert [len(found) for found in bodies(cluster["b"].client().consume("q", no_ack=True))].count(15 << 20) == 6


def test_a_queue_that_changes_hands_all_the_time_remembers_few_epochs() -> None:
    """Every offer of a sync carries the table of epochs, and every replica writes it down."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    queue_id = cluster.queue("q").queue_id

    def pass_on() -> list[int]:
        owner = cluster.queue("q").owner
        alice.publish("", "q", b"x")
        assert cluster[owner].node.role.hand_over(queue_id, "b" if owner == "a" else "a")
        cluster.wait(100)
        assert cluster.queue("q").owner != owner
        nodes = [cluster[name].node for name in "abc"]
        rings = [node.role.copying.replicas.get(queue_id) or node.queues[queue_id].ring for node in nodes]
        return [len(ring.epochs) for ring in rings]

    grown = [pass_on() for _ in range(10)]
    assert grown[-1] == [11, 11, 11]  # the first message is still there
    assert len(bodies(alice.consume("q", no_ack=True))) == 10
    alice.say(m.BasicCancel("ctag"))
    assert pass_on() == [2, 2, 2]  # of the message that was just published, and the new one
    for name in "abc":
        cluster.kill(name)
    for name in "cba":
        cluster.restart(name)
    cluster.wait(3000)
    assert bodies(cluster["a"].client().consume("q")) == [b"x"]


def test_a_queue_forgets_the_numbers_of_nodes_whose_start_is_over() -> None:
    """Also of its former owner, who cannot say it."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    queue_id = cluster.queue("q").queue_id
    for _ in range(3):
        for name in "abc":
            cluster[name].client().publish("", "q", b"x")
        for name in "abc":
            cluster.kill(name)
        for name in "cba":
            cluster.restart(name)
        cluster.wait(3000)
    for name in "abc":
        cluster[name].client().publish("", "q", b"x")
    nodes = [cluster[name].node for name in "abc"]
    rings = [node.role.copying.replicas.get(queue_id) or node.queues[queue_id].ring for node in nodes]
    assert [sorted(ring.attributes) for ring in rings] == [[PLACE, b"na/4", b"nb/4", b"nc/4"]] * 3


def test_a_queue_that_cannot_commit_does_not_stop_the_publishers_of_others() -> None:
    """All queues of one owner share the window to it, and one of them may have filled it for a long time."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("stuck", x_queue_leader_locator="client-local", x_min_in_sync=3)
    alice.declare("q", x_queue_leader_locator="client-local")
    cluster.kill("c")
    cluster.wait(3000)
    cluster["b"].client().publish("", "stuck", *[bytes(2 << 20)] * 9)
    writer = cluster["b"].client()
    writer.ask(m.ConfirmSelect())
    heard = writer.publish("", "q", *[bytes(1 << 20)] * 4)
    cluster.wait(500)
    assert [*heard, *writer.hear()][-1] == m.BasicAck(4, True)
    assert alice.ask(m.QueueDeclare(queue="q", passive=True)).message_count == 4


@pytest.mark.parametrize(
    "arguments",
    [{"weight": Float32(1.5)}, {b"\xff".decode("utf-8", "surrogateescape"): True}],
    ids=["a-float-of-32-bits", "a-name-that-is-no-text"],
)
@pytest.mark.parametrize("at", ["a", "b"], ids=["at-the-owner", "elsewhere"])
def test_whatever_arguments_a_consumer_has_no_node_ends(arguments: dict[str, Any], at: str) -> None:
    """They went along to the owner, in a frame that could not be made: the client's node ended, then the next one."""
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local")
    assert cluster[at].client().consume("q", arguments=arguments) == []
    alice.publish("", "q", b"x")
    cluster.unlink("a", "b")
    cluster.relink()
    cluster.turn()
    assert cluster["a"].node.queues[cluster.queue("q").queue_id].ring.ready == 0


def test_the_arguments_of_many_consumers_need_no_frame() -> None:
    """A thousand consumers of one queue with 100 KB of arguments each were an Attach of 100 MB."""
    cluster = Cluster("a", "b")
    cluster["a"].client().declare("q", x_queue_leader_locator="client-local")
    bob = cluster["b"].client()
    for number in range(700):
        bob.consume("q", tag=f"c{number}", arguments={"text": "x" * 100_000})
    cluster.unlink("a", "b")
    cluster.relink()
    cluster.turn()
    assert cluster.bad_frames == []


def test_a_member_that_never_came_and_is_forgotten_stops_no_queue() -> None:
    """With it there were three members, and the minimum was three; without it two are enough, and the owner was told of
    no change of its queue."""
    cluster = Cluster("a", "b")
    alice = cluster["a"].client()
    alice.declare("q", x_queue_leader_locator="client-local", x_replicas=3, x_min_in_sync=3)
    alice.ask(m.ConfirmSelect())
    cluster.order(c.AddMember(name=NodeId("d"), address="d:1"))
    cluster.kill("b")
    cluster.restart("b")
    cluster.wait(3000)
    assert cluster.queue("q").in_sync == ("a", "b")
    assert alice.publish("", "q", b"three are wanted, as the map says") == []
    cluster.order(c.ForgetNode(node=NodeId("d")))
    cluster.turn()
    assert [type(method) for method in alice.hear()] == [m.BasicAck]


def test_all_that_was_exclusive_to_a_connection_ends_but_not_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand queues in one command stopped the loops of all nodes for longer than a lease."""
    monkeypatch.setattr("clusterbroker.cluster.wiring.queue_index.QUEUES_AT_ONCE", 3)
    cluster = Cluster("a", "b")
    alice = cluster["a"].client()
    for number in range(8):
        alice.ask(m.QueueDeclare(queue=f"mine{number}", exclusive=True))
    began = len(cluster.log)
    assert alice.say(m.ConnectionClose(200, "", 0, 0), channel=0) == [m.ConnectionCloseOk()]
    assert [type(command) for command, _, _ in cluster.log[began:]] == [c.RemoveConnection] * 3
    assert cluster["b"].map.queues() == ()
