"""The cluster in virtual time: the commit's seeds for as long as the budget lasts, and one seed is one story."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import TIER, campaign
from tests.simulation import mutations
from tests.simulation.bugs import MUTATIONS, PLANNED
from tests.simulation.run import Failure, run

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[2]
QUICKLY_FOUND = ("ack_before_fsync", "early_shrink", "no_dedup", "added_while_behind", "forgotten_rows")


def test_fresh_seeds() -> None:
    reports = campaign("simulation", run, "scripts/simulate --seed")
    assert sum(report.counts["confirms"] for report in reports) > 0, "clients were served"


def test_one_seed_is_one_story_in_every_process() -> None:
    """Whatever the hash seed: nothing depends on the order of a set."""
    told = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "tests.simulation", "--seed", "5", "--seconds", "5"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        told.append(done.stdout.splitlines()[0])
    assert "trace" in told[0]
    assert told[0] == told[1]


def test_a_failure_names_its_seed() -> None:
    with pytest.raises(Failure, match=r"^seed 7 at 0\.000 s: KeyError 'here'$"):
        run(7, tamper=lambda world: world.kinds["here"])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICKLY_FOUND else pytest.mark.matrix)
        for name in MUTATIONS
        if TIER != "commit" or name not in mutations.RARE
    ],
)
def test_a_bug_is_found(name: str) -> None:
    """At the seed that found it last, in a second or two; where that means another story by now, the search goes on:
    then `python -m tests.simulation.mutations --write-seeds` saves the next one the time."""
    found = mutations.apart(name, mutations.SEEDS_MAX)
    assert found.ok, found.says


@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", [(), ("--in-model",)], ids=["all others", "in the model of the ring"])
def test_every_bug_still_fits_the_code(which: tuple[str, ...]) -> None:
    """Each can be put in, and what it patches is called: a commit that moves a name hears of it at once."""
    command = [sys.executable, "-m", "tests.simulation.fitting", *which]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_planned_bug_can_be_put_in() -> None:
    assert set(PLANNED) <= {mutation.row for mutation in MUTATIONS.values()}
