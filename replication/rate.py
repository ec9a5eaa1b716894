"""Rate limit in bytes per second for copies that no publisher waits for, as an operator sets it (pure).

Theory. An allowance grows by `limit_bytes` a second, up to one second of it, and received bytes reduce it. A bucket
may be requested while the allowance, without bytes in flight, is above 0, so it may end below: the next request waits
until that is made up for. Copies that publishers wait for are never held up, but count; their bytes are owed for
OWED_S at most, or the others would starve. The limit bounds this node's requests to all owners together, and thereby
their reading and sending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OWED_S: Final = 10
LOOK_MS: Final = 1_000
"""A pause ends without a word, so it is looked at so often."""


@dataclass(slots=True)
class Rate:
    """Times in ms, of the clock that its caller goes by."""

    limit_bytes: int = 0
    """Bytes per second; 0: as fast as it goes."""
    paused: bool = False
    bytes: int = 0
    """Total of what came in."""
    _allowed: float = 0.0
    _at_ms: int | None = None

    def may_ask(self, on_the_way: int, now_ms: int) -> bool:
        """Whether one more bucket may be asked for, when about so many bytes are on their way."""
        if self.paused:
            return False
        if not self.limit_bytes:
            return True
        passed_ms = 1000 if self._at_ms is None else now_ms - self._at_ms
        self._allowed = min(self._allowed + passed_ms * self.limit_bytes / 1000, float(self.limit_bytes))
        self._at_ms = now_ms
        return self._allowed > on_the_way

    def opens_ms(self, now_ms: int) -> int:
        """When a no should be asked about again, though nothing came."""
        if self.paused or not self.limit_bytes or self._allowed > 0:
            return now_ms + LOOK_MS
        return now_ms + min(LOOK_MS, 1 + int(-self._allowed * 1000 / self.limit_bytes))

    def took(self, size: int) -> None:
        """So many bytes of a bucket came."""
        self.bytes += size
        if self.limit_bytes:
            self._allowed = max(self._allowed - size, -float(max(OWED_S * self.limit_bytes, size)))
