"""Serial numbers of 32 bits (RFC 1982): delivery-ids, transfer-ids and delivery-counts (2.8.9, 2.8.10)."""

from __future__ import annotations

from typing import Final

SERIALS: Final = 1 << 32
"""So many there are; behind the last one comes 0."""


def distance(since: int, number: int) -> int:
    """From `since` to `number`, -2^31 to 2^31 - 1: negative when `number` is the older one."""
    steps = (number - since) % SERIALS
    return steps - SERIALS if steps >= SERIALS // 2 else steps


def room(taken: int, seen: int, granted: int) -> int:
    """How many numbers there are from `taken` on, when `granted` were given (up to 2^32 - 1) by who had seen `seen`; 0
    when these are used up."""
    return min(max(0, granted - distance(seen, taken)), SERIALS - 1)
