"""The workers of a pool at its controller: a map, what is told, and commands that come of it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.pools.fleet import LOST_PLACE_S, Fleet
from clusterbroker.broker.pools.messages import GroupTold, PlaceTold, TemplateTold, WorkerTold
from clusterbroker.broker.pools.orders import Launch, Retire, Stop
from clusterbroker.broker.pools.places import Place
from clusterbroker.cluster.ids import Epoch, LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY, NO_MORE, MoreSettings, PoolSettings

TEMPLATE = TemplateTold("v1", "subprocess", 4, 1 << 20)


class World:
    """A map with a pool, its controller's fleet, and places that do what they are told."""

    def __init__(self, *places: str, more: MoreSettings = NO_MORE, **settings: Any) -> None:
        self.map = ClusterMap()
        self.do(c.AddVhost(name="/"))
        declared = PoolSettings(**settings)
        self.pool = self.do(c.DeclarePool(vhost="/", name="core", template="core", settings=declared, more=more))
        self.epoch = self.map.queue_by_id(self.pool.orphans).epoch  # type: ignore[union-attr]
        self.places = {name: Place(PlaceTold({"core": TEMPLATE}, 1 << 30), True) for name in places}
        self.now_s = 1000.0
        self.fleet = self.begun()

    def begun(self) -> Fleet:
        return Fleet(self.pool, self.map.pools, self.now_s)

    def do(self, command: Any) -> Any:
        applied = self.map.apply(LogIndex(self.map.applied + 1), command)
        assert applied.ok, applied.error
        return applied.result

    def require(self, key: str) -> None:
        self.do(c.RequireGroups(pool_id=self.pool.pool_id, epoch=self.epoch, keys=(key,)))
        self.fleet.group_changed(key)

    def step(self, passes_s: float = 0.1, answer: bool = True) -> list[str]:
        """The kinds of commands, which are carried out."""
        self.now_s += passes_s
        self.fleet.step(self.places, "a", self.now_s)
        commands, self.fleet.commands = self.fleet.commands, []
        for ordered in commands if answer else ():
            self.carry_out(ordered)
        return [ordered.kind for ordered in commands]

    def carry_out(self, ordered: Any) -> None:
        known = {"pool_id": self.pool.pool_id, "epoch": self.epoch}
        if ordered.kind == "launch":
            self.do(c.LaunchWorkers(workers=tuple(one[1:] for one in ordered.launches), **known))
        else:
            kind = c.RetireWorkers if ordered.kind == "retire" else c.RevokeWorkers
            self.do(kind(launches=ordered.workers, why=ordered.why, **known))
        for launch in self.launches:
            self.fleet.launch_changed(launch, self.now_s)
        self.fleet.answered(ordered, True)

    @property
    def launches(self) -> Any:
        return self.map.pools.launches(self.pool.pool_id)

    def tell(self, key: str, ready: int = 0, draining: bool = False, knows: bool = True, **workers: int) -> None:
        """`knows`: its owner has heard of all retirements."""
        retired = tuple(one.launch_id for one in self.launches if knows and (one.retired or one.revoked))
        named = {name.replace("_", "-"): held for name, held in workers.items()}
        told = GroupTold(self.pool.pool_id, key, ready, sum(named.values()), ready, 0, 0, named, draining, retired)
        self.fleet.told(told, self.now_s)

    def gone(self, launch: Any, exit_status: int | None = 0) -> None:
        self.do(c.WorkersGone(node="a", incarnation=1, ended=(Ended(launch.launch_id, exit_status),)))  # type: ignore[arg-type]
        self.fleet.launch_ended(launch, exit_status, 0, self.now_s)


def test_a_group_has_one_worker_ordered_however_often_it_is_looked_at() -> None:
    world = World("a", "b")
    world.require("42")
    assert world.step(answer=False) == ["launch"]
    assert world.step() == []  # it is under way
    world = World("a", "b")
    world.require("42")
    assert world.step() == ["launch"]
    for _ in range(20):
        assert world.step(1.0) == []
    assert [launch.version for launch in world.launches] == ["v1"]


