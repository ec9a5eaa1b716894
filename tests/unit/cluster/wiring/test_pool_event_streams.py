"""The stream of a pool's events, in the map (feature level 9)."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import AccessRefused, PreconditionFailed
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import POOL_EVENTS, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.cluster.wiring.map_world import World

DECLARE = c.DeclarePool(vhost="/", name="core", events=True)
STREAM = c.DeclareQueue(vhost="/", name="core-events", durable=True, arguments={"x-queue-type": "stream"}, at_ms=0)


def set_(world: World, events: bool, *only: str) -> None:
    world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=only or ("events",), events=events))


def tells(map_: ClusterMap) -> bool:
    (pool,) = map_.pools.all()
    return map_.pools.tells_events(pool.pool_id)


def restored(world: World) -> ClusterMap:
    again = ClusterMap.restored(world.map.snapshot())
    assert again.digest() == world.map.digest()
    return again


def test_a_pool_that_tells_has_a_stream_that_is_closed_to_others() -> None:
    world = World()
    world.do(DECLARE)
    stream = world.map.queue("/", "core-events")
    assert stream is not None
    assert world.map.effective(stream).queue_type == "stream"
    for again in (world.map, restored(world)):
        part = again.pools.queue(stream.queue_id)
        assert (tells(again), part is not None and part.part) == (True, "events")
    for command in (STREAM, c.DeleteQueue(vhost="/", name="core-events", queue_id=stream.queue_id)):
        with pytest.raises(AccessRefused, match="belongs to pool 'core'"):
            world.do(command)
    world.do(DECLARE)
    with pytest.raises(PreconditionFailed, match="events"):
        world.do(c.DeclarePool(vhost="/", name="core"))


def test_it_is_begun_and_ended_by_name_and_the_stream_stays() -> None:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core"))
    assert (tells(world.map), world.map.queue("/", "core-events")) == (False, None)
    set_(world, True, "min")
    assert not tells(world.map), "it was not named"
    set_(world, True)
    first = world.map.queue("/", "core-events")
    assert tells(restored(world))
    set_(world, False)
    assert not tells(restored(world))
    assert world.map.queue("/", "core-events") == first
    set_(world, True)
    assert (tells(world.map), world.map.queue("/", "core-events")) == (True, first)


def test_a_name_that_is_taken_refuses_it_and_one_that_is_not_the_pools_is_free() -> None:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core"))
    world.do(STREAM)
    with pytest.raises(PreconditionFailed, match="its name"):
        set_(world, True)
    assert not tells(world.map)
    mine = world.map.queue("/", "core-events").queue_id  # type: ignore[union-attr]
    world.do(c.DeleteQueue(vhost="/", name="core-events", queue_id=mine))
    set_(world, True)
    assert tells(world.map)
    other = World()
    other.do(STREAM)
    with pytest.raises(PreconditionFailed, match="its name"):
        other.do(DECLARE)


def test_the_stream_ends_with_its_pool_and_with_its_vhost() -> None:
    world = World()
    pool = world.do(DECLARE)
    world.do(c.DeletePool(vhost="/", name="core"))
    for queue_id in (pool.orphans, pool.dead):
        epoch = world.map.queue_by_id(queue_id).epoch  # type: ignore[union-attr]
        world.do(c.EndPoolQueue(pool_id=pool.pool_id, queue_id=queue_id, epoch=epoch))
    assert (world.map.queue("/", "core-events"), world.map.pools.all()) == (None, ())
    world.do(STREAM)
    world.do(c.AddVhost(name="v"))
    world.do(c.DeclarePool(vhost="v", name="core", events=True))
    world.do(c.DeleteVhost(name="v"))
    assert not world.map.pools.queues
    assert not world.map.pools.has_events(LogIndex(pool.pool_id))


def test_below_its_level_nobody_asks_for_it() -> None:
    for command in (DECLARE, c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("events",))):
        check_ordered(command, POOL_EVENTS)
        with pytest.raises(PreconditionFailed, match=f"feature level {POOL_EVENTS}"):
            check_ordered(command, POOL_EVENTS - 1)
