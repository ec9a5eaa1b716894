"""The benchmark's arithmetic: medians, ratios, verdicts and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import machine, report, servers
from bench.amqp10_workloads import AMQP10_WORKLOADS
from bench.cluster_workloads import CLUSTER_WORKLOADS
from bench.management_workloads import MANAGEMENT_WORKLOADS
from bench.report import Row, Verdict
from bench.scenarios import Measurement
from bench.spark_workloads import SPARK_WORKLOADS
from bench.workloads import WORKLOADS, Bound, Figure, Kind, Load, Target, Workload

RATE = Figure("rate", "rate", "msg/s", Target(Bound.RATIO_MIN, 8))
WORKLOAD = Workload("durable", "durable", (RATE, Figure("p99", "p99", "ms")))


def clean(rate: float, p99: float = 1.0) -> Measurement:
    return Measurement(figures={"rate": rate, "p99": p99})


def lossy(rate: float) -> Measurement:
    return Measurement(figures={"rate": rate, "p99": 1.0}, faults=["load: 3 lost"])


def test_the_median_counts_clean_runs_only() -> None:
    assert report.median_of([clean(10), clean(30), clean(20)], "rate") == 20
    assert report.median_of([clean(10), clean(20)], "rate") == 15
    assert report.median_of([clean(10), lossy(1_000_000)], "rate") == 10
    assert report.median_of([lossy(1_000_000)], "rate") is None
    assert report.median_of([clean(10)], "absent") is None


def test_a_ratio_needs_two_sides_and_a_divisor() -> None:
    assert report.ratio_of(80, 10) == 8
    assert report.ratio_of(None, 10) is None
    assert report.ratio_of(80, None) is None
    assert report.ratio_of(80, 0) is None


@pytest.mark.parametrize(
    ("target", "ours", "ratio", "failed", "verdict"),
    [
        (Target(Bound.RATIO_MIN, 8), 80.0, 8.0, False, Verdict.MET),
        (Target(Bound.RATIO_MIN, 8), 79.0, 7.9, False, Verdict.MISSED),
        (Target(Bound.RATIO_MAX, 0.4), 0.4, 0.4, False, Verdict.MET),
        (Target(Bound.RATIO_MAX, 0.4), 0.5, 0.5, False, Verdict.MISSED),
        (Target(Bound.MAX, 300), 300.0, None, False, Verdict.MET),
        (Target(Bound.MAX, 300), 301.0, 0.1, False, Verdict.MISSED),
        (Target(Bound.MIN, 0.7), 0.7, None, False, Verdict.MET),
        (Target(Bound.MIN, 0.7), 0.69, 5.0, False, Verdict.MISSED),
        (Target(Bound.RATIO_MIN, 8), 80.0, None, False, Verdict.OPEN),
        (Target(Bound.RATIO_MIN, 8), None, None, False, Verdict.FAILED),
        (Target(Bound.MAX, 3), None, None, False, Verdict.FAILED),
        (Target(Bound.RATIO_MIN, 8), 800.0, 80.0, True, Verdict.FAILED),
        (None, 5.0, 1.0, False, Verdict.NONE),
        (None, 5.0, 1.0, True, Verdict.FAILED),
    ],
)
def test_the_verdict(
    target: Target | None, ours: float | None, ratio: float | None, failed: bool, verdict: Verdict
) -> None:
    assert report.judge(target, ours, ratio, failed) is verdict


def test_one_lost_message_fails_the_row_whatever_its_rate() -> None:
    row = Row(WORKLOAD, ours=[clean(1000), lossy(2000)], peer=[clean(10)])
    assert {line.verdict for line in report.lines_of(row)} == {Verdict.FAILED}
    ok, said = report.verdict_text([row])
    assert not ok
    assert said.startswith("bench failed")
    assert "durable" in said
    assert "- durable, ours: load: 3 lost" in report.markdown([row], "ours", "rabbitmq")


def test_a_fault_of_the_peer_is_said_but_not_held_against_us() -> None:
    row = Row(WORKLOAD, ours=[clean(100)], peer=[clean(10), lossy(5000)])
    line = report.lines_of(row)[0]
    assert (line.ours, line.peer, line.ratio, line.verdict) == (100, 10, 10, Verdict.MET)
    assert "- durable, rabbitmq: load: 3 lost" in report.markdown([row], "ours", "rabbitmq")
    ok, said = report.verdict_text([row])
    assert ok
    assert said.startswith("bench done: 1 of 1 targets met, 0 missed, no message lost")
    assert "durable 100 msg/s = 10 x" in said


def test_a_missed_target_is_no_failure() -> None:
    ok, said = report.verdict_text([Row(WORKLOAD, ours=[clean(20)], peer=[clean(10)])])
    assert ok
    assert "0 of 1 targets met, 1 missed" in said


def test_the_table_shows_each_figure_once() -> None:
    table = report.markdown([Row(WORKLOAD, ours=[clean(1234567.8, 0.4567)], peer=[clean(100000)])], "ours", "rabbitmq")
    assert "| durable | rate (msg/s) | 1,234,568 | 100,000 | 12.3 x | >= 8 x | met |" in table
    assert "|  | p99 (ms) | 0.457 | 1 | 0.457 x |  |  |" in table


def test_a_share_is_compared_with_nothing() -> None:
    fall = Workload("read", "read", (Figure("fall", "fall", "%", Target(Bound.MAX, 10)),))
    row = Row(fall, ours=[Measurement(figures={"fall": -3.0})], peer=[Measurement(figures={"fall": 5.0})])
    (line,) = report.lines_of(row)
    assert (line.ours, line.peer, line.ratio, line.verdict) == (-3, 5, None, Verdict.MET)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0"), (0.04567, "0.0457"), (99.96, "100"), (1234.5, "1,234"), (-3.21, "-3.21")],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert report.number(value) == text


def test_the_report_keeps_every_run(tmp_path: Path) -> None:
    row = Row(WORKLOAD, ours=[clean(100), lossy(7)], peer=[clean(10)])
    described = {
        "cores": 2, "cpu": "A", "memory_gib": 4, "kernel": "6", "python": "3.11", "file_system": "ext4",
        "fdatasync_4kib_ms": {"p50": 0.2, "p99": 0.9}, "interpreter_start_s": 0.01,
    }  # fmt: skip
    settings = {"date": "2026-01-02", "rounds": 2, "scale": "full", "versions": {"ours": "1", "rabbitmq": "4"}}
    json_path, table_path = report.write(tmp_path, "stem", [row], described, settings, "ours", "rabbitmq")
    kept = json.loads(json_path.read_text())["rows"][0]
    assert [run["figures"]["rate"] for run in kept["runs"]["ours"]] == [100, 7]
    assert kept["runs"]["ours"][1]["faults"] == ["load: 3 lost"]
    assert kept["figures"][0]["verdict"] == "FAILED"
    assert "p50 0.2 ms / p99 0.9 ms" in table_path.read_text()


def test_the_workloads_are_the_issues_table() -> None:
    targets = {
        (workload.name, figure.key): (figure.target.bound, figure.target.value)
        for workload in WORKLOADS
        for figure in workload.figures
        if figure.target is not None
    }
    assert targets == {
        ("transient", "messages_per_s"): (Bound.RATIO_MIN, 15),
        ("durable", "messages_per_s"): (Bound.RATIO_MIN, 8),
        ("durable-1k", "messages_per_s"): (Bound.RATIO_MIN, 4),
        ("durable-16k", "messages_per_s"): (Bound.RATIO_MIN, 2),
        ("latency", "latency_p50_ms"): (Bound.RATIO_MAX, 1),
        ("latency", "latency_p99_ms"): (Bound.RATIO_MAX, 0.4),
        ("fan", "messages_per_s"): (Bound.RATIO_MIN, 5),
        ("backlog", "rss_growth_mb"): (Bound.MAX, 300),
        ("backlog", "drain_share"): (Bound.MIN, 0.7),
        ("restart", "accepting_s"): (Bound.MAX, 3),
        ("restart", "rss_growth_mb"): (Bound.MAX, 300),
        ("connections", "kb_each"): (Bound.MAX, 25),
        ("queues", "kb_each"): (Bound.MAX, 6),
        ("queues", "start_s"): (Bound.MAX, 5),
        ("cold-start", "start_s"): (Bound.MAX, 0.5),
    }
    assert {
        workload.kind for workload in (*WORKLOADS, *CLUSTER_WORKLOADS, *MANAGEMENT_WORKLOADS, *SPARK_WORKLOADS)
    } == set(Kind)


def test_the_spark_workloads_are_the_issues_table() -> None:
    targets = {
        (workload.name, figure.key): (figure.target.bound, figure.target.value)
        for workload in SPARK_WORKLOADS
        for figure in workload.figures
        if figure.target is not None
    }
    assert targets == {
        ("spark-trigger", "times_baseline"): (Bound.MIN, 10),
        ("spark-trigger", "trigger_1000_ms"): (Bound.MAX, 300),
        ("spark-batch", "times_baseline"): (Bound.MIN, 15),
        ("spark-batch", "cpu_us"): (Bound.MAX, 2.5),
        ("spark-batch", "cpu_headers_us"): (Bound.MAX, 7),
        ("spark-cluster", "share"): (Bound.MIN, 0.5),
        ("spark-exactly-once", "share"): (Bound.MIN, 0.8),
        ("spark-exactly-once", "trigger_share"): (Bound.MIN, 0.8),
        ("spark-source", "read_per_s"): (Bound.MIN, 200_000),
    }


def test_the_workloads_of_amqp_1_0_are_the_issues_table() -> None:
    targets = {
        (workload.name, figure.key): (figure.target.bound, figure.target.value)
        for workload in AMQP10_WORKLOADS
        for figure in workload.figures
        if figure.target is not None
    }
    assert targets == {
        ("amqp10-durable", "messages_per_s"): (Bound.RATIO_MIN, 8),
        ("amqp10-transient", "messages_per_s"): (Bound.RATIO_MIN, 8),
        ("amqp10-latency", "latency_p50_ms"): (Bound.RATIO_MAX, 1),
        ("amqp10-latency", "latency_p99_ms"): (Bound.RATIO_MAX, 1),
        ("amqp10-from-091", "messages_per_s"): (Bound.RATIO_MIN, 8),
        ("amqp10-to-091", "messages_per_s"): (Bound.RATIO_MIN, 8),
        ("amqp10-connections", "kb_each"): (Bound.MAX, 7),
        ("amqp10-cluster", "messages_per_s"): (Bound.RATIO_MIN, 10),
        ("amqp10-cluster-latency", "latency_p50_ms"): (Bound.RATIO_MAX, 1),
        ("amqp10-cluster-latency", "latency_p99_ms"): (Bound.RATIO_MAX, 1),
        ("amqp10-recoverable-senders", "messages_per_s"): (Bound.MIN, 60_000),
        ("amqp10-recoverable-receivers", "messages_per_s"): (Bound.MIN, 100_000),
    }


def test_the_cluster_workloads_are_the_issues_table() -> None:
    targets = {
        (workload.name, figure.key): (figure.target.bound, figure.target.value)
        for workload in CLUSTER_WORKLOADS
        for figure in workload.figures
        if figure.target is not None
    }
    assert targets == {
        ("cluster-one", "messages_per_s"): (Bound.RATIO_MIN, 10),
        ("cluster-spread", "messages_per_s"): (Bound.RATIO_MIN, 10),
        ("cluster-latency", "latency_p50_ms"): (Bound.RATIO_MAX, 0.7),
        ("cluster-latency", "latency_p99_ms"): (Bound.RATIO_MAX, 0.7),
        ("cluster-kills", "publisher_gap_p50_s"): (Bound.MAX, 0.25),
        ("cluster-kills", "publisher_gap_max_s"): (Bound.MAX, 1),
        ("cluster-kills", "consumer_gap_p50_s"): (Bound.MAX, 0.25),
        ("cluster-kills", "consumer_gap_max_s"): (Bound.MAX, 1),
        ("cluster-kills", "lost"): (Bound.MAX, 0),
        ("cluster-freeze", "publisher_gap_p50_s"): (Bound.MAX, 2.5),
        ("cluster-freeze", "consumer_gap_p50_s"): (Bound.MAX, 2.5),
        ("cluster-freeze", "lost"): (Bound.MAX, 0),
        ("cluster-declare", "declared_per_s"): (Bound.RATIO_MIN, 1),
        ("cluster-declare", "bound_per_s"): (Bound.RATIO_MIN, 1),
        ("cluster-memory", "messages_per_s"): (Bound.RATIO_MIN, 15),
        ("cluster-return", "in_sync_s"): (Bound.MAX, 30),
        ("cluster-return", "share_meanwhile"): (Bound.MIN, 0.5),
        ("cluster-move", "gap_p99_ms"): (Bound.MAX, 100),
    }


def test_only_durable_queues_get_the_durable_arguments() -> None:
    assert Load().options("x-durability=fsync")[-2:] == ["--args", "x-durability=fsync"]
    assert "--args" not in Load(durable=False).options("x-durability=fsync")
    assert "--args" not in Load().options()


def test_the_machine_tag_names_no_host() -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: Intel(R)  Xeon(R) Platinum 8480+ @ 2.00GHz\n"
    assert machine.cpu_model(cpuinfo) == "Intel(R) Xeon(R) Platinum 8480+ @ 2.00GHz"
    assert machine.machine_tag(machine.cpu_model(cpuinfo), 2, 24) == "2x-intel-xeon-platinum-8480-24gib"


def test_percentiles_are_nearest_rank() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert machine.percentile(values, 0.5) == 51
    assert machine.percentile(values, 0.99) == 100
    assert machine.percentile([7.0], 0.99) == 7


def test_the_version_is_read_from_the_servers_greeting() -> None:
    assert servers.version_in(b"...\x07versionS\x00\x00\x00\x064.3.1x\x08platform") == "4.3.1x"
    assert servers.version_in(b"no such property") == "unknown"
