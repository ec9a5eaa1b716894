"""Spares in the policy and at the controller: taken first, never in anybody's way."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.pools.facts import Gone, PlaceFacts, Settings, WorkerFacts
from clusterbroker.broker.pools.messages import SpareTold, WorkerTold
from clusterbroker.broker.pools.orders import Assign, Launch, Retire, Stop
from clusterbroker.broker.pools.policy import Policy
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from tests.unit.broker.pools.made import facts, group, worker
from tests.unit.broker.pools.test_fleet import World as Fleets

SPARE = Launch(NO_KEY, "p", "", 100)


def policy(**settings: Any) -> Policy:
    return Policy(Settings(memory=100, **settings), 0.0)


def with_spares(*spares: WorkerFacts, wanted: int = 1, groups: tuple[Any, ...] = (), **more: Any) -> Any:
    return facts(*groups, spares=spares, spares_wanted=wanted, **more)


def test_as_many_are_started_as_are_wanted_and_then_nothing_ticks() -> None:
    one = policy()
    assert one.step(with_spares(wanted=2), 0.0) == [SPARE, SPARE]
    assert one.next_s(0.0) is not None
    assert one.step(with_spares(worker("s", "starting"), worker("t"), wanted=2), 1.0) == []
    assert one.step(with_spares(worker("s"), worker("t"), wanted=2), 2.0) == []
    assert one.next_s(2.0) is None


def test_a_key_takes_a_spare_before_anything_is_started_and_a_ready_one_first() -> None:
    one, waiting = policy(), (group("k", ready=1),)
    two = (worker("coming", "starting"), worker("up"))
    assert one.step(with_spares(*two, wanted=2, groups=waiting), 0.0) == [Assign("k", "up"), SPARE]
    assert policy().step(with_spares(two[0], wanted=1, groups=waiting), 0.0) == [Assign("k", "coming"), SPARE]
    leaving = worker("s", "retiring")
    assert policy().step(with_spares(leaving, wanted=0, groups=waiting), 0.0) == [
        Stop(NO_KEY, "s", "retired and empty"), Launch("k", "p", "", 100),
    ]  # fmt: skip


def test_one_that_the_key_was_last_beside_is_taken() -> None:
    one = policy()
    one.costs.seen("k", "q", 0.0)
    near = with_spares(
        worker("a"), worker("b", place="q"), wanted=2, groups=(group("k", ready=1),), places={"p": 1000, "q": 1000}
    )
    assert one.step(near, 1.0)[0] == Assign("k", "b")


def test_spares_count_as_workers_of_the_pool_and_of_their_place() -> None:
    one = policy(max_workers=2)
    busy = (group("k", worker("w", held=1), held=1),)
    assert one.step(with_spares(wanted=5, groups=busy), 0.0) == [SPARE]
    assert one.step(with_spares(worker("s"), wanted=5, groups=busy), 1.0) == []
    assert one.next_s(1.0) is not None
    waiting = (*busy, group("l", ready=1))
    assert one.step(with_spares(worker("s"), wanted=5, groups=waiting), 2.0) == [Assign("l", "s")], "nothing is started"
    assert policy().step(with_spares(wanted=5, places={"p": 250}), 0.0) == [SPARE, SPARE]


def test_none_is_started_while_a_key_has_no_worker_and_they_make_room() -> None:
    one = policy()
    one.costs.learn_peak("big", 690)
    waiting = (group("big", ready=1),)
    full = with_spares(*(worker(name) for name in "abc"), wanted=3, groups=waiting, places={"p": 1000})
    assert one.step(full, 0.0) == [Assign("big", "a")], "with its own room there is enough"
    one = policy()
    one.costs.learn_peak("big", 750)
    assert one.step(full, 0.0) == [Retire(NO_KEY, "c", "room for 'big'")]
    going = with_spares(worker("a"), worker("b"), worker("c", "retiring", 0.0), wanted=3, groups=waiting,
                        places={"p": 1000})  # fmt: skip
    assert one.step(going, 1.0) == [Stop(NO_KEY, "c", "retired and empty")], (
        "its room comes to another one, which gets the key"
    )


def test_further_workers_take_none_while_others_wait_for_their_first() -> None:
    one = policy(max_workers=2)
    one.costs.learn_peak("big", 2000)
    waiting = (group("big", ready=1), group("k", worker("w", held=1), ready=900, held=1, arrived=900, settled=10))
    orders = one.step(with_spares(worker("s"), wanted=1, groups=waiting, places={"p": 3000}), 0.0)
    assert [order for order in orders if isinstance(order, Assign)] == [Assign("big", "s")]


@pytest.mark.parametrize(
    ("spare", "more", "why"),
    [
        (worker("s", version="v1"), {"version": "v2"}, "an older version"),
        (worker("s"), {"given": {"p": PlaceFacts("p", 1000, alarm=True)}}, "the place is short of memory"),
        (worker("s"), {"wanted": 0}, "surplus"),
    ],
)
def test_those_that_are_not_to_be_kept_are_retired(spare: WorkerFacts, more: Any, why: str) -> None:
    assert policy().step(with_spares(spare, **more), 0.0)[0] == Retire(NO_KEY, "s", why)
    taken_over = Policy(Settings(memory=100), 0.0, taken_over=True)
    assert not [one for one in taken_over.step(with_spares(spare, **more), 5.0) if isinstance(one, Retire)]


def test_a_paused_pool_starts_and_gives_none() -> None:
    waiting = (group("k", ready=1),)
    assert policy().step(with_spares(worker("s"), wanted=3, groups=waiting, paused=True), 0.0) == []


def test_starts_that_fail_wait_and_nobody_is_told() -> None:
    one = policy(start_failures_max=1, start_timeout_s=10)
    assert one.step(with_spares(worker("s", "starting")), 10.0) == [Stop(NO_KEY, "s", "not ready after 10 s")]
    assert one.worker_gone(Gone(NO_KEY, "s", "p", ready=False, asked=True), 11.0) == []
    assert one.step(with_spares(), 12.0) == []
    assert one.step(with_spares(), 70.0) == [SPARE], "one trial, after a minute"
    assert one.next_s(70.0) is not None


def test_they_are_spread_over_places() -> None:
    orders = policy().step(with_spares(wanted=3, places={"p": 1000, "q": 1000, "r": 1000}), 0.0)
    assert sorted(order.place for order in orders if isinstance(order, Launch)) == ["p", "q", "r"]


# ---- at the controller ----


class World(Fleets):
    """A pool that wants spares."""

    def __init__(self, *places: str, spares: int, **settings: Any) -> None:
        super().__init__(*places, **settings)
        only = ("spares",)
        self.do(c.SetPool(vhost="/", name="core", settings=self.pool.settings, only=only, spares=spares))

    def carry_out(self, ordered: Any) -> None:
        if ordered.kind != "assign":
            super().carry_out(ordered)
            return
        self.do(c.AssignWorkers(pool_id=self.pool.pool_id, epoch=self.epoch, workers=ordered.assigned))
        for launch in self.launches:
            self.fleet.launch_changed(launch, self.now_s)
        self.fleet.answered(ordered, True)

    def asks(self, launch: Any) -> None:
        self.fleet.spare_told(SpareTold(self.pool.pool_id, launch.launch_id), self.now_s)


def test_a_fleet_keeps_its_spares_and_gives_each_one_key() -> None:
    world = World("a", "b", spares=2)
    assert world.step() == ["launch"]
    assert [(one.spare, one.place) for one in world.launches] == [(True, "a"), (True, "b")]
    for launch in world.launches:
        world.asks(launch)
    assert world.step() == []
    assert world.fleet.figures(world.now_s).workers == {"spare": 2}
    world.require("42")
    assert world.step() == ["assign", "launch"]
    assert [one.key for one in world.launches if not one.spare] == ["42"]
    for _ in range(20):
        assert world.step(1.0) == []


def test_an_assignment_is_in_the_facts_before_the_log_has_answered() -> None:
    world = World("a", spares=1)
    world.step()
    world.require("42")
    world.require("43")
    assert sorted(world.step(answer=False)) == ["assign", "launch"], "the second key has no spare left"
    assert world.step() == []


def test_a_spare_that_the_log_has_not_named_yet_gets_no_key() -> None:
    world = World("a", spares=1)
    assert world.step(answer=False) == ["launch"]
    world.require("42")
    world.now_s += 0.1
    world.fleet.step(world.places, "a", world.now_s)
    (ordered,) = world.fleet.commands
    assert (ordered.kind, [key for _, key, _, _ in ordered.launches]) == ("launch", ["42"])


def test_what_the_log_refuses_is_a_spare_again() -> None:
    world = World("a", spares=1)
    world.step()
    world.require("42")
    world.now_s += 0.1
    world.fleet.step(world.places, "a", world.now_s)
    assign, *others = world.fleet.commands
    world.fleet.commands = []
    for ordered in (assign, *others):
        world.fleet.answered(ordered, False)
    assert world.step() == ["assign", "launch"]


def test_a_spare_that_is_gone_before_it_has_its_key_leaves_the_key_waiting_for_another() -> None:
    world = World("a", spares=1)
    world.step()
    (spare,) = world.launches
    world.asks(spare)
    world.require("42")
    world.now_s += 0.1
    world.fleet.step(world.places, "a", world.now_s)
    commands, world.fleet.commands = world.fleet.commands, []
    world.gone(spare, 9)
    for ordered in commands:
        world.carry_out(ordered)
    world.step(0.5)
    world.step(5.0)
    assert [one.key for one in world.launches].count("42") == 1


def test_its_time_to_get_ready_begins_with_its_key() -> None:
    world = World("a", spares=1, start_timeout_s=10)
    world.step()
    (spare,) = world.launches
    world.asks(spare)
    for _ in range(30):
        assert world.step(1.0) == [], "it waits as long as it takes"
    world.require("42")
    world.step()
    assert world.step(9.0) == []
    assert world.step(2.0) == ["revoke"]


def test_a_controller_that_takes_over_keeps_the_spares() -> None:
    world = World("a", spares=2)
    world.step()
    world.fleet = world.begun()
    for launch in world.launches:
        world.asks(launch)
    for _ in range(20):
        assert world.step(1.0) == []
    assert world.fleet.next_s(world.now_s) is None


def test_its_start_is_timed_to_its_question_and_again_from_its_key() -> None:
    world = World("a", spares=1)
    world.step()
    (spare,) = world.launches
    world.now_s += 3.0
    world.asks(spare)
    world.now_s += 50.0
    world.require("42")
    world.step()
    world.now_s += 2.0
    world.tell("42", **{spare.launch_id.replace("-", "_"): 0})
    assert [round(one.took_s) for one in world.fleet.starts] == [3, 2]
    world.fleet = world.begun()
    world.tell("42", **{spare.launch_id.replace("-", "_"): 0})
    world.asks(world.launches[-1])
    world.step()
    assert world.fleet.starts == [], "when it was ordered nobody knows"


def test_a_report_of_readiness_counts_from_its_key_on() -> None:
    world = World("a", spares=1, ready="event")
    world.step()
    (spare,) = world.launches
    ready = WorkerTold(world.pool.pool_id, spare.launch_id, ready=True)
    world.fleet.worker_told(ready, world.now_s)
    world.require("42")
    world.step()
    world.step()
    assert world.fleet.figures(world.now_s).workers == {"wanted": 2}
    world.fleet.worker_told(ready, world.now_s)
    world.step()
    assert world.fleet.figures(world.now_s).workers == {"ready": 1, "wanted": 1}


def test_spares_are_no_strays_and_end_with_their_place() -> None:
    world = World("a", spares=1)
    world.step()
    (spare,) = world.launches
    world.asks(spare)
    world.places["a"] = world.places["a"]._replace(alive=False)
    kinds = [kind for _ in range(40) for kind in world.step(1.0)]
    assert kinds == ["revoke"]
    world.do(c.WorkersGone(node="a", incarnation=1, ended=(Ended(spare.launch_id, None),)))  # type: ignore[arg-type]
