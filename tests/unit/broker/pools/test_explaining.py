"""A controller says why each key has its workers, and what is in the way of one more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbroker.broker.pools.explaining import KEYS_MAX, Explanation
from clusterbroker.broker.pools.facts import Gone, GroupFacts, PlaceFacts, PoolFacts, Scaling, Settings
from clusterbroker.broker.pools.policy import Policy

from .made import facts, group, worker

SETTINGS = Settings(memory=100 << 20, scale_to_zero_while_bound=True)
ROOM = {"p": 250 << 20}


def document(policy: Policy, of: PoolFacts, now_s: float = 0.0) -> dict[str, Any]:
    policy.step(of, now_s)
    return Explanation(policy, now_s).document(lambda _: True)


def why(policy: Policy, of: PoolFacts, now_s: float = 0.0) -> list[str]:
    (one,) = document(policy, of, now_s)["keys"]
    found: list[str] = one["why"]
    return found


def settled(*workers: Any, many: int = 10, **more: Any) -> GroupFacts:
    """A key whose requests take a second each."""
    return group("k", *workers, settled=many, service_s=float(many), **more)


@pytest.mark.parametrize(
    ("settings", "asked", "reason"),
    [
        ({}, group("k"), "needs 0: nothing waits or is held"),
        ({"min": 2}, group("k"), "needs 2: min=2"),
        ({}, group("k", ready=50), "needs 1: fewer than 5 requests have told how long they take, and eager=false"),
        ({"eager": True}, group("k", ready=10),
         "needs 2: 10 requests wait or are held, 1 s a request, target_wait_ms=5000"),
        ({"eager": True, "max": 3}, group("k", ready=50), "needs 3: max=3"),
        ({"scale_to_zero_while_bound": False}, group("k"),
         "needs 1: its group is kept, and scale_to_zero_while_bound=false"),
        ({"scaling": Scaling.FIXED, "min": 2}, group("k"), "needs 2: scaling=fixed, min=2"),
        ({"scaling": Scaling.OUTSIDE}, group("k"),
         "needs 1: one launch stands for all its workers, and Kubernetes has their number (scaling=hpa, keda)"),
        ({}, group("k", worker("w"), state="draining"),
         "needs 0: it was idle for unbind_delay_s and stop_delay_s, and its group ends"),
    ],
)  # fmt: skip
def test_the_rule_that_decides_the_need(settings: dict[str, Any], asked: GroupFacts, reason: str) -> None:
    policy = Policy(replace(SETTINGS, **settings), 0.0)
    assert why(policy, facts(asked, places=ROOM))[0] == reason
    (one,) = Explanation(policy, 0.0).document(lambda _: True)["keys"]
    assert reason.startswith(f"needs {one['need']}:")


def test_arrivals() -> None:
    policy = Policy(replace(SETTINGS, prefetch=2), 0.0)
    policy.step(facts(settled(worker("w"), many=0)), 0.0)
    of = facts(settled(worker("w"), arrived=1000, many=10))
    assert why(policy, of, 10.0)[0].startswith("needs 8: max=8")
    quiet = facts(settled(worker("w"), arrived=1001, many=11))
    assert "requests/s arrive, 1 s a request, prefetch=2" in why(policy, quiet, 29.0)[0]


@pytest.mark.parametrize(
    ("settings", "of", "reason"),
    [
        ({}, {"places": ROOM}, "one is about to be started"),
        ({"scaling": Scaling.NONE}, {"places": ROOM}, "workers come by themselves: the pool starts none"),
        ({}, {"places": ROOM, "paused": True}, "no start: the pool is paused"),
        ({}, {"places": {"p": 50 << 20}}, "waits: no place has room: 'p' has 50 MiB left, and a worker takes 100"),
        ({"max_workers": 0}, {"places": ROOM}, "waits: the pool has max_workers=0"),
        ({}, {"given": {}}, "waits: no member has the pool's template"),
        ({}, {"given": {"p": PlaceFacts("p", 1 << 30, suspended=True)}},
         "waits: no place has room: 'p' is suspended, or its node is away"),
        ({}, {"given": {"p": PlaceFacts("p", 1 << 30, alarm=True)}},
         "waits: no place has room: 'p' is short of memory"),
        ({}, {"given": {"p": PlaceFacts("p", 1 << 30, workers_max=0)}},
         "waits: no place has room: 'p' has its 0 workers"),
        ({"keys_per_worker": 2, "max_workers": 0}, {"places": ROOM},
         "waits: none of 0 ready workers gives a key away (keys_per_worker=2); the pool has max_workers=0"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_of_a_first_worker(settings: dict[str, Any], of: dict[str, Any], reason: str) -> None:
    policy = Policy(replace(SETTINGS, **settings), 0.0)
    assert why(policy, facts(group("k", ready=1), **of))[1:] == [reason]


def test_starts_that_fail_and_the_trial_after_them() -> None:
    policy = Policy(replace(SETTINGS, start_failures_max=2), 0.0)
    of = facts(group("k", ready=1), places=ROOM)
    policy.step(of, 0.0)
    policy.worker_gone(Gone("k", "w1", "p", ready=False, asked=False, detail="exit status 3"), 1.0)
    assert why(policy, of, 1.0)[1].startswith("no start for 2 s: exit status 3")
    policy.worker_gone(Gone("k", "w2", "p", ready=False, asked=False, detail="exit status 4"), 5.0)
    failed = "its starts failed 2 times in a row; the last one: exit status 4"
    assert why(policy, of, 5.0)[1] == f"no start for 60 s: {failed}"
    trial = replace(SETTINGS, min=2)
    policy.settings = trial
    coming = facts(group("k", worker("w3", "starting", since_s=70.0), ready=1), places=ROOM)
    assert why(policy, coming, 70.0)[1] == "no other start until this one has succeeded: exit status 4"


def test_another_worker_that_would_not_pay() -> None:
    policy = Policy(replace(SETTINGS, start_s=30.0), 0.0)
    policy.step(facts(settled(worker("w"), many=0), places=ROOM), 0.0)
    of = facts(settled(worker("w"), ready=10), places=ROOM)
    assert why(policy, of, 1.0)[1] == "no start: the 1 it has are done before another one is up (30 s)"


def test_workers_above_the_need() -> None:
    policy = Policy(SETTINGS, 0.0)
    policy.step(facts(settled(worker("a"), worker("b"), many=0)), 0.0)
    busy = settled(worker("a"), worker("b"), ready=10)
    policy.step(facts(busy), 1.0)
    quiet = settled(worker("a"), worker("b"))
    assert why(policy, facts(quiet), 2.0)[1:] == ["keeps 2: it needed 2 within the last minute"]
    held = settled(worker("a", held=1), worker("b", held=1), held=2)
    assert why(policy, facts(held), 120.0)[1:] == ["keeps 2: they hold 2 requests"]
    leaving = settled(worker("a"), worker("b", "retiring"))
    assert why(policy, facts(leaving), 121.0)[-1] == "1 more are on their way out"


def test_a_key_that_made_room_says_so() -> None:
    policy = Policy(replace(SETTINGS, scale_to_zero_while_bound=False), 0.0)
    idle = group("k", worker("w", idle_since_s=0.0))
    policy.step(facts(idle, places={"p": 100 << 20}), 0.0)
    both = facts(idle, group("other", ready=1), places={"p": 100 << 20})
    policy.step(both, 20.0)
    gone = facts(group("k"), group("other", ready=1), places={"p": 100 << 20})
    keys = {one["key"]: one["why"] for one in document(policy, gone, 21.0)["keys"]}
    assert keys["k"] == ["needs 0: it made room for other keys, and had no request since"]


def test_keys_that_lack_a_worker_come_first_and_so_many() -> None:
    policy = Policy(SETTINGS, 0.0)
    groups = [group(f"a{number:03}") for number in range(KEYS_MAX)]
    told = document(policy, facts(*groups, group("k", ready=1), places=ROOM))
    assert [one["key"] for one in told["keys"]][:2] == ["k", "a000"]
    assert (len(told["keys"]), told["keys_left_out"]) == (KEYS_MAX, 1)
    assert told["keys"][0]["waits_s"] is None, "it is started"
    assert told["places"][0]["memory_bytes"] == 250 << 20
    only = Explanation(policy, 0.0).document({"a001"}.__contains__)
    assert [one["key"] for one in only["keys"]] == ["a001"]


def test_who_may_not_see_places_is_told_that_none_has_room() -> None:
    policy = Policy(SETTINGS, 0.0)
    policy.step(facts(group("k", ready=1), places={"secret-host": 50 << 20}), 0.0)
    told = Explanation(policy, 0.0, places=False).document(lambda _: True)
    assert told["places"] == []
    assert told["keys"][0]["why"][1:] == ["waits: no place has room"]
    assert "secret-host" not in str(told)
    assert "'secret-host' has 50 MiB left" in str(Explanation(policy, 0.0).document(lambda _: True))
