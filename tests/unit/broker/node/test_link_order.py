"""The order of what a recoverable receiver link is handed: nothing newer before what it held, or had, and returns."""

from __future__ import annotations

import pytest

from tests.unit.broker.node.link_clients import Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import WHERE, others, owner, place, publish, ring


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster["a"].client().declare("q")
    return cluster


@pytest.mark.parametrize("fails_over", [False, True])
def test_nothing_newer_comes_before_what_is_sent_again(cluster: Cluster, fails_over: bool) -> None:
    """Its owner may have to read it from a disk first."""
    receiver = Receiver(cluster, others(cluster)[0])
    receiver.consume()
    publish(cluster, b"0")
    receiver.ack(*receiver.bodies())
    for site in cluster.running:
        site.disk_waits = True
    publish(cluster, b"1", b"2")
    cluster.unlink(owner(cluster).name, receiver.site.name)
    for site in cluster.running:
        site.disk_waits, site.reads_wait = False, True
    cluster.wait(300)
    if fails_over:
        cluster.kill(owner(cluster).name)
    cluster.relink()
    cluster.wait(1000)
    assert ring(cluster).links() == {receiver.link.link: 2}
    publish(cluster, b"3")
    before = receiver.bodies()
    for site in cluster.running:
        site.reads_wait = False
    assert before + receiver.bodies() == [b"1", b"2", b"3"]
    receiver.ack(b"1", b"2", b"3")
    publish(cluster, b"4")
    assert receiver.bodies() == [b"4"]


def test_what_comes_beyond_the_credit_returns_and_comes_first_again(cluster: Cluster) -> None:
    receiver, other = Receiver(cluster, others(cluster)[0]), Client(cluster, others(cluster)[1])
    receiver.consume()
    for site in cluster.running:
        site.disk_waits = True
    publish(cluster, b"1", b"2")
    assert receiver.subscription is not None
    credit = receiver.subscription.credit
    credit.limit = credit.delivered
    receiver.handle.limits_changed(receiver.subscription)
    for site in cluster.running:
        site.disk_waits = False
    cluster.turn()
    assert (receiver.read(), ring(cluster).links()) == ([], {})
    credit.limit = credit.delivered + 1
    receiver.handle.limits_changed(receiver.subscription)
    assert receiver.bodies() == [b"1"]
    assert other.consume() == ""
    assert other.bodies() == [b"2"]


@WHERE
@pytest.mark.parametrize("again", ["given back", "begun anew"])
def test_nothing_newer_comes_before_what_returns(cluster: Cluster, where: str, again: str) -> None:
    receiver = Receiver(cluster, place(cluster, where))
    receiver.consume(prefetch=2)
    publish(cluster, *(b"%d" % number for number in range(1, 9)))
    assert receiver.bodies() == [b"1", b"2"]
    for site in cluster.running:
        site.disk_waits = True
    if again == "given back":
        receiver.give_back(b"1")
        cluster.turn()
    else:
        receiver = Receiver(cluster, others(cluster)[1])
        receiver.consume(prefetch=2)
    for site in cluster.running:
        site.disk_waits = False
    assert receiver.read()[0] == (b"1", True)
