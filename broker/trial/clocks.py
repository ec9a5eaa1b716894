"""Clocks of a trial's nodes that may be wrong: a library under each process, made by the machine's own compiler.

It stands between the process and the system's clocks (clock_shim.c), and adds what a file says, which may change while
the process runs.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("clock_shim.c")
OFFSETS: Final = struct.Struct("=qqq")


def build(directory: Path) -> Path | str:
    """The library, made in `directory`; or why that cannot be done here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not sys.platform.startswith("linux") or compiler is None:
        return "that needs Linux and a C compiler"
    library = directory / "clock_shim.so"
    words = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - found by its name
    return library if done.returncode == 0 else f"{compiler} fails: {done.stderr.strip().splitlines()[-1:]}"


class Clocks:
    """Those of one node, which is started with `environment`."""

    def __init__(self, directory: Path, library: Path, name: str) -> None:
        file = directory / f"clocks of {name}"
        file.write_bytes(bytes(OFFSETS.size))
        with open(file, "r+b") as opened:
            self._offsets = mmap.mmap(opened.fileno(), OFFSETS.size)
        self._stood_s = 0.0
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSETS": str(file)}

    def set(self, wall_s: float, boottime_s: float = 0.0, monotonic_s: float = 0.0) -> None:
        """How far they are ahead of the machine's."""
        self._offsets[:] = OFFSETS.pack(*(int(ahead_s * 1e9) for ahead_s in (wall_s, boottime_s, monotonic_s)))

    def stood(self, span_s: float) -> None:
        """The machine has stood still for so long more, and its clocks with it, but for the wall clock, which its
        hypervisor sets at once."""
        self._stood_s += span_s
        self.mend()

    def began(self, wall_s: float = 0.0) -> None:
        """The machine starts: only its wall clock may be wrong."""
        self._stood_s = 0.0
        self.set(wall_s)

    def mend(self) -> None:
        """The wall clock is right again; those that only grow go on as they are."""
        self.set(0.0, -self._stood_s, -self._stood_s)
