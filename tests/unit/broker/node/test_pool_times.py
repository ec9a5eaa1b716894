"""How long requests wait and are worked on, and workers take to start, as a pool's nodes count it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.pools.credentials import WorkerKey, user_of
from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold
from clusterbroker.broker.pools.time_bounds import BOUNDS_MS
from clusterbroker.broker.pools.times import PoolTimes, Times
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.wiring import commands as c
from tests.unit.broker.fronts.amqp091.harness import Content, World
from tests.unit.broker.node.node_cluster import Cluster


def counted(times: Times) -> dict[int, int]:
    """By the bound; 0: above all."""
    return {bound: count for bound, count in zip((*BOUNDS_MS, 0), times.counts, strict=True) if count}


def pool_times(site: Any) -> PoolTimes:
    (pool,) = site.node.map.pools.all()
    found: PoolTimes = site.node.pool_desk.times(pool.pool_id)
    return found


@pytest.fixture
def world() -> World:
    made = World()
    made.command(c.DeclarePool(vhost="/", name="core"))
    made.turn()
    return made


def test_a_duration_stands_at_the_first_bound_that_it_does_not_exceed() -> None:
    times = Times()
    for took_ms in (-5, 0, 1, 2, 3, 1000, 1001, BOUNDS_MS[-1], BOUNDS_MS[-1] + 1):
        times.note(took_ms)
    assert counted(times) == {1: 3, 2: 1, 5: 1, 1000: 1, 2000: 1, BOUNDS_MS[-1]: 1, 0: 1}
    assert times.sum_ms == 0 + 0 + 1 + 2 + 3 + 1000 + 1001 + 2 * BOUNDS_MS[-1] + 1


def test_a_request_waits_and_is_worked_on(world: World) -> None:
    world.client().publish("core", "42")
    world.wait(3000)
    worker = world.client()
    (got,) = [one for one in worker.consume("core-req-42") if isinstance(one, Content)]
    world.wait(400)
    times = pool_times(world)
    assert (counted(times.wait), times.wait.sum_ms) == ({5000: 1}, 3000)
    assert counted(times.service) == {}
    worker.say(m.BasicAck(got.method.delivery_tag))
    assert (counted(times.service), times.service.sum_ms) == ({500: 1}, 400)
    for _ in range(10):  # one after the other: each is followed
        tag = next(one.method.delivery_tag for one in call(world, worker) if isinstance(one, Content))
        worker.say(m.BasicAck(tag))
    assert (counted(times.wait), counted(times.service)) == ({5000: 1, 1: 10}, {500: 1, 1: 10})


def call(world: World, worker: Any) -> list[Any]:
    world.client().publish("core", "42")
    world.turn()
    heard: list[Any] = worker.hear()
    return heard


def test_time_among_the_orphans_counts(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    world.client().publish("core", "42")
    world.wait(7000)
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.turn()
    world.client().consume("core-req-42")
    assert counted(pool_times(world).wait) == {10_000: 1}


def test_one_of_a_key_at_a_time_however_many_there_are(world: World) -> None:
    client, worker = world.client(), world.client()
    worker.say(m.BasicQos(prefetch_count=1))
    worker.consume("core-req-42")
    for _ in range(50):
        client.publish("core", "42")
    world.turn()
    tag = 0
    for tag in range(1, 51):
        world.wait(100)
        worker.say(m.BasicAck(tag))
    assert tag == 50
    times = pool_times(world)
    assert sum(times.wait.counts) == sum(times.service.counts) == 1
    assert counted(times.service) == {100: 1}


@pytest.mark.parametrize("how", ["lost", "expired"])
def test_what_comes_back_or_dies_was_not_worked_on(world: World, how: str) -> None:
    worker = world.client()
    if how == "lost":
        worker.consume("core-req-42")
    world.client().publish("core", "42", expiration="1000")
    world.wait(500)
    worker.leave()
    world.wait(1000)
    times = pool_times(world)
    assert (sum(times.wait.counts), sum(times.service.counts)) == (how == "lost", 0)
    world.client().publish("core", "42")
    again = world.client()
    again.consume("core-req-42")
    assert sum(times.wait.counts) == 1 + (how == "lost"), "the next one is followed"


def test_a_worker_starts() -> None:
    world, key = World(), WorkerKey(b"k" * 32)
    world.node.pools.key = key
    world.node.pool_desk.tell_place(PlaceTold({"core": TemplateTold("v1", "subprocess")}))
    world.command(c.DeclarePool(vhost="/", name="core", template="core"))
    world.turn()
    world.client().publish("core", "42")
    world.wait(3000)
    (pool,) = world.node.map.pools.all()
    (launch,) = world.node.map.pools.launches(pool.pool_id)
    user = user_of(launch.launch_id)
    world.passwords[user] = key.password(launch.launch_id).encode()
    world.client(user).consume("core-req-42")
    world.wait(500)
    times = pool_times(world)
    assert counted(times.start) == {5000: 1}
    assert counted(times.wait) == {5000: 1}


def test_a_pool_that_ends_is_forgotten(world: World) -> None:
    world.client().publish("core", "42")
    world.client().consume("core-req-42")
    assert world.node.pool_desk.timed()
    world.command(c.DeletePool(vhost="/", name="core", force=True))
    for client in tuple(world.clients.values()):
        client.leave()
    world.wait(5000)
    assert world.node.map.pools.all() == ()
    assert not world.node.pool_desk.timed()


def test_with_copies_the_owner_counts() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    client = cluster["a"].client()
    client.publish("core", "42")
    cluster.wait(1500)
    worker = cluster["b"].client()
    heard = worker.consume("core-req-42")
    cluster.wait(300)
    (got,) = [one for one in (*heard, *worker.hear()) if isinstance(one, Content)]
    worker.say(m.BasicAck(got.method.delivery_tag))
    cluster.wait(300)
    (pool,) = cluster["a"].map.pools.all()
    all_times = [site.node.pool_desk.times(pool.pool_id) for site in cluster.running]
    assert sorted(sum(times.wait.counts) for times in all_times) == [0, 0, 1]
    assert sorted(sum(times.service.counts) for times in all_times) == [0, 0, 1]
