"""How much a node does in one turn of its loop for messages that nobody waits for: dead letters above all.

While a turn works, nobody is served and no beat is sent. What a single event sets going may be more than one turn
should do: a chain of queues that dead-letter to each other, a limit that makes a million messages expire. So work is
counted in units of about a microsecond, and a queue that finds nothing left goes on in the next turn (`Host.later`).

    left    of this turn
    owed    bytes of what is over a queue's length and waits for its turn to die: publishers wait while it is much
"""

from __future__ import annotations

from typing import Final

TURN: Final = 20_000
LETTER: Final = 80
HEADER_BYTES: Final = 4
"""Of a header that is decoded and encoded, for one unit."""
LOOKED_BYTES: Final = 256
"""Of a header that is looked through, for one unit."""
DUE: Final = 8
TARGET: Final = 4
POPPED: Final = 2


class Effort:
    """Of one node."""

    __slots__ = ("left", "owed")

    def __init__(self) -> None:
        self.left = TURN
        self.owed = 0

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def renew(self) -> None:
        """A turn begins."""
        self.left = TURN

    def letter(self, header_bytes: int, targets: int) -> None:
        """A dead letter was published."""
        self.left -= LETTER + header_bytes // HEADER_BYTES + TARGET * targets

    def looked(self, header_bytes: int) -> None:
        """A header was looked through without decoding."""
        self.left -= POPPED + header_bytes // LOOKED_BYTES

    def looked_at(self, count: int, header_bytes: int) -> None:
        """As `looked`, of so many."""
        self.left -= (POPPED * count) // 2 + header_bytes // LOOKED_BYTES

    def decoded(self, header_bytes: int) -> None:
        """A header was decoded."""
        self.left -= POPPED + header_bytes // (2 * HEADER_BYTES)

    def due(self, count: int, header_bytes: int, targets: int) -> None:
        """So many messages that were due were published, and their headers not decoded."""
        self.left -= DUE + count * targets + header_bytes // LOOKED_BYTES

    def popped(self) -> None:
        """A message was given up."""
        self.left -= POPPED
