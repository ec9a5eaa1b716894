"""How often the groups' owners of a node tell the controllers of their pools.

A group is told on change, each TELL_MS at most. ROWS_PER_S bounds what a node tells of all its groups together: beyond
it each group waits longer, in proportion, so all are told in turn and none is left out. Groups that begin at once may
go beyond it for one window.
"""

from __future__ import annotations

from typing import Final

TELL_MS: Final = 250
"""The controller hears of a group so often at most."""
ROWS_PER_S: Final = 2000
"""That a node tells in the long run."""
WINDOW_MS: Final = 1000
"""What was told is counted for so long, or for an interval if that is longer."""


class TellPace:
    """Of one node. Times are of the node's clock, in ms."""

    def __init__(self) -> None:
        self._interval_ms = TELL_MS
        self._begin_ms = 0
        self._rows = 0

    def interval_ms(self, now_ms: int) -> int:
        """A group is told again after it."""
        if now_ms - self._begin_ms >= 2 * self._window_ms:  # hardly anything is told
            self._begin(now_ms)
            self._interval_ms = TELL_MS
        return self._interval_ms

    def told(self, now_ms: int) -> None:
        """A row was told."""
        passed_ms = now_ms - self._begin_ms
        if passed_ms >= self._window_ms:
            bound = ROWS_PER_S * passed_ms / 1000
            self._interval_ms = max(TELL_MS, round(self._interval_ms * self._rows / bound))
            self._begin(now_ms)
        self._rows += 1

    @property
    def _window_ms(self) -> int:
        return max(WINDOW_MS, self._interval_ms)

    def _begin(self, now_ms: int) -> None:
        self._begin_ms, self._rows = now_ms, 0
