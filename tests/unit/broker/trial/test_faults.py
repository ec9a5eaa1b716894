"""A round's plan comes from its seed alone, aims at the owner, and has every kind of fault sooner or later."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from clusterbroker.broker.trial.faults import (
    CLOCK_FAULTS,
    DIRECTORY_FAULTS,
    NETWORK_FAULTS,
    OWNER,
    PROCESS_FAULTS,
    Kind,
    directions,
    plan,
    stands,
)
from clusterbroker.broker.trial.nodes import owner_of
from tests.support import processes
from tests.unit.broker.trial.lines import began

ALL = PROCESS_FAULTS + DIRECTORY_FAULTS + CLOCK_FAULTS + NETWORK_FAULTS + (Kind.FULL_DISK,)
NAMES = ["a", "b", "c"]


def test_a_plan_is_replayed_by_its_seed() -> None:
    assert plan(random.Random("7/3"), NAMES, ALL) == plan(random.Random("7/3"), NAMES, ALL)
    assert plan(random.Random("7/3"), NAMES, ALL) != plan(random.Random("7/4"), NAMES, ALL)


def test_every_kind_comes_and_half_aim_at_the_owner() -> None:
    steps = [step for number in range(300) for step in plan(random.Random(number), NAMES, ALL)]
    assert set(Counter(step.kind for step in steps)) == set(ALL)
    assert 0.4 < sum(step.node == OWNER for step in steps) / len(steps) < 0.6
    assert all(step.lasts_s <= 1 for step in steps if step.kind is Kind.BLINK)
    assert all(step.lasts_s >= 3 for step in steps if step.kind is Kind.FREEZE)


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        (Kind.ISOLATE, [("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")]),
        (Kind.DEAF, [("b", "a"), ("c", "a")]),
        (Kind.MUTE, [("a", "b"), ("a", "c")]),
        (Kind.APART, [("a", "b"), ("a", "c"), ("b", "a"), ("b", "c"), ("c", "a"), ("c", "b")]),
    ],
)
def test_directions(kind: Kind, pairs: list[tuple[str, str]]) -> None:
    assert directions(kind, "a", NAMES, random.Random(1)) == pairs


def test_a_pair_is_cut_both_ways() -> None:
    one, other = directions(Kind.PAIR, "a", NAMES, random.Random(1))
    assert one == other[::-1]


def test_the_owner_is_who_began_the_highest_epoch() -> None:
    assert owner_of("q", [began("a", 1), began("c", 3), began("b", 2)]) == "c"
    assert owner_of("other", [began("a", 1)]) is None


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_process_stands_when_its_threads_do() -> None:
    with processes.popen(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"], stdout=-1
    ) as one:
        assert one.stdout is not None
        one.stdout.readline()
        assert not stands(one.pid)
        one.send_signal(signal.SIGSTOP)
        end_s = time.monotonic() + 60
        while not stands(one.pid):
            assert time.monotonic() < end_s
        one.kill()
    assert stands(one.pid), "nobody is there any more"
