"""Pace of syncs that no publisher waits for: `Pacing` beside live records, `Rate` as an operator bounds it (pure).

*Pacing.* A copy that returns behind a million messages could take them at the speed of disk and processors. But live
records use the same loops, links and group commits, and publishers wait for them. With live work such a sync
therefore goes in *rounds*: about ROUND_BYTES are requested, and after their durability here nothing more for the time
of the round. A round's time includes the owner's loop, the link, this loop and this disk, so the busiest of them gets
half of it back. The pause is bounded, so a sync ends under any load, one round in its own time and PAUSE_MAX_MS.
Small buckets share a round: thousands of queues with a few messages each are not slower. Without live work there are
neither rounds nor pauses.

*Rate.* An allowance grows by `limit_bytes` a second, up to one second of it, and received bytes reduce it. A bucket
may be requested while the allowance, without bytes in flight, is above 0, so it may end below: the next request waits
until that is made up for. Copies that publishers wait for are never held up, but count; their bytes are owed for
OWED_S at most, or the others would starve. The limit bounds this node's requests to all owners together, and thereby
their reading and sending.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LIVE_MS: Final = 500
"""Live work is what came in so recently."""
ROUND_BYTES: Final = 512 << 10
PAUSE_MAX_MS: Final = 50
OWED_S: Final = 10
LOOK_MS: Final = 1_000
"""A pause ends without a word, so it is looked at so often."""


@dataclass(slots=True)
class Pacing:
    """Rounds of one node, over all owners. Times in ms, of the clock that its caller goes by."""

    round_bytes: int = ROUND_BYTES
    _live_until_ms: int = -1
    _resume_ms: int = -1
    """Before this the next round does not begin."""
    _since_ms: int = 0
    _bytes: int = 0
    """What came in this round."""
    _asked: bool = False
    """A round is under way."""

    def live(self, now_ms: int) -> None:
        """Records of an Append came."""
        self._live_until_ms = now_ms + LIVE_MS

    def took(self, size: int) -> None:
        """So many bytes of a bucket came."""
        self._bytes += size

    def may_ask(self, outstanding: int, expected: int, now_ms: int) -> bool:
        """Whether one more bucket of about `expected` bytes may be asked for, when `outstanding` ones are on their way
        or not durable here; may end the round."""
        if self._asked and not outstanding and self._bytes + expected > self.round_bytes:
            self._asked = False
            self._resume_ms = now_ms + min(now_ms - self._since_ms, PAUSE_MAX_MS)
        if now_ms >= self._live_until_ms:
            return True
        if not self._asked:
            return now_ms >= self._resume_ms
        return self._bytes + expected * (outstanding + 1) <= self.round_bytes

    def opens_ms(self, now_ms: int) -> int:
        """When a no may turn into a yes though nothing came and nothing became durable."""
        return self._resume_ms if now_ms < self._resume_ms else self._live_until_ms

    def asked(self, now_ms: int) -> None:
        """A bucket is asked for; the first one begins a round."""
        if not self._asked:
            self._asked = True
            self._since_ms, self._bytes = now_ms, 0


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
