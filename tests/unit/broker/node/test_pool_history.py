"""Starts and ends of a pool's workers, as its controller remembers them and its log tells them."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.pools.fleet import LOST_PLACE_S
from clusterbroker.broker.pools.messages import PlaceTold, WorkerTold
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.cluster.ids import LOCAL_NODE, Incarnation
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from tests.unit.broker.node.node_cluster import Cluster
from tests.unit.broker.node.test_pool_figures import MIB, TEMPLATE, Started


def history(site: Any, *keys: str) -> list[dict[str, Any]]:
    """The oldest first."""
    (pool,) = site.node.map.pools.all()
    queue = site.node.queues[pool.orphans]
    assert isinstance(queue, OrphanQueue)
    found: list[dict[str, Any]] = queue.history(keys or None)["entries"]
    return found[::-1]


def told(entries: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(one["event"], one["key"], one["why"]) for one in entries]


def test_a_worker_from_its_order_to_its_end() -> None:
    started = Started()
    world = started.world
    launch = started.launch("42")
    worker = started.consumes(launch)
    (pool,) = world.node.map.pools.all()
    epoch = world.node.map.queue_by_id(pool.orphans).epoch  # type: ignore[union-attr]
    retire = c.RetireWorkers(pool_id=pool.pool_id, epoch=epoch, launches=(launch.launch_id,), why="asked to")
    world.command(retire)
    world.command(retire)
    revoke = c.RevokeWorkers(pool_id=pool.pool_id, epoch=epoch, launches=(launch.launch_id,), why="it held too long")
    world.command(revoke)
    world.wait(3000)
    ended = (Ended(launch.launch_id, 15, 70 * MIB),)
    world.command(c.WorkersGone(node=LOCAL_NODE, incarnation=Incarnation(1), ended=ended))
    found = [one for one in history(world) if one["worker"] == launch.launch_id]
    assert told(found) == [
        ("started", "42", ""), ("ready", "42", ""), ("retired", "42", "asked to"),
        ("revoked", "42", "it held too long"), ("exited", "42", "asked to"),
    ]  # fmt: skip
    assert {one["place"] for one in found} == {world.node.options.name}
    assert 0 <= found[1]["took_ms"] <= 1000
    end = found[-1]
    assert (end["exit_status"], end["peak_bytes"], end["was_ready"]) == (15, 70 * MIB, True)
    assert 3000 <= end["took_ms"] <= 4000, "since it was ready"
    assert [one["number"] for one in found] == sorted(one["number"] for one in found)
    assert world.node.log.ready == [(launch.launch_id, "42")]
    worker.leave()


def test_a_failed_start_says_what_its_place_told() -> None:
    started = Started()
    launch = started.launch("42")
    (pool,) = started.world.node.map.pools.all()
    why = "exit status 3: no such map"
    started.world.node.pool_desk.tell_controller(WorkerTold(pool.pool_id, launch.launch_id, why=why))
    started.gone(launch, 3)
    end = next(one for one in history(started.world) if one["event"] == "exited")
    assert (end["why"], end["detail"], end["exit_status"], end["was_ready"]) == ("", why, 3, False)
    assert end["took_ms"] is None
    assert started.world.node.log.ready == []


def test_keys_that_are_not_asked_for_are_left_out() -> None:
    started = Started()
    started.launch("42")
    started.launch("43")
    assert told(history(started.world, "43")) == [("started", "43", "")]


class ThreePlaces:
    """A cluster whose pool has its workers at one member that is not its controller."""

    def __init__(self) -> None:
        self.cluster = Cluster("a", "b", "c")
        for site in self.cluster.running:
            site.node.pool_desk.tell_place(PlaceTold({"core": TEMPLATE}, memory_bytes=1024 * MIB))
        self.cluster.order(c.DeclarePool(vhost="/", name="core", template="core"))
        self.cluster.wait(1000)
        for key in "123456":
            self.cluster["a"].client().publish("core", key)
        self.cluster.wait(1000)

    @property
    def controller(self) -> Any:
        owner = self.cluster.queue("core-orphan").owner
        return self.cluster[owner]

    def launches(self) -> tuple[Any, ...]:
        pools = self.controller.node.map.pools
        found: tuple[Any, ...] = pools.launches(pools.all()[0].pool_id)
        return found


def test_workers_of_a_member_that_fails_are_told_with_their_place() -> None:
    three = ThreePlaces()
    controller = three.controller
    lost = next(one.place for one in three.launches() if one.place != controller.name)
    ids = {one.launch_id for one in three.launches() if one.place == lost}
    three.cluster.kill(lost)
    three.cluster.wait(10_000, step_ms=200)
    assert controller.node.log.lost_places == [], "it may come back"
    three.cluster.wait(int(1000 * LOST_PLACE_S) + 5000, step_ms=200)
    assert three.controller is controller
    assert controller.node.log.lost_places == [(lost, len(ids))]
    revoked = [one for one in history(controller) if one["event"] == "revoked"]
    assert {one["worker"] for one in revoked} == ids
    assert {one["why"] for one in revoked} == {"its place is lost"}


def test_another_controller_begins_anew_and_invents_nothing() -> None:
    three = ThreePlaces()
    before, ids = three.controller, {one.launch_id for one in three.launches()}
    assert ids
    three.cluster.kill(before.name)
    three.cluster.wait(8000, step_ms=200)
    controller = three.controller
    assert controller is not before
    assert not [one for one in history(controller) if one["worker"] in ids and one["event"] == "started"]
