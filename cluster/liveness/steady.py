"""The clock of leases: seconds without slewing and with the time of sleep (reads the machine's clocks).

CLOCK_MONOTONIC_RAW runs as the machine's quartz does, which is wrong by less than 0.02 %. Settings of the wall clock,
by steps or by slewing, do not reach it (chrony may slew by 8.3 %, and bends CLOCK_MONOTONIC and CLOCK_BOOTTIME with
it). It does not count the time of a sleeping machine, so that is added: the lead of CLOCK_BOOTTIME over
CLOCK_MONOTONIC. Both are slewed alike, so the difference moves by sleep alone, and it only grows.

The difference comes from two readings. Their order is such that a pause between them can only make it larger. After a
growth it is read again until both readings are less than a millisecond apart: a thread that was not run for a moment
is no sleep of the machine.

Not counted is the pause of a virtual machine whose hypervisor hides it from all of the guest's clocks. `Pauses`
notices it after a setting of the wall clock.
"""

from __future__ import annotations

import time
from typing import Final

_RAW: Final = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
_MONOTONIC: Final = time.CLOCK_MONOTONIC
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_read = time.clock_gettime

NOISE_S: Final = 0.01
"""A smaller growth of the difference is two readings that are not of one moment."""
CLOSE_S: Final = 0.001
JUMP_S: Final = 0.5


class Steady:
    """One clock for all threads of a process."""

    __slots__ = ("_slept_s",)

    def __init__(self) -> None:
        self._slept_s = 0.0
        self._measure()

    def __call__(self) -> float:
        """Seconds since some moment, the same for the whole life of the machine."""
        raw = _read(_RAW)
        monotonic = _read(_MONOTONIC)
        if _read(_BOOTTIME) - monotonic - self._slept_s > NOISE_S:
            self._measure()
        return raw + self._slept_s

    def _measure(self) -> None:
        while True:
            before = _read(_MONOTONIC)
            boottime = _read(_BOOTTIME)
            after = _read(_MONOTONIC)
            if after - before < CLOSE_S:
                self._slept_s = max(self._slept_s, boottime - before)
                return


steady: Final = Steady()


class Pauses:
    """Whether the wall clock has run ahead of the steady one since the last look: a pause that no other clock shows.

    Whoever sets the wall clock forward looks like that as well, which costs one beat and its answer.
    """

    __slots__ = ("_ahead_s",)

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def noticed(self, now: float, wall_s: float) -> bool:
        """To be asked before anything is handed out. `now`: the steady clock."""
        ahead_s = wall_s - now
        before_s, self._ahead_s = self._ahead_s, ahead_s
        return before_s is not None and ahead_s - before_s > JUMP_S
