"""What a row was before: rates from the last two samples, and rings of older ones for the curves of a page.

A node tells a row only when it changed, so a row holds from the moment it was told until the next one. From that:

    rate        (row - row before) / (sample - sample before), 0 when the last sample did not tell the row. The time is
                that between two *samples* of its node, whenever the row before was told: all of the change fell in it.
    value at t  the last row told at or before t; None before the first one, which nobody has seen

A total that fell began anew (its node restarted, the queue has another owner): what it shows is what came since.

A ring keeps one row per step, the last of it. Tracks of single things keep a minute, those that somebody looks at an
hour (`watch`), those of the whole cluster a day. A thing that did not change for more than a minute has its row alone.
Times are ms since 1970 on the clock of the node that told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

R = TypeVar("R")
Get = Callable[[Any], int | float]
"""One value of a row."""

MINUTE: Final = ((5_000, 14),)
HOUR: Final = ((5_000, 122), (60_000, 62))
DAY: Final = (*HOUR, (600_000, 50), (1_800_000, 50))
"""(step in ms, rows kept): both ends of the span, and what held before the first step ended."""
MINUTE_MS: Final = MINUTE[0][0] * MINUTE[0][1]
SAMPLES_MAX: Final = 500


class Window(NamedTuple):
    """What a page asks of the past: `*_age` and `*_incr` of the query, in ms. At most SAMPLES_MAX steps."""

    age_ms: int
    step_ms: int

    @property
    def longer(self) -> bool:
        """Than what is kept of everything."""
        return self.age_ms > MINUTE_MS


class Sampling:
    """When a node sampled last, and the time before. 0: never."""

    __slots__ = ("at_ms", "before_ms")

    def __init__(self) -> None:
        self.at_ms = 0
        self.before_ms = 0

    def sampled(self, at_ms: int) -> None:
        """A sample, perhaps the one that was known already. A clock that went back makes no rate this time."""
        if at_ms == self.at_ms:
            return
        self.before_ms = self.at_ms if at_ms > self.at_ms else 0
        self.at_ms = at_ms


class _Ring(Generic[R]):
    """The last row of each of so many steps."""

    __slots__ = ("capacity", "rows", "step_ms", "times")

    def __init__(self, step_ms: int, capacity: int, times: Iterable[int], rows: Iterable[R]) -> None:
        self.step_ms, self.capacity = step_ms, capacity
        self.times, self.rows = list(times)[-capacity:], list(rows)[-capacity:]

    def put(self, at_ms: int, row: R) -> None:
        if self.times and self.times[-1] // self.step_ms >= at_ms // self.step_ms:
            self.times[-1], self.rows[-1] = at_ms, row
            return
        self.times.append(at_ms)
        self.rows.append(row)
        if len(self.times) > self.capacity:
            del self.times[0], self.rows[0]


class Track(Generic[R]):
    """One row of one node, with its past. Rings are made with the second row: most things never change."""

    __slots__ = ("_rings", "_spans", "at_ms", "before", "row", "sampling")

    def __init__(
        self, sampling: Sampling, row: R, spans: tuple[tuple[int, int], ...] = MINUTE, since: R | None = None
    ) -> None:
        """`since`: what to count from, when it is known that the thing is new; without it, from this row on. A row
        made before the first sample is no part of the past: curves begin with that sample."""
        self.sampling = sampling
        self.row = row
        self.before: R | None = since
        self.at_ms = sampling.at_ms
        self._spans = spans
        self._rings: tuple[_Ring[R], ...] = ()

    def put(self, row: R) -> None:
        """The row of the last sample of its node."""
        if not self._rings:
            times, rows = ((self.at_ms,), (self.row,)) if self.at_ms else ((), ())
            self._rings = self._made(times, rows)
        self.before, self.row, self.at_ms = self.row, row, self.sampling.at_ms
        for ring in self._rings:
            ring.put(self.at_ms, row)

    def _made(self, times: Sequence[int], rows: Sequence[R]) -> tuple[_Ring[R], ...]:
        return tuple(_Ring(step_ms, capacity, times, rows) for step_ms, capacity in self._spans)

    @property
    def is_quiet(self) -> bool:
        """No row came for longer than is kept of everything."""
        return self.sampling.at_ms - self.at_ms > MINUTE_MS

    def rest(self) -> None:
        """It is quiet: what was before its row is over, unless somebody looks at an hour of it."""
        self.before = None
        if self._spans is MINUTE:
            self._rings = ()

    @property
    def idle_since_ms(self) -> int:
        """Since when nothing of it changed: the sample that told it last; 0: the last one did."""
        return 0 if self.at_ms == self.sampling.at_ms else self.at_ms

    def watch(self) -> None:
        """Keep an hour from now on."""
        if self._spans is MINUTE:
            self._keep(HOUR)

    def unwatch(self) -> None:
        """Keep a minute again."""
        if self._spans is HOUR:
            self._keep(MINUTE)
            if self.is_quiet:
                self.rest()

    def _keep(self, spans: tuple[tuple[int, int], ...]) -> None:
        self._spans = spans
        if self._rings:
            self._rings = self._made(self._rings[0].times, self._rings[0].rows)

    def last(self) -> tuple[R, float] | None:
        """The row of the sample before the last one, and the seconds between; None: nothing to make a rate of."""
        elapsed_ms = self.sampling.at_ms - self.sampling.before_ms
        if self.before is None or self.at_ms != self.sampling.at_ms or not self.sampling.before_ms or elapsed_ms <= 0:
            return None
        return self.before, elapsed_ms / 1000

    def rate(self, get: Get, gauge: bool = False) -> float:
        """Per second, over the last sample; of a gauge below 0 when it falls."""
        last = self.last()
        if last is None:
            return 0.0
        before, elapsed_s = last
        now = get(self.row)
        return (now - get(before) if gauge else grown(get(before), now)) / elapsed_s

    def at(self, t_ms: int, age_ms: int) -> R | None:
        """The row at that time, from the finest ring that reaches back `age_ms`."""
        if not self._rings:
            return self.row if 0 < self.at_ms <= t_ms else None
        ring = next((one for one in self._rings if one.step_ms * one.capacity >= age_ms), self._rings[-1])
        place = bisect_right(ring.times, t_ms)
        return ring.rows[place - 1] if place else None


def quick(path: str, fields: Mapping[str, Get], gauge: bool = False) -> Callable[[Track[Any]], int | float] | None:
    """How to read `field` or `field_details.rate` off a row; None: it is neither."""
    if path in fields:
        get = fields[path]
        return lambda track: get(track.row)
    field = path.removesuffix("_details.rate")
    if field == path or field not in fields:
        return None
    rated = fields[field]
    return lambda track: track.rate(rated, gauge)


def grown(before: int | float, now: int | float) -> int | float:
    """By how much a total grew; one that fell began anew."""
    return now - before if now >= before else now


def details(tracks: Sequence[Track[Any]], get: Get, window: Window | None, gauge: bool = False) -> dict[str, Any]:
    """`{"rate"}`, and with a window `samples` (the newest first), `avg` and `avg_rate`: sums over the tracks."""
    rate = sum(track.rate(get, gauge) for track in tracks)
    answer: dict[str, Any] = {"rate": float(rate)}
    if window is None:
        return answer
    samples = _samples(tracks, get, window)
    answer["samples"] = [{"sample": value, "timestamp": at_ms} for at_ms, value in samples]
    answer["avg"] = sum(value for _, value in samples) / len(samples) if samples else 0.0
    answer["avg_rate"] = _average_rate(samples, gauge)
    return answer


def _samples(tracks: Iterable[Track[Any]], get: Get, window: Window) -> list[tuple[int, int | float]]:
    step_ms = window.step_ms
    sums: dict[int, int | float] = {}
    for track in tracks:
        end_ms = track.sampling.at_ms // step_ms * step_ms
        for at_ms in range(end_ms, end_ms - window.age_ms - 1, -step_ms):
            row = track.at(at_ms, window.age_ms)
            if row is None:
                break
            sums[at_ms] = sums.get(at_ms, 0) + get(row)
    return sorted(sums.items(), reverse=True)


def _average_rate(samples: list[tuple[int, int | float]], gauge: bool) -> float:
    if len(samples) < 2:
        return 0.0
    (newest_ms, newest), (oldest_ms, oldest) = samples[0], samples[-1]
    change = newest - oldest if gauge else grown(oldest, newest)
    return change * 1000 / (newest_ms - oldest_ms)
