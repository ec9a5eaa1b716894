"""Errors of callers, and what a handler raises instead of an answer.

Exception
+-- PoolError                 a call has no answer `ok`
|   +-- Unserved              the broker's answer: no worker did it. May be repeated
|   +-- WorkerFailed          the worker's answer: it did not succeed
|   +-- CallTimeout           no answer in time; a worker may be at it still
|   +-- Unsure                the connection was lost; the request may have been done, or not
+-- Busy                      raised by a handler: another worker is to do it
+-- Fail                      raised by a handler: an answer with the status `worker_error`
+-- Retry                     raised by a handler: once more, later
"""

from __future__ import annotations

from typing import Final

UNSERVED: Final = frozenset({
    "expired", "maxlen", "delivery_limit", "rejected", "invalid_key", "key_refused", "no_capacity", "start_failed",
    "cancelled", "pool_deleted",
})  # fmt: skip
"""Statuses that are the broker's words. All others are workers'."""


class PoolError(Exception):
    """A call that did not succeed."""


class Unserved(PoolError):
    """No worker did the request.

    `reason` is a word of UNSERVED, or `unroutable` (returned), `refused` (not confirmed), `no_pool` (no such exchange).
    `detail` is text for people, possibly empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"not served: {reason}{f' ({detail})' if detail else ''}")
        self.reason = reason
        self.detail = detail


class WorkerFailed(PoolError):
    """A worker's answer whose `status` is not `ok`; `body` as it came."""

    def __init__(self, status: str, body: bytes) -> None:
        super().__init__(f"the worker answered {status}: {body[:200].decode(errors='replace')}")
        self.status = status
        self.body = body


class CallTimeout(PoolError):
    """No answer within `timeout_s`. The broker gives the request to no worker any more; one that has it goes on."""


class Unsure(PoolError):
    """The connection was lost after the request was sent. Repeat it if that does no harm (`idempotent=True` does)."""


class Busy(Exception):
    """Raised by a handler: reject with requeue. The broker counts it against the delivery limit.

    `after_s`: seconds to wait before, for the request may come back at once.
    """

    def __init__(self, after_s: float = 0.2) -> None:
        super().__init__("busy")
        self.after_s = after_s


class Fail(Exception):
    """Raised by a handler: the request cannot be done. Answered with `status`, and the text as body."""

    def __init__(self, text: str, status: str = "worker_error") -> None:
        super().__init__(text)
        if status in UNSERVED:
            raise ValueError(f"status {status!r} is a word of the broker; take another one")
        self.text = text
        self.status = status


class Retry(Exception):
    """Raised by a handler: the request comes again after so many seconds, with `attempt` + 1."""

    def __init__(self, after_s: float) -> None:
        super().__init__(f"again in {after_s:g} s")
        if not after_s > 0:
            raise ValueError("after_s of Retry is a positive number of seconds")
        self.after_s = after_s
