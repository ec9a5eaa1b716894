"""Keys of workers that serve several, in the map."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.changes import AssignmentChanged, AssignmentEnded, LaunchEnded
from clusterbroker.cluster.wiring.levels import SPARE_WORKERS, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, Launch, Pool, PoolSettings
from tests.unit.cluster.wiring.map_world import World

KEYS = ("1", "2", "3", "4")


@pytest.fixture
def world() -> World:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core", template="core", keys_per_worker=3))
    world.do(c.RequireGroups(pool_id=pool(world).pool_id, epoch=Epoch(1), keys=KEYS))
    return world


def pool(world: World) -> Pool:
    (found,) = world.map.pools.all()
    return found


def order(world: World, kind: Any, **known: Any) -> Any:
    return world.do(kind(pool_id=pool(world).pool_id, epoch=Epoch(1), **known))


def launched(world: World, count: int = 1) -> tuple[Launch, ...]:
    made: tuple[Launch, ...] = order(world, c.LaunchWorkers, workers=((NO_KEY, "a", "v"),) * count)
    return made


def assigned(world: World, *pairs: tuple[str, str]) -> Any:
    return order(world, c.AssignWorkers, workers=pairs)


def keys(world: World, launch: Launch) -> list[str]:
    return [one.key for one in world.map.pools.assignments(launch.launch_id)]


def restored(world: World) -> ClusterMap:
    again = ClusterMap.restored(world.map.snapshot())
    assert again.digest() == world.map.digest()
    return again


def test_a_worker_has_as_many_keys_as_it_may_and_stays_without_one_of_its_own(world: World) -> None:
    (one,) = launched(world)
    worker = one.launch_id
    given = assigned(world, *((worker, key) for key in KEYS))
    assert given == (worker,) * 3, "the fourth is one too many"
    assert keys(world, one) == ["1", "2", "3"]
    assert assigned(world, (worker, "1"), (worker, "none"), ("w0-0", "4")) == ()
    pools = world.map.pools
    found = pools.launch(worker)
    assert found is not None
    assert found.spare
    assert pools.launches_of(pool(world).pool_id, "1") == ()
    assert pools.workers_of(pool(world).pool_id, "1") == {worker: False}
    assert [each.assigned for each in pools.assignments(worker)] == [world.map.applied - 1] * 3
    assert restored(world).pools.assignments(worker) == pools.assignments(worker)


def test_workers_of_one_key_are_not_begun_there(world: World) -> None:
    assert order(world, c.LaunchWorkers, workers=(("1", "a", "v"),)) == ()


def test_a_key_is_retired_then_revoked_and_may_come_again_as_another_assignment(world: World) -> None:
    (one,) = launched(world)
    worker, pools, pool_id = one.launch_id, world.map.pools, pool(world).pool_id
    assigned(world, (worker, "1"), (worker, "2"))
    before = pools.assignment(worker, "1")
    both = ((worker, "1"), (worker, "4"))
    assert order(world, c.RetireKeys, keys=both, why="room") == ((worker, "1"),)
    assert order(world, c.RetireKeys, keys=both, why="room") == (), "it is by now"
    assert pools.workers_of(pool_id, "1") == {worker: True}
    assert pools.workers_of(pool_id, "2") == {worker: False}
    assert keys(world, one) == ["1", "2"], "it may finish what it holds"
    restored(world)
    assert order(world, c.RevokeKeys, keys=both) == ((worker, "1"),)
    assert (keys(world, one), pools.workers_of(pool_id, "1")) == (["2"], {})
    assigned(world, (worker, "1"))
    after = pools.assignment(worker, "1")
    assert before is not None
    assert after is not None
    assert (after.retired, after.assigned > before.assigned) == ("", True)


def test_they_are_in_one_order_on_all_members_whatever_was_given_back(world: World) -> None:
    first, second = launched(world, 2)
    assigned(world, (second.launch_id, "1"), (first.launch_id, "2"), (first.launch_id, "1"), (second.launch_id, "3"))
    order(world, c.RevokeKeys, keys=((second.launch_id, "1"),))
    assigned(world, (second.launch_id, "1"))
    order(world, c.RetireKeys, keys=((first.launch_id, "2"),), why="room")
    again, pool_id = restored(world).pools, pool(world).pool_id
    for key in KEYS:
        assert again.assignments_of(pool_id, key) == world.map.pools.assignments_of(pool_id, key)
    for launch in (first, second):
        assert again.assignments(launch.launch_id) == world.map.pools.assignments(launch.launch_id)


def test_one_that_is_on_its_way_out_gets_none(world: World) -> None:
    retired, revoked = launched(world, 2)
    assigned(world, (retired.launch_id, "1"), (revoked.launch_id, "1"))
    order(world, c.RetireWorkers, launches=(retired.launch_id,), why="a test")
    order(world, c.RevokeWorkers, launches=(revoked.launch_id,), why="a test")
    assert assigned(world, *((one.launch_id, "2") for one in (retired, revoked))) == ()
    assert set(world.map.pools.workers_of(pool(world).pool_id, "1").values()) == {True}


def test_they_end_with_their_worker_before_it_does(world: World) -> None:
    (one,) = launched(world)
    assigned(world, (one.launch_id, "1"))
    world.do(c.WorkersGone(node="a", incarnation=1, ended=(Ended(one.launch_id),)))  # type: ignore[arg-type]
    assert world.last is not None
    assert [type(change) for change in world.last.changes] == [AssignmentEnded, LaunchEnded]
    assert world.map.pools.workers_of(pool(world).pool_id, "1") == {}
    restored(world)


def test_they_end_with_their_group_and_their_pool(world: World) -> None:
    (one,) = launched(world)
    pool_id = pool(world).pool_id
    assigned(world, (one.launch_id, "1"), (one.launch_id, "2"))
    order(world, c.SettleGroups, keys=KEYS)
    group = world.map.pools.group(pool_id, "1")
    assert group is not None
    known = {"key": "1", "queue_id": group.queue_id, "epoch": Epoch(1), "generation": group.generation}
    world.do(c.UnbindGroup(pool_id=pool_id, **known))
    world.do(c.DropGroup(pool_id=pool_id, **known))
    assert keys(world, one) == ["2"]
    restored(world)
    world.do(c.DeleteVhost(name="/"))
    assert world.map.pools.assignments(one.launch_id) == ()


def test_a_key_that_is_stopped_gets_nothing_more_at_its_worker(world: World) -> None:
    (one,) = launched(world)
    assigned(world, (one.launch_id, "1"), (one.launch_id, "2"))
    world.do(c.DirectGroup(vhost="/", name="core", key="1", word="stop"))
    assert world.last is not None
    assert type(world.last.changes[0]) is AssignmentChanged
    assert world.map.pools.workers_of(pool(world).pool_id, "1") == {one.launch_id: True}
    assert world.map.pools.workers_of(pool(world).pool_id, "2") == {one.launch_id: False}


@pytest.mark.parametrize("kind", [c.RetireKeys, c.RevokeKeys])
def test_a_controller_of_before_takes_none_back(world: World, kind: Any) -> None:
    (one,) = launched(world)
    assigned(world, (one.launch_id, "1"))
    why = {"why": "a test"} if kind is c.RetireKeys else {}
    with pytest.raises(PreconditionFailed, match="epoch"):
        world.do(kind(pool_id=pool(world).pool_id, epoch=Epoch(2), keys=((one.launch_id, "1"),), **why))


def test_their_number_changes_while_there_is_no_worker(world: World) -> None:
    def put(count: int) -> None:
        only = ("keys_per_worker",)
        world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=only, keys_per_worker=count))

    with pytest.raises(PreconditionFailed, match="keys_per_worker 3, and not 1"):
        world.do(c.DeclarePool(vhost="/", name="core", template="core"))
    for refused in (0, 101):
        with pytest.raises(PreconditionFailed, match="from 1 to 100"):
            put(refused)
    put(2)
    assert restored(world).pools.keys_per_worker(pool(world).pool_id) == 2
    launched(world)
    put(2)
    with pytest.raises(PreconditionFailed, match="while it has none"):
        put(1)
    with pytest.raises(PreconditionFailed, match="what scales there has one key"):
        world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(scaling="keda"), only=("scaling",)))


def test_a_pool_of_one_key_each_is_as_older_releases_have_it() -> None:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core", template="core"))
    assert not {"keys_per_worker", "assignment"} & dict(world.map.snapshot().sections()).keys()


@pytest.mark.parametrize(
    "command",
    [
        c.DeclarePool(vhost="/", name="core", template="core", keys_per_worker=2),
        c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("keys_per_worker",)),
        c.RetireKeys(pool_id=7, epoch=Epoch(1), keys=(), why=""),  # type: ignore[arg-type]
        c.RevokeKeys(pool_id=7, epoch=Epoch(1), keys=()),  # type: ignore[arg-type]
    ],
    ids=lambda command: type(command).__name__,
)
def test_they_need_their_feature_level(command: c.AnyCommand) -> None:
    check_ordered(command, SPARE_WORKERS)
    with pytest.raises(PreconditionFailed, match=f"feature level {SPARE_WORKERS}"):
        check_ordered(command, SPARE_WORKERS - 1)
