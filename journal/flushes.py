"""How long group commits take: counted by length, so that a slow disk has a name and a figure (pure).

Times are those that a confirm waits: from `submit` to `done`, the loop's part included.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
"""Upper ends, inclusive; what is longer stands in one more place."""
_BOUNDS_US: Final = tuple(int(bound * 1000) for bound in BOUNDS_MS)


class FlushTimes:
    """Of one journal since it was opened. `take_window` is for who looks at it now and then."""

    __slots__ = ("_before", "_longest_us", "_since_s", "counts", "us")

    def __init__(self) -> None:
        self.us = 0
        """Microseconds of all of them."""
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        """Not cumulative."""
        self._since_s: float | None = None
        self._before = 0, 0  # count and microseconds when the window began
        self._longest_us = 0  # of the window

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def began(self, now_s: float) -> None:
        """A group was submitted."""
        self._since_s = now_s

    def ended(self, now_s: float) -> None:
        """The one under way is done."""
        assert self._since_s is not None, "what ends has begun"
        took_us = int((now_s - self._since_s) * 1e6)
        self._since_s = None
        self.us += took_us
        self.counts[bisect_left(_BOUNDS_US, took_us)] += 1
        if took_us > self._longest_us:
            self._longest_us = took_us

    def take_window(self, now_s: float) -> tuple[int, int, int]:
        """(how many ended since the last call, their microseconds, those of the longest); one that is under way is told
        with what it has taken so far, and again when it has ended."""
        count, total_us, longest_us = self.count - self._before[0], self.us - self._before[1], self._longest_us
        self._before, self._longest_us = (self.count, self.us), 0
        if self._since_s is not None:
            so_far_us = int((now_s - self._since_s) * 1e6)
            count, total_us, longest_us = count + 1, total_us + so_far_us, max(longest_us, so_far_us)
        return count, total_us, longest_us
