"""A lease on a queue: taking a range of its messages, and reading what of it a task is to read (waits).

docs/leases.md tells what the broker promises. A position here is an offset as everywhere in the sources: the message's
number in its queue less one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.bulk import any_endpoint
from clusterbroker.pipeline.connection import CHANNEL, Connection, Refused
from clusterbroker.pipeline.offsets import DataLost, Span
from clusterbroker.pipeline.options import Options
from clusterbroker.pipeline.reading import GONE, ReadTimeout, SpanReader
from clusterbroker.pipeline.records import decode
from clusterbroker.pipeline.stored import Records
from clusterbroker.pipeline.wire import Heard, method

EXCHANGE: Final = "amq.lease"
ROWS_MAX: Final = 1_000_000
"""More than that the broker lets no lease hold."""
BYTES_MAX: Final = 1 << 40
ANOTHER_LIFE: Final = 410


class Range(NamedTuple):
    """What is leased: start <= offset < end, of which `rows` are there; the queue itself ends with `next`."""

    life: str
    start: int
    end: int
    rows: int
    next: int


class Lease:
    """Of one start of a query. `name`: of the query, for ever."""

    def __init__(self, line: Line, options: Options) -> None:
        assert options.queue is not None, "a queue is leased"
        assert options.consumer_name is not None, "by somebody"
        self._line = line
        self._queue = options.queue
        self._name = options.consumer_name
        self._ttl_ms = options.lease_ttl_ms
        self._run = secrets.token_hex(16)

    def take(
        self, life: str | None, start: int | None, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX
    ) -> Range | None:
        """Settles what is before `start`, and holds so much open from there on. None: the queue is another one than
        `life` says. Raises ConnectionLost, Refused."""
        answer = self._line.ask(
            EXCHANGE, "take",
            {
                "queue": self._queue, "name": self._name, "run": self._run, "life": life,
                "from": None if start is None else start + 1, "rows_max": min(rows_max, ROWS_MAX),
                "bytes_max": min(bytes_max, BYTES_MAX), "ttl_ms": self._ttl_ms,
            },
            f"queue '{self._queue}'",
        )  # fmt: skip
        if answer.get("code") == ANOTHER_LIFE:
            return None
        if answer["outcome"] == "refused":
            raise Refused(answer["code"], answer["reason"])
        return Range(answer["life"], answer["start"] - 1, answer["end"] - 1, answer["rows"], max(answer["next"] - 1, 0))

    def release(self) -> None:
        """What is left returns to the queue. Raises ConnectionLost, Refused."""
        body = {"queue": self._queue, "name": self._name, "run": self._run}
        answer = self._line.ask(EXCHANGE, "release", body, f"queue '{self._queue}'")
        if answer["outcome"] == "refused":
            raise Refused(answer["code"], answer["reason"])


class LeasedReader(SpanReader):
    """The records of one span of a leased queue. Numbers may be missing in it, so its end is the broker's word: it
    cancels the consumer when it has sent all."""

    def _consuming(self) -> Connection | None:
        options = self._options
        name, left = f"spark {self._span.stream} {self._span.start}", options.reconnects_max - self._rounds
        connection, self._place = any_endpoint(options, name, self._place, left)
        self._connection = connection
        arguments: dict[str, Any] = {
            "x-lease": options.consumer_name,
            "x-stream-offset": self._next + 1,
            "x-stream-end": self._span.end + 1,
            "x-stream-chunks": True,
        }
        try:
            self._consume(connection, arguments)
        except Refused as error:
            self._gone(error)
            return None
        return connection

    def _gone(self, error: Refused) -> None:
        """Raises DataLost, unless the query goes on without."""
        code, text = error.args
        if code not in GONE:
            raise error
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"queue '{self._span.stream}' has not kept offsets {self._next} to {self._span.end - 1} for this "
                f"query: {text}. Its lease had ended (leaseTtlMs), or messages were lost; set failOnDataLoss to false "
                "to go on"
            ) from error

    def _received(self, connection: Connection) -> Iterator[Records]:
        timeout_s = self._options.read_timeout_ms / 1000
        deadline_s = time.monotonic() + timeout_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            try:
                said = connection.receive(left_s)
            except Refused as error:
                self._gone(error)
                self._next = self._span.end
                return
            for heard in said:
                if heard.name == "basic.deliver":
                    records = self._decoded(heard)
                    if records.rows:
                        yield records
                    connection.send(method("basic.ack", CHANNEL, heard.fields[1], False))
                    deadline_s = time.monotonic() + timeout_s
                elif heard.name == "basic.cancel":
                    self._next = self._span.end
                    return
        raise ReadTimeout(
            f"{connection.endpoint} sent nothing of queue '{self._span.stream}' from offset {self._next} on for "
            f"{timeout_s:g} s: has the queue an owner? readTimeoutMs is the option"
        )

    def _decoded(self, heard: Heard) -> Records:
        records = decode(heard.body, self._wanted, self._next + 1, self._span.end + 1)
        if records.rows:
            self._next = records.last
            self._rounds = 0
        return records


def reader(options: Options, span: Span, wanted: Collection[str]) -> SpanReader:
    """Whatever the span is of."""
    return (SpanReader if options.queue is None else LeasedReader)(options, span, wanted)
