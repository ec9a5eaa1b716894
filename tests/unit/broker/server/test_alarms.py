"""Alarms: several reasons, one alarm, no fluttering."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterbroker.broker.server import alarms as room
from clusterbroker.broker.server.alarms import AlarmOptions, Alarms, memory_total_bytes, resident_bytes

GIB = 1 << 30


class Told:
    def __init__(self) -> None:
        self.said: list[tuple[str, bool]] = []

    def __call__(self, name: str, raised: bool, reason: str) -> None:
        self.said.append((name, raised))


def test_an_alarm_lasts_as_long_as_any_of_its_reasons() -> None:
    told = Told()
    alarms = Alarms(AlarmOptions(), None, told)
    alarms.set("disk", "measured", True)
    alarms.set("disk", "journal full", True)
    alarms.set("disk", "measured", False)
    assert alarms.raised == ("disk",)
    alarms.set("disk", "journal full", False)
    assert told.said == [("disk", True), ("disk", False)]


def test_memory_is_raised_at_the_limit_and_cleared_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    alarms = Alarms(AlarmOptions(memory_bytes=1000), None, told)
    for resident, raised in ((1000, False), (1001, True), (960, True), (949, False), (1000, False)):
        monkeypatch.setattr(room, "resident_bytes", lambda resident=resident: resident)
        alarms.check()
        assert bool(alarms.raised) is raised, resident


def test_disk_is_raised_below_the_floor_and_cleared_above_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alarms = Alarms(AlarmOptions(memory_fraction=0, disk_free_bytes=1000), tmp_path, Told())
    for free, raised in ((1000, False), (999, True), (1040, True), (1050, False)):
        monkeypatch.setattr(room, "free_bytes", lambda _, free=free: free)
        alarms.check()
        assert bool(alarms.raised) is raised, free


def test_the_real_figures_are_plausible(tmp_path: Path) -> None:
    assert 10 << 20 < resident_bytes() < memory_total_bytes()
    assert room.free_bytes(tmp_path) > 0


def test_a_container_may_have_less(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("268435456\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    assert memory_total_bytes(tmp_path, own) == 256 << 20
    assert memory_total_bytes(tmp_path / "missing", own) > GIB // 4
