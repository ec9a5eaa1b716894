"""Virtual time: what is to happen, in the order of its time, and the one source of chance.

Everything that happens in a run follows from its seed. `trace` folds what went over every wire and when: two runs of
one seed, in whatever process, have the same trace, or something depends on hash order, a clock or the world outside.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any


class Schedule:
    """Times in seconds of true time, which no node knows."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_s = 0.0
        self.events = 0
        self.trace = 0
        self.counts: Counter[str] = Counter()
        """How often things happened, for the report."""
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = 0

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now_s + delay_s, call, *arguments)

    def at(self, when_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (when_s, self._order, call, arguments))

    def run_until(self, end_s: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= end_s:
            self.now_s, _, call, arguments = heapq.heappop(heap)
            self.events += 1
            call(*arguments)
        self.now_s = end_s

    def traced(self, data: bytes) -> None:
        self.trace = zlib.crc32(data, self.trace ^ int(self.now_s * 1e6) & 0xFFFFFFFF)
