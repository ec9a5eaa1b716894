"""An operator's words about keys of pools, in the map."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import LimitReached, NotFound, PreconditionFailed
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import STARTED_WORKERS, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_commands import GroupWord
from clusterbroker.cluster.wiring.pool_entities import Group
from tests.unit.cluster.wiring.map_world import World
from tests.unit.cluster.wiring.test_pools import declare, of_group, require, settle


@pytest.fixture
def world() -> World:
    return World()


def say(world: World, word: GroupWord, key: str = "42") -> bool:
    done: bool = world.do(c.DirectGroup(vhost="/", name="core", key=key, word=word))
    return done


def group(world: World, key: str = "42") -> Group:
    pool = world.map.pools.find("/", "core")
    assert pool is not None
    found = world.map.pools.group(pool.pool_id, key)
    assert found is not None
    return found


def bound(world: World, key: str = "42") -> bool:
    return any(one.source == "core-req-xchg" and one.routing_key == key for one in world.map.bindings("/"))


def test_start_requires_the_group_as_a_request_does(world: World) -> None:
    pool = declare(world, max_groups=1)
    assert say(world, "start")
    first = group(world)
    assert (first.state, first.moving, bound(world)) == ("active", True, True)
    settle(world, pool, "42")
    assert of_group(c.UnbindGroup, world, pool)
    assert say(world, "start")
    assert (group(world).state, bound(world)) == ("active", True)
    assert group(world).generation > first.generation, "an order of before is void"
    with pytest.raises(LimitReached, match="one group too many"):
        say(world, "start", "43")
    world.do(c.PausePool(vhost="/", name="core"))
    with pytest.raises(PreconditionFailed, match="is paused"):
        say(world, "start")


def test_stop_retires_and_unbinds(world: World) -> None:
    pool = declare(world)
    with pytest.raises(NotFound, match="has no group"):
        say(world, "stop")
    require(world, pool, "42", "43")
    workers = (("42", "a", "v"), ("42", "a", "v"), ("43", "a", "v"))
    world.do(c.LaunchWorkers(pool_id=pool.pool_id, epoch=Epoch(1), workers=workers))
    say(world, "stop")
    launches = world.map.pools.launches(pool.pool_id)
    assert [launch.retired for launch in launches] == ["stopped by an operator", "stopped by an operator", ""]
    assert (group(world).state, bound(world)) == ("active", True), "requests may be on their way to it"
    settle(world, pool, "42", "43")
    say(world, "stop")
    assert (group(world).state, bound(world)) == ("unbound", False)
    assert (group(world, "43").state, bound(world, "43")) == ("active", True)


def test_a_pin_is_kept_until_it_is_taken_off(world: World) -> None:
    pool = declare(world)
    say(world, "pin")
    assert world.map.pools.pinned(pool.pool_id, "42")
    assert bound(world)
    with pytest.raises(PreconditionFailed, match="unpin it first"):
        say(world, "stop")
    again = ClusterMap.restored(world.map.snapshot())
    assert again.pools.pinned(pool.pool_id, "42")
    assert again.digest() == world.map.digest()
    assert say(world, "unpin")
    assert not say(world, "unpin")
    assert not world.map.pools.pinned(pool.pool_id, "42")


def test_words_need_their_level() -> None:
    word = c.DirectGroup(vhost="/", name="core", key="42", word="retry")
    check_ordered(word, STARTED_WORKERS)
    with pytest.raises(PreconditionFailed, match="feature level 6"):
        check_ordered(word, STARTED_WORKERS - 1)
