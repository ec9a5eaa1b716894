"""The policy step by step: golden scenarios, each a conversation of facts and orders."""

from __future__ import annotations

from dataclasses import replace
from time import process_time

import pytest

from clusterbroker.broker.pools.facts import Gone, PlaceFacts, PoolFacts, Scaling, Settings, WorkerState
from clusterbroker.broker.pools.orders import Evict, Fail, Launch, Retire, Stop, SuspendPlace
from clusterbroker.broker.pools.policy import SETTLE_S, Policy

from .made import facts, group, worker

SETTINGS = Settings(memory=100, scale_to_zero_while_bound=True)


def launch(key: str, place: str = "p", version: str = "") -> Launch:
    return Launch(key, place, version, 100)


def test_the_first_request_starts_one_worker() -> None:
    policy = Policy(SETTINGS, 0.0)
    assert policy.step(facts(group("k", ready=1_000)), 0.0) == [launch("k")]
    assert policy.step(facts(group("k", worker("w", "wanted"), ready=1_000)), 1.0) == []
    assert policy.next_s(1.0) == 2.0


def test_up_at_once_to_the_need() -> None:
    policy = Policy(SETTINGS, 0.0)
    policy.step(facts(group("k", worker("w"), ready=100, settled=0)), 0.0)
    busy = group("k", worker("w"), ready=100, settled=10, service_s=10.0)
    assert policy.step(facts(busy), 1.0) == [launch("k")] * 7, "max 8"


def test_down_after_the_window() -> None:
    policy = Policy(SETTINGS, 0.0)
    policy.step(facts(group("k", ready=100)), 0.0)
    workers = tuple(worker(f"w{number}", idle_since_s=float(number)) for number in range(8))
    busy = group("k", *workers, ready=100, settled=10, service_s=10.0)
    policy.step(facts(busy), 1.0)
    quiet = replace(busy, ready=0)
    orders = [(second, order) for second in range(2, 80) for order in policy.step(facts(quiet), float(second))]
    assert orders[:2] == [(63, Retire("k", "w0", "surplus")), (63, Retire("k", "w1", "surplus"))]
    assert {second for second, _ in orders} == {63, 73}, "a quarter of them each ten seconds"


def test_retire_before_stop() -> None:
    policy = Policy(SETTINGS, 0.0)
    holds = group("k", worker("w", "retiring", since_s=0.0, held=1), held=1, state="unbound")
    assert Stop("k", "w", "") not in policy.step(facts(holds), 29.0)
    assert policy.step(facts(group("k", worker("w", "retiring"), state="unbound")), 29.5) == [
        Stop("k", "w", "retired and empty")
    ]
    orders = policy.step(facts(holds), 30.0)
    assert orders[0] == Stop("k", "w", "held a message for 30 s after it was retired")


def test_a_draining_group_loses_its_workers() -> None:
    policy = Policy(SETTINGS, 0.0)
    ends = group("k", worker("a"), worker("b", "starting"), state="draining")
    assert policy.step(facts(ends), 0.0) == [Retire("k", name, "its group ends") for name in "ab"]
    assert policy.step(facts(group("k", worker("c", held=1), held=1, state="draining")), 1.0) == []


def test_an_unbound_group_keeps_one() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    unbound = group("k", worker("w"), state="unbound")
    assert all(policy.step(facts(unbound), float(second)) == [] for second in range(200))
    assert policy.next_s(200.0) is None, "at rest: nothing ticks"


def test_rest_is_left_by_an_event() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    idle = group("k", worker("w"))
    for second in range(70):
        policy.step(facts(idle), float(second))
    assert policy.next_s(70.0) is None
    assert policy.step(facts(), 100.0) == []
    assert policy.step(facts(group("k", ready=1)), 101.0) == [launch("k")]


def test_failed_starts() -> None:
    policy = Policy(Settings(memory=100, start_failures_max=2), 0.0)
    waiting = facts(group("k", ready=1))
    assert policy.step(waiting, 0.0) == [launch("k")]
    assert policy.worker_gone(Gone("k", "w1", "p", ready=False, asked=False, detail="exit status 70"), 1.0) == []
    assert policy.step(waiting, 1.5) == []
    assert policy.step(waiting, 2.5) == [launch("k")]
    gone = Gone("k", "w2", "p", ready=False, asked=False, detail="exit status 70")
    assert policy.worker_gone(gone, 3.0) == [Fail("k", 63.0, "exit status 70")]
    assert policy.failed_until("k", 62.9) == 63.0
    assert policy.step(waiting, 62.0) == []
    assert policy.step(waiting, 63.0) == [launch("k")], "one trial"
    policy.worker_ready("k", "p", 2.0, 65.0)
    assert policy.failed_until("k", 65.0) is None
    policy.retry("k")


