"""The rows of the cluster's table: three nodes on one machine, queues on all three, against RabbitMQ's quorum ones."""

from __future__ import annotations

from bench.workloads import Bound, Figure, Kind, Load, Target, Workload

_LATENCY = (Figure("latency_p50_ms", "latency p50", "ms"), Figure("latency_p99_ms", "latency p99", "ms"))


def _rate(at_least: float) -> tuple[Figure, ...]:
    return (Figure("messages_per_s", "rate", "msg/s", Target(Bound.RATIO_MIN, at_least)), *_LATENCY)


def _gaps(p50_s: float, max_s: float | None) -> tuple[Figure, ...]:
    worst = None if max_s is None else Target(Bound.MAX, max_s)
    return (
        Figure("publisher_gap_p50_s", "publishers' longest gap, median of the faults", "s", Target(Bound.MAX, p50_s)),
        Figure("publisher_gap_max_s", "the worst of them", "s", worst),
        Figure("consumer_gap_p50_s", "consumers' longest gap, median of the faults", "s", Target(Bound.MAX, p50_s)),
        Figure("consumer_gap_max_s", "the worst of them", "s", worst),
        Figure("lost", "confirmed and lost", "", Target(Bound.MAX, 0)),
        Figure("faults", "faults", ""),
    )


CLUSTER_WORKLOADS = (
    Workload(
        "cluster-one", "one publisher and one consumer on different nodes", _rate(10), Kind.CLUSTER_LOAD,
    ),
    Workload(
        "cluster-spread", "30 queues, 30 publishers, 30 consumers spread over the nodes", _rate(10), Kind.CLUSTER_LOAD,
        load=Load(publishers=30, consumers=30, queues=30),
    ),
    Workload(
        "cluster-latency", "2,000 messages/s",
        (
            Figure("latency_p50_ms", "latency p50", "ms", Target(Bound.RATIO_MAX, 0.7)),
            Figure("latency_p99_ms", "latency p99", "ms", Target(Bound.RATIO_MAX, 0.7)),
            Figure("confirm_p50_ms", "confirm p50", "ms"),
            Figure("confirm_p99_ms", "confirm p99", "ms"),
        ),
        Kind.CLUSTER_LOAD, load=Load(rate=2_000),
    ),
    Workload(
        "cluster-kills", "owner killed under load (kill -9)", _gaps(0.25, 1.0), Kind.KILLS,
        load=Load(publishers=3, consumers=3, rate=2_000, window=200), rounds_max=1,
    ),
    Workload(
        "cluster-freeze", "owner frozen (SIGSTOP), clients on the other nodes", _gaps(2.5, None), Kind.FREEZES,
        load=Load(publishers=2, consumers=2, rate=2_000, window=200), rounds_max=1,
    ),
    Workload(
        "cluster-declare", "declare queues and bind each",
        (
            Figure("declared_per_s", "queues", "1/s", Target(Bound.RATIO_MIN, 1)),
            Figure("bound_per_s", "bindings", "1/s", Target(Bound.RATIO_MIN, 1)),
            Figure("both_s", "both", "s"),
        ),
        Kind.CLUSTER_DECLARE,
    ),
    Workload(
        "cluster-memory", "one publisher and one consumer, x-durability=memory (RabbitMQ: a quorum queue)",
        _rate(15), Kind.CLUSTER_LOAD,
        load=Load(durability="memory"),
    ),
    Workload(
        "cluster-return", "a node returns after it missed a backlog",
        (
            Figure("in_sync_s", "in sync after", "s", Target(Bound.MAX, 30)),
            Figure("share_meanwhile", "load meanwhile against before", "x", Target(Bound.MIN, 0.5)),
            Figure("messages_per_s", "load before", "msg/s"),
        ),
        Kind.RETURN, rounds_max=1,
    ),
    Workload(
        "cluster-move", "token handed over under load",
        (
            Figure("gap_p50_ms", "longest gap of a client, p50", "ms"),
            Figure("gap_p99_ms", "longest gap of a client, p99", "ms", Target(Bound.MAX, 100)),
            Figure("moves", "hand-overs", ""),
        ),
        Kind.MOVES, load=Load(publishers=3, consumers=3, rate=2_000, window=200), rounds_max=1,
    ),
    Workload(
        "cluster-rotating", "x-ownership=rotating, three consumers on three nodes",
        (
            Figure("messages_per_s", "rate", "msg/s"), *_LATENCY,
            Figure("shared_per_s", "rate of x-ownership=shared", "msg/s"),
            Figure("cost", "rotating against shared", "x"),
        ),
        Kind.ROTATING, load=Load(publishers=3, consumers=3), rounds_max=1,
    ),
)  # fmt: skip