def test_what_leaves_is_ordered_before_what_takes_its_place() -> None:
    """Else the log has one too many for a moment."""
    world = World("a", "b")
    world.require("42")
    world.step()
    (launch,) = world.launches
    orders = (Launch("42", "b", "v1", 1), Stop("42", launch.launch_id, "not ready"))
    world.fleet._take(orders, world.now_s)
    assert [ordered.kind for ordered in world.fleet.commands] == ["revoke", "launch"]


def test_a_controller_that_takes_over_starts_none_twice() -> None:
    world = World("a")
    world.require("42")
    world.step()
    world.fleet = world.begun()
    for _ in range(20):
        assert world.step(1.0) == []


def test_a_worker_of_before_that_consumes_is_ready_though_it_does_not_tell_so_again() -> None:
    world = World("a", ready="event", start_timeout_s=120)
    world.require("42")
    world.step()
    (launch,) = world.launches
    own = {launch.launch_id.replace("-", "_"): 1}
    world.tell("42", **own)
    world.step()
    assert world.fleet.figures(world.now_s).workers["busy"] == 0, "of a start of its own it waits for the word"
    world.fleet.worker_told(WorkerTold(world.pool.pool_id, launch.launch_id, ready=True), world.now_s)
    world.step()
    assert world.fleet.figures(world.now_s).workers["busy"] == 1
    world.fleet = world.begun()
    world.fleet.worker_told(WorkerTold(world.pool.pool_id, launch.launch_id, running=True), world.now_s)
    world.tell("42", **own)
    for _ in range(130):
        assert world.step(1.0) == []
        assert world.fleet.figures(world.now_s).workers["busy"] == 1


def test_a_worker_that_consumes_is_ready_when_its_report_is_late() -> None:
    world = World("a", ready="event", start_timeout_s=120, max_workers=2)
    for key in ("42", "43"):
        world.require(key)
        world.step()
    one, other = world.launches
    for launch in world.launches:
        world.tell(launch.key, **{launch.launch_id.replace("-", "_"): 1})
    orders = [order for _ in range(100) for order in world.step(1.0)]
    world.tell(other.key)  # it consumes no more
    orders += [order for _ in range(18) for order in world.step(1.0)]
    assert (orders, world.fleet.figures(world.now_s).workers["busy"]) == ([], 0)
    world.step(3.0)
    assert world.fleet.figures(world.now_s).workers["busy"] == 1
    assert [launch.launch_id for launch in world.launches if launch.revoked] == [other.launch_id]
    assert not any(launch.revoked for launch in world.launches if launch.launch_id == one.launch_id)


def test_a_worker_of_before_that_ended_with_its_node_is_no_failed_start() -> None:
    world = World("a", start_failures_max=1)
    world.require("42")
    world.step()
    (launch,) = world.launches
    world.fleet = world.begun()  # whether it was ready is not known
    world.gone(launch)
    assert world.step() == ["launch"], "at once"
    assert world.fleet.fails == []
    (launch,) = world.launches
    world.gone(launch)
    world.step()
    assert [fail.key for fail in world.fleet.fails] == ["42"], "its own start has failed"


def test_what_a_controller_before_has_ordered_says_nothing_of_how_long_starts_take() -> None:
    world = World("a")
    world.require("42")
    world.step()
    (launch,) = world.launches
    world.fleet = world.begun()
    world.tell("42", **{launch.launch_id.replace("-", "_"): 0})
    world.step()
    assert world.fleet.starts == []


def test_a_pool_has_no_worker_too_many_while_one_of_a_group_that_ended_runs() -> None:
    world = World("a", max_workers=1)
    world.require("42")
    world.step()
    (launch,) = world.launches
    known = {"pool_id": world.pool.pool_id, "epoch": world.epoch}
    group = world.map.pools.group(world.pool.pool_id, "42")
    assert group is not None
    world.do(c.SettleGroups(keys=("42",), **known))
    of_queue: dict[str, Any] = {
        "pool_id": world.pool.pool_id, "key": "42", "queue_id": group.queue_id, "epoch": world.epoch,
        "generation": group.generation,
    }  # fmt: skip
    world.do(c.UnbindGroup(**of_queue))
    assert world.do(c.DropGroup(**of_queue))
    world.fleet.group_changed("42")
    world.require("43")
    assert world.step() == ["revoke"]
    assert world.step(1.0) == []
    world.gone(launch)
    assert world.step(1.0) == ["launch"]


