"""The publisher: chunks of rows in, confirms awaited, over whichever endpoint answers (waits).

    publish(chunk)   returns when there was room in the window and the kernel has the bytes
    drain()          returns when every row is confirmed

A lost connection is replaced by one to the next endpoint, and every chunk with an unconfirmed row is sent again: rows
are confirmed at least once each. A publisher that may not repeat (`repeats=False`: into a staging segment) raises
ConnectionLost instead. What the broker refuses is never repeated.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clusterbroker.pipeline import advice
from clusterbroker.pipeline.connection import Connection, ConnectionLost, PublisherError, Refused
from clusterbroker.pipeline.encode import Chunk
from clusterbroker.pipeline.options import Options
from clusterbroker.pipeline.wire import Heard

ROUND_PAUSE_FIRST_S: Final = 0.1
ROUND_PAUSE_MAX_S: Final = 5.0
IN_FLIGHT_BYTES_MAX: Final = 64 << 20
"""Of chunks that are not confirmed, which are kept to be sent again. A longer one goes alone."""


class Nacked(Refused):
    """Queues had no room (overflow reject-publish), or could not keep the rows."""

    def __str__(self) -> str:
        return (
            f"the broker did not take {self.args[0]} rows (basic.nack): a queue is full and rejects (x-max-length, "
            "x-overflow), or has lost its copies. Spark writes them again; let consumers catch up, or give it more room"
        )


class Unroutable(Refused):
    """No queue takes a row. `args`: code, text, exchange, routing key."""

    def __str__(self) -> str:
        code, text, exchange, key = self.args
        return (
            f"no queue takes rows for exchange '{exchange}' with routing key '{key}' ({code} {text}): "
            "declare and bind one, or set unroutable to ignore"
        )


class ConfirmTimeout(PublisherError):
    """The broker is there and confirms nothing."""


def any_endpoint(options: Options, name: str, first: int, rounds_max: int) -> tuple[Connection, int]:
    """A connection to the first endpoint that answers from the place `first` on, and its place.

    They are all tried once and `rounds_max` times more. Raises ConnectionLost, and at once Refused and BadOption.
    """
    endpoints = options.endpoints
    pause_s = ROUND_PAUSE_FIRST_S
    for left in range(max(rounds_max, 0), -1, -1):
        reasons = []
        for step in range(len(endpoints)):
            place = (first + step) % len(endpoints)
            try:
                return Connection(endpoints[place], options, name), place
            except ConnectionLost as error:
                reasons.append(str(error))
        if left:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, ROUND_PAUSE_MAX_S)
    said = "; ".join(dict.fromkeys(reasons))
    raise ConnectionLost(f"no endpoint answers: {said}{advice.of_loss(said)}")


@dataclass(slots=True)
class _Sent:
    """A chunk that is not confirmed as a whole: `last` is the delivery tag of its last row."""

    data: bytes
    rows: int
    last: int


class Publisher:
    """Of one task at a time. It is connected from its first use on."""

    def __init__(self, options: Options, name: str = "clusterbroker") -> None:
        self._options = options
        self._name = name
        self._connection: Connection | None = None
        self._place = 0
        """Of the endpoint in use."""
        self._unconfirmed: deque[_Sent] = deque()
        self._unconfirmed_bytes = 0
        self._published = 0
        """Delivery tag of the last row on this connection's channel."""
        self._upto = 0
        """All tags up to here are confirmed."""
        self._above: set[int] = set()
        """Confirmed tags above."""
        self._rounds = 0
        """Fruitless ones, since the last confirm."""
        self.repeats = True
        self.confirmed = 0
        """Rows, over the publisher's life."""
        self.resent = 0
        """Rows that were sent again."""

    # -- the connection -------------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """An open one, which may be new. Raises ConnectionLost, Refused, BadOption."""
        if self._connection is None:
            left = self._options.reconnects_max - self._rounds
            self._connection, self._place = any_endpoint(self._options, self._name, self._place, left)
            self._published = self._upto = 0
            self._above.clear()
        return self._connection

    @property
    def frame_bytes_max(self) -> int:
        """What this side asks for and the broker allows."""
        return self.connection.frame_bytes_max

    def begin(self) -> None:
        """Makes sure that what was kept from an earlier task still stands; nothing was published yet."""
        assert not self._unconfirmed, "a task ends when all is confirmed, or with its publisher"
        if self._connection is not None and not self._connection.is_usable():
            self._forget_connection()
        self._rounds = 0
        _ = self.connection

    def _forget_connection(self) -> None:
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    def _resume(self, lost: ConnectionLost) -> None:
        """On a new connection, with what may not have arrived. Raises ConnectionLost, Refused."""
        while True:
            old_frame = self._connection.frame_bytes_max if self._connection is not None else 0
            self._forget_connection()
            if not self.repeats:
                raise lost
            self._rounds += 1
            if self._rounds > self._options.reconnects_max:
                raise lost
            self._place = (self._place + 1) % len(self._options.endpoints)
            connection = self.connection
            if connection.frame_bytes_max < old_frame:
                raise Refused(501, f"{connection.endpoint} takes frames of {connection.frame_bytes_max} bytes only")
            try:
                for sent in self._unconfirmed:
                    self._published += sent.rows
                    sent.last = self._published
                    self.resent += sent.rows
                    connection.send(sent.data)
            except ConnectionLost as error:
                lost = error
                continue
            return

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, chunk: Chunk) -> None:
        """Raises ConnectionLost, Refused, ConfirmTimeout."""
        self._wait(lambda: self._has_room(chunk) and self.connection.blocked is None)
        connection = self.connection
        self._published += chunk.rows
        self._unconfirmed.append(_Sent(chunk.data, chunk.rows, self._published))
        self._unconfirmed_bytes += len(chunk.data)
        try:
            connection.send(chunk.data)
        except ConnectionLost as lost:
            self._resume(lost)

    def drain(self) -> None:
        """Raises ConnectionLost, Refused, ConfirmTimeout."""
        self._wait(lambda: not self._unconfirmed)

    def _has_room(self, chunk: Chunk) -> bool:
        if not self._unconfirmed:
            return True
        rows, size = self._in_flight + chunk.rows, self._unconfirmed_bytes + len(chunk.data)
        return rows <= self._options.in_flight_max and size <= IN_FLIGHT_BYTES_MAX

    @property
    def _in_flight(self) -> int:
        return self._published - self._upto - len(self._above)

    def _wait(self, done: Callable[[], bool]) -> None:
        patience_s = self._options.confirm_timeout_ms / 1000
        deadline_s = time.monotonic() + patience_s
        while True:
            before, blocked = self.confirmed, False
            try:
                blocked = self.connection.blocked is not None  # the time until it is not any more does not count
                self._hear(0)
                if done():
                    return
                self._hear(max(deadline_s - time.monotonic(), 0))
            except ConnectionLost as lost:
                self._resume(lost)
            now_s = time.monotonic()
            if self.confirmed != before or blocked or self.connection.blocked is not None:
                deadline_s = now_s + patience_s
            elif now_s >= deadline_s and not done():
                raise ConfirmTimeout(
                    f"{self.connection.endpoint} confirmed none of {self._in_flight} rows for {patience_s:g} s: "
                    "are the queue's copies in sync (min-in-sync), is its disk slow? "
                    "publisherConfirmTimeoutMs is the option"
                )

    def _hear(self, timeout_s: float) -> None:
        for heard in self.connection.receive(timeout_s):
            self._take(heard)

    def _take(self, heard: Heard) -> None:
        if heard.name == "basic.ack":
            self._confirm(*heard.fields)
        elif heard.name == "basic.nack":
            tag, multiple, _ = heard.fields
            raise Nacked(tag - self._upto if multiple else 1)
        elif heard.name == "basic.return":
            raise Unroutable(*heard.fields)

    def _confirm(self, tag: int, multiple: bool) -> None:
        before = self._upto + len(self._above)
        if multiple:
            self._upto = max(self._upto, tag)
            if self._above:
                self._above = {above for above in self._above if above > self._upto}
        elif tag > self._upto:
            self._above.add(tag)
        while self._upto + 1 in self._above:
            self._upto += 1
            self._above.remove(self._upto)
        self.confirmed += self._upto + len(self._above) - before
        self._rounds = 0
        while self._unconfirmed and self._unconfirmed[0].last <= self._upto:
            self._unconfirmed_bytes -= len(self._unconfirmed.popleft().data)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """With a good-bye; what is not confirmed may or may not be at the broker."""
        self._forget_unconfirmed()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> None:
        """At once."""
        self._forget_unconfirmed()
        self._forget_connection()

    def _forget_unconfirmed(self) -> None:
        self._unconfirmed.clear()
        self._unconfirmed_bytes = 0
