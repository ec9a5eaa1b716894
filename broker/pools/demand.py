"""Need of one group: how many workers its load takes, and how long they have to be kept (design page, section 4).

    A    arrivals per second: the larger of two EWMA, over ARRIVALS_SHORT_S and ARRIVALS_LONG_S
    s    mean seconds from delivery to acknowledgement (EWMA over messages); `service_s` until SAMPLES_MIN of them
    c    prefetch, B backlog (ready + held), W ready workers, S starting ones, L start time of the key

    need = max(ceil(A*s / (LOAD*c)), ceil(B*s / (c*target_wait_s)))         within min..max; A*s is 0 unless it is bound

A worker with c messages at once and s seconds for each settles c/s messages a second (Little), so A*s/c workers keep
up, at full load; LOAD leaves room. The second term empties the backlog in `target_wait_s`.

A start must pay: above W + S workers there is another one only if those need longer than L for the backlog,
B*s/(c*(W+S)) > L; else they are done before it is up.

Up at once, down late: a surplus is what exceeds the *largest* need of the last WINDOW_S, taken back one worker or a
quarter per DOWN_EVERY_S, and never below ceil(held/c). A need that swings within a minute starts and stops nothing.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from .facts import GroupFacts, GroupState, Scaling, Settings

LOAD: Final = 0.7
"""Part of its time that a worker is to be at work."""
ARRIVALS_SHORT_S: Final = 5.0
ARRIVALS_LONG_S: Final = 60.0
LOAD_MIN: Final = 0.05
"""Workers' worth of arrivals that counts as none: an EWMA never is zero, and ceil() makes one worker of anything."""
SERVICE_WEIGHT: Final = 0.2
"""Of one message in the EWMA of `s`."""
SAMPLES_MIN: Final = 5
"""A second worker is never started on a guess."""
WINDOW_S: Final = 60.0
DOWN_EVERY_S: Final = 10.0
DOWN_PART: Final = 4
"""A quarter of the workers is taken back at once."""
STARTS_MAX: Final = 6
"""Starts within WINDOW_S beside those of growth, or as many as there were workers at once, if those are more: a place
that is lost is made up for once, and workers that die, or make room, do not start over and over."""


