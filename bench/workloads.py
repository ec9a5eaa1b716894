"""The rows of the benchmark's table, as descriptions: what is done, which figures come out, what they must be.

How a kind of workload is carried out is in `scenarios.py`; nothing here runs anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """Which scenario carries a workload out."""

    LOAD = "load"
    BACKLOG = "backlog"
    RESTART = "restart"
    CONNECTIONS = "connections"
    QUEUES = "queues"
    COLD_START = "cold start"
    CLUSTER_LOAD = "cluster: load"
    KILLS = "cluster: owner killed"
    FREEZES = "cluster: owner frozen"
    CLUSTER_DECLARE = "cluster: declare"
    RETURN = "cluster: a node returns"
    MOVES = "cluster: hand-overs"
    ROTATING = "cluster: rotating ownership"
    MANAGEMENT_READ = "management: polled under load"
    MANAGEMENT_COUNTING = "management: what counting costs"
    DEFINITIONS = "management: definitions"
    PAGE_FIRST = "management: first page"
    SPARK_TRIGGER = "spark: triggers"
    SPARK_BATCH = "spark: batch"
    SPARK_CLUSTER = "spark: batch into a cluster"
    SPARK_EXACTLY_ONCE = "spark: exactly once"
    SPARK_SOURCE = "spark: source"


class Bound(StrEnum):
    """How a figure is held against its target."""

    RATIO_MIN = ">= x the peer"
    RATIO_MAX = "<= x the peer"
    MAX = "<="
    MIN = ">="


@dataclass(frozen=True, slots=True)
class Target:
    """What the issue asks of one figure."""

    bound: Bound
    value: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that a workload yields."""

    key: str
    title: str
    unit: str
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What the generator sends; the defaults are the table's durable row."""

    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    size_bytes: int = 100
    durable: bool = True
    confirm: bool = True
    auto_ack: bool = False
    window: int = 1000
    """deliveries of a publisher that wait for their confirms, at most"""
    prefetch: int = 1000
    """deliveries of a consumer that wait for their acknowledgements, at most; with AMQP 1.0 its link-credit, settled
    deliveries included"""
    rate: float = 0
    """messages/s of all publishers; 0 for as fast as they are taken"""
    durability: str = "fsync"
    """in a cluster: x-durability of our queues"""
    sends: str = "0-9-1"
    """protocol of the publishers"""
    receives: str = "0-9-1"
    """protocol of the consumers"""
    recoverable: bool = False
    """AMQP 1.0's links keep their state beyond their connection"""

    def options(self, durable_arguments: str = "") -> list[str]:
        """As arguments of the generator."""
        numbers = {
            "--publishers": self.publishers, "--consumers": self.consumers, "--queues": self.queues,
            "--size": self.size_bytes, "--window": self.window, "--prefetch": self.prefetch, "--rate": self.rate,
        }  # fmt: skip
        options = [part for name, value in numbers.items() for part in (name, str(value))]
        options += [] if self.durable else ["--transient"]
        options += [] if self.confirm else ["--no-confirm"]
        options += ["--auto-ack"] if self.auto_ack else []
        options += ["--publish-protocol", self.sends, "--consume-protocol", self.receives]
        options += ["--recoverable"] if self.recoverable else []
        options += ["--args", durable_arguments] if self.durable and durable_arguments else []
        return options


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: the table's own amounts, or `--quick` ones that prove that the rows work."""

    seconds: float = 10
    warm_s: float = 2
    rounds: int = 3
    backlog: int = 5_000_000
    connections: int = 1_000
    queues: int = 10_000
    cold_starts: int = 3
    faults: int = 20
    """kills, freezes and hand-overs of a row"""
    cluster_queues: int = 1_000
    cluster_backlog: int = 1_000_000
    managed_queues: int = 1_000
    managed_connections: int = 1_000
    pairs: int = 5
    """full loads with and without what is measured, in alternation"""
    polled_s: float = 60
    """measured seconds of half a load while the management API is polled"""
    definitions: int = 10_000
    visits: int = 20
    spark_rows: int = 1_000_000
    triggers: int = 20


