"""Room at places: of a machine for what runs on it, and for what does not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from clusterbroker.broker.pools.facts import Scaling
from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold
from clusterbroker.broker.pools.places import ROOM_UNKNOWN, Place, check_scaling, rooms, settings_of, share
from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_entities import MoreSettings, Pool, PoolSettings

GIB = 1 << 30


def pool() -> Pool:
    made = ClusterMap()
    made.apply(LogIndex(1), c.AddVhost(name="/"))
    declared: Pool = made.apply(LogIndex(2), c.DeclarePool(vhost="/", name="core", template="core")).result
    return declared


@pytest.mark.parametrize(
    ("driver", "memory", "alarm"),
    [("subprocess", 3 * GIB, True), ("docker", 3 * GIB, True), ("kubernetes", ROOM_UNKNOWN, False)],
)
def test_the_machine_is_room_for_what_runs_there(driver: str, memory: int, alarm: bool) -> None:
    template = TemplateTold("v1", driver, 7, GIB)
    told = PlaceTold({"core": template}, 4 * GIB, alarm=True)
    found = rooms(pool(), {"a": Place(told, True, others_bytes=GIB)}, template, ())["a"]
    assert (found.memory, found.alarm, found.workers_max) == (memory, alarm, 7)


def test_a_machine_of_unknown_size_has_room() -> None:
    template = TemplateTold("v1", "subprocess", 0, GIB)
    assert rooms(pool(), {"a": Place(PlaceTold({"core": template}), True)}, template, ())["a"].memory == ROOM_UNKNOWN


@pytest.mark.parametrize("scaling", ["hpa", "keda"])
def test_where_something_else_scales_a_key_is_one_launch(scaling: str) -> None:
    """A policy that kept `min` launches would never replace one of an older version."""
    found = settings_of(PoolSettings(scaling=scaling, min=3, max=9), TemplateTold("v1", "kubernetes"))  # type: ignore[arg-type]
    assert (found.scaling, found.min, found.max) == (Scaling.OUTSIDE, 1, 1)
    assert settings_of(PoolSettings(scaling=scaling), TemplateTold("v1", "kubernetes")).min == 0  # type: ignore[arg-type]


def test_a_worker_has_its_share_of_a_backlog() -> None:
    assert share(PoolSettings(), MoreSettings()) == 5, "a second each, gone in five"
    assert share(PoolSettings(prefetch=4), MoreSettings(target_wait_ms=2000, service_ms=100)) == 80
    assert share(PoolSettings(), MoreSettings(service_ms=60_000)) == 1


def test_scaling_that_no_driver_does_is_refused() -> None:
    hpa = PoolSettings(scaling="hpa")
    check_scaling(hpa, None, "core", ["kubernetes", "kubernetes"], some=False)
    for drivers, named in ((["kubernetes", "docker"], "docker, kubernetes"), (["docker"], "docker"), ((), "none")):
        with pytest.raises(PreconditionFailed, match=f"'core' has {named}$"):
            check_scaling(hpa, None, "core", drivers, some=False)
        check_scaling(PoolSettings(), None, "core", drivers, some=False)


def test_workers_of_one_kind_do_not_become_those_of_the_other() -> None:
    own, hpa, keda = pool(), PoolSettings(scaling="hpa"), PoolSettings(scaling="keda")
    check_scaling(hpa, own, "core", ["kubernetes"], some=False)
    with pytest.raises(PreconditionFailed, match="scaling is 'own', and 'hpa' runs workers in another way"):
        check_scaling(hpa, own, "core", ["kubernetes"], some=True)
    scaled = replace(own, settings=hpa)
    check_scaling(keda, scaled, "core", ["kubernetes"], some=True)
    with pytest.raises(PreconditionFailed, match="scaling is 'hpa', and 'own'"):
        check_scaling(PoolSettings(), scaled, "core", ["kubernetes"], some=True)