@dataclass(slots=True)
class Demand:
    """Measurements of one group, kept from step to step."""

    service_s: float
    samples: int = 0
    short: float = 0.0
    long: float = 0.0
    arrived: int = 0
    settled: int = 0
    spent_s: float = 0.0
    at_s: float | None = None
    idle_since_s: float = 0.0
    down_s: float = -math.inf
    """Time of the last surplus that was taken back."""
    _starts: deque[tuple[float, int]] = field(default_factory=deque)
    """(time, workers before it) of the starts within WINDOW_S."""
    _window: deque[tuple[float, int]] = field(default_factory=deque)
    """(last time in force, need), needs falling: what came before a larger need, and is smaller, is forgotten."""

    def observe(self, group: GroupFacts, now_s: float) -> None:
        """Take the counters of the group; idle time begins anew with each event and lasts through no busy moment."""
        if self.at_s is None:
            self.idle_since_s = now_s
        elif now_s > self.at_s:
            self._arrivals(max(0, group.arrived - self.arrived), now_s - self.at_s)
            self._services(group.settled - self.settled, group.service_s - self.spent_s)
        elif (group.arrived, group.settled) != (self.arrived, self.settled):
            return  # twice at one time: the next step has both
        if self._is_event(group):
            self.idle_since_s = now_s
        self.arrived, self.settled, self.spent_s = group.arrived, group.settled, group.service_s
        self.at_s = now_s

    def _is_event(self, group: GroupFacts) -> bool:
        return group.busy or (group.arrived, group.settled) != (self.arrived, self.settled)

    def _arrivals(self, count: int, passed_s: float) -> None:
        rate = count / passed_s
        self.short += (rate - self.short) * -math.expm1(-passed_s / ARRIVALS_SHORT_S)
        self.long += (rate - self.long) * -math.expm1(-passed_s / ARRIVALS_LONG_S)

    def _services(self, count: int, spent_s: float) -> None:
        if count <= 0 or spent_s < 0:
            return
        mean_s = spent_s / count
        weight = 1 - (1 - SERVICE_WEIGHT) ** count if self.samples else 1.0
        self.service_s += (mean_s - self.service_s) * weight
        self.samples += count

    @property
    def arrivals(self) -> float:
        """`A`, messages per second."""
        return max(self.short, self.long)

    def need(self, group: GroupFacts, settings: Settings) -> int:
        """Workers that the load takes, within min..max."""
        return self.reasoned(group, settings)[0]

    def reasoned(self, group: GroupFacts, settings: Settings) -> tuple[int, str]:
        """The need, and the rule that decides it."""
        if settings.scaling in (Scaling.OUTSIDE, Scaling.FIXED):
            least, rule = (max(1, settings.min), "fixed") if settings.scaling is Scaling.FIXED else (1, "outside")
            return (least, rule) if group.state is GroupState.ACTIVE or group.busy else (0, "idle")
        measured = self.samples >= SAMPLES_MIN
        service_s = self.service_s if measured else settings.service_s
        load = self.arrivals * service_s / (LOAD * settings.prefetch)
        comes = load >= LOAD_MIN and group.state is GroupState.ACTIVE  # what comes to others goes to the orphans
        by_arrivals = math.ceil(load) if comes else 0
        by_backlog = math.ceil(group.backlog * service_s / (settings.prefetch * settings.target_wait_s))
        need, rule = (by_arrivals, "arrivals") if by_arrivals > by_backlog else (by_backlog, "backlog")
        if need > 1 and not measured and not settings.eager:
            need, rule = 1, "guess"
        if not need:
            bound = group.state is GroupState.ACTIVE and not settings.scale_to_zero_while_bound
            need, rule = (1, "backlog" if group.busy else "bound") if group.busy or bound else (0, "idle")
        least = settings.min if group.state is not GroupState.DRAINING else 0
        if need < least:
            need, rule = least, "min"
        return (settings.max, "max") if need > settings.max else (need, rule)

    def pays(self, group: GroupFacts, workers: int, start_s: float, settings: Settings) -> bool:
        """Whether a worker beside these is up before the backlog is gone without it."""
        if workers < max(1, settings.min):
            return True
        service_s = self.service_s if self.samples else settings.service_s
        return group.backlog * service_s / (settings.prefetch * workers) > start_s

    def may_start(self, workers: int, ordered: int, now_s: float) -> bool:
        """Whether one more start is none too many. `workers` that the group has, `ordered` of them in this step."""
        while self._starts and self._starts[0][0] <= now_s - WINDOW_S:
            self._starts.popleft()
        least = self._starts[0][1] if self._starts else workers - ordered
        peak = max([workers, *(before for _, before in self._starts)]) + 1
        again = len(self._starts) + ordered + 1 - (peak - least)
        return again <= max(STARTS_MAX, peak)

    def started(self, workers: int, now_s: float) -> None:
        """One start was ordered, beside so many workers."""
        self._starts.append((now_s, workers))

    def remember(self, need: int, now_s: float) -> None:
        """Put a need into the window; the one before it was in force until now."""
        for each in (self._window[-1][1], need) if self._window else (need,):
            while self._window and self._window[-1][1] <= each:
                self._window.pop()
            self._window.append((now_s, each))

    def largest(self, now_s: float) -> int:
        """The largest need of the last WINDOW_S."""
        while len(self._window) > 1 and self._window[0][0] < now_s - WINDOW_S:
            self._window.popleft()
        return self._window[0][1] if self._window else 0

    def surplus(self, group: GroupFacts, active: int, now_s: float, settings: Settings) -> int:
        """How many workers to take back now."""
        floor = max(self.largest(now_s), math.ceil(group.held / settings.prefetch))
        over = active - floor
        if over <= 0 or now_s - self.down_s < DOWN_EVERY_S:
            return 0
        return min(over, max(1, active // DOWN_PART))

    def settles(self, need: int, now_s: float) -> bool:
        """At rest: no arrivals to forget, and the window holds nothing but the present need."""
        return self.arrivals * self.service_s < LOAD_MIN * LOAD and self.largest(now_s) == need
