"""Suspicion: soon after a death, rarely before, and never for this node's own sleep."""

from __future__ import annotations

import random

import pytest

from clusterbroker.cluster.liveness.detector import Detector


def beating(detector: Detector, seconds: float, loss: float = 0.0, seed: int = 1) -> tuple[float, int]:
    """(when it ended, how often the peer was suspected)."""
    rng = random.Random(seed)
    detector.watch(["p"], 0.0)
    false = 0
    now = 0.0
    for _ in range(int(seconds * 10)):
        now += 0.1
        if rng.random() >= loss:
            detector.heard("p", now + rng.uniform(0, 0.02))
        false += sum(suspected for _, suspected in detector.changes(now + 0.03))
    return now, false


@pytest.mark.parametrize("loss, at_most", [(0.0, 0.9), (0.2, 1.6)])
def test_a_death_is_suspected_soon_and_nothing_else_is(loss: float, at_most: float) -> None:
    detector = Detector()
    now, false = beating(detector, 100, loss)
    assert false == 0
    silent = 0.0
    while not detector.changes(now + silent):
        silent += 0.01
    assert 0.3 < silent < at_most
    assert detector.suspected("p")
    detector.heard("p", now + 5)
    assert detector.changes(now + 5.01) == [("p", False)]
    assert not detector.suspected("p")


def test_own_sleep_is_no_silence_of_others() -> None:
    detector = Detector()
    now, _ = beating(detector, 20)
    detector.stalled(5.0, now + 5.1)
    assert detector.changes(now + 5.1) == []
    assert detector.changes(now + 5.1 + 1.0) == [("p", True)]


def test_a_long_absence_does_not_make_the_detector_patient() -> None:
    detector = Detector()
    now, _ = beating(detector, 20)
    assert detector.changes(now + 60) == [("p", True)]
    detector.heard("p", now + 60)
    detector.changes(now + 60)
    assert detector.changes(now + 61.0) == [("p", True)]


def test_only_the_watched_are_judged() -> None:
    detector = Detector()
    detector.watch(["p", "q"], 0)
    detector.heard("x", 1)
    detector.watch(["q"], 1)
    assert detector.changes(100) == [("q", True)]
    assert not detector.suspected("p")


def test_phi_grows_without_bound() -> None:
    detector = Detector()
    detector.watch(["p"], 0)
    values = [detector.phi("p", seconds / 10) for seconds in range(100)]
    assert values == sorted(values)
    assert values[-1] == float("inf")
