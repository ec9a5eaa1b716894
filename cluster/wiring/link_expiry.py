"""When suspended links end: by the time for which the node that leads has seen them suspended.

A node that begins to lead begins anew with all of them, so a link ends late, and never early.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clusterbroker.cluster.ids import LogIndex

from . import commands as c
from .view import ClusterView

AGAIN_MS: Final = 5000
"""Proposed again if nothing came of it by then."""


class LinkExpiry:
    """Which links have been suspended since when, as one node sees it."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        """Nothing was seen."""
        self._since: dict[LogIndex, tuple[int, int]] = {}  # link -> (attach, when it was seen)

    @property
    def seen(self) -> Mapping[LogIndex, tuple[int, int]]:
        """Suspended link -> (its attach, when it was seen so), in ms of the times that `look` is given."""
        return self._since

    def look(self, leads: bool, view: ClusterView, now_ms: int) -> tuple[list[c.ExpireLink], int | None]:
        """What is to be proposed, and when to look again if nothing changes; None: then there is nothing to see."""
        if not leads:
            self._since.clear()
            return [], None
        since, self._since = self._since, {}
        over: list[c.ExpireLink] = []
        next_ms: int | None = None
        for link in view.links():
            if not link.suspended:
                continue
            attach, seen_ms = since.get(link.link, (link.attach, now_ms))
            if attach != link.attach:
                seen_ms = now_ms
            if link.timeout_ms is None:
                self._since[link.link] = link.attach, seen_ms
                continue
            due_ms = seen_ms + link.timeout_ms
            if due_ms <= now_ms:
                over.append(c.ExpireLink(link=link.link, attach=link.attach))
                due_ms = now_ms + AGAIN_MS
            self._since[link.link] = link.attach, seen_ms
            next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
        return over, next_ms
