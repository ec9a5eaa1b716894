"""Workers that serve several keys: in the policy, and at the controller."""

from __future__ import annotations

from typing import Any

import pytest

from clusterbroker.broker.pools.facts import Gone, PlaceFacts, Settings, WorkerFacts
from clusterbroker.broker.pools.holdings import seat_of
from clusterbroker.broker.pools.messages import GroupTold, KeyFailed, SpareTold
from clusterbroker.broker.pools.orders import Assign, Fail, Launch, Retire, Stop
from clusterbroker.broker.pools.policy import Policy
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_commands import Ended
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from tests.unit.broker.pools.made import facts, group, worker
from tests.unit.broker.pools.test_fleet import World as Fleets

HOST = Launch(NO_KEY, "p", "", 100)


def policy(**settings: Any) -> Policy:
    return Policy(Settings(memory=100, **{"keys_per_worker": 2, "max_workers": 1, **settings}), 0.0)


def seat(host: str, key: str, state: str = "ready", since_s: float = 0.0, **more: Any) -> WorkerFacts:
    return worker(seat_of(host, key), state, since_s, host=host, **more)


def pool(*hosts: WorkerFacts, groups: tuple[Any, ...] = (), **more: Any) -> Any:
    return facts(*groups, spares=hosts, **more)


def idle(host: str, key: str, at_s: float = 0.0, **more: Any) -> Any:
    return group(key, seat(host, key, idle_since_s=at_s), **more)


# ---- the policy ----


def test_one_worker_is_started_for_as_many_keys_as_it_has_room_for() -> None:
    waiting = tuple(group(key, ready=1) for key in "abc")
    assert policy(max_workers=9).step(pool(groups=waiting), 0.0) == [HOST, HOST]
    assert policy().step(pool(groups=waiting), 0.0) == [HOST]
    coming = worker("+1", "wanted", pending=True)
    assert policy(max_workers=2).step(pool(coming, groups=waiting), 0.0) == [HOST], "two keys wait for that one"


def test_a_key_gets_the_fullest_worker_that_has_room_a_ready_one_first() -> None:
    waiting = group("k", ready=1)
    one, two, coming = worker("one"), worker("two"), worker("coming", "starting")
    assert policy().step(pool(one, two, groups=(waiting, idle("two", "a"))), 0.0)[0] == Assign("k", "two")
    assert policy().step(pool(coming, groups=(waiting,)), 0.0) == [Assign("k", "coming")], "it began earlier"
    full = (idle("one", "a"), idle("one", "b"), waiting)
    assert policy().step(pool(one, two, groups=full), 0.0)[0] == Assign("k", "two")


def test_the_least_recently_used_key_that_holds_nothing_gives_way() -> None:
    one = worker("w")
    waiting = group("k", ready=1)
    full = (idle("w", "late", 5.0), idle("w", "early", 4.0), waiting)
    assert policy().step(pool(one, groups=full), 6.0) == [Retire("early", seat_of("w", "early"), "room for 'k'")]
    busy = (idle("w", "late", 5.0), idle("w", "early", 4.0, ready=1), waiting)
    assert policy().step(pool(one, groups=busy), 6.0) == [Retire("late", seat_of("w", "late"), "room for 'k'")]
    none = (idle("w", "late", 5.0, held=1), idle("w", "early", 4.0, pinned=True), waiting)
    assert policy().step(pool(one, groups=none), 6.0) == []
    assert policy(min=1).step(pool(one, groups=full), 6.0) == []


def test_a_worker_is_started_before_a_key_gives_way() -> None:
    full = (idle("w", "a"), idle("w", "b"), group("k", ready=1))
    assert policy(max_workers=2).step(pool(worker("w"), groups=full), 6.0) == [HOST]
    assert policy(max_workers=2).step(pool(worker("w"), groups=full, places={"p": 150}), 6.0) == [
        Retire("a", seat_of("w", "a"), "room for 'k'")
    ], "its place has no room, however many keys it has"


def test_a_key_that_is_on_its_way_out_makes_room_once_and_is_revoked_when_it_holds_nothing() -> None:
    one = policy()
    leaving = group("a", seat("w", "a", "retiring", 5.0, held=1), held=1)
    full = (leaving, idle("w", "b"), group("k", ready=1), group("l", ready=1))
    assert one.step(pool(worker("w"), groups=full), 6.0) == [Retire("b", seat_of("w", "b"), "room for 'l'")]
    assert [type(order) for order in one.step(pool(worker("w"), groups=full), 500.0)] == [Retire], "it holds a request"
    empty = group("a", seat("w", "a", "retiring", 5.0))
    assert policy().step(pool(worker("w"), groups=(empty, idle("w", "b"))), 6.0) == [
        Stop("a", seat_of("w", "a"), "retired and empty")
    ]


