"""What clients saw, in the order in which they saw it: the only evidence that a verdict rests on (pure).

A message is (publisher, number); numbers of a publisher count from 0. A *session* is one connection of one client: what
was handed out to it and not acknowledged is its own for as long as it lives. Times are the trial's own monotonic clock.

    published     the message was written to a socket; once more after a session that ended without its confirm
    confirmed     basic.ack for it, on the session that published it
    refused       basic.nack for it
    delivered     by basic.deliver or get-ok; `flagged` is its redelivered bit
    acknowledged  the consumer's basic.ack was written to the socket
    began, lost   a session; `lost` also says that its client gave it up

`polled`: of a consumer's session that asks by basic.get. How long it goes without a message says how fast others empty
the queue, and nothing of the broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec


class What(StrEnum):
    """The kinds of events."""

    PUBLISHED = "published"
    CONFIRMED = "confirmed"
    REFUSED = "refused"
    DELIVERED = "delivered"
    ACKNOWLEDGED = "acknowledged"
    BEGAN = "began"
    LOST = "lost"


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing that one client saw or did."""

    at_s: float
    what: What
    client: str
    session: int
    """unique in the history; 0 where it does not matter"""
    publisher: int = -1
    number: int = -1
    flagged: bool = False
    polled: bool = False


class History:
    """Grows at its end only."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events = list(events)

    def add(
        self,
        at_s: float,
        what: What,
        client: str,
        session: int = 0,
        publisher: int = -1,
        number: int = -1,
        flagged: bool = False,
        polled: bool = False,
    ) -> None:
        """Writes one event down."""
        self.events.append(Event(at_s, what, client, session, publisher, number, flagged, polled))

    def dump(self) -> bytes:
        """All events, a JSON array a line: what a failed trial leaves behind."""
        encoder = msgspec.json.Encoder()
        return b"".join(encoder.encode(event) + b"\n" for event in self.events)


def load(dumped: bytes) -> History:
    """The history that `dump` wrote. Raises ValueError."""
    decoder: Any = msgspec.json.Decoder(Event)
    try:
        return History(decoder.decode(line) for line in dumped.splitlines())
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a history: {error}") from error