def test_what_the_log_refuses_is_ordered_again() -> None:
    world = World("a")
    world.require("42")
    world.now_s += 0.1
    world.fleet.step(world.places, "a", world.now_s)
    (ordered,) = world.fleet.commands
    world.fleet.commands = []
    world.fleet.answered(ordered, False)
    assert world.step() == ["launch"]


def test_a_group_that_drains_loses_its_workers_by_retirement_first() -> None:
    world = World("a")
    world.require("42")
    world.step()
    (launch,) = world.launches
    world.tell("42", **{launch.launch_id.replace("-", "_"): 0})
    world.step()
    group = world.map.pools.group(world.pool.pool_id, "42")
    assert group is not None
    settle = c.SettleGroups(pool_id=world.pool.pool_id, epoch=world.epoch, keys=("42",))
    world.do(settle)
    queue = world.map.queue_by_id(group.queue_id)
    assert queue is not None
    unbind = c.UnbindGroup(
        pool_id=world.pool.pool_id, key="42", queue_id=group.queue_id, epoch=Epoch(queue.epoch),
        generation=group.generation,
    )  # fmt: skip
    world.do(unbind)
    world.tell("42", draining=True, **{launch.launch_id.replace("-", "_"): 0})
    assert world.step(1.0) == ["retire"]
    world.tell("42", draining=True, **{launch.launch_id.replace("-", "_"): 0})
    assert world.step(0.1) == ["revoke"]
    assert world.launches[0].revoked == "retired and empty"


def test_a_retired_worker_may_hold_what_is_not_told_yet() -> None:
    world = World("a", grace_s=30)
    world.require("42")
    world.step()
    (launch,) = world.launches
    named = {launch.launch_id.replace("-", "_"): 0}
    world.tell("42", **named)
    world.step()
    assert world.do(
        c.RetireWorkers(pool_id=world.pool.pool_id, epoch=world.epoch, launches=(launch.launch_id,), why="x")
    )
    world.fleet.launch_changed(world.launches[0], world.now_s)
    world.step()
    world.tell("42", knows=False, **named)
    world.step()
    assert not world.launches[0].revoked, "its queue's owner may have handed it a request meanwhile"
    world.tell("42", **dict.fromkeys(named, 1))
    world.step(5.0)
    assert not world.launches[0].revoked
    world.tell("42", **named)
    world.step()
    assert world.launches[0].revoked == "retired and empty"


def test_a_slow_log_takes_nothing_off_the_grace_of_a_worker() -> None:
    world = World("a", grace_s=3, max_workers=1)
    world.require("42")
    world.step()
    (launch,) = world.launches
    holds = {launch.launch_id.replace("-", "_"): 1}
    world.tell("42", **holds)
    world.step()
    assert world.fleet._take((Retire("42", launch.launch_id, "surplus"),), world.now_s)
    (ordered,), world.fleet.commands = world.fleet.commands, []
    for _ in range(50):  # the log has not answered
        world.tell("42", **holds)
        assert world.step() == []
    world.carry_out(ordered)
    for _ in range(29):
        assert world.step() == []
    assert world.step(0.2) == ["revoke"]
    assert world.launches[0].revoked == "held a message for 3 s after it was retired"


def test_a_failed_start_says_why_and_waits() -> None:
    world = World("a", start_failures_max=1)
    world.require("42")
    world.step()
    (launch,) = world.launches
    world.fleet.worker_told(WorkerTold(world.pool.pool_id, launch.launch_id, why="no such program"), world.now_s)
    world.gone(launch, None)
    assert world.step() == []
    (told,) = world.fleet.fails
    assert told.detail == "no exit status: no such program"
    assert told.for_ms == pytest.approx(60_000, abs=100)
    assert world.step(59.0) == []
    assert world.step(2.0) == ["launch"]


def test_workers_of_a_place_without_its_node_are_replaced_in_time() -> None:
    world = World("a", "b")
    world.require("42")
    world.step()
    (launch,) = world.launches
    world.places[launch.place] = world.places[launch.place]._replace(alive=False)
    world.fleet.places_changed()
    assert world.step(1.0) == []
    assert world.step(LOST_PLACE_S - 2) == []
    assert world.step(2.0) == ["revoke"]
    assert "launch" in world.step(1.0)
    assert {one.place for one in world.launches if not one.revoked} == {"a", "b"} - {launch.place}


