"""Spares in the map: launches without a key, and the command that gives them one."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import SPARE_WORKERS, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Launch, Pool, PoolSettings
from tests.unit.cluster.wiring.map_world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core", template="core", spares=2))
    world.do(c.RequireGroups(pool_id=pool(world).pool_id, epoch=Epoch(1), keys=("42", "7")))
    return world


def pool(world: World) -> Pool:
    (found,) = world.map.pools.all()
    return found


def launched(world: World, *keys: str) -> tuple[Launch, ...]:
    workers = tuple((key, "a", "v") for key in keys)
    made: tuple[Launch, ...] = world.do(c.LaunchWorkers(pool_id=pool(world).pool_id, epoch=Epoch(1), workers=workers))
    return made


def assigned(world: World, *pairs: tuple[str, str], epoch: int = 1) -> Any:
    return world.do(c.AssignWorkers(pool_id=pool(world).pool_id, epoch=Epoch(epoch), workers=pairs))


def test_a_spare_gets_its_key_once(world: World) -> None:
    first, second = launched(world, NO_KEY, NO_KEY)
    pools, pool_id = world.map.pools, pool(world).pool_id
    assert first.spare
    assert pools.launches_of(pool_id, NO_KEY) == (first, second)
    assert assigned(world, (first.launch_id, "42"), ("w0-0", "7"), (second.launch_id, "none")) == (first.launch_id,)
    found = pools.launch(first.launch_id)
    assert found is not None
    assert (found.key, found.spare) == ("42", False)
    group = pools.group(pool_id, "42")
    assert group is not None
    assert found.generation == group.generation
    assert pools.launches_of(pool_id, "42") == (found,)
    assert pools.launches_of(pool_id, NO_KEY) == (second,)
    assert assigned(world, (first.launch_id, "7")) == (), "it has its key for good"


def test_launches_of_a_key_are_in_their_order_and_so_after_a_restore(world: World) -> None:
    first, second = launched(world, NO_KEY, NO_KEY)
    others = [launched(world, "42")[0] for _ in range(10)]
    assigned(world, (second.launch_id, "42"))
    assigned(world, (first.launch_id, "42"))
    again = ClusterMap.restored(world.map.snapshot())
    ids = [one.launch_id for one in world.map.pools.launches_of(pool(world).pool_id, "42")]
    assert ids == [one.launch_id for one in (first, second, *others)]
    assert ids == [one.launch_id for one in again.pools.launches_of(pool(world).pool_id, "42")]


def test_one_that_is_on_its_way_out_gets_none(world: World) -> None:
    retired, revoked, own = launched(world, NO_KEY, NO_KEY, "7")
    known = {"pool_id": pool(world).pool_id, "epoch": Epoch(1), "why": "a test"}
    world.do(c.RetireWorkers(launches=(retired.launch_id,), **known))
    world.do(c.RevokeWorkers(launches=(revoked.launch_id,), **known))
    assert assigned(world, *((one.launch_id, "42") for one in (retired, revoked, own))) == ()


def test_a_controller_of_before_and_a_paused_pool_assign_none(world: World) -> None:
    (spare,) = launched(world, NO_KEY)
    with pytest.raises(PreconditionFailed, match="epoch"):
        assigned(world, (spare.launch_id, "42"), epoch=2)
    world.do(c.PausePool(vhost="/", name="core"))
    with pytest.raises(PreconditionFailed, match="paused"):
        assigned(world, (spare.launch_id, "42"))


def test_their_number_is_declared_set_and_kept_in_snapshots(world: World) -> None:
    pool_id = pool(world).pool_id
    (spare,) = launched(world, NO_KEY)
    again = ClusterMap.restored(world.map.snapshot())
    assert again.digest() == world.map.digest()
    assert again.pools.spares(pool_id) == 2
    assert again.pools.launches_of(pool_id, NO_KEY) == (spare,)
    with pytest.raises(PreconditionFailed, match="spares 2, and not 0"):
        world.do(c.DeclarePool(vhost="/", name="core", template="core"))
    world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(max=3), only=("max",)))
    assert world.map.pools.spares(pool_id) == 2, "it is not among what is set"
    world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("spares",), spares=5))
    assert (world.map.pools.spares(pool_id), pool(world).settings.max) == (5, 3)
    for refused in (-1, 5001):
        with pytest.raises(PreconditionFailed, match="0 to 5000"):
            world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("spares",), spares=refused))
    with pytest.raises(PreconditionFailed, match="what scales there has keys"):
        world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(scaling="keda"), only=("scaling",)))


def test_a_pool_without_them_is_as_older_releases_have_it() -> None:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core", template="core"))
    assert "spares" not in dict(world.map.snapshot().sections())


@pytest.mark.parametrize(
    "command",
    [
        c.DeclarePool(vhost="/", name="core", template="core", spares=1),
        c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("spares",)),
        c.LaunchWorkers(pool_id=7, epoch=Epoch(1), workers=(("42", "a", "v"), (NO_KEY, "a", "v"))),  # type: ignore[arg-type]
        c.AssignWorkers(pool_id=7, epoch=Epoch(1), workers=()),  # type: ignore[arg-type]
    ],
    ids=lambda command: type(command).__name__,
)
def test_they_need_their_feature_level(command: c.AnyCommand) -> None:
    check_ordered(command, SPARE_WORKERS)
    with pytest.raises(PreconditionFailed, match=f"feature level {SPARE_WORKERS}"):
        check_ordered(command, SPARE_WORKERS - 1)