def test_a_start_has_its_time() -> None:
    policy = Policy(Settings(memory=100, start_timeout_s=10), 0.0)
    policy.step(facts(group("k", ready=1)), 0.0)
    late = facts(group("k", worker("w", "starting"), ready=1))
    assert policy.step(late, 9.0) == []
    assert policy.step(late, 10.0) == [Stop("k", "w", "not ready after 10 s")]
    again = [Stop("k", "w", "not ready after 10 s")]
    assert policy.step(late, 11.0) == again, "the log may have refused the one before"
    assert policy.worker_gone(Gone("k", "w", "p", ready=False, asked=True), 12.0) == []
    assert policy.failures.on_trial("k"), "counted once, and not at its end as well"


def test_a_place_where_nothing_starts() -> None:
    policy = Policy(SETTINGS, 0.0)
    two = {"p": 1_000, "q": 2_000}
    keys = [group(f"k{number}", ready=1) for number in range(3)]
    assert policy.step(facts(*keys, places=two), 0.0) == [launch(f"k{number}") for number in range(3)]
    for number in range(3):
        policy.worker_gone(Gone(f"k{number}", f"w{number}", "p", False, False, detail="no such image"), 1.0)
    detail = "3 keys did not start here; the last one: no such image"
    assert policy.step(facts(*keys, places=two), 1.1) == [
        SuspendPlace("p", 61.1, detail),
        *(launch(f"k{number}", "q") for number in range(3)),
    ]


def test_an_idle_group_makes_room() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    idle = group("old", worker("w"))
    full = {"p": 100}
    policy.step(facts(idle, places=full), 0.0)
    assert policy.step(facts(idle, group("new", ready=1), places=full), 9.0) == [], "not idle for ten seconds"
    assert policy.step(facts(idle, group("new", ready=1), places=full), 11.0) == [
        Evict("old", "p", "new"),
        Retire("old", "w", "room for 'new'"),
    ]
    leaving = group("old", worker("w", "retiring", since_s=11.0))
    assert policy.step(facts(leaving, group("new", ready=1), places=full), 12.0) == [
        Stop("old", "w", "retired and empty")
    ]
    assert policy.step(facts(group("old"), group("new", ready=1), places=full), 13.0) == [launch("new")]
    served = facts(group("old"), group("new", worker("n"), ready=0), places=full)
    assert policy.step(served, 14.0) == [], "the evicted group is not started again without a request"
    busy = facts(group("old", ready=1), group("new", worker("n", held=1), held=1), places=full)
    assert policy.step(busy, 15.0) == [], "and then waits for room"
    assert policy.waiting_since("old") == 15.0


def test_where_the_pool_has_its_max_workers_an_idle_key_makes_room() -> None:
    policy = Policy(replace(SETTINGS, max_workers=2, scale_to_zero_while_bound=False), 0.0)
    rests = [group(key, worker(f"w-{key}"), state="active") for key in "ab"]
    waits = facts(*rests, group("new", ready=1))
    for second in range(10):
        assert policy.step(waits, float(second)) == []
    assert policy.step(waits, 10.0) == [Evict("a", "p", "new"), Retire("a", "w-a", "room for 'new'")]
    leaving = group("a", worker("w-a", "retiring", since_s=10.0))
    two = facts(leaving, rests[1], group("new", ready=1))
    assert policy.step(two, 11.0) == [Stop("a", "w-a", "retired and empty")], "one is enough"
    more = facts(leaving, rests[1], group("new", ready=1), group("newer", ready=1))
    assert policy.step(more, 12.0) == [
        Stop("a", "w-a", "retired and empty"),
        Evict("b", "p", "newer"),
        Retire("b", "w-b", "room for 'newer'"),
    ], "and for the second key another one"
    assert policy.step(facts(group("a"), rests[1], group("new", ready=1)), 13.0) == [launch("new")]


