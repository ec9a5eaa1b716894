"""Who failed to sign in too often waits: ten times within a minute, by user and address, until the minute is over.

The pair and not the user alone: somebody elsewhere who guesses a name must not lock its owner out. At most PAIRS_MAX
pairs are remembered; beyond that the oldest are let go, and a guesser with as many addresses is not held up by this.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FAILURES_MAX: Final = 10
WINDOW_MS: Final = 60_000
PAIRS_MAX: Final = 10_000


class Throttle:
    """Failed attempts, by (user, address): since when, and how many."""

    __slots__ = ("_failed",)

    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def waits_ms(self, user: str, address: str, now_ms: int) -> int:
        """For how long this pair still has to wait; 0: not at all."""
        since_ms, count = self._failed.get((user, address), (0, 0))
        left_ms = since_ms + WINDOW_MS - now_ms
        if count and left_ms <= 0:
            del self._failed[(user, address)]
            return 0
        return left_ms if count >= FAILURES_MAX else 0

    def failed(self, user: str, address: str, now_ms: int) -> None:
        """An attempt failed."""
        since_ms, count = self._failed.get((user, address), (now_ms, 0))
        if now_ms - since_ms >= WINDOW_MS:
            since_ms, count = now_ms, 0
        self._failed[(user, address)] = (since_ms, count + 1)
        if len(self._failed) > PAIRS_MAX:
            self._failed.popitem(last=False)

    def succeeded(self, user: str, address: str) -> None:
        """An attempt was good: nothing is remembered of the bad ones."""
        self._failed.pop((user, address), None)
