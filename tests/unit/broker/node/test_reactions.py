"""What a node does about each change of the map."""

from __future__ import annotations

from clusterbroker.broker.node.reactions import OF_MEMBERS, REACTIONS, WITHOUT
from clusterbroker.cluster.wiring.changes import Change


def test_each_kind_of_change_has_its_place() -> None:
    """A change that a node does not know ends it, on every member at once."""
    places = (set(OF_MEMBERS), set(REACTIONS), set(WITHOUT))
    assert set().union(*places) == set(Change.__args__)
    assert sum(map(len, places)) == len(Change.__args__)
