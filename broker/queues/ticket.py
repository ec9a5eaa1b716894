"""A publisher's receipt: neighbouring publishes of one channel that wait for their queues' answers together.

A queue answers through its commit watermark: it keeps (seq, ticket) and passes the ticket once all below seq is
decided. No message has bookkeeping of its own. When the last queue has passed, `on_done` gets the ticket with its
outcome (AMQP 1.0, 3.4); its meaning in a protocol (basic.ack, basic.nack, tx.commit-ok) is the session's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, NamedTuple, Protocol

FULL: Final = "queue is full"
UNROUTABLE: Final = "no queue for the routing key"


class Outcome(Enum):
    ACCEPTED = "accepted"
    """All queues of the route have the messages."""
    REJECTED = "rejected"
    """A queue refused at least one of the messages; others of the route may have it."""
    RELEASED = "released"
    """The route leads to no queue."""


class Refused(NamedTuple):
    """Why a publish was not accepted. `queue`: name of the first that refused; "" when no queue did."""

    reason: str
    queue: str = ""


class Counts(Protocol):
    """Who wants to know how many publishes were confirmed."""

    confirm: int


class Ticket:
    """Publishes `first` to `last` (confirm sequence numbers, inclusive).

    waits     queues, and other conditions, that have not answered yet
    rejected  a queue refused at least one of the messages (overflow reject-publish)
    refused   the first refusal, where it is known
    counts    of the exchange that they were published to
    """

    __slots__ = ("counts", "first", "last", "on_done", "refused", "rejected", "waits")

    def __init__(self, first: int, last: int, on_done: Callable[[Ticket], None]) -> None:
        self.first = first
        self.last = last
        self.on_done = on_done
        self.waits = 1  # the publish itself: passed when all queues have been asked
        self.rejected = False
        self.refused: Refused | None = None
        self.counts: Counts | None = None

    @property
    def done(self) -> bool:
        return self.waits == 0

    @property
    def outcome(self) -> Outcome:
        """Of a ticket that is done."""
        if self.rejected:
            return Outcome.REJECTED
        return Outcome.ACCEPTED if self.refused is None else Outcome.RELEASED

    def reject(self, queue: str, reason: str = FULL) -> None:
        """A queue does not take a message."""
        self.rejected = True
        self.refused = self.refused or Refused(reason, queue)

    @property
    def refused_places(self) -> Collection[int]:
        """Which of the publishes a queue has not taken, counted from 0."""
        return range(self.last + 1 - self.first) if self.rejected else ()

    def reject_some(self, queue: str, first: int, last: int) -> None:  # noqa: ARG002
        """A queue does not take these of the messages of one publish, counted from 0."""
        self.reject(queue)

    def release(self) -> None:
        """No queue gets the messages."""
        self.refused = Refused(UNROUTABLE)

    def hold(self) -> None:
        self.waits += 1

    def pass_(self) -> None:
        assert self.waits > 0, "a ticket is passed as often as it was held"
        self.waits -= 1
        if not self.waits:
            self.on_done(self)


class RunTicket(Ticket):
    """Of one publish of several messages, of which its queue may refuse some. `places`: ranges of those, counted from
    0; none though it is rejected: it has refused all."""

    __slots__ = ("places",)

    def __init__(self, first: int, last: int, on_done: Callable[[Ticket], None]) -> None:
        super().__init__(first, last, on_done)
        self.places: list[tuple[int, int]] = []

    def reject_some(self, queue: str, first: int, last: int) -> None:
        self.places.append((first, last))
        self.reject(queue)

    @property
    def refused_places(self) -> Collection[int]:
        if not self.places:
            return super().refused_places
        return {place for first, last in self.places for place in range(first, last + 1)}
