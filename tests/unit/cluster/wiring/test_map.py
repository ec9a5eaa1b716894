"""The map as a whole: what it begins with, and that each index is applied once."""

import pytest

from clusterbroker.cluster.ids import LogIndex, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.wiring.map_world import World


def test_a_new_map_has_the_default_vhost(world: World) -> None:
    assert [v.name for v in world.map.vhosts()] == ["/"]
    exchanges = {x.name: (x.type, x.durable, x.internal) for x in world.map.exchanges("/")}
    assert exchanges == {
        "amq.direct": ("direct", True, False),
        "amq.fanout": ("fanout", True, False),
        "amq.headers": ("headers", True, False),
        "amq.match": ("headers", True, False),
        "amq.topic": ("topic", True, False),
        "amq.rabbitmq.trace": ("topic", True, True),
    }
    assert world.map.exchange("/", "") is None
    assert world.map.users() == ()


def test_an_index_is_applied_once() -> None:
    map_ = ClusterMap()
    map_.apply(LogIndex(5), c.RemoveConnection(connection="c"))
    with pytest.raises(AssertionError):
        map_.apply(LogIndex(5), c.RemoveConnection(connection="c"))
    assert map_.apply(LogIndex(9), c.DeclareQueue(vhost="/", name="q")).result.queue_id == QueueId(9)
