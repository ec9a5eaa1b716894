"""Distance of the members' clocks from this node's, and from the median of all (pure).

A beat carries its sender's time. Its lead over the receiver's time is the difference of their clocks, less the beat's
way, which is milliseconds; only minutes matter here. A difference ends nothing. It is shown, and a member far from
the median is not believed where time destroys.

The median of an even number are two values, and the farther counts: of two members that differ either may be wrong,
so neither is believed.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

DIFFERS_MS: Final = 60_000
"""A clock that is farther from the middle is wrong."""
FRESH_S: Final = 10.0
"""An older beat does not count: its sender may be gone, and its clock may have been set."""


class Clocks:
    """Differences in milliseconds: above zero, that clock is ahead of this node's."""

    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: dict[str, tuple[float, int]] = {}

    def heard(self, name: str, ahead_ms: int, now: float) -> None:
        """A beat came; `now`: seconds, any clock that only grows."""
        self._heard[name] = now, ahead_ms

    def keep(self, names: Set[str]) -> None:
        """Forget all but these."""
        self._heard = {name: entry for name, entry in self._heard.items() if name in names}

    def ahead_ms(self, now: float) -> dict[str, int]:
        """By how much each other member's clock is ahead of this node's, of those who were heard of lately."""
        return {name: ahead for name, (at, ahead) in sorted(self._heard.items()) if now - at <= FRESH_S}

    def off_ms(self, now: float, own_ms: int = 0) -> int:
        """How far this node's clock is ahead of the middle of all, its own among them; 0 when nobody else is heard.

        `own_ms`: of another clock of this node, so much ahead of the one that the differences are measured by.
        """
        ahead = sorted((*self.ahead_ms(now).values(), own_ms))
        middle = {ahead[(len(ahead) - 1) // 2], ahead[len(ahead) // 2]}
        return max((own_ms - there for there in middle), key=abs)