def test_a_key_that_gave_way_is_not_given_again_without_a_request() -> None:
    one = policy()
    full = (idle("w", "a"), idle("w", "b", 1.0), group("k", ready=1))
    assert one.step(pool(worker("w"), groups=full), 6.0) == [Retire("a", seat_of("w", "a"), "room for 'k'")]
    after = (group("a"), idle("w", "b", 1.0), group("k", seat("w", "k"), held=1))
    for at_s in (7.0, 8.0, 9.0):
        assert one.step(pool(worker("w"), groups=after), at_s) == []
    back = (group("a", ready=1), *after[1:])
    assert one.step(pool(worker("w"), groups=back), 10.0) == [Retire("b", seat_of("w", "b"), "room for 'a'")]


def test_a_key_that_starves_takes_a_busy_one_that_has_run_for_long() -> None:
    one = policy(starve_s=30, min_run_s=10)
    busy = (
        group("old", seat("w", "old", held=1), held=1, ready=5), group("new", seat("w", "new", since_s=25.0), ready=5),
        group("k", ready=1),
    )  # fmt: skip
    assert one.step(pool(worker("w"), groups=busy), 0.0) == []
    assert one.step(pool(worker("w"), groups=busy), 29.0) == []
    assert one.step(pool(worker("w"), groups=busy), 31.0) == [Retire("old", seat_of("w", "old"), "room for 'k'")]


def test_a_worker_without_a_key_is_retired_but_for_spares() -> None:
    free = pool(worker("a"), worker("b", since_s=1.0), groups=(idle("a", "k"),))
    assert policy(max_workers=9).step(free, 6.0) == [Retire(NO_KEY, "b", "surplus")]
    kept = pool(worker("a"), worker("b", since_s=1.0), groups=(idle("a", "k"),), spares_wanted=2)
    assert policy(max_workers=9).step(kept, 6.0) == [HOST], "two without a key are kept"


def test_an_older_version_gets_no_key_and_goes_when_it_has_none() -> None:
    old = worker("old", version="1")
    waiting = pool(old, groups=(group("k", ready=1),), version="2")
    orders = policy(max_workers=9).step(waiting, 0.0)
    assert orders == [Launch(NO_KEY, "p", "2", 100), Retire(NO_KEY, "old", "an older version")]


def test_a_worker_of_an_older_version_goes_where_a_key_finds_no_room_beside_it() -> None:
    old = worker("old", version="1")
    full = (idle("old", "a"), group("k", ready=1), group("l", ready=1))
    why = "an older version, and a key waits"
    assert policy().step(pool(old, groups=full, version="2"), 0.0) == [Retire(NO_KEY, "old", why)]
    assert policy(max_workers=2).step(pool(old, groups=full, version="2"), 0.0) == [Launch(NO_KEY, "p", "2", 100)]
    leaving = (worker("gone", "retiring", held=1, version="1"), old)
    assert policy(max_workers=2).step(pool(*leaving, groups=full, version="2"), 0.0) == [], "one at a time"


def test_a_worker_without_a_key_goes_if_its_place_takes_none_and_another_one_would() -> None:
    hosts = (worker("w"), worker("x", place="q"))
    groups = (idle("w", "a", held=1), idle("w", "b", held=1), group("k", ready=1))
    given = {"p": PlaceFacts("p", 1000), "q": PlaceFacts("q", 1000, suspended=True)}
    kept = pool(*hosts, groups=groups, given=given, spares_wanted=1)
    assert policy(max_workers=2).step(kept, 0.0) == [Retire(NO_KEY, "x", "its place takes no key, and one waits")]
    leaving = (worker("w"), worker("x", "retiring", place="q"), worker("y", place="q"))
    going = pool(*leaving, groups=groups, given=given, spares_wanted=1)
    assert policy(max_workers=3).step(going, 0.0) == [Stop(NO_KEY, "x", "retired and empty")], "one at a time"
    full = pool(*hosts, groups=groups, given={**given, "p": PlaceFacts("p", 150)}, spares_wanted=1)
    assert policy(max_workers=2).step(full, 0.0) == [], "nothing could be started in its place"