QUICK = Scale(
    seconds=2,
    warm_s=0.5,
    rounds=1,
    backlog=200_000,
    connections=100,
    queues=500,
    cold_starts=1,
    faults=3,
    cluster_queues=200,
    cluster_backlog=50_000,
    managed_queues=200,
    managed_connections=100,
    pairs=1,
    polled_s=5,
    definitions=1_000,
    visits=3,
    spark_rows=50_000,
    triggers=3,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One row (or two that share their setting)."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    kind: Kind = Kind.LOAD
    load: Load = field(default_factory=Load)
    rounds_max: int = 99
    """long rows are measured once"""


def _rate(at_least: float) -> tuple[Figure, ...]:
    return (
        Figure("messages_per_s", "rate", "msg/s", Target(Bound.RATIO_MIN, at_least)),
        Figure("latency_p99_ms", "latency p99", "ms"),
    )


_RSS_GROWTH = Figure("rss_growth_mb", "RSS growth, peak", "MB", Target(Bound.MAX, 300))
_ANONYMOUS_GROWTH = Figure("anonymous_growth_mb", "of it not file-backed", "MB")

WORKLOADS = (
    Workload(
        "transient", "transient, no confirms, automatic ack, 100 B", _rate(15),
        load=Load(durable=False, confirm=False, auto_ack=True),
    ),
    Workload("durable", "durable, confirms (window 1000), manual ack, fsync, 100 B", _rate(8)),
    Workload("durable-1k", "the same with 1 KiB", _rate(4), load=Load(size_bytes=1024)),
    Workload("durable-16k", "the same with 16 KiB", _rate(2), load=Load(size_bytes=16384)),
    Workload(
        "latency", "10,000 msg/s durable with confirms",
        (
            Figure("latency_p50_ms", "latency p50", "ms", Target(Bound.RATIO_MAX, 1)),
            Figure("latency_p99_ms", "latency p99", "ms", Target(Bound.RATIO_MAX, 0.4)),
            Figure("confirm_p50_ms", "confirm p50", "ms"),
            Figure("confirm_p99_ms", "confirm p99", "ms"),
            Figure("messages_per_s", "rate", "msg/s"),
        ),
        load=Load(rate=10_000),
    ),
    Workload(
        "fan", "100 queues, 100 publishers, 100 consumers, durable, confirms", _rate(5),
        load=Load(publishers=100, consumers=100, queues=100),
    ),
    Workload(
        "backlog", "backlog of durable 100 B messages, then drained",
        (
            _RSS_GROWTH, _ANONYMOUS_GROWTH,
            Figure("drain_share", "drain against no backlog", "x", Target(Bound.MIN, 0.7)),
            Figure("publish_per_s", "publish rate", "msg/s"),
            Figure("drain_per_s", "drain rate", "msg/s"),
        ),
        kind=Kind.BACKLOG, rounds_max=1,
    ),
    Workload(
        "restart", "restart with that backlog",
        (
            Figure("accepting_s", "accepting after SIGTERM", "s", Target(Bound.MAX, 3)),
            Figure("accepting_after_kill_s", "accepting after kill -9", "s"),
            _RSS_GROWTH, _ANONYMOUS_GROWTH,
            Figure("drain_per_s", "drain rate", "msg/s"),
        ),
        kind=Kind.RESTART, rounds_max=1,
    ),
    Workload(
        "connections", "idle connections with one channel each",
        (
            Figure("kb_each", "RSS each", "KB", Target(Bound.MAX, 25)),
            Figure("opened_per_s", "opened", "1/s"),
        ),
        kind=Kind.CONNECTIONS, rounds_max=2,
    ),
    Workload(
        "queues", "durable queues without messages",
        (
            Figure("kb_each", "RSS each", "KB", Target(Bound.MAX, 6)),
            Figure("kb_each_after_restart", "RSS each after a restart", "KB"),
            Figure("start_s", "start", "s", Target(Bound.MAX, 5)),
            Figure("declared_per_s", "declared", "1/s"),
        ),
        kind=Kind.QUEUES, rounds_max=1,
    ),
    Workload(
        "cold-start", "cold start of an empty node to ready, without the interpreter's own start",
        (Figure("start_s", "start", "s", Target(Bound.MAX, 0.5)),),
        kind=Kind.COLD_START,
    ),
)  # fmt: skip
