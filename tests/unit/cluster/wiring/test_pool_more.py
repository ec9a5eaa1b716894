"""Settings of pools that came with feature level 8, and what a pool has learnt of its keys, in the map."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import Epoch
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEARNT_COSTS, TENANTS, Levels, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_MORE, MoreSettings, Pool, PoolSettings
from clusterbroker.cluster.wiring.pool_rules import LEARNT_MAX, learnt_peak, tenant_of
from tests.unit.cluster.wiring.map_world import World

MORE = MoreSettings("/", (("acme", 3),), workers_may_call=True)


@pytest.fixture
def world() -> World:
    world = World()
    world.do(c.DeclarePool(vhost="/", name="core", template="core", more=MORE))
    return world


def pool(world: World) -> Pool:
    (found,) = world.map.pools.all()
    return found


def more(world: World) -> MoreSettings:
    return world.map.pools.more(pool(world).pool_id)


def learnt(world: World) -> dict[str, int]:
    return dict(world.map.pools.learnt(pool(world).pool_id))


def set_(world: World, *only: str, **fields: Any) -> None:
    world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=only, more=MoreSettings(**fields)))


def restored(world: World) -> ClusterMap:
    again = ClusterMap.restored(world.map.snapshot())
    assert again.digest() == world.map.digest()
    return again


def test_they_are_declared_and_set_by_name(world: World) -> None:
    assert more(world) == MORE
    set_(world, "tenant_separator", tenant_separator=".")
    assert more(world) == MoreSettings(".", (("acme", 3),), workers_may_call=True)
    set_(world)
    assert more(world).tenant_separator == ".", "all settings are not these"
    set_(world, "workers_may_call", "tenant_weights")
    assert more(world) == MoreSettings(".")
    assert restored(world).pools.more(pool(world).pool_id) == MoreSettings(".")


def test_another_declaration_is_refused(world: World) -> None:
    world.do(c.DeclarePool(vhost="/", name="core", template="core", more=MORE))
    with pytest.raises(PreconditionFailed, match="tenant_separator"):
        world.do(c.DeclarePool(vhost="/", name="core", template="core"))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (MoreSettings("123456789"), "tenant_separator"),
        (MoreSettings("/", (("a", 0),)), "tenant_weights"),
        (MoreSettings("/", target_wait_ms=0), "target_wait_ms"),
        (MoreSettings("/", max_share_percent=101), "max_share_percent"),
        (MoreSettings("/", (("a", 1001),)), "tenant_weights"),
        (MoreSettings("/", (("a" * 256, 1),)), "longer than a key"),
        (MoreSettings("/", tuple((f"t{n}", 1) for n in range(1001))), "1001 tenants"),
    ],
)
def test_bounds(world: World, wrong: MoreSettings, named: str) -> None:
    only = MoreSettings.__struct_fields__
    with pytest.raises(PreconditionFailed, match=named):
        world.do(c.DeclarePool(vhost="/", name="other", more=wrong))
    with pytest.raises(PreconditionFailed, match=named):
        world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=only, more=wrong))
    assert more(world) == MORE


def test_whose_a_key_is() -> None:
    assert [tenant_of(MORE, key) for key in ("acme/1", "acme/1/2", "/1", "acme", "")] == ["acme", "acme", "", "", ""]
    assert tenant_of(NO_MORE, "acme/1") == ""


@pytest.mark.parametrize(
    "command",
    [
        c.DeclarePool(vhost="/", name="core", more=MoreSettings(workers_may_call=True)),
        c.SetPool(vhost="/", name="core", settings=PoolSettings(), only=("tenant_weights",)),
    ],
)
def test_below_the_level_they_are_refused(command: Any) -> None:
    with pytest.raises(PreconditionFailed):
        check_ordered(command, TENANTS - 1)
    check_ordered(command, TENANTS)


def worker_ends(world: World, key: str, peak_bytes: int) -> None:
    about: dict[str, Any] = {"pool_id": pool(world).pool_id, "epoch": Epoch(1)}
    world.do(c.RequireGroups(keys=(key,), **about))
    (launch,) = world.do(c.LaunchWorkers(workers=((key, "a", "v"),), **about))
    world.do(c.WorkersGone(node="a", incarnation=1, ended=(Ended(launch.launch_id, 0, peak_bytes),)))  # type: ignore[arg-type]


def test_what_workers_took_is_learnt(world: World) -> None:
    for peak_bytes in (100, 0, 400, 200):
        worker_ends(world, "42", peak_bytes)
    worker_ends(world, "7", 50)
    worker_ends(world, "42", 400)
    assert learnt(world) == {"7": 50, "42": 400}
    assert list(learnt(world)) == ["7", "42"], "what was seen last is forgotten last"
    assert dict(restored(world).pools.learnt(pool(world).pool_id)) == learnt(world)


def test_a_lower_peak_counts_in_part() -> None:
    assert learnt_peak(0, 100) == 100
    assert learnt_peak(400, 200) == 350
    assert learnt_peak(400, 401) == 401


def test_so_many_keys_are_learnt(world: World) -> None:
    held = world.map.pools.by_id[pool(world).pool_id]
    for number in range(LEARNT_MAX):
        held.learn(str(number), 1)
    held.learn("0", 2)
    held.learn("new", 3)
    assert len(held.learnt) == LEARNT_MAX
    assert "1" not in held.learnt
    assert held.learnt["0"] == 2


def test_below_the_level_nothing_is_learnt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Levels, "level", LEARNT_COSTS - 1, raising=False)
    worker_ends(world, "42", 100)
    assert learnt(world) == {}
