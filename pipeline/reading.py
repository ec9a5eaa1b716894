"""Reading a stream: what it holds, and its messages between two offsets (waits).

A span is read by a consumer with `x-stream-chunks`: each delivery holds thousands of records as the broker stores them,
and acknowledging it asks for more. Whoever loses the line goes on at the next endpoint, behind the last message that it
has: an offset is the same message everywhere. Nothing is ever taken away, so a span may be read again at any time.

That all of it was of one life is asked before and after: a life that is over never comes back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from clusterbroker.pipeline import asking
from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.bulk import any_endpoint
from clusterbroker.pipeline.connection import CHANNEL, Connection, ConnectionLost, PublisherError, Refused
from clusterbroker.pipeline.offsets import Bounds, DataLost, Position, Span, kept
from clusterbroker.pipeline.options import Options
from clusterbroker.pipeline.records import decode
from clusterbroker.pipeline.stored import BadRecord, Records
from clusterbroker.pipeline.wire import Heard, method

_log: Final = logging.getLogger(__name__)

EXCHANGE: Final = "amq.stream"
TAG: Final = "span"
CHUNKS_AHEAD: Final = 4
"""Deliveries that may be on their way while one is worked on: at most 4 MiB."""
TELL_WITHIN_S: Final = 3.0
TELL_PAUSE_S: Final = 60.0
"""How long nothing is told after that was not enough."""
GONE: Final = (404, 406)
"""How a channel ends when what was to be read of a queue is not there, or not any more."""


class ReadTimeout(PublisherError):
    """The broker is there and sends nothing."""


def bounds(line: Line, stream: str) -> Bounds:
    """Raises ConnectionLost, Refused."""
    said = _offsets(line, stream, {})
    return Bounds(said["life"], said["first"], said["next"], said.get("bytes") or 0)


def at_moment(line: Line, stream: str, moment_ms: int) -> tuple[Bounds, int]:
    """And the offset of the first message that the broker took at or after this moment."""
    said = _offsets(line, stream, {"timestamp_ms": moment_ms})
    return Bounds(said["life"], said["first"], said["next"], said.get("bytes") or 0), said["at"]


def _offsets(line: Line, stream: str, more: dict[str, Any]) -> dict[str, Any]:
    return _understood(line.ask(EXCHANGE, "offsets", {"queue": stream, **more}, f"stream '{stream}'"))


def _understood(answer: dict[str, Any]) -> dict[str, Any]:
    if answer["outcome"] == "refused":
        raise Refused(answer["code"], answer["reason"])
    return answer


class Teller:
    """Tells the broker how far a query is, each time it has come on: for who looks at its lag. Without a name for the
    query it tells nothing, and what cannot be told soon is logged and does not matter: a stream that cannot be written
    may well be read."""

    def __init__(self, line: Line, options: Options) -> None:
        self._line = line
        self._name = options.consumer_name if options.stores_offsets and options.queue is None else None
        self._told: dict[str, Position] = {}
        self._silent_until_s = 0.0

    def tell(self, positions: Mapping[str, Position]) -> None:
        """What of these is new: the next message of each stream that is not read and committed."""
        for stream, at in positions.items():
            silent = self._name is None or time.monotonic() < self._silent_until_s
            if silent or self._told.get(stream) == at:
                continue
            body = {"queue": stream, "name": self._name, "offset": at.offset, "life": at.life}
            try:
                _understood(self._line.ask(EXCHANGE, "store", body, f"stream '{stream}'", within_s=TELL_WITHIN_S))
            except PublisherError as error:
                _log.warning("stream '%s' does not keep the offset of '%s': %s", stream, self._name, error)
                if isinstance(error, Refused):  # it would be again
                    self._name = None
                self._silent_until_s = time.monotonic() + TELL_PAUSE_S
            self._told[stream] = at


class SpanReader:
    """The records of one span, in their order. `close` at the end, whatever the end."""

    def __init__(self, options: Options, span: Span, wanted: Collection[str]) -> None:
        self._options = options
        self._span = span
        self._wanted = wanted
        self._next = span.start
        self._connection: Connection | None = None
        self._place = 0
        self._rounds = 0

    def __iter__(self) -> Iterator[Records]:
        """Raises ConnectionLost, Refused, ReadTimeout, DataLost, BadRecord."""
        while self._next < self._span.end:
            try:
                connection = self._consuming()
                if connection is None:
                    return
                yield from self._received(connection)
            except ConnectionLost:
                self._rounds += 1
                self._place += 1
                self._abandon()
                if self._rounds > self._options.reconnects_max:
                    raise

    def close(self) -> None:
        """Without a good-bye: what was not acknowledged is not taken either."""
        self._abandon()

    def _abandon(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    def _consuming(self) -> Connection | None:
        """A connection that sends what is still to be read; None when nothing is left of it."""
        timeout_s = self._options.read_timeout_ms / 1000
        name, left = f"spark {self._span.stream} {self._span.start}", self._options.reconnects_max - self._rounds
        self._connection, self._place = any_endpoint(self._options, name, self._place, left)
        asking.hear_replies(self._connection, timeout_s)
        if not self._is_there(self._connection):
            return None
        arguments = {
            "x-stream-offset": self._next,
            "x-stream-end": self._span.end,
            "x-stream-chunks": True,
            "x-stream-exact": self._options.fail_on_data_loss,
        }
        try:
            self._consume(self._connection, arguments)
        except Refused as error:
            raise self._looked_at_again(self._connection, error) from error
        return self._connection

    def _consume(self, connection: Connection, arguments: dict[str, Any]) -> None:
        """Raises ConnectionLost, Refused."""
        timeout_s = self._options.read_timeout_ms / 1000
        connection.call("basic.qos", 0, CHUNKS_AHEAD, False, answer="basic.qos-ok", timeout_s=timeout_s)
        connection.call(
            "basic.consume", 0, self._span.stream, TAG, False, False, False, False, arguments,
            answer="basic.consume-ok", timeout_s=timeout_s,
        )  # fmt: skip

    def _is_there(self, connection: Connection) -> bool:
        """Whether the stream has something of the span. Raises DataLost."""
        timeout_s = self._options.confirm_timeout_ms / 1000
        said = asking.ask(connection, EXCHANGE, "offsets", {"queue": self._span.stream}, timeout_s)
        if said.get("code") == asking.UNAVAILABLE:
            raise ConnectionLost(f"{connection.endpoint}: {said['reason']}")
        now = Bounds(_understood(said)["life"], said["first"], said["next"])
        at = kept(self._span.stream, Position(self._span.life, self._next), now, self._options.fail_on_data_loss)
        if at.life != self._span.life or at.offset < self._next:
            return False
        self._next = at.offset
        return self._next < self._span.end

    def _received(self, connection: Connection) -> Iterator[Records]:
        timeout_s = self._options.read_timeout_ms / 1000
        deadline_s = time.monotonic() + timeout_s
        while self._next < self._span.end:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ReadTimeout(
                    f"{connection.endpoint} sent nothing of stream '{self._span.stream}' from offset {self._next} "
                    f"on for {timeout_s:g} s: has the queue an owner? readTimeoutMs is the option"
                )
            for heard in self._heard(connection, left_s):
                if heard.name == "basic.deliver":
                    records = self._decoded(heard)
                    if records.rows:
                        yield records
                    connection.send(method("basic.ack", CHANNEL, heard.fields[1], False))
                    deadline_s = time.monotonic() + timeout_s
                elif heard.name == "basic.cancel" and self._next < self._span.end:
                    raise ConnectionLost(f"{connection.endpoint}: stream '{self._span.stream}' went away")
        self._is_there(connection)

    def _heard(self, connection: Connection, timeout_s: float) -> list[Heard]:
        try:
            return connection.receive(timeout_s)
        except Refused as error:
            raise self._looked_at_again(connection, error) from error

    def _looked_at_again(self, connection: Connection, error: Refused) -> PublisherError:
        """A stream that is gone, or has less than there was, is asked for its bounds: that tells what was lost."""
        return ConnectionLost(f"{connection.endpoint}: {error.args[1]}") if error.args[0] in GONE else error

    def _decoded(self, heard: Heard) -> Records:
        records = decode(heard.body, self._wanted, self._next + 1, self._span.end + 1)
        if not records.rows:
            return records
        if records.first - 1 != self._next and self._options.fail_on_data_loss:
            raise DataLost(
                f"stream '{self._span.stream}' has no offsets from {self._next} to {records.first - 2} any more: "
                "retention was quicker than the query. Set failOnDataLoss to false to go on with what there is"
            )
        if records.last - records.first + 1 != records.rows:
            raise BadRecord(f"{records.rows} records from {records.first} to {records.last}")
        self._next = records.last
        self._rounds = 0
        return records
