"""What a link held is handed to somebody else at the link's node, which hears late that the link has it no more.

The node has no copy of the queue: one that has would hear of the wiring before it could acknowledge the group.
"""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import publish, ring

FIVE = "abcde"


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(*FIVE)
    cluster["a"].client().declare("q")
    return cluster


def apart(cluster: Cluster) -> list[str]:
    """Nodes without a copy."""
    return [name for name in FIVE if name not in cluster.queue("q").replicas]


def holding(cluster: Cluster, at: str) -> Receiver:
    """A link at that node, which has a message."""
    link = Receiver(cluster, at, deaf=False)
    link.consume()
    publish(cluster, b"1")
    assert link.bodies() == [b"1"]
    return link


def forget(link: Receiver) -> Any:
    return c.ForgetLink(link=LogIndex(link.link.link), attach=link.link.attach)


def begin_anew(link: Receiver) -> Any:
    """At another node, without a map."""
    known = link.attachment.link
    return c.AttachLink(
        node=NodeId("a"), incarnation=Incarnation(1), resumes=False, vhost="/", container="c", name="l",
        role="receiver", terminus="/queues/q", user=known.user, timeout_ms=1000,
    )  # fmt: skip


def happens_behind(cluster: Cluster, at: str, command: Any, meanwhile: Any = lambda: None) -> None:
    """The node hears of the command when the owner has acted on it."""
    site = cluster[at]
    catch_up = site.catch_up
    site.catch_up = lambda quiet=False: False  # type: ignore[method-assign]
    cluster.begin(3, command)
    meanwhile()
    cluster.begin(9)
    site.catch_up = catch_up  # type: ignore[method-assign]
    cluster.turn()


@pytest.mark.parametrize("end", [forget, begin_anew])
@pytest.mark.parametrize("says", ["nothing", "releases", "fails", "rejects", "accepts"])
def test_it_comes_to_one_client(cluster: Cluster, end: Any, says: str) -> None:
    """What the link leaves, or its client says meanwhile, would take the message from its new holder."""
    at, elsewhere = apart(cluster)
    link = holding(cluster, at)
    plain, other = Client(cluster, at), Client(cluster, elsewhere)
    plain.consume(prefetch=1, priority=5)
    other.consume()

    def say() -> None:
        if says == "accepts":
            link.ledger.ack([link.hands[b"1"] * 2])
        elif says == "rejects":
            link.reject(b"1")
        elif says != "nothing":
            link.give_back(b"1", counted=says == "fails")

    happens_behind(cluster, at, end(link), say)
    cluster.wait(1000)
    found = plain.bodies() + other.bodies()
    if says in ("accepts", "rejects"):
        assert (found, ring(cluster).living(1, 9, 9)) == ([], []), "its client has had it"
        return
    assert found == [b"1"]
    holder = plain if plain.hands else other
    holder.ack(b"1")
    cluster.wait(1000)
    assert (plain.bodies(), other.bodies(), ring(cluster).living(1, 9, 9)) == ([], [], [])
    publish(cluster, b"2", b"3")
    assert sorted(plain.bodies() + other.bodies()) == [b"2", b"3"]


def test_a_get_finds_it_once(cluster: Cluster) -> None:
    at, elsewhere = apart(cluster)
    link = holding(cluster, at)
    handle, taken = link.handle, list[Any]()
    happens_behind(cluster, at, forget(link), lambda: handle.get(cluster.now_ms, taken.append))
    cluster.wait(1000)
    ((seq, message, *_),) = taken
    assert message.body == b"1"
    other = Client(cluster, elsewhere)
    other.consume()
    assert other.bodies() == []
    handle.settle(seq)
    cluster.wait(1000)
    assert ring(cluster).living(1, 9, 9) == []


def test_who_is_handed_what_an_open_transaction_here_has_keeps_the_credit(cluster: Cluster) -> None:
    """The link ends, and its client has retired the message in a transaction that is not discharged yet."""
    at, _ = apart(cluster)
    link = holding(cluster, at)
    ((_, _, seq),) = link.ledger.collect(link.hands.pop(b"1"), False) or []
    plain = Client(cluster, at)
    plain.consume(prefetch=1)
    cluster.order(forget(link))
    cluster.turn()
    assert plain.bodies() == []
    link.handle.leave_to_link([seq], link.link)  # it is rolled back
    cluster.turn()
    assert plain.bodies() == [b"1"], "the consumer has no credit at its queue's owner any more"
