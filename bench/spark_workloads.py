"""The rows of Spark's table: sink and source, with what people use today measured in the same run."""

from __future__ import annotations

from bench.workloads import Bound, Figure, Kind, Target, Workload

_ROWS = Figure("rows_per_s", "rate", "rows/s")


def _least(value: float) -> Target:
    return Target(Bound.MIN, value)


SPARK_WORKLOADS = (
    Workload(
        "spark-trigger", "20,000 rows a trigger, one node, durable, against foreach + pika that waits for each confirm",
        (
            Figure("times_baseline", "rate against the baseline", "x", _least(10)),
            _ROWS,
            Figure("baseline_per_s", "baseline", "rows/s"),
            Figure("trigger_1000_ms", "a trigger of 1,000 rows, median", "ms", Target(Bound.MAX, 300)),
        ),
        Kind.SPARK_TRIGGER, rounds_max=3,
    ),
    Workload(
        "spark-batch", "a batch, one node, durable, against the same",
        (
            Figure("times_baseline", "rate against the baseline", "x", _least(15)),
            _ROWS,
            Figure("baseline_per_s", "baseline", "rows/s"),
            Figure("cpu_us", "client CPU a row, value only", "us", Target(Bound.MAX, 2.5)),
            Figure("cpu_headers_us", "client CPU a row, three headers and a message id", "us", Target(Bound.MAX, 7)),
        ),
        Kind.SPARK_BATCH, rounds_max=3,
    ),
    Workload(
        "spark-cluster", "a batch into a queue with three copies, fsync, against the load generator",
        (
            Figure("share", "rate against the generator", "x", _least(0.5)),
            _ROWS,
            Figure("generator_per_s", "generator", "msg/s"),
        ),
        Kind.SPARK_CLUSTER, rounds_max=3,
    ),
    Workload(
        "spark-exactly-once", "a batch staged and committed, three nodes, against at-least-once",
        (
            Figure("share", "rate against at-least-once", "x", _least(0.8)),
            Figure("trigger_share", "the same in micro-batches of 20,000 rows", "x", _least(0.8)),
            Figure("trigger_rows_per_s", "in micro-batches", "rows/s"),
            _ROWS,
            Figure("at_least_once_per_s", "at-least-once", "rows/s"),
            Figure("visible_per_s", "until all of it is in the queue", "rows/s"),
        ),
        Kind.SPARK_EXACTLY_ONCE, rounds_max=3,
    ),
    Workload(
        "spark-source", "a stream of 200-byte messages read",
        (
            Figure("read_per_s", "as a micro-batch stream", "rows/s", _least(200_000)),
            Figure("batch_per_s", "as a batch", "rows/s"),
            Figure("cpu_us", "reader's CPU a row", "us"),
        ),
        Kind.SPARK_SOURCE, rounds_max=3,
    ),
)  # fmt: skip
