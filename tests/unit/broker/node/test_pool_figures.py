"""What a pool's nodes tell people of it: requests, workers by state, places."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clusterbroker.broker.pools.credentials import WorkerKey, user_of
from clusterbroker.broker.pools.messages import PlaceTold, TemplateTold, WorkerTold
from clusterbroker.broker.pools.places import InUse
from clusterbroker.broker.server.counting import queue_row
from clusterbroker.broker.stats.pools import PlaceRow, PoolPlaceRow, PoolRow, TemplateRow
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.cluster.ids import LOCAL_NODE, Incarnation
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import PoolSettings
from tests.unit.broker.fronts.amqp091.harness import World
from tests.unit.broker.node.node_cluster import Cluster

MIB = 1 << 20
TEMPLATE = TemplateTold("v1", "subprocess", memory_bytes=256 * MIB)


def row(site: Any) -> PoolRow:
    """What the node tells of its one pool."""
    (pool,) = site.node.map.pools.all()
    found = [one for one in site.node.pools.rows() if one.pool_id == pool.pool_id]
    return found[0] if found else PoolRow(pool.pool_id)


@pytest.fixture
def world() -> World:
    made = World()
    made.command(c.DeclarePool(vhost="/", name="core", settings=PoolSettings(max_length=3)))
    made.turn()
    return made


def test_each_request_counts_once_whichever_way_it_came(world: World) -> None:
    client = world.client()
    client.publish("core", "42")  # among the orphans, and moved
    world.wait(100)
    client.publish("core", "42")  # to its key's queue
    client.publish("core", "nul\0")  # among the orphans, and answered
    world.wait(100)
    assert row(world).requests == 3
    for _ in range(5):
        client.publish("core", "42")
    assert row(world).requests == 4, "beyond `max_length` they are refused"
    worker = world.client()
    worker.consume("core-req-42")
    worker.leave()
    world.wait(100)
    assert row(world).requests == 4, "what comes back is not new"


def test_what_was_there_before_a_restart_does_not_count_again(world: World) -> None:
    client = world.client()
    client.ask(m.ConfirmSelect())
    client.publish("core", "42", delivery_mode=2)
    world.wait(100)
    world.command(c.PausePool(vhost="/", name="core"))
    client.publish("core", "43", delivery_mode=2)
    world.wait(100)
    assert row(world).requests == 2
    world.crash()
    world.wait(100)
    assert row(world).requests == 0, "a new process counts from 0"
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.wait(100)
    world.client().publish("core", "42")
    assert row(world).requests == 1


def test_with_copies_the_owners_count_each_request_once() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.order(c.DeclarePool(vhost="/", name="core"))
    cluster.wait(200)
    for name in cluster.sites:
        client = cluster[name].client()
        for key in ("1", "2", "3", "4"):
            client.publish("core", key)
        cluster.wait(1500)
    owners = {cluster.queue(f"core-req-{key}").owner for key in ("1", "2", "3", "4")} | {
        cluster.queue("core-orphan").owner
    }
    assert len(owners) > 1, "some are moved to another node"
    assert sum(row(site).requests for site in cluster.running) == 12
    owner = cluster.queue("core-req-1").owner
    left = sum(row(site).requests for site in cluster.running if site.name != owner)
    cluster.kill(owner)
    cluster.wait(8000, step_ms=200)
    assert sum(row(site).requests for site in cluster.running) == left, "who takes over has not got them"
    cluster.running[0].client().publish("core", "1")
    cluster.wait(1500)
    assert sum(row(site).requests for site in cluster.running) == left + 1


def test_the_head_of_a_queue_tells_since_when_it_waits_over_the_move(world: World) -> None:
    world.command(c.PausePool(vhost="/", name="core"))
    world.client().publish("core", "42")
    at_ms = world.now_ms
    assert queue_row(world.queue("core-orphan")).head_ms == at_ms
    world.wait(7000)
    world.command(c.PausePool(vhost="/", name="core", paused=False))
    world.wait(100)
    assert queue_row(world.queue("core-req-42")).head_ms == at_ms
    world.client().consume("core-req-42")
    assert queue_row(world.queue("core-req-42")).head_ms is None


class Started:
    """A node whose pool starts workers of 256 MiB, with room for four."""

    def __init__(self, **place: Any) -> None:
        self.world, self.key = World(), WorkerKey(b"k" * 32)
        self.world.node.pools.key = self.key
        self.world.node.pool_desk.tell_place(PlaceTold({"core": TEMPLATE}, **{"memory_bytes": 1024 * MIB} | place))
        self.world.command(c.DeclarePool(vhost="/", name="core", template="core"))
        self.world.turn()

    def launch(self, key: str) -> Any:
        self.world.client().publish("core", key)
        self.world.wait(500)
        return next(one for one in self.launches if one.key == key)

    @property
    def launches(self) -> Any:
        pools = self.world.node.map.pools
        return pools.launches(pools.all()[0].pool_id)

    def gone(self, launch: Any, exit_status: int) -> None:
        ended = (Ended(launch.launch_id, exit_status),)
        self.world.command(c.WorkersGone(node=LOCAL_NODE, incarnation=Incarnation(1), ended=ended))

    def consumes(self, launch: Any) -> Any:
        user = user_of(launch.launch_id)
        self.world.passwords[user] = self.key.password(launch.launch_id).encode()
        worker = self.world.client(user)
        worker.say(m.BasicQos(prefetch_count=1))
        worker.consume(f"core-req-{launch.key}")
        self.world.wait(500)
        return worker


def test_workers_by_state_and_what_is_promised_to_them() -> None:
    started = Started()
    node = started.world.node
    busy, wanted = started.launch("busy"), started.launch("wanted")
    starting = started.launch("starting")
    (pool,) = node.map.pools.all()
    node.pool_desk.tell_controller(WorkerTold(pool.pool_id, starting.launch_id, running=True))
    started.consumes(busy)
    told = row(started.world)
    assert told.workers == {"busy": 1, "wanted": 1, "starting": 1}
    own = node.options.name
    assert told.places == {own: PoolPlaceRow(1024 * MIB, 3 * 256 * MIB, 3)}
    assert told.version == "v1"
    epoch = node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
    leave = c.RevokeWorkers(pool_id=pool.pool_id, epoch=epoch, launches=(wanted.launch_id,), why="test")
    started.world.command(leave)
    assert row(started.world).workers["stopping"] == 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=PoolRow) == told


def test_a_worker_that_is_not_ready_in_its_time_is_a_failed_start() -> None:
    started = Started()
    started.launch("42")
    assert row(started.world).start_failures == 0
    started.world.wait(120_500)
    assert row(started.world).start_failures == 1


def test_the_node_tells_of_itself_as_a_place() -> None:
    assert World().node.pools.place() is None, "it starts none"
    told = PlaceTold(
        {"core": TemplateTold("v1", "systemd", 4, 256 * MIB, "systemd-user"), "more": TEMPLATE},
        1024 * MIB, {"systemd-user": "the bus is gone"}, alarm=True,
    )  # fmt: skip
    node = World().node
    node.pool_desk.tell_place(told)
    node.pool_desk.in_use = InUse(2, 1, 300 * MIB)
    assert node.pools.place() == PlaceRow(
        {
            "core": TemplateRow("v1", "systemd", 4, 256 * MIB, "the bus is gone"),
            "more": TemplateRow("v1", "subprocess", 0, 256 * MIB),
        },
        1024 * MIB, 300 * MIB, 2, 1, alarm=True,
    )  # fmt: skip


def test_nothing_is_started_where_the_service_of_a_template_is_gone() -> None:
    started = Started()
    desk = started.world.node.pool_desk
    template = TemplateTold("v1", "systemd", endpoint="systemd-user")
    desk.tell_place(PlaceTold({"core": template}, 1024 * MIB, {"systemd-user": "the bus is gone"}))
    started.world.client().publish("core", "42")
    started.world.wait(2000)
    assert started.launches == ()
    desk.tell_place(PlaceTold({"core": template}, 1024 * MIB))
    started.world.wait(2000)
    assert len(started.launches) == 1
