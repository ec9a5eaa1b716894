"""Alarms: several reasons, one alarm, no fluttering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from server_support import Lines

from clusterbroker.broker.node.alerts import Alerts
from clusterbroker.broker.server import alarms as room
from clusterbroker.broker.server.alarms import (
    CALM_S,
    LOOK_S,
    SLOW,
    AlarmOptions,
    Alarms,
    SlowDisk,
    memory_total_bytes,
    resident_bytes,
)
from clusterbroker.broker.server.log import NodeLog
from clusterbroker.journal.flushes import FlushTimes

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


class Disk:
    """Looked at each LOOK_S; what it wrote meanwhile took so long."""

    def __init__(self) -> None:
        self.lines = Lines()
        self.alerts = Alerts(NodeLog(self.lines, "info"), lambda: 0)
        self.times = FlushTimes()
        self.slow = SlowDisk(self.times, self.alerts, "/data", 0.0)
        self.now_s = 0.0

    def window(self, *took_s: float, late_s: float = 0.0) -> str:
        """The alert's text; empty: it does not hold."""
        for each_s in took_s:
            self.times.began(0.0)
            self.times.ended(each_s)
        self.now_s += LOOK_S + late_s
        self.slow.look(self.now_s)
        return next((alert.text for alert in self.alerts if alert.kind == SLOW), "")


def test_one_that_took_a_second_is_told_and_forgotten_after_a_while() -> None:
    disk = Disk()
    assert disk.window(0.01, 0.02, 0.4) == ""
    text = disk.window(0.01, 3.0)
    assert "the disk of /data is slow: a write to the journal took 3.0 s, 2 of them 1505 ms in the mean" in text
    assert disk.window(0.001) == text
    for _ in range(int(CALM_S / LOOK_S)):
        disk.window(0.001)
    assert disk.window() == ""
    assert disk.lines.events() == ["alert.raised", "alert.cleared"]


def test_many_that_are_slow_together_are_told() -> None:
    disk = Disk()
    assert disk.window(0.3, 0.3) == "", "two are none"
    assert "3 of them 300 ms in the mean" in disk.window(0.3, 0.3, 0.3)


def test_a_write_that_never_ends_is_told() -> None:
    disk = Disk()
    disk.times.began(0.5)
    assert "took 1.5 s" in disk.window()
    assert "took 3.5 s" in disk.window()


def test_a_loop_that_was_late_blames_no_disk() -> None:
    disk = Disk()
    assert disk.window(1.5, late_s=1.0) == ""
    assert disk.window() == ""


async def test_a_node_looks_at_its_disk(start: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from server_support import until

    from clusterbroker.broker.server import alarms

    monkeypatch.setattr(alarms, "LOOK_S", 0.05)
    shell = await start(data_dir=tmp_path)
    journal = shell.storage.journal
    assert journal.flushes.count == 0 or sum(journal.flushes.counts) == journal.flushes.count
    journal.flushes.began(-10.0)
    journal.flushes.ended(0.0)
    await until(lambda: shell.node.alerts.holds(SLOW, str(tmp_path)))
