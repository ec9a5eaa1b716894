"""What is on a node's disk as a batch: all messages of its queues, without a connection (waits for the disk).

It reads a data directory beside its node, or a copy of one without any: what is ready, what consumers have and have
not acknowledged, and what waits for its dead-letter targets. Beside a running node each task sees a moment of its own,
and messages that leave meanwhile may be left out. Every record's checksum is proved; damage fails the task.

This is the one file here that imports other floors: how a journal and a wiring log look is written down there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from clusterbroker.cluster.data_directory import DataDirectory, NotThere
from clusterbroker.journal.inspect import JournalView
from clusterbroker.pipeline import arrow_rows, filters, offsets
from clusterbroker.pipeline.filters import FilteredReader, Narrowed
from clusterbroker.pipeline.offsets import Position
from clusterbroker.pipeline.options import BadOption, Options
from clusterbroker.pipeline.records import decode
from clusterbroker.pipeline.stored import SEQ_END

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class QueuePart(InputPartition):
    """Messages `first` to `last` (seqs) of one queue, for one task."""

    directory: str
    queue_id: int
    name: str
    first: int
    last: int


class JournalReader(FilteredReader):
    """`spark.read.format("clusterbroker").option("journal", "/var/lib/clusterbroker")`."""

    def partitions(self) -> list[QueuePart]:
        """Raises BadOption, DamagedJournal."""
        options = self._options
        try:
            place = DataDirectory(Path(options.journal or ""))
        except NotThere as error:
            raise BadOption(f"option 'journal': {error}") from None
        there = [queue for queue in place.queues() if queue.vhost == options.vhost and not queue.staging]
        queues = {queue.name: int(queue.queue_id) for queue in there}
        if missing := sorted(set(options.queues or ()) - set(queues)):
            raise BadOption(
                f"option 'queues': vhost '{options.vhost}' has no queue '{missing[0]}' in {place.directory}"
                f"{f' ({place.wiring_problem})' if place.wiring_problem else ''}"
            )
        wanted = {name: queues[name] for name in self._narrowed.wanted(options.queues or queues)}
        spans = place.look(lambda view: _spans(view, wanted, options, self._narrowed))
        return [
            QueuePart(str(place.journal), wanted[span.stream], span.stream, span.start, span.end - 1) for span in spans
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises DamagedJournal."""
        if not isinstance(partition, QueuePart):  # Spark's own, when there was none of ours
            return
        with JournalView(partition.directory) as view:
            for data in view.records(partition.queue_id, partition.first, partition.last):
                records = decode(data, self._names, 1, SEQ_END)
                if records.rows:
                    yield filters.matching(arrow_rows.batch(records, self._schema, partition.name), self._narrowed)


def _spans(view: JournalView, queues: Mapping[str, int], options: Options, narrowed: Narrowed) -> list[offsets.Span]:
    """Ranges of seqs: a queue from which much was taken out of order has parts of unequal size."""
    start, end = {}, {}
    for name, queue_id in queues.items():
        first, upto = view.bounds(queue_id)
        first = max(first, narrowed.low + 1)
        start[name], end[name] = Position("", first), Position("", max(min(upto, narrowed.high + 1), first))
    return offsets.spans(start, end, options.parts_min or len(start), options.part_rows_max)
