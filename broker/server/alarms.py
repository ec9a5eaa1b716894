"""Resource alarms: memory and disk run low, publishers wait (amqp-rules 5.2).

Each alarm has several reasons and is raised as long as one of them holds: a measurement here, the journal (its disk
is full), an operator's drill. A measured alarm is raised at its limit and cleared only some way on the safe side of
it, so that it does not flutter.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CGROUP = Path("/sys/fs/cgroup")
MEMORY_CLEAR = 0.95
DISK_CLEAR = 1.05


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
    """What this process holds in memory; where there is no /proc, the most that it has held."""
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
    """What the file system of the directory has left for this process."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class Alarms:
    """Joins the reasons of each alarm; `tell(name, raised)` when an alarm as a whole changes."""

    __slots__ = ("_memory_limit", "_options", "_reasons", "_tell", "_where")

    def __init__(self, options: AlarmOptions, directory: Path | None, tell: Callable[[str, bool, str], object]) -> None:
        """`tell` gets the alarm's name, whether it is raised, and the reason that changed it."""
        self._options = options
        self._where = directory
        self._tell = tell
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
            self._tell(name, bool(reasons), reason)

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
