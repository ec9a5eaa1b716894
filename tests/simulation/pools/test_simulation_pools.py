"""Fresh seeds within a budget of time; and the same world with a bug put into the policy, which it must find.

A failure names its seed: `scripts/simulate pools --seed N --count 1` runs it again.
"""

from __future__ import annotations

import random

import pytest

from clusterbroker.broker.pools.facts import Settings
from tests.budget import campaign
from tests.simulation.pools.bugs import FOUND_IN, Bug, starved_keys_wait_their_turn
from tests.simulation.pools.checkers import Violation
from tests.simulation.pools.run import LOADS, many_keys, run
from tests.simulation.pools.world import World

pytestmark = pytest.mark.campaign

SEEDS = 30
DEAR = {starved_keys_wait_their_turn}
"""Some seconds each; with a commit a sixth of them."""


def test_fresh_seeds_within_the_budget() -> None:
    reports = campaign("pools", run, "scripts/simulate pools --count 1 --seed")
    assert sum(report.acked for report in reports) > 0, "something was done"


@pytest.mark.parametrize(
    "scenario", [pytest.param(load, marks=() if load == "steady" else pytest.mark.matrix) for load in LOADS]
)
def test_each_load(scenario: str) -> None:
    report = run(7, scenario)
    assert report.launches > 0


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(5, "steady") == run(5, "steady")


@pytest.mark.matrix
@pytest.mark.long
def test_a_thousand_keys_once() -> None:
    """Room for a hundred: the others come by turns, and all are served."""
    world = World(3, Settings(memory=20, prefetch=1, scale_to_zero_while_bound=True), unbind_s=30, stop_s=0)
    for number in range(4):
        world.add_place(f"p{number}", 500)
    many_keys(world, random.Random(3), 1_000)
    world.run(800)
    world.checkers.rest()
    assert world.counts["acked"] == 1_000


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.__name__, marks=pytest.mark.matrix if bug in DEAR else ()) for bug in FOUND_IN]
)
def test_a_bug_that_is_put_in_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, rule = FOUND_IN[bug]
    bug(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(seed, scenario)
        except Violation as violation:
            if str(violation).startswith(f"{rule}: "):
                return
    raise AssertionError(f"{SEEDS} seeds do not find it: {bug.__doc__}")
