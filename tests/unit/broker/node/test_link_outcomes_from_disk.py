"""Outcomes whose messages are on the owner's disk alone, and who may hear of them when (`queues.log`)."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.content.changes import rejection_of
from clusterbroker.broker.queues.handle import CommitPart, Decided
from clusterbroker.broker.queues.log import MessageLog
from clusterbroker.broker.queues.modification import Modification
from clusterbroker.broker.queues.ticket import Ticket
from tests.unit.broker.node.link_clients import Receiver, message
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import others, owner, ring
from tests.unit.broker.node.test_link_settling import fail_over, holding

CHANGE = rejection_of("amqp:internal-error", "bad", {})


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("dead")
    alice.declare("q", x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    return cluster


def paged_out(cluster: Cluster) -> Receiver:
    """A link holds a message, which a new owner has on its disk alone; reads wait."""
    receiver = holding(cluster, others(cluster)[0], b"1")
    first = owner(cluster).name
    fail_over(cluster)
    cluster.restart(first)
    cluster.wait(2000)
    assert ring(cluster).message(1) is None
    assert receiver.site is not owner(cluster), "its node is not the owner"
    owner(cluster).reads_wait = True
    return receiver


def settle(receiver: Receiver, outcome: str, publishes: bytes = b"") -> list[bool]:
    """Whether its ticket passed, and was rejected."""
    answers: list[bool] = []
    ((_, _, seq),) = receiver.ledger.collect(receiver.hands.pop(b"1"), False) or []
    part = CommitPart()
    if outcome == "reject":
        part.settles.append(Decided(seq, "reject", receiver.link, CHANGE))
    else:
        receiver.handle.modify(seq, Modification(True, "", CHANGE))
    if publishes:
        part.publishes.append(((message(publishes),), None))
    ticket = Ticket(1, 1, lambda done: answers.append(done.rejected))
    receiver.handle.commit(part, ticket, receiver.site.now_ms)
    ticket.pass_()
    receiver.cluster.wait(500)
    return answers


def letters(cluster: Cluster) -> list[Any]:
    return [queue.ring.next_seq - 1 for site in cluster.running for queue in site.node.queues.values()
            if queue.name == "dead"]  # fmt: skip


@pytest.mark.parametrize(("outcome", "publishes"), [("reject", b""), ("reject", b"out"), ("modified", b"")])
def test_an_outcome_is_answered_when_the_disk_was_read_and_it_is_committed(
    cluster: Cluster, outcome: str, publishes: bytes
) -> None:
    receiver = paged_out(cluster)
    before = ring(cluster).next_seq
    answers = settle(receiver, outcome, publishes)
    assert answers == []
    assert outcome != "reject" or ring(cluster).next_seq == before, "a part is one group"
    owner(cluster).reads_wait = False
    cluster.wait(500)
    assert answers == [False]
    receiver.leave()
    fail_over(cluster)
    if outcome == "reject":
        assert letters(cluster) == [1]
        assert len(ring(cluster).living(1, ring(cluster).next_seq, 10)) == bool(publishes), "its link has it"
    else:
        assert ring(cluster).delivery_count(1) == 1


def test_the_owner_dies_before_it_has_read(cluster: Cluster) -> None:
    receiver = paged_out(cluster)
    answers = settle(receiver, "reject")
    fail_over(cluster)
    cluster.wait(500)
    assert answers == [False]
    assert letters(cluster) == [1]


def test_seeded_an_outcome_that_waits_for_the_disk_is_answered_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageLog, "unfinished", False)
    monkeypatch.setattr(MessageLog, "begin", lambda _: None)
    monkeypatch.setattr(MessageLog, "finish", lambda *_: None)
    assert settle(paged_out(cluster), "reject") == [False]