def test_each_change_of_a_launch_is_one_word_of_its_history() -> None:
    world = World("a", max=1)
    known: dict[str, Any] = {"pool_id": world.pool.pool_id, "epoch": world.epoch}
    world.require("42")
    (spare,) = world.do(c.LaunchWorkers(workers=((NO_KEY, "a", "v1"),), **known))
    words = [world.fleet.launch_changed(spare, world.now_s)]
    for command in (
        c.AssignWorkers(workers=((spare.launch_id, "42"),), **known),
        c.RetireWorkers(launches=(spare.launch_id,), why="idle", **known),
        c.RevokeWorkers(launches=(spare.launch_id,), why="retired and empty", **known),
    ):
        world.do(command)
        (launch,) = world.launches
        words.append(world.fleet.launch_changed(launch, world.now_s))
    assert words == ["started", "assigned", "retired", "revoked"]


def test_workers_are_lost_with_their_place_once_though_the_log_is_slow() -> None:
    world = World("a", "b", min=2)
    world.require("42")
    world.step()
    place = world.launches[0].place
    workers = sum(one.place == place for one in world.launches)
    assert workers
    world.places[place] = world.places[place]._replace(alive=False)
    world.fleet.places_changed()
    world.step(1.0)
    assert not world.fleet.lost
    assert world.step(LOST_PLACE_S, answer=False) == ["revoke"]
    assert dict(world.fleet.lost) == {place: workers}
    world.step(1.0, answer=False)
    world.step(1.0, answer=False)
    assert dict(world.fleet.lost) == {place: workers}


def test_places_with_another_version_start_nothing() -> None:
    world = World("a", "b", "c")
    other = PlaceTold({"core": TemplateTold("v0", "subprocess", 4, 1 << 20)}, 1 << 30)
    world.places["a"] = Place(other, True)
    world.require("42")
    world.step()
    assert world.launches[0].place == "b"


@pytest.mark.parametrize(("rolling", "surge", "launched"), [(True, 1, 1), (True, 3, 2), (False, 3, 0)])
def test_a_template_says_how_workers_of_an_older_one_are_replaced(rolling: bool, surge: int, launched: int) -> None:
    world = World("a", min=2)
    world.require("42")
    world.step()
    world.tell("42", **{one.launch_id: 0 for one in world.launches})
    world.step()
    before = len(world.launches)
    template = TemplateTold("v2", "subprocess", 9, 1 << 20, rolling=rolling, surge=surge)
    world.places["a"] = Place(PlaceTold({"core": template}, 1 << 30), True)
    world.fleet.places_changed()
    world.step()
    assert [one.version for one in world.launches[before:]] == ["v2"] * launched


def test_workers_of_a_group_that_is_gone_are_revoked() -> None:
    world = World("a")
    world.require("42")
    world.step()
    held = world.map.pools.by_id[world.pool.pool_id]
    del held.groups["42"]
    world.fleet.group_changed("42")
    assert world.step() == ["revoke"]
    assert world.step() == []


def test_a_late_start_that_the_log_did_not_revoke_is_revoked_again() -> None:
    world = World("a", start_timeout_s=30)
    world.require("42")
    world.step()
    world.now_s += 31
    world.fleet.step(world.places, "a", world.now_s)
    refused, world.fleet.commands = world.fleet.commands, []
    assert [one.kind for one in refused] == ["revoke"]
    for one in refused:
        world.fleet.answered(one, False)
    assert world.step(1.0) == ["revoke"]
    assert "revoke" not in world.step(1.0), "once more, and not each time"


def test_without_a_template_anywhere_workers_end_as_ever() -> None:
    world = World("a", start_timeout_s=30)
    world.require("42")
    world.require("43")
    world.step()
    world.places["a"] = Place(PlaceTold({}), True)
    held = world.map.pools.by_id[world.pool.pool_id]
    del held.groups["43"]
    world.fleet.group_changed("43")
    assert world.step() == ["revoke"]
    assert world.step(31.0) == ["revoke"]
    assert [launch.revoked for launch in world.launches] == ["not ready after 30 s", "its group has ended"]
    world = World("a")
    world.require("42")
    world.step()
    world.places["a"] = Place(PlaceTold({}), True)
    world.fleet = world.begun()
    assert world.step() == [], "a controller that never saw a template"
    assert world.step(200.0) == ["revoke"]


