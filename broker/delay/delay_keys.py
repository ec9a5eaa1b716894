"""Keys under which messages of a delay queue wait (header `x-delay-key`): a message takes the place of the one that
waits under its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

KEYS_MAX: Final = 100_000
"""Keys under which something waits."""


class DelayKeys:
    """Of one queue: key to the number (seq) of its newest message, which may have left. `waits` tells whether a number
    does still wait."""

    __slots__ = ("_newest", "_waits")

    def __init__(self, waits: Callable[[int], bool]) -> None:
        self._newest: dict[str, int] = {}
        self._waits = waits

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= KEYS_MAX

    def under(self, key: str) -> int:
        """The message that waits under it; 0: none."""
        seq = self._newest.get(key, 0)
        return seq if seq and self._waits(seq) else 0

    def ending(self, end: str) -> list[int]:
        """Messages that wait under keys that end so."""
        return [seq for key, seq in self._newest.items() if key.endswith(end) and self._waits(seq)]

    def has_room(self, wanted: int) -> bool:
        """For so many keys more. Keys under which nothing waits any more are forgotten for it."""
        if len(self._newest) + wanted > KEYS_MAX:
            self._newest = {key: seq for key, seq in self._newest.items() if self._waits(seq)}
        return len(self._newest) + wanted <= KEYS_MAX

    def note(self, key: str, seq: int) -> int:
        """A message waits under a key. The one with the lower number of the two, which leaves if this is new; 0: there
        is one only."""
        known = self._newest.get(key, 0)
        self._newest[key] = max(seq, known)
        return 0 if seq == known else min(seq, known)

    def forget(self, key: str, seq: int) -> None:
        """That message waits no more."""
        if self._newest.get(key) == seq:
            del self._newest[key]

    def clear(self) -> None:
        """Nothing waits."""
        self._newest.clear()
