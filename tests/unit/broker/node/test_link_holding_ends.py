"""Recoverable receiver links that end: their queue keeps nothing of them, and the next consumer has its turn."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from clusterbroker.broker.queues.attributes import EXCLUDED
from clusterbroker.broker.queues.link_held import link_name
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Choosy, Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import WHERE, names, others, place, publish, ring


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q", x_single_active_consumer=True)
    return cluster


def forget(cluster: Cluster, link: Receiver) -> None:
    cluster.order(c.ForgetLink(link=LogIndex(link.link.link), attach=link.link.attach))


def waiting(cluster: Cluster, where: str) -> tuple[Any, Any]:
    """The single active consumer is a link's, which has nothing, and another one waits."""
    link = Receiver(cluster, place(cluster, where))
    link.consume()
    other = Client(cluster, others(cluster)[0])
    other.consume()
    publish(cluster, b"1")
    assert link.bodies() == [b"1"]
    link.ack(b"1")
    assert (other.bodies(), names(cluster)) == ([], [b"v"])
    return link, other


@WHERE
@pytest.mark.parametrize("parts_first", [False, True])
def test_a_link_ends_that_holds_nothing(cluster: Cluster, where: str, parts_first: bool) -> None:
    link, other = waiting(cluster, where)
    if parts_first:
        link.part()
        forget(cluster, link)
    else:
        forget(cluster, link)
        link.part()
    publish(cluster, b"2")
    assert other.bodies() == [b"2"]
    assert names(cluster) == [], "its queue does not know it any more"


@WHERE
@pytest.mark.parametrize("parts_first", [False, True])
def test_the_next_one_begins_with_what_the_ended_link_held(cluster: Cluster, where: str, parts_first: bool) -> None:
    """In order: what it held returns when that is committed, and nothing behind it is handed out before."""
    link = Receiver(cluster, place(cluster, where))
    link.consume(prefetch=2)
    other = Client(cluster, others(cluster)[0])
    other.consume()
    publish(cluster, b"1", b"2", b"3")
    assert link.bodies() == [b"1", b"2"]
    if parts_first:
        link.leave()
    forget(cluster, link)
    if not parts_first:
        link.part()
    assert other.read() == [(b"1", True), (b"2", True), (b"3", False)]


@WHERE
def test_an_ended_link_is_handed_nothing_more(where: str) -> None:
    """Its node may hear of its end late."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    link = Receiver(cluster, place(cluster, where))
    link.consume()
    publish(cluster, b"1")
    assert link.bodies() == [b"1"]
    forget(cluster, link)
    cluster.turn()
    publish(cluster, b"2")
    link.part()
    cluster.turn()
    assert ring(cluster).links() == {}
    assert Client(cluster, others(cluster)[0]).everything() == [b"1", b"2"]


# -- what it never wants again


def excluding() -> tuple[Cluster, Receiver]:
    """A link that has returned a message for good; the log says so."""
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    link = Receiver(cluster, others(cluster)[0])
    link.kind = partial(Choosy, link_name("c", "l"), None)
    link.consume()
    publish(cluster, b"1")
    assert link.bodies() == [b"1"]
    link.exclude(b"1", link_name("c", "l"))
    assert (link.read(), len(EXCLUDED.of(ring(cluster).attributes))) == ([], 1)
    return cluster, link


@pytest.mark.parametrize("is_away", [False, True])
def test_exclusions_of_a_link_that_ends_are_forgotten(is_away: bool) -> None:
    """`is_away`: nobody owns the queue when the link ends."""
    cluster, link = excluding()
    if is_away:
        for name in "abc":
            cluster.kill(name, failed=False)
    else:
        link.leave()
    forget(cluster, link)
    if is_away:
        for name in "abc":
            cluster.restart(name)
        cluster.wait(1000)
    cluster.turn()
    assert (EXCLUDED.of(ring(cluster).attributes), names(cluster)) == ([], [])
    again = Receiver(cluster, others(cluster)[0])
    again.kind = partial(Choosy, link_name("c", "l"), None)
    assert again.consume() == ""
    assert again.bodies() == [b"1"], "it is another link, of that name"


def test_exclusions_of_other_links_stay_over_a_failover() -> None:
    cluster, link = excluding()
    other = Receiver(cluster, others(cluster)[1], name="other")
    forget(cluster, other)
    cluster.kill(next(site.name for site in cluster.running if site.name not in others(cluster)))
    cluster.wait(1000)
    assert len(EXCLUDED.of(ring(cluster).attributes)) == 1
    assert link.read() == []


@WHERE
@pytest.mark.parametrize("ends", ["auto-delete", "x-expires"])
def test_a_queue_is_in_use_while_a_suspended_link_holds_something(where: str, ends: str) -> None:
    cluster = Cluster("a", "b", "c")
    arguments = {"x-expires": 10_000} if ends == "x-expires" else {}
    cluster["a"].client().ask(
        m.QueueDeclare(queue="q", durable=True, auto_delete=ends == "auto-delete", arguments=arguments)
    )
    link = Receiver(cluster, place(cluster, where))
    link.consume()
    publish(cluster, b"1")
    assert link.bodies() == [b"1"]
    link.leave()
    cluster.wait(15_000, 1000)
    resumed = Receiver(cluster, place(cluster, where), resumes=True)
    (seq,) = resumed.seqs()
    resumed.settle(seq)
    if ends == "x-expires":
        cluster.wait(8_000, 1000)
        assert "q" in cluster["a"].node.vhosts["/"].queues, "it was in use until then"
        cluster.wait(4_000, 1000)
    assert "q" not in cluster["a"].node.vhosts["/"].queues
