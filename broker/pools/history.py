"""What became of a pool's workers of late, at its controller: starts, and ends with their reasons (pure).

    started    ordered                                  assigned   a spare has got its key
    ready      it consumes, or has said so              retired    it gets no more requests, and may finish: `why`
    exited     it is gone: `exit_status`, `detail`      revoked    it may work no more: `why`

Bounded, and in memory: another controller begins anew, at `since_ms`. Nothing is made for it: it is noted where the
controller hears of these changes anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from clusterbroker.cluster.wiring.pool_entities import NO_KEY

KEPT_MAX: Final = 200
TEXT_MAX: Final = 200
"""Of a reason, characters: all of a history fits into one answer."""
Word = Literal["started", "assigned", "ready", "retired", "revoked", "exited"]
Document = dict[str, Any]


class Entry(NamedTuple):
    """One. Empty or None: not known, or none."""

    number: int
    """From 1 on, without gaps, of one controller."""
    at_ms: int
    event: Word
    worker: str
    key: str
    """NO_KEY: a spare, or a worker of several keys."""
    place: str
    why: str = ""
    """It was to leave; of `exited`: empty for one that ended by itself."""
    detail: str = ""
    """As its place has told."""
    exit_status: int | None = None
    peak_bytes: int = 0
    took_ms: int | None = None
    """Of `ready`: since its order, or since it got its key. Of `exited`: since it was ready."""
    was_ready: bool | None = None
    """Of `exited`; None: an earlier controller may know."""


class History:
    """Of one controller."""

    __slots__ = ("_kept", "_number", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        """From here on all is in it; later, if there was too much."""
        self._kept: deque[Entry] = deque()
        self._number = 0

    def note(self, at_ms: int, event: Word, worker: str, key: str, place: str, **about: Any) -> None:
        """What happened to a worker. `about`: other fields of its entry."""
        self._number += 1
        for name in ("why", "detail"):
            about[name] = str(about.get(name, ""))[:TEXT_MAX]
        self._kept.append(Entry(self._number, at_ms, event, worker, key, place, **about))
        if len(self._kept) > KEPT_MAX:
            self.since_ms = self._kept.popleft().at_ms
        assert len(self._kept) <= KEPT_MAX, "a history is bounded"

    def document(self, wanted: Callable[[str], bool]) -> Document:
        """The newest first, of workers whose keys are wanted; of those without a key, all."""
        return {
            "since_ms": self.since_ms,
            "entries": [
                one._asdict() | {"key": None if one.key == NO_KEY else one.key}
                for one in reversed(self._kept)
                if one.key == NO_KEY or wanted(one.key)
            ],
        }
