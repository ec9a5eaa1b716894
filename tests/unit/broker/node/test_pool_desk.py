"""What a node knows of places."""

from __future__ import annotations

import pytest

from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import World

GIB = 1 << 30


@pytest.mark.parametrize(("driver", "promised"), [("subprocess", {"elsewhere": GIB}), ("kubernetes", {})])
def test_memory_of_a_machine_is_promised_to_what_runs_on_it(driver: str, promised: dict[str, int]) -> None:
    world = World()
    desk = world.node.pool_desk
    desk._place("elsewhere", PlaceTold({"core": TemplateTold("v1", driver, 0, GIB)}, 4 * GIB))
    core, other = (
        world.command(c.DeclarePool(vhost="/", name=name, template="core")).result for name in ("core", "other")
    )
    epoch = world.node.map.queue_by_id(core.orphans).epoch  # type: ignore[union-attr]
    world.command(c.RequireGroups(pool_id=core.pool_id, epoch=epoch, keys=("42",)))
    world.command(c.LaunchWorkers(pool_id=core.pool_id, epoch=epoch, workers=(("42", "elsewhere", "v1"),)))
    assert desk.others_bytes(other.pool_id) == promised
    assert desk.others_bytes(core.pool_id) == {}
