"""The clock of leases: seconds without slewing and with the time of sleep (reads the machine's clocks).

CLOCK_MONOTONIC_RAW runs as the machine's quartz does, which is wrong by less than 0.02 %; who sets the wall clock, by
steps or by slewing (chrony may slew by 8.3 %, and bends CLOCK_MONOTONIC and CLOCK_BOOTTIME with it), does not reach it.
It does not count the time that the machine slept, so that is added: what CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC.
Both are slewed alike, so the difference moves by sleep alone, and it only grows.

The difference is of two readings. They are taken in an order in which a pause between them can only make it larger, and
when it has grown it is read again until both readings are less than a millisecond apart: so a thread that was not run
for a moment is no sleep of the machine.

Not counted is the pause of a virtual machine whose hypervisor hides it from all of the guest's clocks. `Pauses` notices
it once somebody has set the wall clock.
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
