"""A request, as a worker sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one caller. It comes again when its worker was lost: work on it may be repeated."""

    key: str
    """Routing key: the key of the worker."""
    body: bytes
    path: str | None
    """Header `x-rpc-path`: the operation, as callers name it."""
    headers: Mapping[str, Any]
    correlation_id: str | None
    reply_to: str | None
    """None: nobody waits for an answer."""
    content_type: str | None
    deadline: float | None
    """Header `x-deadline`, seconds since 1970: later than this nobody waits. None: unknown."""
    attempt: int
    """0, and one more for each Retry."""
    redelivered: bool
    traceparent: str | None
    _progress: Callable[[float], None]

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline, negative when it is over; None: unknown."""
        return None if self.deadline is None else self.deadline - time.time()

    def progress(self, part: float) -> None:
        """Report progress, 0..1, from any thread and as often as one likes. Not confirmed; an operator sees the last
        report of a request with a correlation id."""
        if not 0 <= part <= 1:
            raise ValueError(f"progress is between 0 and 1, not {part}")
        self._progress(part)
