"""The clocks of one machine, and its pauses."""

from __future__ import annotations

from tests.simulation.schedule import Schedule

EPOCH_MS = 1_700_000_000_000
DRIFT_MAX = 0.015
OFFSET_MS_MAX = 2000


class Machine:
    """`rate`: of its oscillator, to the simulation's time."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        rng = schedule.rng
        self.rate = 1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        self.boot_offset_s = rng.uniform(0, 1000)
        self._paused_s: float | None = None
        """Since when it is paused."""
        self._stood_s = 0.0
        """So long it has been paused, all in all."""
        self._loop_clock = (self.boot_s(), self.boot_s(), 1.0)
        self.woke_s = float("-inf")
        """When it went on after a pause that no clock shows, by its own clock."""
        self._clock = (0.0, EPOCH_MS + rng.uniform(-OFFSET_MS_MAX, OFFSET_MS_MAX), self.rate)

    @property
    def stands_still(self) -> bool:
        return self._paused_s is not None

    def stand_still(self) -> None:
        """The machine is paused, and its clocks with it."""
        self._paused_s = self._schedule.now_s

    def wake_machine(self) -> None:
        if self._paused_s is not None:
            self._stood_s += self._schedule.now_s - self._paused_s
            self._paused_s = None
            self.woke_s = self.boot_s()

    def boot_s(self) -> float:
        """The clock of leases and contact, which nobody slews (cluster.liveness.clocks). In a machine that is paused it
        stands still."""
        now_s = self._schedule.now_s if self._paused_s is None else self._paused_s
        return self.boot_offset_s + (now_s - self._stood_s) * self.rate

    def loop_s(self) -> float:
        """CLOCK_MONOTONIC: slewed with the wall clock."""
        since_s, then_s, rate = self._loop_clock
        return then_s + (self.boot_s() - since_s) * rate

    def slew(self, rate: float) -> None:
        """chrony: the machine's clocks go at this rate, but for the raw one."""
        self._loop_clock = (self.boot_s(), self.loop_s(), rate)

    def now_ms(self) -> int:
        """The node's time: it may be led to another, it never leaps."""
        since_s, then_ms, rate = self._clock
        return int(then_ms + (self._schedule.now_s - since_s) * 1000 * rate)

    def wall_ms(self) -> int:
        """The machine's wall clock."""
        return self.now_ms()

    def set_clock(self, wall_ms: int) -> None:
        """The machine starts with this time."""
        self._clock = (self._schedule.now_s, wall_ms, self.rate)

    def lead_clock(self, rate: float) -> None:
        """The wall clock was set: the node's time follows it at this rate."""
        since_s, then_ms, old = self._clock
        now_s = self._schedule.now_s
        self._clock = (now_s, then_ms + (now_s - since_s) * 1000 * old, rate)
