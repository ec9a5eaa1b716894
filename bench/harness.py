"""The order of a benchmark: which broker runs which workload when.

Both brokers take turns within a workload (A B A B), each time a fresh process with an empty directory and alone on
the machine, so that drift of the machine meets both alike. What a single run does is in `scenarios.py`.
"""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench import cluster_scenarios, generator, management_scenarios, scenarios, spark_scenarios
from bench.clusters import CLUSTERS
from bench.managed import MANAGED
from bench.report import Row
from bench.scenarios import Measurement
from bench.servers import RelayNode, Server
from bench.workloads import Load, Scale, Workload

Progress = Callable[[str, int], None]
"""told what happens now, and by how many runs the work has advanced"""


@dataclass(slots=True)
class Plan:
    """What is measured, on whom, and how much."""

    workloads: Sequence[Workload]
    ours: type[Server]
    peer: type[Server] | None
    scale: Scale
    directory: Path
    versions: dict[str, str] = field(default_factory=dict)

    def rounds_of(self, workload: Workload) -> int:
        """Long workloads are measured fewer times."""
        return min(self.scale.rounds, workload.rounds_max)

    @property
    def runs(self) -> int:
        """How many runs the plan has."""
        sides = 1 if self.peer is None else 2
        return sum(self.rounds_of(workload) * sides for workload in self.workloads)


def raise_file_limit() -> None:
    """Lets this process and its children open as many files as the machine allows them to."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_once(plan: Plan, kind: type[Server], workload: Workload) -> Measurement:
    """One workload on one fresh broker (or three of them), whose directory is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"{kind.name}-", dir=plan.directory))
    try:
        if workload.kind in cluster_scenarios.SCENARIOS:
            with CLUSTERS[kind.name](directory) as cluster:
                measured = scenarios.measure(cluster_scenarios.SCENARIOS, cluster, workload, plan.scale)
                if measured.figures:  # else the row was not one for this broker, and it was never asked
                    plan.versions[cluster.name] = cluster.version
                return measured
        if workload.kind in management_scenarios.SCENARIOS:
            with MANAGED[kind.name](directory) as managed:
                measured = scenarios.measure(management_scenarios.SCENARIOS, managed, workload, plan.scale)
                if measured.figures:
                    plan.versions[managed.name] = managed.version
                return measured
        if workload.kind in spark_scenarios.CLUSTER_SCENARIOS:
            with CLUSTERS[kind.name](directory) as cluster:
                measured = scenarios.measure(spark_scenarios.CLUSTER_SCENARIOS, cluster, workload, plan.scale)
                plan.versions[cluster.name] = cluster.version
                return measured
        with kind(directory) as server:
            table = {**scenarios.SCENARIOS, **spark_scenarios.SCENARIOS}
            measured = scenarios.measure(table, server, workload, plan.scale)
            plan.versions[server.name] = server.version
            return measured
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(plan: Plan, progress: Progress) -> list[Row]:
    """Carries the plan out, the sides in turn, and returns one row per workload."""
    raise_file_limit()
    rows = []
    for workload in plan.workloads:
        row = Row(workload)
        rounds = plan.rounds_of(workload)
        for number in range(rounds):
            for kind, runs in ((plan.ours, row.ours), (plan.peer, row.peer)):
                if kind is None:
                    continue
                what = f"{workload.name} on {kind.name}, round {number + 1} of {rounds}"
                progress(what, 0)
                scenarios.doing.set(partial(_within, progress, what))
                runs.append(run_once(plan, kind, workload))
                progress(what, 1)
        rows.append(row)
    return rows


def _within(progress: Progress, what: str, part: str) -> None:
    progress(f"{what}: {part}", 0)


def generator_limits(directory: Path, seconds: float = 2) -> dict[str, float]:
    """What the load generator does against the bare relay, which no broker's figure can be better than.

    `ceiling_per_s` is its transient rate; `floor_p50_ms` and `floor_p99_ms` are the latencies that it sees at
    10,000 messages/s, the waiting for the processor included.
    """
    ceiling = Workload("ceiling", "", (), load=Load(durable=False, confirm=False, auto_ack=True))
    floor = Workload("floor", "", (), load=Load(durable=False, rate=10_000))
    plan = Plan([ceiling, floor], RelayNode, None, Scale(seconds=seconds, warm_s=0.5, rounds=1), directory)
    fastest, quickest = (run_once(plan, RelayNode, workload) for workload in plan.workloads)
    if faults := fastest.faults + quickest.faults:
        raise generator.GeneratorError("the generator failed against the bare relay: " + "; ".join(faults))
    return {
        "ceiling_per_s": fastest.figures["messages_per_s"],
        "floor_p50_ms": quickest.figures["latency_p50_ms"],
        "floor_p99_ms": quickest.figures["latency_p99_ms"],
    }
