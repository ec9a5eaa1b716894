"""A recoverable sender's question what is forgotten is answered, whatever its queue's owner goes through meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.fronts.amqp10.recoverable_sender import RecoverableSender
from clusterbroker.broker.queues.handle import UNANSWERED_MS
from clusterbroker.broker.queues.ticket import Outcome, Ticket
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.places import away, declared, owner_of, three
from tests.unit.broker.node.test_link_recovery import Sender, message, names


class Settling:
    """A sender in rcv-settle-mode second whose client settles all, and asks whether that is forgotten."""

    def __init__(self, cluster: Cluster, at: str) -> None:
        self.cluster = cluster
        self.sender = Sender(cluster, at)
        self.store = RecoverableSender(self.sender.site.node, self.sender.attachment)
        self.told: list[str] = []

    @property
    def handle(self) -> Any:
        return self.sender.site.node.vhosts["/"].queues["q"]

    def publish(self, *tags: bytes, queue: str = "q") -> None:
        handle = self.sender.site.node.vhosts["/"].queues[queue]
        route: Any = SimpleNamespace(targets=(handle,))
        outcomes: list[Outcome] = []
        ticket = Ticket(1, 1, lambda done: outcomes.append(done.outcome))
        tagged = self.store.tagged(tags, route)
        handle.publish_tagged(tagged, [message(tag) for tag in tags], ticket, self.sender.site.now_ms)
        ticket.pass_()
        self.cluster.turn()
        assert outcomes == [Outcome.ACCEPTED]

    def settle(self, *tags: bytes) -> None:
        self.store.over(tags)
        self.store.when_forgotten(lambda: self.told.append("forgotten"))


def fail(cluster: Cluster, name: str) -> None:
    cluster.order(c.FailNode(node=NodeId(name), incarnation=Incarnation(cluster[name].incarnation)))
    cluster.turn()


def test_with_an_owner_it_is_answered_at_once() -> None:
    cluster = three()
    declared(cluster, "q")
    client = Settling(cluster, away(cluster, "q")[0])
    client.publish(b"1", b"2")
    client.settle(b"1")
    cluster.turn()
    assert client.told == ["forgotten"]
    assert names(cluster) == [b"2"]


def test_a_queue_that_has_no_owner_for_long_answers_when_it_has_one() -> None:
    cluster = three()
    owner = declared(cluster, "q", x_replicas=1)
    client = Settling(cluster, away(cluster, "q")[0])
    client.publish(b"1", b"2")
    cluster.kill(owner, failed=False)
    client.settle(b"1")
    fail(cluster, owner)
    assert cluster.queue("q").owner is None
    cluster.wait(UNANSWERED_MS + 2000, 500)
    assert client.told == [], "the queue's log still has the tag"
    cluster.restart(owner)
    cluster.wait(4000)
    assert client.told == ["forgotten"]
    assert names(cluster) == [b"2"]


def test_an_owner_that_is_cut_off_for_long_answers_when_it_is_back() -> None:
    cluster = three()
    owner = declared(cluster, "q")
    client = Settling(cluster, away(cluster, "q")[0])
    client.publish(b"1", b"2")
    for other in "abc":
        if other != owner:
            cluster.unlink(owner, other)
    client.settle(b"1")
    cluster.wait(UNANSWERED_MS + 2000, 500)
    assert client.told == []
    cluster.relink()
    cluster.wait(4000)
    assert client.told == ["forgotten"]
    assert names(cluster) == [b"2"]


@pytest.mark.parametrize("rounds", range(6))
@pytest.mark.parametrize("to", ["the sender's node", "another node", "away from the sender's node"])
def test_a_queue_that_moves_meanwhile_answers(to: str, rounds: int) -> None:
    cluster = three()
    declared(cluster, "q", "a")
    client = Settling(cluster, "a" if to.startswith("away") else "b")
    client.publish(b"1", b"2")
    role = cluster["a"].node.role
    assert role is not None
    assert role.hand_over(cluster.queue("q").queue_id, "c" if to == "another node" else "b")
    cluster.begin(rounds)
    client.settle(b"1")
    cluster.wait(4000, 500)
    assert owner_of(cluster, "q") != "a"
    assert client.told == ["forgotten"]
    assert names(cluster) == [b"2"]


@pytest.mark.parametrize("rounds", range(1, 9))
def test_a_queue_whose_owner_dies_meanwhile_answers_at_the_next_one(rounds: int) -> None:
    cluster = three()
    declared(cluster, "q", "a")
    client = Settling(cluster, "b")
    client.publish(b"1", b"2")
    client.settle(b"1")
    cluster.begin(rounds)
    cluster.kill("a")
    cluster.wait(4000, 500)
    assert owner_of(cluster, "q") in "bc"
    assert client.told == ["forgotten"]
    assert names(cluster) == [b"2"]


def test_a_queue_without_an_owner_is_asked_of_its_own_deliveries_alone() -> None:
    """A link to an exchange goes on through its other queues, for as long as that may last."""
    cluster = three()
    owner = declared(cluster, "q", x_replicas=1)
    client = Settling(cluster, away(cluster, "q")[0])
    client.publish(b"1")
    cluster.kill(owner, failed=False)
    fail(cluster, owner)
    assert cluster.queue("q").owner is None
    cluster[client.sender.site.name].client().declare("p")
    for tag in (b"2", b"3", b"4"):
        client.publish(tag, queue="p")
        client.settle(tag)
        cluster.turn()
    client.store.tagged([b"5"], SimpleNamespace(targets=()))  # type: ignore[arg-type]
    client.settle(b"5")
    assert client.told == ["forgotten"] * 4
    assert len(client.handle._questions) == 0
    client.settle(b"1")
    assert len(client.handle._questions) == 1
    cluster.restart(owner)
    cluster.wait(4000)
    assert client.told == ["forgotten"] * 5
    assert names(cluster) == []


def test_a_tag_that_is_used_again_before_it_is_proven_is_forgotten_wherever_it_was() -> None:
    cluster = three()
    declared(cluster, "q")
    declared(cluster, "p")
    client = Settling(cluster, "a")
    client.publish(b"1", b"2")
    client.publish(b"1", queue="p")  # in rcv-settle-mode first
    assert names(cluster) == [b"1", b"2"]
    client.settle(b"1")
    cluster.turn()
    assert names(cluster) == [b"2"]


def test_one_of_an_earlier_attach_is_forgotten_by_all_queues() -> None:
    cluster = three()
    declared(cluster, "q")
    declared(cluster, "p")
    client = Settling(cluster, "a")
    client.publish(b"1", b"2")
    client.store.again = frozenset([b"1"])
    client.publish(b"1", queue="p")  # its route is another one by now
    client.settle(b"1")
    cluster.turn()
    assert names(cluster) == [b"2"]
