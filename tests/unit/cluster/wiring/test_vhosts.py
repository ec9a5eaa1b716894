"""Vhosts: what each begins and ends with."""

import pytest

from clusterbroker.cluster.errors import (
    NotFound,
    PreconditionFailed,
)
from clusterbroker.cluster.wiring import commands as c
from tests.unit.cluster.wiring.map_world import World


def test_missing_vhosts(world: World) -> None:
    with pytest.raises(NotFound, match="vhost 'v' not found"):
        world.do(c.DeclareQueue(vhost="v", name="q"))
    assert world.do(c.DeleteExchange(vhost="v", name="x")) is False
    assert world.do(c.Unbind(vhost="v", source="x", destination="q")) is False


def test_vhosts(world: World) -> None:
    world.do(c.AddVhost(name="v", default_queue_type="quorum"))
    assert len(world.told) == 7
    assert world.told[0] == "VhostAdded"
    world.do(c.AddVhost(name="v", default_queue_type="quorum"))
    assert world.told == []
    world.do(c.AddVhost(name="v", description="d", default_queue_type="quorum"))
    assert world.told == ["VhostChanged"]
    world.do(c.AddVhost(name="v", description="d", default_queue_type="quorum", tracing=True))
    assert world.told == ["VhostChanged"]
    world.do(c.AddVhost(name="v", description="e", default_queue_type="quorum"))
    assert world.map.vhost("v").tracing, "who says nothing of it leaves it on"
    world.do(c.AddVhost(name="v", default_queue_type="quorum", tracing=False))
    assert not world.map.vhost("v").tracing
    with pytest.raises(PreconditionFailed):
        world.do(c.AddVhost(name="w", default_queue_type="stream"))
    queue = world.do(c.DeclareQueue(vhost="v", name="q", durable=True))
    assert queue.arguments == {"x-queue-type": "quorum"}
    assert world.map.effective(queue).delivery_limit == 20
    assert world.do(c.DeclareQueue(vhost="v", name="q", durable=True)) is queue
    world.do(c.Bind(vhost="v", source="amq.direct", destination="q"))
    world.do(c.PutUser(name="u", password_hash="", hash_algorithm="scrypt"))
    world.do(c.SetPermission(user="u", vhost="v", configure="", write="", read=""))
    world.do(c.PutParameter(vhost="v", component="c", name="n", value=1))
    assert world.do(c.DeleteVhost(name="v")) is True
    assert world.told[:2] == ["Unbound amq.direct->q", "QueueDeleted q"]
    assert world.told[-3:] == ["PermissionChanged", "ParameterChanged", "VhostDeleted"]
    assert world.map.queue_by_id(queue.queue_id) is None
    assert world.map.permissions() == ()
    assert world.do(c.DeleteVhost(name="v")) is False