def test_what_an_owner_of_before_told_counts_no_more() -> None:
    world = World("a")
    world.require("42")
    world.step()

    def told(declared: int, epoch: int, ready: int) -> int:
        group = GroupTold(world.pool.pool_id, "42", ready, 0, 0, 0, 0, {}, False, (), declared, epoch)
        world.fleet.told(group, world.now_s)
        world.step()
        return world.fleet._facts["42"].ready

    assert [told(7, 2, 5), told(7, 1, 9), told(6, 3, 9), told(7, 3, 1)] == [5, 5, 5, 1]
    assert [told(8, 1, 2), told(0, 0, 3)] == [2, 3], "another queue of the key, or a member of before"


def test_other_settings_do_not_forget_that_starts_fail() -> None:
    world = World("a", start_failures_max=2)
    world.require("42")
    world.step()
    world.gone(world.launches[0], 1)
    assert world.step() == []
    world.do(c.SetPool(vhost="/", name="core", settings=PoolSettings(prefetch=7), only=("prefetch",)))
    world.fleet.pool_changed(world.map.pools.all()[0])
    assert world.step() == [], "it backs off as before"
    assert world.step(2.0) == ["launch"]
    world.gone(world.launches[0], 1)
    world.step()
    assert [told.key for told in world.fleet.fails] == ["42"], "the second failure in a row"


def test_a_worker_that_consumes_no_more_is_replaced_in_time() -> None:
    world = World("a", start_timeout_s=10, grace_s=20)
    world.require("42")
    world.step()
    (launch,) = world.launches
    name = launch.launch_id.replace("-", "_")
    world.tell("42", **{name: 0})
    world.tell("42")
    for _ in range(19):
        assert world.step(1.0) == []
    world.tell("42", **{name: 0})  # it is there again
    world.step()
    world.tell("42")
    assert world.fleet.next_s(world.now_s) == world.now_s + 1.0
    for _ in range(19):
        assert world.step(1.0) == []
    assert world.step(1.5) == ["revoke"]
    assert world.launches[0].revoked == "it did not consume for 20 s"
    world.gone(launch)
    assert world.step() == ["launch"]


def test_a_controller_that_takes_over_waits_for_workers_to_come_back() -> None:
    world = World("a", start_timeout_s=2, grace_s=2)
    world.require("42")
    world.step()
    name = world.launches[0].launch_id.replace("-", "_")
    world.tell("42", **{name: 0})
    world.fleet = world.begun()
    world.tell("42", **{name: 0})
    world.step()
    world.tell("42")
    for _ in range(9):
        assert world.step(1.0) == []
    assert world.step(1.5) == ["revoke"]


def test_an_owner_that_has_just_begun_hears_that_starts_fail() -> None:
    world = World("a", start_failures_max=1)
    world.require("42")
    world.tell("42", ready=1)
    world.step()
    (launch,) = world.launches
    world.gone(launch, 70)
    world.step()
    (told,) = world.fleet.fails
    world.fleet.fails = []
    world.tell("42", ready=2)
    world.step(20.0)
    assert world.fleet.fails == [], "it has heard"
    known = GroupTold(world.pool.pool_id, "42", 2, 0, 2, 0, 0, {}, False, (), 7, 1)
    world.fleet.told(known, world.now_s)
    (again,) = world.fleet.fails
    assert (again.key, again.detail) == ("42", told.detail)
    assert told.for_ms - 21_000 < again.for_ms < told.for_ms - 19_000


