"""Workers of an older version where no new one may start beside them, or none at all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbroker.broker.pools.facts import Gone, GroupFacts, PlaceFacts, PoolFacts, Settings, WorkerFacts
from clusterbroker.broker.pools.holdings import seat_of
from clusterbroker.broker.pools.orders import Assign, Launch, Retire, Stop
from clusterbroker.broker.pools.placement import STARTS_IN_FLIGHT_MAX
from clusterbroker.broker.pools.policy import Policy
from clusterbroker.cluster.wiring.pool_entities import NO_KEY

from .made import facts, group, worker

OLDER = "an older version"
ROOM = {"p": PlaceFacts("p", 1_000)}


def policy(**settings: Any) -> Policy:
    return Policy(Settings(memory=100, surge=0, **settings), 0.0)


def old(key: str, **more: Any) -> WorkerFacts:
    return worker(f"{key}-old", version="1", **more)


def world(*groups: GroupFacts, given: dict[str, PlaceFacts] = ROOM, **more: Any) -> PoolFacts:
    return facts(*groups, given=given, version="2", **more)


def retired(orders: list[Any]) -> list[str]:
    return [order.worker for order in orders if isinstance(order, Retire)]


@pytest.mark.parametrize(
    ("given", "more"),
    [
        (ROOM, {"paused": True}),
        ({"p": PlaceFacts("p", 1_000, suspended=True)}, {}),
        ({"p": PlaceFacts("p", 1_000, alarm=True)}, {}),
        ({"p": PlaceFacts("p", 50)}, {}),
        ({"p": PlaceFacts("p", 1_000, workers_max=0)}, {}),
        ({"q": PlaceFacts("q", 50)}, {}),
        ({}, {}),
    ],
)
def test_an_old_one_stays_while_no_successor_may_start(given: dict[str, PlaceFacts], more: dict[str, Any]) -> None:
    made, busy = policy(), group("k", old("k", held=1), held=1)
    assert [made.step(world(busy, given=given, **more), float(now)) for now in range(5)] == [[]] * 5


def test_it_stays_while_the_pool_has_too_many_or_its_key_backs_off() -> None:
    assert policy(max_workers=1).step(world(*(group(key, old(key)) for key in "ab")), 0.0) == []
    made = policy()
    made.step(facts(group("k", old("k")), version="1"), 0.0)
    made.worker_gone(Gone("k", "w", "p", ready=True, asked=False), 1.0)
    assert made.step(world(group("k", old("k"))), 1.5) == []
    assert made.step(world(group("k", old("k"))), 2.5) == [Retire("k", "k-old", OLDER)]


def test_a_place_that_may_not_start_its_successor_gives_it_to_another_one_with_room() -> None:
    away = old("a", place="away"), old("b", place="away"), old("c", place="gone")
    given = {"away": PlaceFacts("away", 1_000, suspended=True), "p": PlaceFacts("p", 250)}
    groups = [group(key, one) for key, one in zip("abc", away, strict=True)]
    assert len(retired(policy().step(world(*groups, given=given), 0.0))) == 2, "there is room for two"


def test_a_successor_starts_when_the_old_one_has_ended_and_not_before() -> None:
    made = policy()
    holds = old("k", held=1)
    assert made.step(world(group("k", holds, held=1)), 0.0) == [Retire("k", "k-old", OLDER)]
    leaves = worker("k-old", "retiring", version="1", held=1)
    assert made.step(world(group("k", leaves, held=1)), 1.0) == []
    assert made.step(world(group("k", worker("k-old", "stopping", version="1"), ready=1)), 2.0) == []
    assert made.step(world(group("k", ready=1)), 3.0) == [Launch("k", "p", "2", 100)]


def test_no_more_are_down_than_may_start_at_once() -> None:
    made, keys = policy(), [f"k{number}" for number in range(20)]
    now: dict[str, GroupFacts] = {key: group(key, old(key)) for key in keys}
    full = {"p": PlaceFacts("p", 2_000)}
    gone = retired(made.step(world(*now.values(), given=full), 0.0))
    assert len(gone) == STARTS_IN_FLIGHT_MAX
    for one in gone:
        key = one.removesuffix("-old")
        now[key] = group(key, worker(one, "retiring", version="1", held=1), held=1)
    assert made.step(world(*now.values(), given=full), 1.0) == []
    first = gone[0].removesuffix("-old")
    now[first] = group(first, ready=1)
    assert made.step(world(*now.values(), given=full), 2.0) == [Launch(first, "p", "2", 100)]
    now[first] = group(first, worker("new", "starting", version="2"), ready=1)
    assert made.step(world(*now.values(), given=full), 3.0) == []
    now[first] = group(first, worker("new", version="2"))
    assert len(retired(made.step(world(*now.values(), given=full), 4.0))) == 1, "the next one's turn"


def test_a_version_that_does_not_start_leaves_all_but_so_many_keys_at_work() -> None:
    made = policy(start_failures_max=1)
    now = {f"k{number}": group(f"k{number}", old(f"k{number}"), ready=1) for number in range(20)}
    for second in range(300):
        for order in made.step(world(*now.values(), given={"p": PlaceFacts("p", 2_000)}), float(second)):
            if isinstance(order, Retire):
                now[order.key] = group(order.key, ready=1)
            elif isinstance(order, Launch):
                made.worker_gone(Gone(order.key, f"{order.key}-new", "p", ready=False, asked=False), second + 0.5)
    assert sum(not one.workers for one in now.values()) == STARTS_IN_FLIGHT_MAX


def test_a_controller_that_takes_over_counts_those_that_are_down() -> None:
    made, keys = policy(), [f"k{number}" for number in range(20)]
    leaving = [group(key, worker(f"{key}-old", "retiring", version="1", held=1), held=1) for key in keys[:8]]
    now = world(*leaving, *(group(key, old(key)) for key in keys[8:]), given={"p": PlaceFacts("p", 2_000)})
    assert made.step(now, 0.0) == []


def test_keys_that_wait_for_a_start_count_as_down() -> None:
    waiting = [group(f"k{number}", ready=1) for number in range(STARTS_IN_FLIGHT_MAX)]
    full = {"p": PlaceFacts("p", 100)}
    assert policy(min=1).step(world(group("k", old("k")), *waiting, given=full), 0.0) == []
    assert retired(policy(min=1).step(world(group("k", old("k")), *waiting[1:], given=full), 0.0)) == ["k-old"]


def test_a_key_that_needs_none_keeps_the_one_of_its_unbound_group() -> None:
    assert policy().step(world(group("k", old("k"), state="unbound")), 0.0) == []


# ---- spares, and workers of several keys ----


def seat(host: str, key: str, state: str = "ready", **more: Any) -> WorkerFacts:
    return worker(seat_of(host, key), state, host=host, version="1", **more)


def test_spares_go_on_whose_template_is_not_to_be_rolled() -> None:
    spare = worker("s", version="1")
    assert policy(rolling=False).step(world(spares=(spare,), spares_wanted=1), 0.0) == []
    assert retired(policy().step(world(spares=(spare,), spares_wanted=1), 0.0)) == ["s"]


def test_workers_of_several_keys_go_on_whose_template_is_not_to_be_rolled() -> None:
    made = policy(rolling=False, keys_per_worker=2, max_workers=1)
    host, groups = worker("w", version="1"), (group("a", seat("w", "a", held=1), held=1), group("b", ready=1))
    assert made.step(world(*groups, spares=(host,)), 0.0) == [Assign("b", "w")], "it takes further keys, too"
    free = made.step(world(spares=(host,), spares_wanted=1), 1.0)
    assert free == []


def test_all_keys_of_so_many_workers_leave_them_at_once() -> None:
    made = policy(keys_per_worker=12)
    hosts = tuple(worker(f"w{number:02}", version="1") for number in range(10))
    groups = [group(f"k{index}", seat(hosts[index % 10].id, f"k{index}")) for index in range(120)]
    given = {"p": PlaceFacts("p", 1_000)}
    gone = retired(made.step(world(*groups, spares=hosts, given=given), 0.0))
    assert {one.partition("\0")[0] for one in gone} == {f"w{number:02}" for number in range(STARTS_IN_FLIGHT_MAX)}
    assert len(gone) == 12 * STARTS_IN_FLIGHT_MAX
    assert made.step(world(*groups, spares=hosts, given=given, paused=True), 1.0) == []


def test_a_worker_of_several_keys_is_replaced_after_its_end() -> None:
    """A place without room for one more: the conversation from the first key that leaves to the successor."""
    made, given = policy(keys_per_worker=2), {"p": PlaceFacts("p", 100)}
    host, more = worker("w", version="1"), {"given": given}
    held = group("a", seat("w", "a", held=1), held=1)
    idle = group("b", seat("w", "b"))
    orders = made.step(world(held, idle, spares=(host,), **more), 0.0)
    assert sorted(retired(orders)) == [seat_of("w", "a"), seat_of("w", "b")]
    leaves = replace(held, workers=(seat("w", "a", "retiring", held=1),))
    orders = made.step(world(leaves, group("b", seat("w", "b", "retiring")), spares=(host,), **more), 1.0)
    assert orders == [Stop("b", seat_of("w", "b"), "retired and empty")]
    orders = made.step(world(leaves, group("b"), spares=(host,), **more), 2.0)
    assert not [one for one in orders if isinstance(one, (Launch, Assign))]
    orders = made.step(world(group("a", ready=1), group("b"), spares=(host,), **more), 3.0)
    assert [one for one in orders if one.key == NO_KEY and isinstance(one, Retire)]
    assert made.step(world(group("a", ready=1), group("b"), **more), 4.0) == [Launch(NO_KEY, "p", "2", 100)]
