"""Spares where they could be in the way: full pools, places that do not start any, hangs, and what steps cost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from clusterbroker.broker.pools.facts import Gone, PlaceFacts
from clusterbroker.broker.pools.orders import Assign, Launch, Order, Retire, Stop
from clusterbroker.broker.pools.policy import Policy
from clusterbroker.cluster.wiring.pool_entities import NO_KEY
from tests.unit.broker.pools.made import facts, group, worker
from tests.unit.broker.pools.test_spares import policy, with_spares

ONE_IS_SUSPENDED = {"p": PlaceFacts("p", 1000, suspended=True), "q": PlaceFacts("q", 1000)}


def retired(orders: list[Order]) -> list[str]:
    return [order.worker for order in orders if isinstance(order, Retire)]


# ---- a pool that has as many workers as it may have ----


def test_in_a_full_pool_spares_that_fit_no_key_give_way() -> None:
    one, two = policy(max_workers=2), (group("k", ready=1), group("l", ready=1))
    spares = worker("a"), worker("b")
    assert one.step(with_spares(*spares, wanted=2, groups=two[:1], given=ONE_IS_SUSPENDED), 0.0) == [
        Retire(NO_KEY, "b", "room for 'k'")
    ]
    going = worker("b", "retiring", 0.0)
    orders = one.step(with_spares(spares[0], going, wanted=2, groups=two[:1], given=ONE_IS_SUSPENDED), 1.0)
    assert orders == [Stop(NO_KEY, "b", "retired and empty")], "its room in the pool is promised to the key"
    orders = one.step(with_spares(spares[0], going, wanted=2, groups=two, given=ONE_IS_SUSPENDED), 2.0)
    assert retired(orders) == ["a"], "another key needs another one"
    orders = one.step(with_spares(wanted=2, groups=two, given=ONE_IS_SUSPENDED), 3.0)
    assert [order.key for order in orders if isinstance(order, Launch)] == ["k", "l"]


def test_in_a_full_pool_spares_make_room_for_a_key_that_takes_more_than_they() -> None:
    one = policy(max_workers=3)
    one.costs.learn_peak("big", 750)
    full = with_spares(*(worker(name) for name in "abc"), wanted=3, groups=(group("big", ready=1),), places={"p": 1000})
    assert retired(one.step(full, 0.0)) == ["c"]


@pytest.mark.parametrize("given", [{}, {"q": PlaceFacts("q", 90)}])
def test_none_gives_way_where_that_helps_no_key(given: Any) -> None:
    given = {"p": PlaceFacts("p", 1000, suspended=True), **given}
    full = with_spares(worker("s"), groups=(group("k", ready=1),), given=given)
    assert retired(policy(max_workers=1).step(full, 0.0)) == []


@pytest.mark.parametrize("more", [{"max_workers": 1}, {"taken_over": True}])
def test_keys_that_none_has_room_for_keep_it_from_no_other(more: Any) -> None:
    one = Policy(policy(max_workers=more.get("max_workers", 9)).settings, 0.0, taken_over="taken_over" in more)
    for key in "ab":
        one.costs.learn_peak(key, 900)
    waiting = *(group(key, ready=1) for key in "ab"), group("k", ready=1)
    full = with_spares(
        worker("s"), groups=waiting, given={"p": PlaceFacts("p", 100), "q": PlaceFacts("q", 2000, suspended=True)}
    )
    assert one.step(full, 1.0) == [Assign("k", "s")]


def test_spares_leave_a_pool_that_may_have_fewer_workers_than_it_has() -> None:
    busy = (group("k", worker("w", held=1), held=1),)
    one = policy(max_workers=2)
    assert retired(one.step(with_spares(worker("a"), worker("b"), wanted=2, groups=busy), 0.0)) == ["b"]
    going = worker("b", "retiring", 0.0)
    assert retired(one.step(with_spares(worker("a"), going, wanted=2, groups=busy), 1.0)) == []


def test_workers_of_groups_that_are_gone_count_until_they_are() -> None:
    one, waiting = policy(max_workers=2), group("k", ready=1)
    assert one.step(facts(waiting, strays=2), 0.0) == []
    assert [type(order) for order in one.step(facts(waiting, strays=1), 1.0)] == [Launch]


# ---- one that is none any more ----


def test_one_that_hangs_gets_no_key_in_the_step_that_stops_it() -> None:
    orders = policy(start_timeout_s=10).step(
        with_spares(worker("s", "starting"), wanted=1, groups=(group("k", ready=1),)), 10.0
    )
    assert [type(order) for order in orders] == [Stop, Launch]


def test_one_of_an_older_version_replaces_none_of_an_older_version() -> None:
    """It is retired soon; for SETTLE_S after a take-over nothing is."""
    settling = Policy(policy().settings, 0.0, taken_over=True)
    old = {"version": "v1"}
    rolling = (group("k", worker("w", **old), arrived=1),)
    orders = settling.step(with_spares(worker("s", **old), wanted=1, groups=rolling, version="v2"), 1.0)
    assert [type(order) for order in orders] == [Launch]
    waiting = (group("l", ready=1),)
    orders = settling.step(with_spares(worker("s", **old), wanted=1, groups=waiting, version="v2"), 2.0)
    assert Assign("l", "s") in orders, "a key that has no worker takes it"


# ---- places ----


def test_a_place_where_they_fail_does_not_keep_them_from_others() -> None:
    one, tried = policy(), []
    for number in range(6):
        (order,) = one.step(with_spares(places={"broken": 1000, "whole": 1000}), 100.0 * number)
        assert isinstance(order, Launch)
        tried.append(order.place)
        if order.place == "whole":
            break
        one.worker_gone(Gone(NO_KEY, str(number), order.place, ready=False, asked=False), 100.0 * number)
    assert tried == ["broken", "whole"]


# ---- at rest, and not ----


def test_those_that_no_place_has_room_for_tick_at_nobody() -> None:
    one, two = policy(), (worker("a"), worker("b"))
    assert one.step(with_spares(*two, wanted=5, places={"p": 250}), 100.0) == []
    assert one.next_s(100.0) is None


def test_those_that_a_place_s_rate_of_starts_holds_up_come_without_an_event() -> None:
    one = policy()
    for count in (0, 8, 16):
        ready = [worker(str(number)) for number in range(count)]
        assert one.step(with_spares(*ready, wanted=30, places={"p": 10_000}), count / 1000)
    ready = [worker(str(number)) for number in range(20)]
    assert one.step(with_spares(*ready, wanted=30, places={"p": 10_000}), 0.02) == [], "20 a second"
    next_s = one.next_s(0.02)
    assert next_s is not None
    assert len(one.step(with_spares(*ready, wanted=30, places={"p": 10_000}), next_s)) == 8


def test_many_spares_that_fit_no_key_cost_little_however_many_keys_wait() -> None:
    given = {"p": PlaceFacts("p", 1_000_000, suspended=True), "q": PlaceFacts("q", 10)}
    one = policy(max_workers=5000)
    waiting = tuple(group(str(number), ready=1) for number in range(2000))
    spares = [worker(str(number)) for number in range(1000)]
    many = with_spares(*spares, wanted=1000, groups=waiting, given=given)
    one.step(many, 0.0)
    begun = time.process_time()
    assert one.step(many, 1.0) == []
    with_many_s = time.process_time() - begun
    few = with_spares(spares[0], wanted=1, groups=waiting, given=given)
    other = policy(max_workers=5000)
    other.step(few, 0.0)
    begun = time.process_time()
    assert other.step(few, 1.0) == []
    assert with_many_s < 10 * (time.process_time() - begun) + 0.1, "2,000,000 looks take half a second and more"
