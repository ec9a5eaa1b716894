"""Refusals to log (pure): of each peer a reason once a minute, at most LINES_MAX reasons.

A reason hides no other one: a peer that is refused for a link too many, and then for its protocol, gets both lines.
Suppressed lines are counted, and the count is in the next line of that peer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PAUSE_S: Final = 60.0
LINES_MAX: Final = 4
"""So many reasons of a peer in a minute: a reason may have a number in it that is another one each time."""
PEERS_MAX: Final = 1024
KEPT_CHARS: Final = 100
"""What is kept of a reason."""


class _Minute(NamedTuple):
    began_s: float
    logged: tuple[str, ...]
    suppressed: int


class Refusals:
    """Remembers at most PEERS_MAX peers; beyond that the one whose minute began first is forgotten."""

    __slots__ = ("_minutes",)

    def __init__(self) -> None:
        self._minutes: dict[str, _Minute] = {}
        """By peer, in the order in which they began."""

    def count(self, peer: str, line: str, now_s: float) -> int | None:
        """One more refusal of `peer`: None: log nothing; else how many were suppressed since its last line."""
        line = line[:KEPT_CHARS]
        minute = self._minutes.get(peer)
        if minute is not None and now_s - minute.began_s < PAUSE_S:
            if line in minute.logged or len(minute.logged) >= LINES_MAX:
                self._minutes[peer] = minute._replace(suppressed=minute.suppressed + 1)
                return None
            self._minutes[peer] = minute._replace(logged=(*minute.logged, line), suppressed=0)
            return minute.suppressed
        self._minutes.pop(peer, None)
        self._minutes[peer] = _Minute(now_s, (line,), 0)
        if len(self._minutes) > PEERS_MAX:
            del self._minutes[next(iter(self._minutes))]
        return minute.suppressed if minute is not None else 0
