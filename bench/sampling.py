"""A figure that a thread samples while something else is measured."""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections.abc import Callable
from typing import Generic, Self, TypeVar

Number = TypeVar("Number", int, float)


class Sampled(Generic[Number]):
    """While it is entered: what `now` returns, each `every_s`, with the moment by `clock_ns`."""

    def __init__(
        self, now: Callable[[], Number], every_s: float, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._now, self._every_s, self._clock_ns = now, every_s, clock_ns
        self._samples: list[tuple[int, Number]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.is_set():
            self.note(self._clock_ns(), self._now())
            self._over.wait(self._every_s)

    def note(self, at_ns: int, value: Number) -> None:
        """One sample."""
        self._samples.append((at_ns, value))

    def most(self, since_ns: float) -> Number:
        """The largest one from that moment on."""
        return max(value for at_ns, value in self._samples if at_ns >= since_ns)

    def between(self, from_ns: int, to_ns: int) -> float:
        """By how much it grew from one moment to another."""
        return self._at(to_ns) - self._at(from_ns)

    def _at(self, moment_ns: int) -> float:
        place = bisect(self._samples, moment_ns, key=lambda sample: sample[0])
        if place in (0, len(self._samples)):
            return self._samples[min(place, len(self._samples) - 1)][1]
        (began_ns, before), (ended_ns, after) = self._samples[place - 1 : place + 1]
        return before + (after - before) * (moment_ns - began_ns) / (ended_ns - began_ns)
