"""Publishing inside `foreachBatch`, for what does more with a batch than write it once, or writes it to several places.

It is the data source's batch writer. What this adds: options and columns are checked in the caller's own process, so
what is wrong is told without Spark's trace around it; the batch that is written exactly once is the query's; and the
caller is told what became of its rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.pipeline import columns
from clusterbroker.pipeline.counts import Counts, CountsFile
from clusterbroker.pipeline.options import BadOption, Options, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUN_ID: Final = "spark.jobGroup.id"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of the thread that runs a micro-batch; a run is one life of its query."""

_published: dict[tuple[str, str], tuple[str, int]] = {}
"""(vhost, txnAppId) to run and batch of what this process has published last with it."""


def publish(frame: DataFrame, options: Mapping[str, Any], batch_id: int) -> Counts:
    """Publishes the frame's rows, and returns how many, when all are confirmed.

    With `deliveryGuarantee` = `exactly-once` the options must name who writes (`txnAppId`), and a `batch_id` that is
    committed is not written again; so whoever publishes several frames of a batch needs a `txnAppId` for each. Raises
    BadOption and BadColumns at once, and what Spark raises when a task has failed for good.
    """
    options = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    parsed = parse(options)
    if parsed.epoch is not None:
        raise BadOption("option 'txnVersion' is said by `batch_id` here")
    if parsed.counts_file is not None:
        raise BadOption("option 'countsFile' is for writers: `publish` returns its counts")
    if parsed.stages and parsed.producer is None:
        raise BadOption("option 'deliveryGuarantee' is 'exactly-once', so option 'txnAppId' must name who writes")
    run = _run(frame) if parsed.stages else None
    if run is not None:
        _check_first(parsed, run, batch_id)
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
    if run is not None:
        _published[parsed.vhost, parsed.producer or ""] = run, batch_id
    return told[-1][2]


def _run(frame: DataFrame) -> str | None:
    """Of the query whose micro-batch this is; None: of none, or Spark does not tell."""
    try:
        context = frame.sparkSession.sparkContext
        return context.getLocalProperty(RUN_ID) if context.getLocalProperty(BATCH_ID) is not None else None
    except Exception:  # a session of Spark Connect has no context
        return None


def _check_first(options: Options, run: str, batch_id: int) -> None:
    """A batch that comes again, comes in another run. Raises BadOption."""
    if _published.get((options.vhost, options.producer or "")) == (run, batch_id):
        raise BadOption(
            f"option 'txnAppId' is '{options.producer}', with which batch {batch_id} has been published already, and "
            "these rows would be taken for those: give each `publish` of a batch a txnAppId of its own"
        )
