"""What is made of a query's progress: a line, and text that Prometheus reads."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")

from clusterbroker.pipeline.counts import Counts, tell
from clusterbroker.pipeline.listener import METRICS, ProgressListener, exposition, summary

PROGRESS: dict[str, Any] = {
    "id": "q1", "runId": "r1", "name": None, "timestamp": "2026-01-01T00:00:00.000Z", "batchId": 7,
    "numInputRows": 1000, "inputRowsPerSecond": 500.0, "processedRowsPerSecond": None,
    "durationMs": {"triggerExecution": 250, "addBatch": 200},
}  # fmt: skip


def progress(**more: Any) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(json=json.dumps(PROGRESS | more)))


def test_a_line() -> None:
    assert summary(PROGRESS) == {
        "query": "q1", "id": "q1", "run": "r1", "at": "2026-01-01T00:00:00.000Z", "batch": 7, "rows": 1000,
        "input_rows_per_second": 500.0, "processed_rows_per_second": 0.0, "seconds": 0.25, "write_seconds": 0.2,
    }  # fmt: skip
    assert summary(PROGRESS | {"name": "orders"})["query"] == "orders"


def test_prometheus_reads_it() -> None:
    strange = 'a "b"\\c\nd'
    text = exposition({"orders": summary(PROGRESS), strange: summary(PROGRESS | {"batchId": 8})})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {f"clusterbroker_spark_{name.removesuffix('_total')}" for name in METRICS}
    assert families["clusterbroker_spark_skipped"].samples == [], "nobody has told"
    batches = {sample.labels["query"]: sample.value for sample in families["clusterbroker_spark_batch"].samples}
    assert batches == {"orders": 7, strange: 8}


def test_what_is_written(tmp_path: Path) -> None:
    listener = ProgressListener(tmp_path / "lines", tmp_path / "spark.prom")
    listener.onQueryStarted(SimpleNamespace(id="q1", name="orders"))
    listener.onQueryProgress(progress(name="orders"))
    listener.onQueryProgress(progress(name="orders", batchId=8))
    assert 'clusterbroker_spark_batch{query="orders"} 8' in (tmp_path / "spark.prom").read_text()
    listener.onQueryTerminated(SimpleNamespace(id="q1", runId="r1", exception="it failed"))
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [(line.get("batch"), line.get("ended")) for line in lines] == [(7, None), (8, None), (None, "it failed")]
    assert "orders" not in (tmp_path / "spark.prom").read_text()


def test_what_the_sink_has_left_out(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    listener = ProgressListener(tmp_path / "lines", tmp_path / "spark.prom", path)
    listener.onQueryProgress(progress())
    tell(str(path), "q1", 8, Counts(rows=5, messages=5, skipped=2))
    tell(str(path), "q1", 8, Counts(rows=5, messages=5, skipped=2))  # a batch that came again counts once
    tell(str(path), "q2", 1, Counts(rows=5, messages=5, dead_lettered=4))
    listener.onQueryProgress(progress(batchId=8))
    tell(str(path), "q1", 9, Counts(skipped=1, dead_lettered=3))
    with path.open("a") as lines:
        lines.write('of others\n{"query": "q1", "batch": 10, "skip')
    listener.onQueryProgress(progress(batchId=9))
    listener.onQueryProgress(progress(batchId=10))
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    names = ("batch", "skipped", "dead_lettered", "skipped_total", "dead_lettered_total")
    assert [tuple(line[name] for name in names) for line in lines] == [
        (7, 0, 0, 0, 0), (8, 2, 0, 2, 0), (9, 1, 3, 3, 3), (10, 0, 0, 3, 3),
    ]  # fmt: skip
    families = text_string_to_metric_families((tmp_path / "spark.prom").read_text())
    [skipped] = [family for family in families if family.name == "clusterbroker_spark_skipped"]
    assert (skipped.type, [sample.value for sample in skipped.samples]) == ("counter", [3])


def test_either_file_may_be_left_out(tmp_path: Path) -> None:
    ProgressListener().onQueryProgress(progress())
    ProgressListener(metrics_path=tmp_path / "spark.prom").onQueryProgress(progress())
    assert [path.name for path in tmp_path.iterdir()] == ["spark.prom"]
