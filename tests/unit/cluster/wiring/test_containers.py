"""Containers with a sole connection in the map: who holds them, who gives way, and what frees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterbroker.cluster.errors import LimitReached, NotFound, PreconditionFailed, ResourceLocked
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import containers
from clusterbroker.cluster.wiring.changes import ContainerLost
from clusterbroker.cluster.wiring.entities import SoleConnection
from clusterbroker.cluster.wiring.levels import SOLE_CONNECTIONS, check_ordered
from clusterbroker.cluster.wiring.map import ClusterMap
from tests.unit.cluster.cluster_world import ClusterWorld


@pytest.fixture
def world() -> ClusterWorld:
    return ClusterWorld()


def hold(
    world: ClusterWorld, connection: str, at: str = "a", *, gives_way: bool = False, vhost: str = "/",
    container: str = "c", user: str = "u", incarnation: Incarnation | None = None,
) -> SoleConnection:  # fmt: skip
    member = world.member(at)
    found = world.do(
        c.HoldContainer(
            node=NodeId(at), incarnation=incarnation or member.incarnation, vhost=vhost, container=container, user=user,
            connection=connection, gives_way=gives_way,
        )
    )  # fmt: skip
    assert isinstance(found, SoleConnection)
    return found


def held(map_: ClusterMap) -> list[str]:
    return [sole.connection for sole in map_.snapshot().containers]


def lost(world: ClusterWorld) -> list[str]:
    return [change.sole.connection for change in world.last.changes if isinstance(change, ContainerLost)]


def test_the_newer_one_is_refused_or_the_older_one_gives_way(world: ClusterWorld) -> None:
    hold(world, "1")
    for gives_way in (False, True):
        with pytest.raises(ResourceLocked, match="container 'c' of user 'u' has a connection in vhost '/'"):
            hold(world, "2", "b", gives_way=gives_way)
    assert world.do(c.ReleaseContainer(vhost="/", container="c", user="u", connection="2")) is False
    assert world.do(c.ReleaseContainer(vhost="/", container="c", user="u", connection="1")) is True
    hold(world, "3", gives_way=True)
    hold(world, "4", "b")
    assert lost(world) == ["3"]
    with pytest.raises(ResourceLocked):
        hold(world, "5", gives_way=True)
    assert held(world.map) == ["4"]


def test_containers_differ_by_vhost_user_and_id(world: ClusterWorld) -> None:
    world.do(c.AddVhost(name="v"))
    hold(world, "1")
    hold(world, "2", vhost="v")
    hold(world, "3", user="w")
    hold(world, "4", container="d")
    assert sorted(held(world.map)) == ["1", "2", "3", "4"]
    with pytest.raises(NotFound):
        hold(world, "5", vhost="none")


@pytest.mark.parametrize(
    "end",
    [
        lambda world: world.fail("a"),
        lambda world: world.register("a"),
        lambda world: world.do(c.DeleteVhost(name="v")),
        lambda world: world.do(c.DeleteUser(name="u")),
    ],
)
def test_what_frees_a_container(world: ClusterWorld, end: Callable[[ClusterWorld], object]) -> None:
    world.do(c.AddVhost(name="v"))
    world.do(c.PutUser(name="u"))
    hold(world, "1", vhost="v")
    hold(world, "2", "b", user="w")
    end(world)
    assert held(world.map) == ["2"]
    assert lost(world) == ["1"]


def test_of_a_process_that_is_over_nothing_is_taken(world: ClusterWorld) -> None:
    before = world.member("a").incarnation
    world.register("a")
    with pytest.raises(PreconditionFailed, match="node 'a' has failed since, or begun anew: connect again"):
        hold(world, "1", incarnation=before)


def test_limits(world: ClusterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "CONTAINERS_MAX", 2)
    hold(world, "1", container="1", gives_way=True)
    hold(world, "2", container="2")
    with pytest.raises(LimitReached, match="vhost '/' has 2 containers with a sole connection"):
        hold(world, "3", container="3")
    hold(world, "4", container="1")
    with pytest.raises(PreconditionFailed, match="at most 1024 bytes"):
        hold(world, "5", container="c" * 1025)


def test_snapshots_have_them_and_go_on_with_them(world: ClusterWorld) -> None:
    assert "container" not in dict(ClusterMap().snapshot().sections()), "it is an older release's"
    hold(world, "1", "b")
    hold(world, "2", "c", user="w")
    restored = world.restored()
    assert restored.digest() == world.map.digest()
    command = c.FailNode(node=NodeId("b"), incarnation=world.member("b").incarnation)
    for map_ in (restored, world.map):
        map_.apply(LogIndex(map_.applied + 1), command)
        assert held(map_) == ["2"]
    assert restored.digest() == world.map.digest()


def test_below_its_level_none_is_ordered() -> None:
    command = c.ReleaseContainer(vhost="/", container="c", user="u", connection="1")
    check_ordered(command, SOLE_CONNECTIONS)
    with pytest.raises(PreconditionFailed, match=f"this needs feature level {SOLE_CONNECTIONS}"):
        check_ordered(command, SOLE_CONNECTIONS - 1)
