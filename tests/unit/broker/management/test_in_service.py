"""Checks that a load balancer asks: is this node in service, and does it take one more connection?"""

from __future__ import annotations

import pytest

from clusterbroker.broker.management import nodes
from clusterbroker.broker.stats import rows
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.management.set_up import NODE, Place, user


@pytest.fixture
def place() -> Place:
    made = Place()
    made.must(user("guest", "administrator", "guest"))
    for name in ("a", NODE):
        made.must(c.AddMember(name=NodeId(name), address=f"{name}:1"))
        made.must(
            c.RegisterNode(node=NodeId(name), disk_id=name, incarnation=Incarnation(1), address=f"{name}:1", level=9)
        )
    made.tell(rows.NodeRow(name=NODE, sockets_used=9, sockets_limit=10))
    return made


def test_a_node_is_in_service_until_it_is_drained(place: Place) -> None:
    assert nodes.in_service(place.reading()).ok
    assert nodes.ready_to_serve(place.reading()).ok
    place.must(c.DrainNode(node=NodeId(NODE)))
    for check in (nodes.in_service, nodes.ready_to_serve):
        found = check(place.reading())
        assert not found.ok
        assert "drain --undo" in found.facts["reason"]


def test_another_node_that_is_drained_is_another_matter(place: Place) -> None:
    place.must(c.DrainNode(node=NodeId("a")))
    assert nodes.in_service(place.reading()).ok


def test_a_full_node_serves_nobody_more(place: Place) -> None:
    assert nodes.below_connection_limit(place.reading()).facts == {"current": 9, "limit": 10}
    place.tell(rows.NodeRow(name=NODE, sockets_used=10, sockets_limit=10))
    for check in (nodes.below_connection_limit, nodes.ready_to_serve):
        assert not check(place.reading()).ok
    assert nodes.in_service(place.reading()).ok
