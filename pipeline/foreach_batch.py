"""Publishing inside `foreachBatch`, for what does more with a batch than write it once, or writes it to several places.

It is the data source's batch writer. What this adds: options and columns are checked in the caller's own process, so
what is wrong is told without Spark's trace around it; the batch that is written exactly once is the query's; and the
caller is told what became of its rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import columns
from pipeline.counts import Counts, CountsFile
from pipeline.options import BadOption, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def publish(frame: DataFrame, options: Mapping[str, str], batch_id: int) -> Counts:
    """Publishes the frame's rows, and returns how many, when all are confirmed.

    With `deliveryGuarantee` = `exactly-once` the options must name who writes (`txnAppId`), and a `batch_id` that is
    committed is not written again. Raises BadOption and BadColumns at once, and what Spark raises when a task has
    failed for good.
    """
    parsed = parse(options)
    if parsed.epoch is not None:
        raise BadOption("option 'txnVersion' is said by `batch_id` here")
    if parsed.counts_file is not None:
        raise BadOption("option 'countsFile' is for writers: `publish` returns its counts")
    if parsed.stages and parsed.producer is None:
        raise BadOption("option 'deliveryGuarantee' is 'exactly-once', so option 'txnAppId' must name who writes")
    kinds = ((field.name, field.dataType.simpleString()) for field in frame.schema.fields)
    columns.check(kinds, parsed.ignore_unknown_columns, parsed.message_format, parsed.rows_per_message)
    writer = frame.write.format("clusterbroker").options(**options)
    if parsed.stages:
        writer = writer.option("txnVersion", str(batch_id))
    with tempfile.TemporaryDirectory(prefix="clusterbroker-") as directory:
        lines = Path(directory) / "counts.jsonl"
        writer.option("countsFile", str(lines)).mode("append").save()
        told = CountsFile(lines).news()
    if not told:
        raise RuntimeError(f"batch {batch_id} is published, and {lines} could not be written: is the disk full?")
    return told[-1][2]
