"""The rows of the management table: what it costs and how fast it answers, on a node with work to do."""

from __future__ import annotations

from bench.workloads import Bound, Figure, Kind, Load, Target, Workload

_LOAD = Load(window=100)
"""over all connections, half of which publish; how many is a matter of the scale"""


def _fall(prefix: str, title: str, at_most: float) -> tuple[Figure, ...]:
    return (
        Figure(f"{prefix}fall_percent", title, "%", Target(Bound.MAX, at_most)),
        Figure(f"{prefix}fall_min_percent", "the lowest of a pair", "%"),
        Figure(f"{prefix}fall_max_percent", "the highest of a pair", "%"),
    )


def _visit(name: str, title: str, at_most_s: float | None) -> tuple[Figure, ...]:
    target = None if at_most_s is None else Target(Bound.MAX, at_most_s)
    return (Figure(f"{name}_p50_s", f"{title}, median", "s"), Figure(f"{name}_p99_s", "p99", "s", target))


MANAGEMENT_WORKLOADS = (
    Workload(
        "management-read", "polled at half load, 1,000 queues and connections, a page and metrics 5 times/s each",
        (
            Figure("page_p99_ms", "/api/queues?page=1&page_size=100, p99", "ms", Target(Bound.MAX, 50)),
            Figure("page_p50_ms", "p50", "ms"),
            Figure("page_max_ms", "longest", "ms"),
            Figure("metrics_p99_ms", "/metrics, p99", "ms", Target(Bound.MAX, 200)),
            Figure("metrics_p50_ms", "p50", "ms"),
            Figure("metrics_max_ms", "longest", "ms"),
            Figure("half_per_s", "half load, polled", "msg/s"),
            Figure("half_fall_percent", "half load: fall against alone", "%", Target(Bound.MAX, 10)),
            Figure("latency_p99_ms", "half load, polled: latency p99", "ms"),
            Figure("latency_alone_p99_ms", "half load, alone: latency p99", "ms"),
            Figure("full_per_s", "full load, alone", "msg/s"),
            *_fall("full_", "full load: fall of the median when polled", 10),
        ),
        Kind.MANAGEMENT_READ, load=_LOAD, rounds_max=1,
    ),
    Workload(
        "management-counting", "full load with the management API and somebody who asks every 5 s, against without",
        (
            *_fall("", "fall of the median", 1),
            Figure("without_per_s", "without", "msg/s"),
            Figure("with_per_s", "with", "msg/s"),
        ),
        Kind.MANAGEMENT_COUNTING, load=_LOAD, rounds_max=1,
    ),
    Workload(
        "definitions-import", "one document of definitions, three nodes",
        (
            Figure("everywhere_s", "all queues at all nodes, with owners", "s", Target(Bound.MAX, 20)),
            Figure("answered_s", "answered", "s"),
            Figure("in_sync_s", "three copies in sync of each", "s"),
            Figure("queues", "queues", ""),
        ),
        Kind.DEFINITIONS, rounds_max=3,
    ),
    Workload(
        "page-first", "the web page in Chromium, empty cache, 1,000 queues and idle connections",
        (
            *_visit("form", "address to sign-in form", 1),
            *_visit("overview", "address to overview, signed in", 1),
            *_visit("sign_in", "click on 'Sign in' to overview", None),
            Figure("visits", "visits", ""),
        ),
        Kind.PAGE_FIRST, rounds_max=1,
    ),
)  # fmt: skip