def test_a_place_that_is_short_of_memory_ends_a_worker_all_of_whose_keys_idle() -> None:
    one = policy(max_workers=9)
    groups = (idle("a", "k"), idle("b", "l"))
    hosts = (worker("a"), worker("b", held=1))
    given = {"p": PlaceFacts("p", 1000, alarm=True)}
    assert one.step(pool(*hosts, groups=groups, given=given), 0.0) == []
    busy = (idle("a", "k"), idle("b", "l", ready=1))
    assert one.step(pool(*hosts, groups=busy, given=given), 11.0) == [
        Retire(NO_KEY, "a", "the place is short of memory")
    ]


def test_a_key_that_does_not_get_ready_is_taken_back_alone_if_the_worker_serves_others() -> None:
    late = group("k", seat("w", "k", "starting"), ready=1)
    one = policy(start_timeout_s=10)
    with_other = pool(worker("w"), groups=(late, idle("w", "a")))
    one.step(with_other, 0.0)
    assert one.step(with_other, 10.0)[0] == Stop("k", seat_of("w", "k"), "not ready after 10 s")
    alone = policy(start_timeout_s=10).step(pool(worker("w"), groups=(late,)), 10.0)
    assert alone[0] == Stop(NO_KEY, "w", "not ready after 10 s"), "it hangs, as far as is known"


def test_starts_that_fail_are_told_to_the_callers_of_all_keys_that_wait() -> None:
    one = policy(start_failures_max=1)
    groups = (group("k", ready=1), idle("w", "served", held=1), group("idle"))
    one.step(pool(worker("w"), groups=groups), 0.0)
    (fail,) = one.worker_gone(Gone(NO_KEY, "x", "p", ready=False, asked=False, detail="exit status 3"), 1.0)
    assert isinstance(fail, Fail)
    assert (fail.key, fail.detail) == ("k", "exit status 3")
    assert one.failed("other", 2.0) is not None


@pytest.mark.parametrize("passes", [1, 60])
def test_a_pool_at_rest_does_not_tick(passes: int) -> None:
    one = policy()
    for at_s in range(0, 120, passes):
        assert one.step(pool(worker("w"), groups=(idle("w", "k", state="unbound"),)), float(at_s)) == []
    assert one.next_s(120.0) is None


def test_a_key_that_has_lost_workers_is_tried_alone() -> None:
    lost = group("s", ready=1, suspects=True)
    shared = pool(worker("w"), groups=(lost, idle("w", "a")))
    assert policy(max_workers=2).step(shared, 0.0) == [HOST], "none without a key has room"
    free = pool(worker("w"), worker("x"), groups=(lost, idle("w", "a")))
    assert policy(max_workers=2).step(free, 0.0) == [Assign("s", "x")]
    kept = group("s", seat("x", "s"), ready=1, suspects=True)
    more = pool(worker("x"), groups=(kept, group("k", ready=1)))
    assert policy().step(more, 0.0) == [], "its worker gets no other key"
    beside = pool(worker("w"), groups=(group("s", seat("w", "s"), ready=1, suspects=True), idle("w", "a")))
    assert policy().step(beside, 0.0) == [Retire("a", seat_of("w", "a"), "'s' has lost workers: it is tried alone")]


def test_a_worker_is_emptied_for_a_key_with_suspects_and_gets_no_other_one_until_then() -> None:
    one = policy(starve_s=30, min_run_s=10)
    since_s, leaving, served = {"b": 0.0, "c": 0.0}, set[str](), -1.0
    for at_s in map(float, range(120)):
        groups = [group("s", *(seat("w", "s", since_s=at) for at in (since_s.get("s"),) if at is not None),
                        ready=1, suspects=True)]  # fmt: skip
        for key in "bc":  # more is always there
            state, held = ("retiring", 0) if key in leaving else ("ready", 1)
            seats = [seat("w", key, state, since_s[key], held=held)] if key in since_s else []
            groups.append(group(key, *seats, ready=5, held=held * len(seats), arrived=int(at_s) + 5, settled=int(at_s)))
        for order in one.step(pool(worker("w"), groups=tuple(groups)), at_s):
            if isinstance(order, Retire):
                leaving.add(order.key)
            elif isinstance(order, Stop):
                del since_s[order.key]
                leaving.discard(order.key)
            elif isinstance(order, Assign):
                since_s[order.key] = at_s
        if "s" in since_s:
            served = at_s
            break
    assert since_s.keys() == {"s"}
    assert 30 < served < 50


