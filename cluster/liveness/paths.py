"""Working directions of datagrams between this node and each other one (pure).

Every message of a heart carries the time since a datagram of its receiver came. Each side thus knows both directions:
the incoming one by itself, the outgoing one by report. A message without a known way as a datagram uses the TCP link
as well; duplicates do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER_MS: Final = 0xFFFF
"""The longest that a beat can hold: it may be never."""
FRESH_S: Final = 0.35
"""Three beats: a datagram or two may be lost."""
BLOCKED_S: Final = 2.0
"""What does not arrive for so long is blocked."""
ALIVE_S: Final = 1.0


@dataclass(slots=True)
class _Path:
    since: float
    received_at: float
    datagram_at: float | None = None
    arrives_at: float | None = None
    missing_since: float | None = None


class Paths:
    """By the names of the others. Times are seconds of one clock."""

    __slots__ = ("_paths",)

    def __init__(self) -> None:
        self._paths: dict[str, _Path] = {}

    def came(self, name: str, heard_ms: int, by_link: bool, now: float) -> None:
        """A message came, by link or as a datagram; a datagram of this node came to it `heard_ms` ago."""
        path = self._paths.get(name)
        if path is None or now - path.received_at > ALIVE_S:  # of before its silence nothing is known any more
            path = self._paths[name] = _Path(now, now)
        path.received_at = now
        if not by_link:
            path.datagram_at = now
        if heard_ms <= FRESH_S * 1000:
            path.arrives_at, path.missing_since = now, None
        elif path.missing_since is None:
            path.missing_since = now

    def heard_ms(self, name: str, now: float) -> int:
        """How long ago a datagram of it came: 0 when another thread noted one since `now`, and never less."""
        path = self._paths.get(name)
        if path is None or path.datagram_at is None:
            return NEVER_MS
        return max(0, min(NEVER_MS, int((now - path.datagram_at) * 1000)))

    def arrives(self, name: str, now: float) -> bool:
        """Whether datagrams of this node are known to arrive there."""
        path = self._paths.get(name)
        return path is not None and path.arrives_at is not None and now - path.arrives_at <= FRESH_S

    def silent_s(self, name: str, now: float) -> float:
        """How long nothing came of it, by any way; endless: never."""
        path = self._paths.get(name)
        return float("inf") if path is None else now - path.received_at

    def blocked(self, own: str, now: float) -> list[tuple[str, str]]:
        """(from, to): directions in which datagrams do not pass, while the link between both works."""
        found = []
        for name, path in sorted(self._paths.items()):
            if now - path.received_at > ALIVE_S:
                continue
            if now - (path.datagram_at if path.datagram_at is not None else path.since) > BLOCKED_S:
                found.append((name, own))
            if path.missing_since is not None and now - path.missing_since > BLOCKED_S:
                found.append((own, name))
        return found

    def keep(self, names: set[str]) -> None:
        """Forget all but these."""
        self._paths = {name: path for name, path in self._paths.items() if name in names}
