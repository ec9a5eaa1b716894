"""The world of the map's tests."""

from collections.abc import Iterator

import pytest

from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.wiring.map_world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    restored = ClusterMap.restored(world.map.snapshot())
    assert restored.digest() == world.map.digest()
