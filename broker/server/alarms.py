"""Resource alarms, for which publishers wait (amqp-rules 5.2), and the alert about a slow disk (waits).

Each alarm has several reasons and is raised as long as one of them holds: a measurement here, the journal (its disk is
full), an operator's drill. A measured alarm is raised at its limit and cleared only some way on the safe side of it, so
that it does not flutter.

Publishers cannot tell a slow disk from a slow network, and a slow node gives up its queues and leaves the in-sync sets
without another report. The times of group commits are therefore examined every LOOK_S. A window is slow when one commit
took LONG_MS, also if it is not done yet, or when SOME of them took MEAN_MS in the mean. The alert `disk.slow` holds
until nothing was slow for CALM_S. A look that comes late itself proves nothing: the loop, or the machine, was busy.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.journal.flushes import FlushTimes

if TYPE_CHECKING:
    import asyncio

    from clusterbroker.broker.node.alerts import Alerts

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CGROUP = Path("/sys/fs/cgroup")
MEMORY_CLEAR = 0.95
DISK_CLEAR = 1.05
LOOK_S: Final = 2.0
LATE_S: Final = 0.5
LONG_MS: Final = 1_000
MEAN_MS: Final = 200
SOME: Final = 3
CALM_S: Final = 30.0
SLOW: Final = "disk.slow"


@dataclass(frozen=True, slots=True)
class AlarmOptions:
    """When publishers have to wait."""

    memory_fraction: float = 0.6
    """Of the machine's (or container's) memory; the node's resident memory raises the alarm. 0 = never."""
    memory_bytes: int = 0
    """The same as a number of bytes; 0 = by fraction."""
    disk_free_bytes: int = 256 << 20
    """Less free space than this on the disk of the data directory raises the alarm. 0 = never."""
    interval_s: float = 0.5
    """How often memory and disk are looked at."""


def resident_bytes() -> int:
    """Resident memory of this process; without /proc, its maximum so far."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except FileNotFoundError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def memory_total_bytes(cgroup: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> int:
    """The machine's memory, or the container's limit when that is lower (cgroup v2, then v1)."""
    total = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    candidates = [cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes"]
    try:
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                folder = cgroup / path.lstrip("/")
                while folder != cgroup and cgroup in folder.parents:
                    candidates.append(folder / "memory.max")
                    folder = folder.parent
    except (OSError, ValueError):
        pass
    for file in candidates:
        try:
            total = min(total, int(file.read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def free_bytes(directory: Path) -> int:
    """Space that the directory's file system has for this process."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Alarms:
    """Joins the reasons of each alarm."""

    def __init__(
        self, options: AlarmOptions, directory: Path | None, on_change: Callable[[str, bool, str], object]
    ) -> None:
        """`on_change(name, raised, reason)`: an alarm as a whole has changed, by this reason."""
        self._options = options
        self._where = directory
        self._on_change = on_change
        self._reasons: dict[str, dict[str, None]] = {"memory": {}, "disk": {}}
        self._memory_limit = options.memory_bytes
        if not self._memory_limit and options.memory_fraction > 0:
            self._memory_limit = int(options.memory_fraction * memory_total_bytes())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._reasons)

    @property
    def raised(self) -> tuple[str, ...]:
        return tuple(name for name, reasons in self._reasons.items() if reasons)

    @property
    def memory_limit_bytes(self) -> int:
        """0: there is none."""
        return self._memory_limit

    def set(self, name: str, reason: str, holds: bool) -> None:
        reasons = self._reasons[name]
        before = bool(reasons)
        if holds:
            reasons[reason] = None
        else:
            reasons.pop(reason, None)
        if bool(reasons) != before:
            self._on_change(name, bool(reasons), reason)

    def check(self) -> None:
        """Measures; called every `interval_s`."""
        limit = self._memory_limit
        if limit:
            held = "measured" in self._reasons["memory"]
            self.set("memory", "measured", resident_bytes() > (limit * MEMORY_CLEAR if held else limit))
        floor = self._options.disk_free_bytes
        if floor and self._where is not None:
            held = "measured" in self._reasons["disk"]
            self.set("disk", "measured", free_bytes(self._where) < (floor * DISK_CLEAR if held else floor))


class SlowDisk:
    """Of one journal."""

    def __init__(self, flushes: FlushTimes, alerts: Alerts, directory: str, now_s: float) -> None:
        self._flushes = flushes
        self._alerts = alerts
        self._directory = directory
        self._looked_s = self._slow_s = now_s

    def look(self, now_s: float) -> None:
        late = now_s - self._looked_s > LOOK_S + LATE_S
        self._looked_s = now_s
        count, total_us, longest_us = self._flushes.take_window(now_s)
        longest_ms, mean_ms = longest_us // 1000, total_us // 1000 // max(1, count)
        if not late and (longest_ms >= LONG_MS or (count >= SOME and mean_ms >= MEAN_MS)):
            self._slow_s = now_s
            what = f"a write to the journal took {longest_ms / 1000:.1f} s, {count} of them {mean_ms} ms in the mean"
            self._alerts.set(
                SLOW,
                self._directory,
                f"the disk of {self._directory} is slow: {what}. Confirms wait for it, and owners go elsewhere; look "
                "at the disk, and at who else uses it",
            )
        elif now_s - self._slow_s >= CALM_S:
            self._alerts.clear(SLOW, self._directory)


def watch_disk(
    flushes: FlushTimes, alerts: Alerts, directory: str, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[Any]
) -> None:
    """From now on until the node has `ended`."""
    slow = SlowDisk(flushes, alerts, directory, time.monotonic())

    def look() -> None:
        if not ended.done():
            slow.look(time.monotonic())
            loop.call_later(LOOK_S, look)

    loop.call_later(LOOK_S, look)