def test_where_the_pool_has_its_max_workers_a_starved_key_takes_the_turn_of_a_busy_one() -> None:
    policy = Policy(replace(SETTINGS, max_workers=1), 0.0)
    waits = facts(group("hot", worker("w", held=1), held=1, ready=50), group("cold", ready=1))
    for second in range(31):
        assert policy.step(waits, float(second)) == []
    assert policy.step(waits, 31.0) == [Evict("hot", "p", "cold"), Retire("hot", "w", "room for 'cold'")]


def test_a_pool_that_has_its_max_workers_empties_nothing_for_a_key_that_fits_nowhere() -> None:
    policy = Policy(replace(SETTINGS, max_workers=1, scale_to_zero_while_bound=False), 0.0)
    places = {"p": PlaceFacts("p", 100, suspended=True), "q": PlaceFacts("q", 99)}
    waits = facts(group("rests", worker("w")), group("waits", ready=1), given=places)
    assert [order for second in range(60) for order in policy.step(waits, float(second))] == []


def test_a_starved_key_takes_the_place_of_a_busy_one() -> None:
    policy = Policy(SETTINGS, 0.0)
    hot = group("hot", worker("w", held=1), held=1, ready=50)
    waits = facts(hot, group("cold", ready=1), places={"p": 100})
    for second in range(31):
        assert policy.step(waits, float(second)) == []
    assert policy.step(waits, 31.0) == [Evict("hot", "p", "cold"), Retire("hot", "w", "room for 'cold'")]


def test_a_take_over_settles_first() -> None:
    policy = Policy(SETTINGS, 100.0, taken_over=True)
    workers = [worker(f"w{number}") for number in range(3)]
    found = facts(group("k", *workers), group("new", ready=1))
    assert policy.step(found, 100.0) == [launch("new")], "requests are served at once"
    assert policy.idle_s("k", 105.0) <= 5.0, "idle clocks begin anew"
    assert not any(isinstance(order, Retire) for order in policy.step(found, 100.0 + SETTLE_S - 0.5))
    assert any(isinstance(order, Retire) for order in policy.step(found, 100.0 + SETTLE_S))


def test_a_new_version_comes_one_by_one() -> None:
    policy = Policy(Settings(memory=100, min=2), 0.0)
    old = (worker("a", version="1"), worker("b", version="1"))
    assert policy.step(facts(group("k", *old), version="2"), 0.0) == [launch("k", version="2")]
    coming = group("k", *old, worker("c", "starting", version="2"))
    assert policy.step(facts(coming, version="2"), 1.0) == []
    ready = group("k", *old, worker("c", version="2"))
    assert policy.step(facts(ready, version="2"), 2.0) == [Retire("k", "a", "an older version")]
    left = group("k", old[1], worker("c", version="2"))
    assert policy.step(facts(left, version="2"), 3.0) == [launch("k", version="2")]


def rolled(steps: int, start_s: float = 3.0, fails: bool = False, **settings: int) -> list[tuple[int, int, int]]:
    """A key with three old workers, which need three: (old, new and ready, all) after each second."""
    policy = Policy(Settings(memory=100, min=3, max=3, **settings), 0.0)
    workers = {f"old{number}": worker(f"old{number}", version="1") for number in range(3)}
    course, begun = [], {}
    for now in range(steps):
        for order in policy.step(facts(group("k", *workers.values()), version="2"), float(now)):
            if isinstance(order, Launch):
                name = f"new{now}-{len(workers)}"
                workers[name], begun[name] = worker(name, "starting", since_s=float(now), version="2"), now
            elif isinstance(order, Retire):
                del workers[order.worker]
        for name in [name for name, at in begun.items() if now - at >= start_s and name in workers]:
            if fails:
                del workers[name]
                policy.worker_gone(Gone("k", name, "p", ready=False, asked=False, detail="a test"), float(now))
            else:
                workers[name] = worker(name, since_s=float(now), version="2")
            del begun[name]
        old = sum(one.version == "1" for one in workers.values())
        ready = sum(one.version == "2" and one.state is WorkerState.READY for one in workers.values())
        course.append((old, ready, len(workers)))
    return course


@pytest.mark.parametrize("surge", [0, 1, 2, 9])
def test_a_surge_is_so_many_workers_above_max(surge: int) -> None:
    course = rolled(60, surge=surge)
    assert course[-1] == (0, 3, 3), "all are replaced"
    assert max(count for *_, count in course) == 3 + min(surge, 3)
    assert min(old + ready for old, ready, _ in course) == 3 - (not surge), "with a surge as many serve as ever"


