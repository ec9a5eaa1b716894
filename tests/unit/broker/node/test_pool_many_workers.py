"""Many workers that end at once: each costs what is its own, and no look at all others."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from clusterbroker.broker.node.foreman_link import ForemanLink
from clusterbroker.broker.pools.credentials import WorkerKey, user_of
from clusterbroker.broker.server.foreman_desk import ForemanDesk
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import Launch
from clusterbroker.cluster.wiring.pool_table import PoolTable
from tests.unit.broker.fronts.amqp091.harness import World

KEY = WorkerKey(b"k" * 32)
MANY = 50


class Clients(dict[str, Any]):
    """Counts looks at all of them."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


@pytest.fixture
def world() -> World:
    world = World()
    world.command(c.DeclarePool(vhost="/", name="core", template="core"))
    world.node.pools.key = KEY
    ids = {"pool_id": pool(world).pool_id, "epoch": epoch(world)}
    world.command(c.RequireGroups(keys=("42",), **ids))
    world.command(c.LaunchWorkers(workers=(("42", "a", "v"),) * MANY, **ids))
    return world


def pool(world: World) -> Any:
    (found,) = world.node.map.pools.all()
    return found


def epoch(world: World) -> Any:
    queue = world.node.map.queue_by_id(pool(world).orphans)
    assert queue is not None
    return queue.epoch


def launches(world: World) -> tuple[Launch, ...]:
    return world.node.map.pools.launches(pool(world).pool_id)


def revoke(world: World, some: Iterable[Launch]) -> None:
    ids = tuple(launch.launch_id for launch in some)
    world.command(c.RevokeWorkers(pool_id=pool(world).pool_id, epoch=epoch(world), launches=ids, why="a test"))


def test_the_fence_looks_at_connections_of_its_worker(world: World) -> None:
    workers = []
    for launch in launches(world)[:2]:
        world.passwords[user_of(launch.launch_id)] = KEY.password(launch.launch_id).encode()
        workers.append(world.client(user_of(launch.launch_id)))
    world.node.clients = clients = Clients(world.node.clients)
    revoke(world, launches(world)[1:])
    assert [type(one) for one in workers[1].hear(0)] == [m.ConnectionClose]
    assert workers[0].hear(0) == []
    assert clients.walks == 0


def test_a_queue_looks_at_its_workers_once_a_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, found = [], PoolTable.launches_of

    def counted(self: PoolTable, pool_id: Any, key: str) -> Any:
        looks.append(key)
        return found(self, pool_id, key)

    monkeypatch.setattr(PoolTable, "launches_of", counted)
    revoke(world, launches(world))
    assert 0 < len(looks) < 10
    assert world.queue("core-req-42").subscriptions.retired == {launch.launch_id for launch in launches(world)}  # type: ignore[attr-defined]


def test_what_the_foreman_is_told_is_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    node = SimpleNamespace(map=world.node.map, options=SimpleNamespace(name="a"), pools=world.node.pools)
    desk = ForemanDesk(
        SimpleNamespace(node=node, listeners=[], options=SimpleNamespace(advertised_amqp=())), SimpleNamespace()
    )  # type: ignore[arg-type]
    made, spec = [], desk._spec

    def counted(pool: Any, launch: Launch, addresses: Any) -> Any:
        made.append(launch.launch_id)
        return spec(pool, launch, addresses)

    monkeypatch.setattr(desk, "_spec", counted)
    link = ForemanLink()
    link.attached()
    link.wants(desk._rows(), 1)
    revoke(world, launches(world)[:1])
    told = link.wants(desk._rows(), 2)
    assert len(made) == MANY
    assert (told.count(b"worker_id"), told.count(b"revoked")) == (1, 1)
    world.command(c.SetPool(vhost="/", name="core", settings=pool(world).settings, only=("prefetch",)))
    node.pools.key = WorkerKey(b"l" * 32)
    link.wants(desk._rows(), 3)
    assert len(made) == 2 * MANY, "another key makes other passwords"
