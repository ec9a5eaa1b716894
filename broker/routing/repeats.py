"""By which header a message is compared with others: of queues with `x-message-deduplication`, and of exchanges of this
type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEADER: Final = "x-deduplication-header"
CACHE_TTL: Final = "x-cache-ttl"
"""Of a message: for how many ms an exchange knows its value."""
PASSED: Final = "x-deduplication-passed"
"""Exchanges that a message has passed on its way to the queue of the next one; nobody else sees it."""


def is_compared(headers: Mapping[str, object] | None) -> bool:
    """Whether the message has a value, and is compared with others."""
    return headers is not None and headers.get(HEADER) is not None


def uncompared(headers: Mapping[str, object]) -> dict[str, object]:
    """The headers by which such a message is routed when nobody compares it."""
    return {name: value for name, value in headers.items() if name != HEADER}
