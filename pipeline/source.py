"""The sources as Spark knows them: streams, in micro-batches and as a batch.

Where what runs: a stream's reader in one process beside the driver for as long as its query lives, so it keeps a
connection; `read` in a worker, on a pickled copy, which makes one of its own. A batch's reader is made, asked for its
partitions, and sent to the workers. Both give Arrow batches, a chunk of the broker's each.

Spark's `commit` is not listened to: it comes late, and for the last batch of an idle stream never. Nothing has to be
told to a stream, which keeps what it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from clusterbroker.pipeline import arrow_rows, columns, filters, leases, offsets, reading
from clusterbroker.pipeline.asking import Line
from clusterbroker.pipeline.filters import FilteredReader, Narrowed
from clusterbroker.pipeline.offsets import EARLIEST, LATEST, Bounds, Limits, Position, Span
from clusterbroker.pipeline.option_values import Where
from clusterbroker.pipeline.options import BadOption, Options, parse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_STREAMING_ONLY: Final = {
    "maxRecordsPerTrigger": "trigger_rows_max",
    "maxBytesPerTrigger": "trigger_bytes_max",
    "minOffsetsPerTrigger": "trigger_rows_min",
}
_BATCH_ONLY: Final = {"journal": "journal", "endingOffsets": "ending", "endingTimestamp": "ending_ms"}


@dataclass
class Part(InputPartition):
    """What one task reads."""

    span: Span


def _read(
    options: Options, wanted: tuple[str, ...], schema: pa.Schema, part: InputPartition, narrowed: Narrowed = filters.ALL
) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, Part):  # Spark's own, when there was none of ours
        return
    reader = leases.reader(options, part.span, wanted)
    try:
        for records in reader:
            yield filters.matching(arrow_rows.batch(records, schema, part.span.stream), narrowed)
    finally:
        reader.close()


class BatchReader(FilteredReader):
    """`spark.read.format("clusterbroker").option("stream", ...)`."""

    def partitions(self) -> list[Part]:
        options = self._options
        wanted = self._narrowed.wanted(options.streams)
        if not wanted:
            return []
        line = Line(options, f"spark {','.join(options.streams)}")
        try:
            start = _placed(line, options, wanted, options.starting or EARLIEST, options.starting_ms)
            end = _placed(line, options, wanted, options.ending or LATEST, options.ending_ms)
            for name in wanted:
                if end[name].offset < start[name].offset:
                    raise BadOption(
                        f"stream '{name}' would be read from offset {start[name].offset} to {end[name].offset}: let "
                        "endingOffsets (endingTimestamp) be behind startingOffsets (startingTimestamp)"
                    )
                first = max(start[name].offset, self._first(line, name))
                start[name] = start[name]._replace(offset=first)
                end[name] = end[name]._replace(offset=max(min(end[name].offset, self._narrowed.high), first))
        finally:
            line.close()
        parts = options.parts_min or len(wanted)
        return [Part(span) for span in offsets.spans(start, end, parts, options.part_rows_max)]

    def _first(self, line: Line, stream: str) -> int:
        """No message before this offset passes the filters."""
        narrowed = self._narrowed
        if narrowed.since_ms is None:
            return narrowed.low
        return max(narrowed.low, reading.at_moment(line, stream, narrowed.since_ms)[1])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._names, self._schema, partition, self._narrowed)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("clusterbroker").option("stream", ...)`."""

    def __init__(self, options: Options, names: tuple[str, ...], schema: pa.Schema) -> None:
        self._options = options
        self._names = names
        self._schema = schema
        self._line = Line(options, f"spark {','.join(options.streams)}")
        self._stop_at: dict[str, Position] | None = None
        """With the trigger availableNow: what was there when the query began."""
        self._batch_at_s = time.monotonic()
        self._teller = reading.Teller(self._line, options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        options = self._options
        where = options.starting or LATEST
        return offsets.as_json(_placed(self._line, options, options.streams, where, options.starting_ms))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._stop_at = {name: Position(now.life, now.next) for name, now in self._tails().items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of them, for Spark takes no more; `latestOffset` heeds all."""
        options = self._options
        if options.trigger_rows_max is not None:
            return ReadMaxRows(options.trigger_rows_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        if options.trigger_rows_min is not None:
            return ReadMinRows(options.trigger_rows_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        options = self._options
        tails = self._tails()
        said = offsets.of_json(start, options.streams)
        begin = {name: self._kept(name, at, tails[name]) for name, at in said.items()}
        self._teller.tell(begin)
        limits = Limits()
        if not isinstance(limit, ReadAllAvailable):
            limits = Limits(
                options.trigger_rows_max, options.trigger_bytes_max,
                None if self._stop_at is not None else options.trigger_rows_min, options.trigger_delay_max_s,
            )  # fmt: skip
        if self._stop_at is not None:
            tails = {name: self._stopped(name, now) for name, now in tails.items()}
        waited_s = time.monotonic() - self._batch_at_s
        end = offsets.target(begin, tails, limits, waited_s)
        if end == begin:
            return start
        self._batch_at_s = time.monotonic()
        return offsets.as_json(end)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return offsets.as_json({name: Position(now.life, now.next) for name, now in self._tails().items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Part]:
        options = self._options
        first, last = offsets.of_json(start, options.streams), offsets.of_json(end, options.streams)
        begin = {
            name: at if at.life == last[name].life else self._begun(name, last[name]) for name, at in first.items()
        }
        parts = options.parts_min or len(options.streams)
        return [Part(span) for span in offsets.spans(begin, last, parts, options.part_rows_max)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._names, self._schema, partition)

    def stop(self) -> None:
        self._line.close()

    def _tails(self) -> dict[str, Bounds]:
        return {name: reading.bounds(self._line, name) for name in self._options.streams}

    def _kept(self, stream: str, at: Position, now: Bounds) -> Position:
        return offsets.kept(stream, at, now, self._options.fail_on_data_loss)

    def _stopped(self, stream: str, now: Bounds) -> Bounds:
        assert self._stop_at is not None, "asked with availableNow only"
        at = self._stop_at[stream]
        return now._replace(next=min(now.next, at.offset)) if at.life == now.life else now._replace(next=now.first)

    def _begun(self, stream: str, end: Position) -> Position:
        """Where a batch begins whose stream was declared anew before it ends."""
        now = reading.bounds(self._line, stream)
        return Position(end.life, min(now.first, end.offset) if now.life == end.life else end.offset)

    def __getstate__(self) -> dict[str, Any]:
        """Workers get a copy, and need no line."""
        return {**self.__dict__, "_line": None, "_teller": None}


def _placed(
    line: Line, options: Options, streams: Sequence[str], where: Where, moment_ms: int | None
) -> dict[str, Position]:
    """Where each stream begins, or ends. Raises DataLost."""
    found = {}
    for stream in streams:
        if moment_ms is not None:
            now, at = reading.at_moment(line, stream, moment_ms)
            found[stream] = Position(now.life, at)
            continue
        said = where if isinstance(where, str) else dict(where)[stream]
        found[stream] = offsets.begin(stream, said, reading.bounds(line, stream), options.fail_on_data_loss)
    return found


def schema_of(given: Mapping[str, str]) -> str:
    """What a source reads when its caller names no columns. Raises BadOption."""
    return columns.schema(parse(given, reads=True).include_headers)


def batch_reader(given: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Raises BadOption, BadColumns."""
    options, names, arrow = _checked(given, schema, _STREAMING_ONLY, "streams, which have triggers")
    texts = frozenset(field.name for field in schema.fields if field.dataType.simpleString() == "string")
    if options.journal is not None:
        from clusterbroker.pipeline.journal import JournalReader

        return JournalReader(options, names, arrow, texts)
    if options.queue is not None:
        raise BadOption("option 'queue' is for streams: readStream, for a batch with trigger(availableNow=True)")
    if options.consumer_name is not None:
        raise BadOption("option 'consumerName' is for streams, which have triggers: leave it out")
    return BatchReader(options, names, arrow, texts)


def checked_stream(given: Mapping[str, str], schema: StructType) -> tuple[Options, tuple[str, ...], pa.Schema]:
    """What a stream's reader is made of. Raises BadOption, BadColumns."""
    return _checked(given, schema, _BATCH_ONLY, "batches, which have an end")


def _checked(
    given: Mapping[str, str], schema: StructType, others: Mapping[str, str], whose: str
) -> tuple[Options, tuple[str, ...], pa.Schema]:
    from pyspark.sql.pandas.types import to_arrow_schema

    options = parse(given, reads=True)
    for name, field in others.items():
        if getattr(options, field) is not None:
            raise BadOption(f"option '{name}' is for {whose}: leave it out")
    names = columns.check_source((field.name, field.dataType.simpleString()) for field in schema.fields)
    return options, names, to_arrow_schema(schema, timezone="UTC")
