"""A publisher's receipt: neighbouring publishes of one channel that wait for their queues' answers together.

A queue answers through its commit watermark: it keeps (seq, ticket) and passes the ticket once all below seq is
decided. No message has bookkeeping of its own. When the last queue has passed, `on_done` hears of it; what that
means (basic.ack, basic.nack, tx.commit-ok) is the session's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Counts(Protocol):
    """Who wants to know how many publishes were confirmed."""

    confirm: int


class Ticket:
    """Publishes `first` to `last` (confirm sequence numbers, inclusive).

    waits     queues, and other conditions, that have not answered yet
    rejected  a queue refused at least one of the messages (overflow reject-publish)
    counts    of the exchange that they were published to
    """

    __slots__ = ("counts", "first", "last", "on_done", "rejected", "waits")

    def __init__(self, first: int, last: int, on_done: Callable[[Ticket], None]) -> None:
        self.first = first
        self.last = last
        self.on_done = on_done
        self.waits = 1  # the publish itself: passed when all queues have been asked
        self.rejected = False
        self.counts: Counts | None = None

    @property
    def done(self) -> bool:
        return self.waits == 0

    def hold(self) -> None:
        self.waits += 1

    def pass_(self) -> None:
        assert self.waits > 0, "a ticket is passed as often as it was held"
        self.waits -= 1
        if not self.waits:
            self.on_done(self)
