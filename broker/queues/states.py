"""States of a message in a ring, and answers of a ring; ring.pyx has the same numbers in C."""

from __future__ import annotations

from typing import Final

READY: Final = 1
UNACKED: Final = 2
DEAD: Final = 5

# What stands at the head of a ring, and so why a dispatch stopped.
HEAD_OK: Final = 0
HEAD_NONE: Final = 1
HEAD_NOT_LOADED: Final = 2
HEAD_NOT_RESERVED: Final = 3
HEAD_EXPIRED: Final = 4
NO_CREDIT: Final = 5
LIMIT: Final = 6
HEAD_NOT_COMMITTED: Final = 7

HOLDER_MAX: Final = 253
LINK: Final = 254
LEASED: Final = 255
"""Holders of a message: nodes are 1 to HOLDER_MAX; links that outlive their connections are LINK, a lease is LEASED."""
BUCKET_SEQS: Final = 4096
"""Owner and replica compare so many seqs at a time."""
