"""Sums of the fold's outcomes, window by window: they reveal members with diverged maps.

Equal logs give equal maps, as long as the fold is a function of the log alone. A bug in it, or faulty memory, would
make one member's map another one, unnoticed. Each member therefore sums up the outcomes of its commands, in windows
of WINDOW indices, and sends its leader the sum of the last window that it has seen as a whole; the leader compares it
with its own.

A window begins at a multiple of WINDOW and is independent of those before it: a member that starts from a snapshot
sums up the next whole window, and no sum has to be stored. The sum has of each command its index, its kind of error,
its number of changes, and the first CHANGES_SUMMED_MAX of these: the cost of a command stays bounded.
"""

from __future__ import annotations

import hashlib
from typing import Final

from clusterbroker.cluster.wiring.arguments import CANONICAL
from clusterbroker.cluster.wiring.map import Applied

WINDOW: Final = 256
KEPT: Final = 64
"""So many windows back a member may be and is still compared."""
CHANGES_SUMMED_MAX: Final = 64

Window = tuple[int, int]
"""(its first index, its sum); (0, 0): none was seen as a whole."""


class Outcomes:
    """Of one fold. Invariant: `_closed` has windows that were summed from their first command on."""

    __slots__ = ("_closed", "_differ", "_first", "_hash", "_whole")

    def __init__(self) -> None:
        self._first = -1
        """Of the window that is being summed."""
        self._whole = False
        """It was, from its first index on: the one in which this fold began was not."""
        self._hash = hashlib.blake2b(digest_size=8)
        self._closed: dict[int, int] = {}
        self._differ: dict[str, int] = {}

    def add(self, index: int, applied: Applied | None) -> None:
        """What came of the entry at `index`; None: it was not its turn, or it was empty."""
        first = index - index % WINDOW
        if first != self._first:
            if self._whole:
                self._closed[self._first] = int.from_bytes(self._hash.digest()[:6], "big")
                if len(self._closed) > KEPT:
                    del self._closed[next(iter(self._closed))]
            self._whole = self._first >= 0
            self._first = first
            self._hash = hashlib.blake2b(digest_size=8)
        outcome = (None, 0, ())
        if applied is not None:
            error = type(applied.error).__name__ if applied.error is not None else None
            outcome = (error, len(applied.changes), applied.changes[:CHANGES_SUMMED_MAX])  # type: ignore[assignment]
        self._hash.update(CANONICAL.encode((index, outcome)))

    @property
    def last(self) -> Window:
        """The last whole window."""
        first = next(reversed(self._closed), None)
        return (0, 0) if first is None else (first, self._closed[first])

    def differs(self, peer: str, window: Window) -> bool | None:
        """Whether a member's sum is another one than ours; None: that is no news, or not known."""
        first, theirs = window
        mine = self._closed.get(first)
        if mine is None:
            return None
        known = peer in self._differ
        if mine != theirs:
            self._differ[peer] = first
            return None if known else True
        if known and first > self._differ[peer]:
            del self._differ[peer]
            return False
        return None
