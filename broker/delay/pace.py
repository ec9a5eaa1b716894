"""How many messages a second leave a delay queue at most (argument `x-delay-rate`), so that what an outage has kept
does not flood those behind: pure."""

from __future__ import annotations

from typing import Final

MANY: Final = 2**62
LEAST_MS: Final = 10
"""A wait for the next ones."""


class Pace:
    """Of one queue. `left`: so many may go now; they are given out anew as time passes, those of a second at most."""

    __slots__ = ("_at_ms", "_rate", "left")

    def __init__(self, rate: object) -> None:
        self._rate = rate if isinstance(rate, int) and rate > 0 else 0  # 0: there is no limit
        self._at_ms = 0
        self.left = 0.0

    def has_room(self, now_ms: int) -> bool:
        """Whether one may go. A clock that goes back takes nothing away."""
        if not self._rate:
            return True
        passed_ms = min(max(0, now_ms - self._at_ms), 1000)
        self._at_ms = now_ms
        self.left = min(self.left + passed_ms * self._rate / 1000, max(1, self._rate))
        return self.left >= 1

    @property
    def most(self) -> int:
        """So many may go now, once one has room."""
        return int(self.left) if self._rate else MANY

    @property
    def wait_ms(self) -> int:
        """Until the next one may go."""
        return max(LEAST_MS, int(1000 / self._rate)) if self._rate else 0
