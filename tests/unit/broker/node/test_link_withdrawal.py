"""What a recoverable link holds for too long while it is suspended: it returns, counted, and its client hears so."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.queues.link_held import HeldMessages
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import WHERE, others, owner, place, publish, ring

TIMEOUT_MS = 5000


def made(level: int = 4, **arguments: Any) -> Cluster:
    cluster = Cluster("a", "b", "c", level=level)
    cluster["a"].client().declare("q", **{"x_consumer_timeout": TIMEOUT_MS, **arguments})
    return cluster


def suspended(cluster: Cluster, where: str = "owner", count: int = 3) -> Receiver:
    """A link's client that is gone, and held these: 1, 2, ..."""
    receiver = Receiver(cluster, place(cluster, where))
    receiver.consume()
    publish(cluster, *(b"%d" % number for number in range(1, count + 1)))
    receiver.read()
    receiver.leave()
    return receiver


def withdrawn(cluster: Cluster) -> list[bytes]:
    return [name for name in ring(cluster).attributes if name[:1] == b"w"]


@WHERE
def test_it_returns_when_its_time_is_over(where: str) -> None:
    cluster = made()
    receiver = suspended(cluster, where)
    other = Client(cluster, others(cluster)[1])
    other.consume()
    cluster.wait(TIMEOUT_MS - 1000)
    assert other.read() == [], "early it does not"
    cluster.wait(3000)
    assert other.read() == [(b"1", True), (b"2", True), (b"3", True)]
    assert ring(cluster).delivery_count(1) == 1, "it counts as a failure"
    assert ring(cluster).links() == {}
    back = Receiver(cluster, place(cluster, where), resumes=True)
    assert back.held() == [HeldMessages(1, 3, 0, withdrawn=True)]
    handle, number = back.handle, back.link.link
    handle.forget_tags(number, 0, [seq.to_bytes(8) for seq in (1, 3)])
    cluster.turn()
    assert back.held() == [HeldMessages(2, 2, 0, withdrawn=True)]
    handle.forget_tags(number, 0, [(2).to_bytes(8), b"another's"])
    cluster.turn()
    assert (back.held(), withdrawn(cluster)) == ([], [])
    assert receiver.lost == []


def test_a_client_that_comes_in_time_begins_the_time_anew() -> None:
    cluster = made()
    suspended(cluster)
    for _ in range(3):
        cluster.wait(TIMEOUT_MS - 1500)
        back = Receiver(cluster, owner(cluster).name, resumes=True)
        assert back.held() == [HeldMessages(1, 3, 0)]
        back.leave()
    cluster.wait(TIMEOUT_MS + 1500)
    assert ring(cluster).links() == {}


def test_the_next_owner_knows_and_begins_the_time_anew() -> None:
    cluster = made()
    suspended(cluster)
    cluster.wait(TIMEOUT_MS - 1500)
    cluster.kill(owner(cluster).name)
    cluster.wait(TIMEOUT_MS - 1500)
    assert ring(cluster).links(), "late, never early"
    cluster.wait(TIMEOUT_MS)
    assert ring(cluster).links() == {}
    back = Receiver(cluster, owner(cluster).name, resumes=True)
    assert back.held() == [HeldMessages(1, 3, 0, withdrawn=True)], "it stands in the log"


@pytest.mark.parametrize("end", ["forgotten", "not resumed"])
def test_nothing_is_kept_of_a_link_that_ends(end: str) -> None:
    cluster = made()
    receiver = suspended(cluster)
    cluster.wait(TIMEOUT_MS + 1500)
    assert withdrawn(cluster)
    if end == "forgotten":
        link = receiver.link
        cluster.order(c.ForgetLink(link=LogIndex(link.link), attach=link.attach))
    else:
        Receiver(cluster, owner(cluster).name).consume()
    cluster.turn()
    assert withdrawn(cluster) == []


@WHERE
def test_what_an_attached_link_holds_is_its_sessions_affair(where: str) -> None:
    cluster = made()
    receiver = Receiver(cluster, place(cluster, where))
    receiver.consume()
    publish(cluster, b"1", b"2")
    receiver.read()
    cluster.wait(3 * TIMEOUT_MS)
    assert ring(cluster).links() == {receiver.link.link: 2}
    receiver.leave()
    cluster.wait(TIMEOUT_MS - 1500)
    assert ring(cluster).links(), "its time begins when its client goes"


def test_no_timeout_no_withdrawal() -> None:
    cluster = made(x_consumer_timeout=0)
    suspended(cluster)
    cluster.wait(10 * TIMEOUT_MS)
    assert sum(ring(cluster).links().values()) == 3


def test_members_of_an_older_release_would_not_tell_their_clients() -> None:
    cluster = made(level=3)
    suspended(cluster)
    cluster.wait(10 * TIMEOUT_MS)
    assert sum(ring(cluster).links().values()) == 3


def test_it_is_dead_lettered_at_its_limit() -> None:
    cluster = made(x_delivery_limit=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    cluster["a"].client().declare("dead")
    suspended(cluster)
    cluster.wait(TIMEOUT_MS + 1500)
    assert [queue.ready for site in cluster.running for queue in site.node.queues.values() if queue.name == "dead"] == [
        3
    ]
