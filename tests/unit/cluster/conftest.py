"""The world of the map's tests."""

from collections.abc import Iterator

import pytest

from clusterbroker.cluster.state import ClusterMap
from tests.unit.cluster.map_world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    restored = ClusterMap.restored(world.map.snapshot())
    assert restored.digest() == world.map.digest()
