"""Room at places: of a machine for what runs on it, and for what does not."""

from __future__ import annotations

import pytest

from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold
from clusterbroker.broker.pools.places import ROOM_UNKNOWN, Place, rooms
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_entities import Pool

GIB = 1 << 30


def pool() -> Pool:
    made = ClusterMap()
    made.apply(LogIndex(1), c.AddVhost(name="/"))
    declared: Pool = made.apply(LogIndex(2), c.DeclarePool(vhost="/", name="core", template="core")).result
    return declared


@pytest.mark.parametrize(
    ("driver", "memory", "alarm"),
    [("subprocess", 3 * GIB, True), ("docker", 3 * GIB, True), ("kubernetes", ROOM_UNKNOWN, False)],
)
def test_the_machine_is_room_for_what_runs_there(driver: str, memory: int, alarm: bool) -> None:
    template = TemplateTold("v1", driver, 7, GIB)
    told = PlaceTold({"core": template}, 4 * GIB, alarm=True)
    found = rooms(pool(), {"a": Place(told, True, others_bytes=GIB)}, template, ())["a"]
    assert (found.memory, found.alarm, found.workers_max) == (memory, alarm, 7)


def test_a_machine_of_unknown_size_has_room() -> None:
    template = TemplateTold("v1", "subprocess", 0, GIB)
    assert rooms(pool(), {"a": Place(PlaceTold({"core": template}), True)}, template, ())["a"].memory == ROOM_UNKNOWN