def test_a_key_does_not_give_way_to_one_with_suspects_that_has_nothing_of_it() -> None:
    lost = group("s", ready=1, suspects=True)
    groups = (lost, idle("w", "a"), idle("w", "b", held=1))
    assert policy().step(pool(worker("w"), groups=groups), 6.0) == [], "the other one stays"
    both = (lost, idle("w", "a"), idle("w", "b"), idle("x", "c"), idle("x", "d", pinned=True))
    one, hosts = policy(max_workers=2), (worker("w"), worker("x"))
    assert one.step(pool(*hosts, groups=both), 6.0) == [Retire("a", seat_of("w", "a"), "room for 's'")]
    gone = (lost, group("a", ready=1), *both[2:])
    assert one.step(pool(*hosts, groups=gone), 7.0) == [
        Retire("b", seat_of("w", "b"), "room for 's'"), Retire("c", seat_of("x", "c"), "room for 'a'"),
    ]  # fmt: skip
    without = pool(*hosts, groups=(group("a", ready=1), *both[2:]))
    assert one.step(without, 8.0) == [Assign("a", "w")], "nobody waits for it any more"


# ---- at the controller ----


class World(Fleets):
    """A pool whose workers serve several keys."""

    def __init__(self, *places: str, count: int = 2, **settings: Any) -> None:
        super().__init__(*places, **{"max_workers": 1, **settings})
        only = ("keys_per_worker",)
        self.do(c.SetPool(vhost="/", name="core", settings=self.pool.settings, only=only, keys_per_worker=count))
        self.fleet = self.begun()

    def carry_out(self, ordered: Any) -> None:
        known = {"pool_id": self.pool.pool_id, "epoch": self.epoch}
        before = self.assignments
        if ordered.kind == "assign":
            self.do(c.AssignWorkers(workers=ordered.assigned, **known))
        elif ordered.kind == "retire_keys":
            self.do(c.RetireKeys(keys=ordered.assigned, why=ordered.why, **known))
        elif ordered.kind == "revoke_keys":
            self.do(c.RevokeKeys(keys=ordered.assigned, **known))
        else:
            super().carry_out(ordered)
            return
        self.changed(before)
        self.fleet.answered(ordered, True)

    def changed(self, before: Any) -> None:
        after = self.assignments
        for of, one in after.items():
            if before.get(of) != one:
                self.fleet.key_changed(one, self.now_s)
        for of, one in before.items():
            if of not in after:
                self.fleet.key_ended(one)

    @property
    def assignments(self) -> dict[tuple[str, str], Any]:
        pools = self.map.pools
        return {
            (one.launch_id, one.key): one for launch in self.launches for one in pools.assignments(launch.launch_id)
        }

    def keys(self) -> set[str]:
        return {key for _, key in self.assignments}

    def asks(self) -> str:
        """The only worker does; its id."""
        (launch,) = self.launches
        self.fleet.spare_told(SpareTold(self.pool.pool_id, launch.launch_id), self.now_s)
        return str(launch.launch_id)

    def says(self, key: str, ready: int = 0, **workers: int) -> None:
        """The owner of the key's queue: what waits, and what each consumer holds."""
        leaving = self.map.pools.workers_of(self.pool.pool_id, key)
        retired = tuple(worker for worker, leaves in leaving.items() if leaves)
        named = {name.replace("_", "-"): held for name, held in workers.items()}
        told = GroupTold(self.pool.pool_id, key, ready, sum(named.values()), ready, 0, 0, named, False, retired)
        self.fleet.told(told, self.now_s)

    def serving(self, *keys: str) -> str:
        """The only worker has these keys, and consumes them."""
        for key in keys:
            self.require(key)
        self.step()
        worker = self.asks()
        self.step()
        for key in keys:
            self.says(key, **{worker.replace("-", "_"): 0})
        self.step()
        return worker


def test_a_worker_is_launched_without_a_key_and_gets_two() -> None:
    world = World("a")
    world.require("1")
    world.require("2")
    assert world.step() == ["launch"]
    assert world.step() == ["assign"], "it still starts"
    assert world.keys() == {"1", "2"}
    for _ in range(20):
        assert world.step(1.0) == []
    assert world.fleet.figures(world.now_s).workers == {"wanted": 1}


