"""What streaming queries tell of their progress, as lines of JSON and as text for Prometheus.

`summary` and `exposition` are pure: a query's progress as Spark's JSON in, text out. The listener writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from clusterbroker.pipeline.counts import Counts, CountsFile

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

METRICS: Final[Mapping[str, str]] = {
    "batch": "Number of the last micro-batch.",
    "rows": "Rows in the last micro-batch.",
    "input_rows_per_second": "Rows that came per second before it.",
    "processed_rows_per_second": "Rows that it did per second.",
    "seconds": "How long it took.",
    "write_seconds": "Of that, reading, computing and writing (Spark: addBatch).",
    "skipped_total": "Rows that the sink has left out, as far as its file of counts goes back.",
    "dead_lettered_total": "Rows that the sink has dead-lettered, likewise.",
}
"""Names after `clusterbroker_spark_`; gauges and counters, labelled with the query. The counters need the sink's file
of counts."""


def summary(progress: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth a line, out of `StreamingQueryProgress.json`."""
    durations = progress.get("durationMs") or {}
    return {
        "query": progress.get("name") or progress["id"],
        "id": progress["id"],
        "run": progress["runId"],
        "at": progress["timestamp"],
        "batch": progress["batchId"],
        "rows": progress.get("numInputRows", 0),
        "input_rows_per_second": progress.get("inputRowsPerSecond") or 0.0,
        "processed_rows_per_second": progress.get("processedRowsPerSecond") or 0.0,
        "seconds": durations.get("triggerExecution", 0) / 1000,
        "write_seconds": durations.get("addBatch", 0) / 1000,
    }


def exposition(queries: Mapping[str, Mapping[str, Any]]) -> str:
    """The last summary of each query, by query, as Prometheus reads it."""
    lines = []
    for name, meaning in METRICS.items():
        metric = f"clusterbroker_spark_{name}"
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
        for query in sorted(query for query in queries if name in queries[query]):
            label = query.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            lines.append(f'{metric}{{query="{label}"}} {queries[query][name]}')
    return "\n".join(lines) + "\n"


class ProgressListener(StreamingQueryListener):
    """`spark.streams.addListener(ProgressListener("progress.jsonl"))`.

    lines_path    gets a line for each micro-batch, and one when a query ends
    metrics_path  holds what Prometheus shall see of the queries that run; it is replaced as a whole
    counts_path   the option `countsFile` of the queries' sinks: lines and metrics have what these left out too
    """

    def __init__(
        self,
        lines_path: str | Path | None = None,
        metrics_path: str | Path | None = None,
        counts_path: str | Path | None = None,
    ) -> None:
        self._lines_path = None if lines_path is None else Path(lines_path)
        self._metrics_path = None if metrics_path is None else Path(metrics_path)
        self._last: dict[str, dict[str, Any]] = {}
        self._names: dict[str, str] = {}
        self._counts_file = None if counts_path is None else CountsFile(counts_path)
        self._counts: dict[str, tuple[int, Counts]] = {}  # of each query's last batch
        self._totals: dict[str, Counts] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names, here and below
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        line = summary(json.loads(event.progress.json))
        if self._counts_file is not None:
            line |= self._counted(self._counts_file, line["id"], line["batch"])
        self._last[line["query"]] = line
        self._tell(line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        query = self._names.pop(str(event.id), str(event.id))
        self._last.pop(query, None)
        self._tell({"query": query, "id": str(event.id), "run": str(event.runId), "ended": event.exception or ""})

    def _counted(self, file: CountsFile, query: str, batch: int) -> dict[str, int]:
        """What the sink told of this batch, and of all so far."""
        for whose, number, counts in file.news():
            if number > self._counts.get(whose, (-1, None))[0]:  # else it was committed again
                self._counts[whose] = number, counts
                before = self._totals.get(whose, Counts())
                self._totals[whose] = Counts(
                    skipped=before.skipped + counts.skipped, dead_lettered=before.dead_lettered + counts.dead_lettered
                )
        number, last = self._counts.get(query, (-1, Counts()))
        last = last if number == batch else Counts()
        totals = self._totals.get(query, Counts())
        return {
            "skipped": last.skipped,
            "dead_lettered": last.dead_lettered,
            "skipped_total": totals.skipped,
            "dead_lettered_total": totals.dead_lettered,
        }

    def _tell(self, line: Mapping[str, Any]) -> None:
        if self._lines_path is not None:
            with self._lines_path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")
        if self._metrics_path is not None:
            fresh = self._metrics_path.with_suffix(".new")
            fresh.write_text(exposition(self._last), encoding="utf-8")
            fresh.replace(self._metrics_path)