def test_a_worker_whose_group_has_ended_takes_its_room_until_it_is_gone() -> None:
    world = World("a")
    room = TEMPLATE.memory_bytes + 1
    world.places = {"a": Place(PlaceTold({"core": TEMPLATE}, room), True)}
    world.require("42")
    world.step()
    (launch,) = world.launches
    group = world.map.pools.group(world.pool.pool_id, "42")
    queue = world.map.queue_by_id(group.queue_id)  # type: ignore[union-attr]
    about: dict[str, Any] = {
        "pool_id": world.pool.pool_id, "key": "42", "queue_id": group.queue_id, "epoch": queue.epoch,  # type: ignore[union-attr]
        "generation": group.generation,  # type: ignore[union-attr]
    }  # fmt: skip
    ids: dict[str, Any] = {"pool_id": world.pool.pool_id, "epoch": world.epoch}
    world.do(c.RevokeWorkers(launches=(launch.launch_id,), why="a test", **ids))
    world.do(c.SettleGroups(keys=("42",), **ids))
    world.do(c.UnbindGroup(**about))
    world.do(c.DropGroup(**about))
    world.fleet.group_changed("42")
    world.require("7")
    assert world.step(1.0) == []
    world.gone(launch)
    assert world.step(1.0) == ["launch"]


def keys_started(world: World, count: int) -> list[str]:
    """One after the other: there is room for one, and each ends at once."""
    found = []
    for _ in range(count):
        world.step(1.0)
        (launch,) = world.launches
        found.append(launch.key)
        world.tell(launch.key, **{launch.launch_id.replace("-", "_"): 0})
        world.tell(launch.key)
        world.gone(launch)
        world.do(c.SettleGroups(pool_id=world.pool.pool_id, epoch=world.epoch, keys=(launch.key,)))
    return found


@pytest.mark.parametrize(
    ("more", "first"),
    [
        (NO_MORE, ["a/", "a/", "a/", "a/", "a/", "a/"]),
        (MoreSettings("/"), ["a/", "b/", "a/", "b/", "a/", "b/"]),
        (MoreSettings("/", (("a", 2),)), ["a/", "b/", "a/", "a/", "b/", "a/"]),
    ],
)
def test_starts_are_shared_among_tenants(more: MoreSettings, first: list[str]) -> None:
    world = World("a", more=more, max_workers=1)
    for number in range(6):
        world.require(f"a/{number}")
    for number in range(6):
        world.require(f"b/{number}")
    for key in [group.key for group in world.map.pools.groups(world.pool.pool_id)]:
        world.tell(key, ready=1)
    assert [key[:2] for key in keys_started(world, 6)] == first


def test_a_new_controller_knows_what_a_key_takes() -> None:
    room = TEMPLATE.memory_bytes * 3 // 2
    world = World("a")
    world.places = {"a": Place(PlaceTold({"core": TEMPLATE}, room), True)}
    world.require("42")
    world.step()
    (launch,) = world.launches
    ended = (Ended(launch.launch_id, 0, 10_000),)
    world.do(c.WorkersGone(node="a", incarnation=1, ended=ended))  # type: ignore[arg-type]
    world.require("7")
    world.fleet = world.begun()
    for key in ("42", "7"):
        world.tell(key, ready=1)
    world.step()
    world.step()
    assert sorted(launch.key for launch in world.launches) == ["42", "7"], "as small as it is, there is room for both"


def test_a_group_that_makes_room_is_an_eviction() -> None:
    world = World("a")
    world.places["a"] = Place(PlaceTold({"core": TEMPLATE}, TEMPLATE.memory_bytes), True)
    world.require("old")
    world.step()
    (old,) = world.launches
    world.tell("old", **{old.launch_id.replace("-", "_"): 0})
    world.step(20.0)
    world.require("new")
    world.tell("new", ready=1)
    assert world.step() == ["retire"]
    assert world.fleet.counts == {"evictions": 1}
    places = world.fleet.figures(world.now_s).places
    assert (places["a"].promised_bytes, places["a"].room_bytes) == (TEMPLATE.memory_bytes, TEMPLATE.memory_bytes)


def test_starts_that_fail_for_all_keys_suspend_their_place_and_people_hear_why() -> None:
    world = World("a", "b")
    for key in ("1", "2", "3"):
        world.require(key)
    world.step()
    assert {launch.place for launch in world.launches} == {"a"}
    for launch in world.launches:
        world.gone(launch, 3)
    world.step()
    assert world.fleet.counts == {"start_failures": 3}
    figures = world.fleet.figures(world.now_s).places
    assert figures["a"].suspended_s == world.now_s + 60
    assert figures["a"].why == "3 keys did not start here; the last one: exit status 3"
    assert figures["b"].suspended_s is None
    world.step(61.0)
    assert world.fleet.figures(world.now_s).places["a"].suspended_s is None
