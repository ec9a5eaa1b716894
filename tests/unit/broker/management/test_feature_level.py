"""The feature level in the documents of the overview and of nodes."""

from __future__ import annotations

from clusterbroker.broker.management import nodes
from clusterbroker.broker.stats.rows import NodeRow
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import FIRST, LEVEL
from tests.unit.broker.management.set_up import Place, user

NAMES = (NodeId("n1"), NodeId("n2"))


def test_the_clusters_level_and_that_of_each_release() -> None:
    place = Place()
    place.must(user("guest", "administrator"))
    assert nodes.overview(place.reading())["feature_level"] == LEVEL, "of a node that is alone"
    for name in NAMES:
        place.must(c.AddMember(name=name, address="x:1"))
        place.must(c.RegisterNode(node=name, disk_id=name, incarnation=Incarnation(1), address="x:1"))
    place.tell(NodeRow(name="n1", feature_level=FIRST, supported_feature_level=LEVEL))
    place.tell(NodeRow(name="n2"), node="n2")  # of an older release, which says nothing of it
    assert nodes.overview(place.reading())["feature_level"] == FIRST
    told = {
        one["name"]: (one["feature_level"], one["supported_feature_level"]) for one in nodes.all_nodes(place.reading())
    }
    assert told == {"n1": (FIRST, LEVEL), "n2": (FIRST, FIRST)}
    place.must(c.RaiseLevel(level=LEVEL, members=tuple((name, Incarnation(1)) for name in NAMES)))
    assert nodes.overview(place.reading())["feature_level"] == LEVEL
