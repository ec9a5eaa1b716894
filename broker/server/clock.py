"""The node's time: wall clock milliseconds that never jump.

The core uses one time for everything: arrival and expiry of messages, late heartbeats. Message times must have a
meaning after a restart, so they follow the wall clock; deadlines must not fire because the clock was set. The node's
time therefore starts at the wall clock, runs with the monotonic clock, and is led towards the wall clock by at most a
tenth of the passed time: it never stands still for long, never goes back and never leaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

SLEW_DIVISOR = 10
JUMP_NS = 1_000_000_000
"""From here on a step of the wall clock is reported."""


class Clock:
    """`now_ms` may be called at any rate; `lead` about twice a second."""

    __slots__ = ("_error_ns", "_led_ns", "_monotonic_ns", "_offset_ns", "_wall_ns", "jumps")

    jumps: int
    """So many steps of a second or more, forward or back, were seen."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._led_ns = monotonic_ns()
        self._offset_ns = wall_ns() - self._led_ns
        self._error_ns = 0
        self.jumps = 0

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return (self._monotonic_ns() + self._offset_ns) // 1_000_000

    def wall_ms(self) -> int:
        """The wall clock as it is, jumps included: it ends what others have dated."""
        return self._wall_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment: without jumps, standing still while the machine sleeps."""
        return self._monotonic_ns() // 1_000_000

    def lead(self) -> float:
        """Moves towards the wall clock by at most a tenth of the time since the last call.

        Returns by how many seconds the wall clock has jumped since then, 0.0 for less than one.
        """
        monotonic_ns = self._monotonic_ns()
        most_ns = (monotonic_ns - self._led_ns) // SLEW_DIVISOR
        error_ns = self._wall_ns() - (monotonic_ns + self._offset_ns)
        self._led_ns = monotonic_ns
        jumped_ns = error_ns - self._error_ns
        step_ns = max(-most_ns, min(most_ns, error_ns))
        self._offset_ns += step_ns
        self._error_ns = error_ns - step_ns
        if abs(jumped_ns) < JUMP_NS:
            return 0.0
        self.jumps += 1
        return jumped_ns / 1e9
