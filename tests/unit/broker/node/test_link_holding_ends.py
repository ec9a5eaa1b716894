"""Recoverable receiver links that end: their queue keeps nothing of them, and the next consumer has its turn."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.node.link_clients import Client, Receiver
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_link_holding import WHERE, names, others, place, publish


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
