"""Seeds of a pool whose workers serve several keys, around the real policy; and bugs put into it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterbroker.broker.pools.policy import Policy
from clusterbroker.broker.pools.shared_workers import SharedWorkers
from tests.budget import campaign
from tests.simulation.pools.checkers import Violation
from tests.simulation.pools.shared import run

pytestmark = pytest.mark.campaign

SEEDS = 12


def busy_keys_give_way(patch: pytest.MonkeyPatch) -> None:
    """Whatever waits or is held."""
    give_way = SharedWorkers._give_way

    def given(self: SharedWorkers, *wanted: Any) -> Any:
        self._facts = replace(self._facts, groups={key: _idle(each) for key, each in self._facts.groups.items()})
        return give_way(self, *wanted)

    patch.setattr(SharedWorkers, "_give_way", given)


def _idle(group: Any) -> Any:

    return replace(group, ready=0, held=0)


def starved_keys_take_nothing(patch: pytest.MonkeyPatch) -> None:
    """A key waits for ever behind keys that are always busy."""

    answer = SharedWorkers.answer
    patch.setattr(SharedWorkers, "answer", lambda self, wish, *more: answer(self, replace(wish, starved=False), *more))


def keys_beyond_the_room(patch: pytest.MonkeyPatch) -> None:
    """What this step gives is not counted."""
    patch.setattr(SharedWorkers, "_count", lambda self, host: len(self._seats.get(host, ())))


def keys_taken_while_they_hold(patch: pytest.MonkeyPatch) -> None:
    """A retired key is revoked at once."""
    stops = Policy._stops

    def stopped(self: Policy, group: Any, now_s: float) -> Any:

        workers = tuple(replace(worker, held=0) if worker.host else worker for worker in group.workers)
        return stops(self, replace(group, workers=workers), now_s)

    patch.setattr(Policy, "_stops", stopped)


BUGS = {
    busy_keys_give_way: "I10",
    starved_keys_take_nothing: "I8",
    keys_beyond_the_room: "room",
    keys_taken_while_they_hold: "I10",
}
"""And the rule that is broken (`checkers`)."""


def test_fresh_seeds_of_shared_workers_within_the_budget() -> None:
    reports = campaign("pools_shared", run, "scripts/simulate pools --scenario shared --count 1 --seed")
    assert sum(report.acked for report in reports) > 0, "something was done"


def test_keys_are_given_back_and_come_again() -> None:
    report = run(13)
    assert report.given_back > 10
    assert report.assigned > report.launches


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_shared_workers_is_found(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(seed)
        except Violation as violation:
            if str(violation).startswith(f"{BUGS[bug]}: "):
                return
    raise AssertionError(f"{SEEDS} seeds do not find it: {bug.__doc__}")
