"""Progress of requests, as workers that are connected to this node report it: the last report of each request.

A report counts for the connection that sends it, so no worker tells of another one's request. An operator asks for it
where the request is held (`node/holders.py`), so nothing is told between nodes, however often a worker reports; the
library sends four reports a second at most. The table forgets the request whose last report is the oldest, and is empty
after a restart of the node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.activity_headers import EVENT, text_of
from clusterbroker.journal.record import Message

PART: Final = "x-progress"
REQUEST: Final = "x-correlation-id"
"""Of the request; without this header the report's own correlation id counts."""
KNOWN_MAX: Final = 10_000
"""Requests of a node: 3 MB at most."""
ID_BYTES_MAX: Final = 255


class Part(NamedTuple):
    """How much is done, 0 to 1, and when that was reported, ms since 1970."""

    part: float
    at_ms: int


class Progress:
    """Of one node."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Part] = {}
        """(holder, correlation id) -> its last report; the oldest one first."""

    def heard(self, holder: str, reports: Sequence[Message], now_ms: int) -> None:
        """`holder`: the launch, or else the connection, that reports."""
        for report in reports:
            properties = properties_of(report)
            headers = properties.headers or {}
            if text_of(headers.get(EVENT)) != "progress":
                continue
            part = _part(headers.get(PART))
            request = text_of(headers.get(REQUEST)) or properties.correlation_id or ""
            if part is None or not request or len(request) > ID_BYTES_MAX:
                continue
            self._last.pop((holder, request), None)
            if len(self._last) >= KNOWN_MAX:
                del self._last[next(iter(self._last))]
            self._last[holder, request] = Part(part, now_ms)

    def since(self, holder: str, request: str, since_ms: int) -> Part | None:
        """The last report of a request that the holder has had since then; None: there is none. An earlier report is
        of another request with the same correlation id, or of an earlier delivery."""
        found = self._last.get((holder, request))
        return found if found is not None and found.at_ms >= since_ms else None


def _part(value: Any) -> float | None:
    """Of a header: a number, or a text of one."""
    try:
        part = float(text_of(value) or value)
    except (TypeError, ValueError, OverflowError):
        return None
    return part if math.isfinite(part) and 0 <= part <= 1 else None
