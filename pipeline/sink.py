"""The sink as Spark knows it: Arrow writers for batches and streams.

Where what runs: `batch_writer` and `stream_writer` in a short-lived process beside the driver, which checks options and
columns before anything starts; `write` in a worker, on a pickled copy; `commit` of a stream on a writer that was made
anew. So writers hold options and names only, and what a task found out travels in its message.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from clusterbroker.pipeline import columns, counts, task, transactions
from clusterbroker.pipeline.options import BadOption, Options, parse
from clusterbroker.pipeline.task import Identity, Written
from clusterbroker.pipeline.transactions import Transaction

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Local properties that Spark sets for the tasks of a micro-batch. They are not documented; what tells the same is not
there. A run is one life of a query, between its start and its end."""


class NoIdentity(RuntimeError):
    """Exactly-once must know which batch of which query it writes."""


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """What a task tells the driver."""

    written: Written


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("clusterbroker")`. `job` is a name that no other write has."""

    def __init__(self, options: Options, names: tuple[str, ...], job: str) -> None:
        self._options = options
        self._names = names
        self._job = job
        self._transaction: Transaction | None = None
        if options.stages:
            self._transaction = Transaction(options.producer or job, options.epoch or 0, job)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        identity = Identity(self._job, 0, context.partitionId(), context.attemptNumber())
        return Message(task.write(iterator, self._names, self._options, identity, self._transaction))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        query = self._options.producer or self._job
        _commit(self._options, self._transaction, query, self._options.epoch or 0, _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("clusterbroker")`."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        identity = Identity(query or "query", int(batch or 0), context.partitionId(), context.attemptNumber())
        transaction = _transaction(self._options, context) if self._options.stages else None
        return Message(task.write(iterator, self._names, self._options, identity, transaction))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _written(messages)
        if not written:
            return
        transaction = written[0].transaction
        assert all(one.transaction == transaction for one in written), "a micro-batch is one transaction"
        _commit(self._options, transaction, written[0].query, batchId, written)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        _abort(self._options, messages)


def _transaction(options: Options, context: TaskContext) -> Transaction:
    """Of the micro-batch that a task belongs to. Raises NoIdentity."""
    producer = options.producer or context.getLocalProperty(QUERY_ID)
    batch = context.getLocalProperty(BATCH_ID)
    run = context.getLocalProperty(RUN_ID)
    if not producer or not batch:
        raise NoIdentity(
            f"Spark does not say which query and batch these rows are of ({QUERY_ID}, {BATCH_ID}): "
            "publish with clusterbroker.pipeline.foreach_batch and a txnAppId instead"
        )
    return Transaction(producer, int(batch), run or "run")


def _written(messages: Iterable[WriterCommitMessage | None]) -> list[Written]:
    """What the tasks told that ended well, in the order of their partitions."""
    told = [message.written for message in messages if isinstance(message, Message)]
    return sorted(told, key=lambda written: written.partition)


def _commit(
    options: Options, transaction: Transaction | None, query: str, batch: int, written: Sequence[Written]
) -> None:
    already = False
    if transaction is not None:
        names = [name for one in written for name in one.segments]
        already = transactions.commit(options, transaction, names, sum(one.rows for one in written)) == "already"
    counts.tell(options.counts_file, query, batch, counts.total(written, already))


def _abort(options: Options, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Never fails: Spark has a better reason to tell."""
    written = _written(messages)
    names = [name for one in written for name in one.segments]
    for transaction in dict.fromkeys(one.transaction for one in written):
        if transaction is not None and names:
            transactions.abort(options, transaction, names)


def batch_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Raises BadOption, BadColumns."""
    if overwrite:
        raise BadOption('a broker cannot be overwritten, only added to: use .mode("append")')
    options, names = _checked(given, schema)
    if options.producer is not None and options.epoch is None:
        raise BadOption(
            "option 'txnAppId' needs option 'txnVersion' in a batch, another one for each: without it the next batch "
            "would be taken for this one, and not be written"
        )
    return BatchWriter(options, names, uuid.uuid4().hex)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Raises BadOption, BadColumns."""
    if overwrite:
        raise BadOption('a broker cannot be overwritten, only added to: use .outputMode("append")')
    options, names = _checked(given, schema)
    if options.epoch is not None:
        raise BadOption(
            "option 'txnVersion' is for batches: a stream numbers its own, and all but one would be left out"
        )
    return StreamWriter(options, names)


def _checked(given: Mapping[str, str], schema: StructType) -> tuple[Options, tuple[str, ...]]:
    options = parse(given)
    if options.counts_file is not None and not Path(options.counts_file).absolute().parent.is_dir():
        raise BadOption(f"option 'countsFile' is '{options.counts_file}': its directory is not there")
    named = ((field.name, field.dataType.simpleString()) for field in schema.fields)
    return options, columns.check(
        named, options.ignore_unknown_columns, options.message_format, options.rows_per_message
    )
