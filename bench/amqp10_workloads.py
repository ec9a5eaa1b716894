"""The rows of AMQP 1.0: on one node and on three, beside RabbitMQ's AMQP 1.0 with the same generator."""

from __future__ import annotations

from bench.workloads import Bound, Figure, Kind, Load, Target, Workload

_LATENCY = (Figure("latency_p50_ms", "latency p50", "ms"), Figure("latency_p99_ms", "latency p99", "ms"))


_TIME = Figure("broker_us", "processor time of the broker each", "us")


def _rate(bound: Bound, value: float) -> tuple[Figure, ...]:
    return (Figure("messages_per_s", "rate", "msg/s", Target(bound, value)), *_LATENCY, _TIME)


_MORE = (Figure("messages_per_s", "rate", "msg/s"), *_LATENCY, _TIME)
"""Of rows that show what the amounts under way make of a rate: no target."""

AMQP10_WORKLOADS = (
    Workload(
        "amqp10-durable", "AMQP 1.0: durable, unsettled then accepted, receiver settles, fsync, 100 B",
        _rate(Bound.RATIO_MIN, 8), load=Load(sends="1.0", receives="1.0"),
    ),
    Workload(
        "amqp10-durable-window", "the same, 4,000 deliveries under way", _MORE,
        load=Load(sends="1.0", receives="1.0", window=4_000, prefetch=4_000),
    ),
    Workload(
        "amqp10-transient", "AMQP 1.0: transient, settled by the sender, 100 B", _rate(Bound.RATIO_MIN, 8),
        load=Load(durable=False, confirm=False, auto_ack=True, sends="1.0", receives="1.0"),
    ),
    Workload(
        "amqp10-transient-credit", "the same, link-credit 20,000", _MORE,
        load=Load(durable=False, confirm=False, auto_ack=True, prefetch=20_000, sends="1.0", receives="1.0"),
    ),
    Workload(
        "amqp10-latency", "AMQP 1.0: 10,000 msg/s durable",
        (
            Figure("latency_p50_ms", "latency p50", "ms", Target(Bound.RATIO_MAX, 1)),
            Figure("latency_p99_ms", "latency p99", "ms", Target(Bound.RATIO_MAX, 1)),
        ),
        load=Load(rate=10_000, sends="1.0", receives="1.0"),
    ),
    Workload(
        "amqp10-from-091", "durable, AMQP 0-9-1 publisher to AMQP 1.0 consumer", _rate(Bound.RATIO_MIN, 8),
        load=Load(receives="1.0"),
    ),
    Workload(
        "amqp10-to-091", "durable, AMQP 1.0 sender to AMQP 0-9-1 consumer", _rate(Bound.RATIO_MIN, 8),
        load=Load(sends="1.0"),
    ),
    Workload(
        "amqp10-connections", "AMQP 1.0: idle connections with a session and two links each",
        (
            Figure("kb_each", "RSS each", "KB", Target(Bound.MAX, 7)),
            Figure("opened_per_s", "opened", "1/s"),
        ),
        kind=Kind.CONNECTIONS, load=Load(sends="1.0"), rounds_max=2,
    ),
    Workload(
        "amqp10-cluster", "AMQP 1.0, three nodes: one sender, one receiver on different nodes",
        _rate(Bound.RATIO_MIN, 10), Kind.CLUSTER_LOAD, load=Load(sends="1.0", receives="1.0"),
    ),
    Workload(
        "amqp10-cluster-latency", "AMQP 1.0, three nodes: 2,000 messages/s",
        (
            Figure("latency_p50_ms", "latency p50", "ms", Target(Bound.RATIO_MAX, 1)),
            Figure("latency_p99_ms", "latency p99", "ms", Target(Bound.RATIO_MAX, 1)),
        ),
        Kind.CLUSTER_LOAD, load=Load(rate=2_000, sends="1.0", receives="1.0"),
    ),
    Workload(
        "amqp10-recoverable-senders", "three nodes: a sender whose link survives its node", _rate(Bound.MIN, 60_000),
        Kind.CLUSTER_LOAD, load=Load(sends="1.0", recoverable=True),
    ),
    Workload(
        "amqp10-recoverable-receivers", "three nodes: a receiver whose link survives its node",
        _rate(Bound.MIN, 100_000), Kind.CLUSTER_LOAD, load=Load(receives="1.0", recoverable=True),
    ),
)  # fmt: skip