@pytest.mark.parametrize(("surge", "least"), [(0, 2), (1, 3)])
def test_a_new_version_that_does_not_start_leaves_the_old_ones(surge: int, least: int) -> None:
    course = rolled(300, fails=True, surge=surge)
    assert min(old for old, *_ in course) == least
    assert max(count for *_, count in course) <= 3 + surge


def test_workers_go_on_whose_template_is_not_to_be_rolled() -> None:
    assert set(rolled(120, rolling=False)) == {(3, 0, 3)}


def test_where_nothing_more_fits_an_old_one_waits_or_ends_first() -> None:
    old = group("k", worker("a", version="1"))
    room = {"p": PlaceFacts("p", 100)}
    found = PoolFacts({"k": old}, room, "2")
    waits, goes = (Policy(Settings(memory=100, min=1, surge=surge), 0.0) for surge in (1, 0))
    assert [waits.step(found, float(second)) for second in range(100)] == [[]] * 100
    assert goes.step(found, 0.0) == [Retire("k", "a", "an older version")]


def test_paused_and_scaled_by_others() -> None:
    waiting = group("k", ready=5)
    assert Policy(SETTINGS, 0.0).step(facts(waiting, paused=True), 0.0) == []
    assert Policy(replace(SETTINGS, scaling=Scaling.NONE), 0.0).step(facts(waiting), 0.0) == []
    outside = Policy(replace(SETTINGS, scaling=Scaling.OUTSIDE), 0.0)
    assert outside.step(facts(waiting), 0.0) == [launch("k")]
    assert outside.step(facts(group("k", worker("w"), ready=10_000)), 1.0) == []


def test_bounds_of_the_pool() -> None:
    policy = Policy(replace(SETTINGS, max_workers=2), 0.0)
    keys = [group(f"k{number}", ready=1) for number in range(5)]
    assert len(policy.step(facts(*keys), 0.0)) == 2


def test_an_alarm_takes_what_idles() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    alarm = {"p": PlaceFacts("p", 1_000, alarm=True)}
    idle, busy = group("idle", worker("i")), group("busy", worker("b", held=1), held=1)
    policy.step(facts(idle, busy, given=alarm), 0.0)
    assert policy.step(facts(idle, busy, given=alarm), 10.0) == [
        Evict("idle", "p", ""),
        Retire("idle", "i", "the place is short of memory"),
    ]


def test_ten_thousand_idle_groups_are_passed_over() -> None:
    policy = Policy(Settings(memory=1), 0.0)
    groups = [group(f"k{number}", worker(f"w{number}")) for number in range(10_000)]
    everything = facts(*groups, places={"p": 100_000})
    policy.step(everything, 0.0)
    policy.step(everything, 61.0)
    assert policy.next_s(61.0) is None
    assert len(policy._rested) == 10_000
    changed = {**everything.groups, "k5": replace(groups[5], ready=1)}
    policy.step(replace(everything, groups=changed), 70.0)
    assert len(policy._rested) == 9_999


def test_keys_that_wait_for_room_are_not_measured_again() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    waiting = facts(*(group(f"k{number}", ready=1) for number in range(3000)), places={"p": 0})
    took_s = []
    for at_s in range(4):
        begun_s = process_time()
        assert policy.step(waiting, float(at_s)) == []
        took_s.append(process_time() - begun_s)
    assert policy.effort < 1000, "the first step has measured all of them"
    assert min(took_s[2:]) < took_s[0] / 2


def test_a_key_that_waited_long_starts_as_soon_as_there_is_room() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    groups = [group(f"k{number}", ready=1) for number in range(4)]
    for at_s in range(100):
        assert policy.step(facts(*groups, places={"p": 0}), float(at_s)) == []
    assert policy.idle_s("k0", 100.0) == 0.0
    assert policy.step(facts(*groups, places={"p": 200}), 100.0) == [launch("k0"), launch("k1")]
    left = facts(group("k2", ready=0, state="draining"), places={"p": 200})
    assert policy.step(left, 101.0) == [], "what it wished for is not what it wishes for"


def test_what_comes_after_a_long_wait_came_at_once() -> None:
    policy = Policy(Settings(memory=100), 0.0)
    waiting = facts(group("k", ready=1, arrived=1), places={"p": 0})
    for at_s in range(61):
        policy.step(waiting, float(at_s))
    policy.step(facts(group("k", ready=51, arrived=51), places={"p": 0}), 61.0)
    assert policy._demands["k"].arrivals > 5, "50 within a second, not within the minute of the wait"
