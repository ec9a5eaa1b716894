"""The source for queues that are taken from: a query leases one, and what it has committed leaves it.

Each trigger takes the lease's range anew (`Lease.take`): that settles all before the offset where the batch begins,
which Spark has committed by then, and answers what the next batch may hold. So the last batch of a query that waits for
more leaves the queue with the next trigger; Spark's own `commit` comes with the next batch only, and is not listened
to. A batch that is run again, by this process or after a restart, finds its range leased as it was, whoever owns the
queue by then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from clusterbroker.pipeline import offsets
from clusterbroker.pipeline.leases import BYTES_MAX, ROWS_MAX, Lease, Range
from clusterbroker.pipeline.offsets import DataLost, Position
from clusterbroker.pipeline.options import Options
from clusterbroker.pipeline.source import Part, StreamReader, checked_stream

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class QueueReader(StreamReader):
    """`spark.readStream.format("clusterbroker").option("queue", ...)`."""

    def __init__(self, options: Options, names: tuple[str, ...], schema: pa.Schema) -> None:
        super().__init__(options, names, schema)
        self._queue = options.streams[0]
        self._lease = Lease(self._line, options)
        self._end: Position | None = None
        """Of the queue, as it was told last."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        found = self._took(self._lease.take(None, None, 1))
        return self._said(Position(found.life, found.start))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        found = self._took(self._lease.take(None, None, 1))
        self._stop_at = {self._queue: Position(found.life, found.next)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        options = self._options
        begin = offsets.of_json(start, options.streams)[self._queue]
        rows_max, bytes_max, rows_min = ROWS_MAX, BYTES_MAX, 0
        if not isinstance(limit, ReadAllAvailable):
            rows_max, bytes_max = options.trigger_rows_max or ROWS_MAX, options.trigger_bytes_max or BYTES_MAX
            rows_min = min(options.trigger_rows_min or 0, rows_max) if self._stop_at is None else 0
        found = self._from(begin, rows_max, bytes_max)
        end = found.end
        if self._stop_at is not None:
            stop = self._stop_at[self._queue]
            end = min(end, stop.offset) if stop.life == found.life else found.start
        waits = found.rows < rows_min and time.monotonic() - self._batch_at_s < options.trigger_delay_max_s
        if not found.rows or waits or (found.life == begin.life and end <= begin.offset):
            return start
        self._batch_at_s = time.monotonic()
        return self._said(Position(found.life, end))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # type: ignore[override]  # noqa: N802
        return None if self._end is None else self._said(self._end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Part]:
        """Of a batch that is run again too, perhaps before any other word of this process."""
        options = self._options
        begin, last = (offsets.of_json(each, options.streams)[self._queue] for each in (start, end))
        if begin.life != last.life:
            begin = Position(last.life, 0)
        if begin.offset < last.offset:
            found = self._from(begin, last.offset - begin.offset, BYTES_MAX)
            if found.life != last.life or found.end < last.offset:
                self._lost(f"ends with offset {found.end} of life {found.life}, and the batch with {last.offset}")
                last = last._replace(offset=min(last.offset, found.end) if found.life == last.life else 0)
            begin = begin._replace(offset=max(begin.offset, found.start))
        parts = options.parts_min or 1
        return [
            Part(span)
            for span in offsets.spans({self._queue: begin}, {self._queue: last}, parts, options.part_rows_max)
        ]

    def _from(self, begin: Position, rows_max: int, bytes_max: int) -> Range:
        """The range from there on. Raises DataLost."""
        found = self._lease.take(begin.life, begin.offset, rows_max, bytes_max)
        if found is None:
            self._lost(f"is not the one that the checkpoint is of, which had life {begin.life}")
            found = self._lease.take(None, None, rows_max, bytes_max)
        elif found.start > begin.offset:
            self._lost(f"has no offset {begin.offset} any more, its lease begins with {found.start}")
        return self._took(found)

    def _took(self, found: Range | None) -> Range:
        assert found is not None, "only a life that was named is refused"
        self._end = Position(found.life, found.next)
        return found

    def _lost(self, why: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"queue '{self._queue}' {why}. Use another checkpointLocation, or set failOnDataLoss to false to go on "
                "with what there is"
            )

    def _said(self, at: Position) -> dict[str, Any]:
        return offsets.as_json({self._queue: at})

    def __getstate__(self) -> dict[str, Any]:
        """Workers get a copy, and take nothing."""
        return {**super().__getstate__(), "_lease": None}


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    """Of streams, or of a queue. Raises BadOption, BadColumns."""
    options, names, arrow = checked_stream(given, schema)
    return (StreamReader if options.queue is None else QueueReader)(options, names, arrow)