def test_an_assignment_is_in_the_facts_before_the_log_has_answered() -> None:
    world = World("a")
    world.serving("1")
    world.require("2")
    assert world.step(answer=False) == ["assign"]
    assert world.step() == []


def test_a_key_gives_way_when_its_owner_says_that_it_holds_nothing() -> None:
    world = World("a")
    worker = world.serving("1", "2")
    name = worker.replace("-", "_")
    world.now_s += 1
    world.says("2", **{name: 1})
    world.says("2", **{name: 0})
    world.require("3")
    world.says("3", ready=1)
    assert world.step() == ["retire_keys"]
    assert world.step() == [], "it may have got a request that is not told yet"
    world.says("1", **{name: 1})
    assert world.step() == []
    world.says("1", **{name: 0})
    assert world.step() == ["revoke_keys"]
    assert world.step() == ["assign"]
    assert world.keys() == {"2", "3"}


def test_a_controller_that_takes_over_gives_and_takes_nothing() -> None:
    world = World("a")
    worker = world.serving("1", "2")
    world.fleet = world.begun()
    for _ in range(20):
        assert world.step(1.0) == []
    world.says("1", **{worker.replace("-", "_"): 0})
    for _ in range(20):
        assert world.step(1.0) == []
    assert world.fleet.figures(world.now_s).workers == {"ready": 1}


def test_what_the_log_refuses_may_be_ordered_again() -> None:
    world = World("a")
    world.serving("1", "2")
    world.require("3")
    world.says("3", ready=1)
    world.now_s += 0.1
    world.fleet.step(world.places, "a", world.now_s)
    (ordered,) = world.fleet.commands
    world.fleet.commands = []
    world.fleet.answered(ordered, False)
    assert world.step() == ["retire_keys"]


def test_a_worker_that_is_lost_backs_its_keys_off_and_another_one_gets_them() -> None:
    world = World("a")
    world.serving("1", "2")
    (launch,) = world.launches
    before = world.assignments
    for key in "12":
        world.says(key, ready=1)
    self_gone = Ended(launch.launch_id, 9)
    world.do(c.WorkersGone(node="a", incarnation=1, ended=(self_gone,)))  # type: ignore[arg-type]
    world.changed(before)
    world.fleet.launch_ended(launch, 9, 0, world.now_s)
    assert world.step() == []
    assert world.step(2.0) == ["launch"]
    assert world.step() == ["assign"]
    assert world.keys() == {"1", "2"}


def test_a_key_that_cannot_be_served_is_taken_back_and_tried_again_later() -> None:
    world = World("a")
    worker = world.serving("1")
    world.require("2")
    world.says("2", ready=1)
    assert world.step() == ["assign"]
    failed = KeyFailed(world.pool.pool_id, worker, "2", "no room")
    world.fleet.key_failed(failed, world.now_s)
    world.fleet.key_failed(failed, world.now_s)
    assert world.step() == ["revoke_keys"]
    assert world.keys() == {"1"}
    assert world.step() == []
    assert world.step(2.0) == ["assign"]
    world.fleet.key_failed(KeyFailed(world.pool.pool_id, worker, "other", "?"), world.now_s)
    assert world.step() == []


def test_a_worker_that_consumes_a_key_no_more_is_ended() -> None:
    world = World("a", start_timeout_s=10, grace_s=10)
    worker = world.serving("1", "2")
    world.says("1")
    assert world.step(5.0) == []
    world.says("1", **{worker.replace("-", "_"): 0})
    assert world.step(6.0) == []
    world.says("1")
    assert world.step(11.0) == ["revoke"]


def test_a_worker_that_leaves_is_revoked_when_no_key_of_it_holds_anything() -> None:
    world = World("a")
    worker = world.serving("1", "2")
    name = worker.replace("-", "_")
    world.says("2", **{name: 1})
    (launch,) = world.launches
    known = {"pool_id": world.pool.pool_id, "epoch": world.epoch}
    world.do(c.RetireWorkers(launches=(worker,), why="a test", **known))
    world.fleet.launch_changed(world.launches[0], world.now_s)
    world.says("1", **{name: 0})
    world.says("2", **{name: 1})
    assert world.step() == ["revoke_keys"], "of the empty one"
    world.says("2", **{name: 0})
    assert sorted(world.step()) == ["revoke", "revoke_keys"]
    assert launch.launch_id == worker
