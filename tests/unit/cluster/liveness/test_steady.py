"""The clock of leases, with the machine's clocks in the test's hands."""

from __future__ import annotations

import time

import pytest

from clusterbroker.cluster.liveness import steady as module
from clusterbroker.cluster.liveness.steady import Pauses, Steady


class Machine:
    """Its clocks by name, and how long each reading takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.raw = self.monotonic = self.boot = 1000.0
        self.preempted: list[float] = []
        monkeypatch.setattr(module, "_read", self.read)

    def read(self, which: int) -> float:
        if which == time.CLOCK_MONOTONIC_RAW:
            return self.raw
        told = self.monotonic if which == time.CLOCK_MONOTONIC else self.boot
        if self.preempted:
            self.pass_by(self.preempted.pop(0))
        return told

    def pass_by(self, seconds: float, rate: float = 1.0) -> None:
        self.raw += seconds
        self.monotonic += seconds * rate
        self.boot += seconds * rate

    def sleep(self, seconds: float) -> None:
        self.boot += seconds


def test_slewing_does_not_bend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = Steady()
    before = clock()
    machine.pass_by(100.0, rate=0.917)
    assert clock() - before == pytest.approx(100.0)
    machine.pass_by(100.0, rate=1.083)
    assert clock() - before == pytest.approx(200.0)


def test_sleep_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.sleep(50.0)
    clock = Steady()
    before = clock()
    machine.sleep(60.0)
    assert clock() - before == pytest.approx(60.0)
    machine.pass_by(1.0)
    machine.sleep(0.5)
    assert clock() - before == pytest.approx(61.5)


def test_a_boottime_that_goes_back_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """p8: a hypervisor's pause, with CLOCK_BOOTTIME held back."""
    machine = Machine(monkeypatch)
    clock = Steady()
    before = clock()
    machine.pass_by(4.0)
    machine.boot -= 4.0
    assert clock() - before == pytest.approx(4.0)


def test_a_thread_that_was_not_run_between_two_readings_is_no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    clock = Steady()
    before = clock()
    machine.preempted = [3.0, 0.0, 2.0, 0.5]
    clock()
    assert clock() - before == pytest.approx(5.5)


def test_real_clocks_only_go_on() -> None:
    told = [module.steady() for _ in range(1000)]
    assert told == sorted(told)


def test_a_wall_clock_that_runs_ahead_is_a_pause() -> None:
    pauses = Pauses()
    assert not pauses.noticed(100.0, 5000.0)
    assert not pauses.noticed(160.0, 5060.4)
    assert pauses.noticed(160.1, 5064.5), "4 s that no other clock shows"
    assert not pauses.noticed(160.2, 5064.6), "told once"
    assert not pauses.noticed(160.3, 1000.0), "set back"
