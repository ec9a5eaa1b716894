"""Which refusals are worth a line: the first of each peer, then one a minute that counts the others (pure)."""

from __future__ import annotations

from typing import Final

PAUSE_S: Final = 60.0
PEERS_MAX: Final = 1024


class Refusals:
    """Remembers at most PEERS_MAX peers; beyond that the one longest not told is forgotten."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}
        """Peer -> (when it was told last, how many since), in the order of the former."""

    def count(self, peer: str, now: float) -> int | None:
        """One more refusal of `peer`: None: say nothing; else how many were not told since the last one."""
        told, silent = self._told.get(peer, (None, 0))
        if told is not None and now - told < PAUSE_S:
            self._told[peer] = told, silent + 1
            return None
        self._told.pop(peer, None)
        self._told[peer] = now, 0
        if len(self._told) > PEERS_MAX:
            del self._told[next(iter(self._told))]
        return silent
