"""How each kind of cluster workload is carried out on three fresh nodes; the sister of `scenarios.py`.

Faults (kills, freezes, hand-overs) are done one after another under one load, each after the cluster is whole again. A
gap belongs to a fault when it overlaps the time from the fault to the next one; per fault the longest gap of any
publisher and of any consumer counts.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bench import generator
from bench.clusters import NAMES, Cluster, OurCluster
from bench.generator import GeneratorError, LoadResult
from bench.scenarios import MICROSECONDS, Measurement, Scenario
from bench.workloads import Kind, Load, Scale, Workload

CALM_S = 2.0
"""between a cluster that is whole and the next fault"""
AFTER_KILL_S = 3.0
"""a killed node stays away for so long"""
FREEZE_S = 20.0


def _spread(cluster: Cluster, owner: int = 0) -> list[str]:
    """Publisher i dials node owner+1+i, consumer i node owner+2+i: with one of each, three nodes have one task each."""
    ports = cluster.ports

    def turned(by: int) -> str:
        return ",".join(str(ports[(owner + by + i) % len(ports)]) for i in range(len(ports)))

    return ["--publisher-ports", turned(1), "--consumer-ports", turned(2)]


def _declared(cluster: Cluster, load: Load, more: str = "") -> int:
    """Declares the workload's queues through the nodes in turn; the owner of the (first) queue."""
    arguments = cluster.arguments(load.durability) + more
    for number in range(load.queues):
        name = f"load{number}" if load.queues > 1 else "load"
        options = ["--queue", name, "--args", arguments, "--publishers", "0", "--expect", "0", "--consumers", "1"]
        generator.load(cluster.ports[number % len(cluster.ports)], options)
    return cluster.owner("load0" if load.queues > 1 else "load")


def _run(cluster: Cluster, load: Load, scale: Scale, measured: Measurement, owner: int, what: str) -> LoadResult:
    timing = ["--seconds", str(scale.seconds), "--warm", str(scale.warm_s), "--no-declare"]
    options = [*load.options(), *timing, *_spread(cluster, owner)]
    return measured.take(generator.load(cluster.ports[0], options), what)


def _figures(result: LoadResult) -> dict[str, float]:
    return {
        "messages_per_s": result.rate("receive"),
        "latency_p50_ms": result.latency_ms("p50"),
        "latency_p99_ms": result.latency_ms("p99"),
        "confirm_p50_ms": result.latency_ms("p50", "confirm_latency_us"),
        "confirm_p99_ms": result.latency_ms("p99", "confirm_latency_us"),
    }


def _load(cluster: Cluster, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    if workload.load.recoverable and not isinstance(cluster, OurCluster):
        return measured  # nobody else keeps the state of links
    cluster.start()
    owner = _declared(cluster, workload.load)
    before_s = sum(node.processor_s() for node in cluster.nodes)
    result = _run(cluster, workload.load, scale, measured, owner, "load")
    taken_s = sum(node.processor_s() for node in cluster.nodes) - before_s
    measured.figures = _figures(result) | {"broker_us": taken_s * MICROSECONDS / max(1, result.raw["received"])}
    return measured


@dataclass(slots=True)
class Surviving:
    """A load that goes on through faults; `result` is there when the block has ended."""

    process: subprocess.Popen[str]
    faults_ns: list[int] = field(default_factory=list)
    """when each fault was done, by CLOCK_MONOTONIC"""
    result: dict[str, Any] = field(default_factory=dict)

    def fault(self) -> None:
        """Says that a fault is done now."""
        if self.process.poll() is not None:
            raise GeneratorError("the load ended before the last fault")
        self.faults_ns.append(time.monotonic_ns())

    def longest_s(self, publisher: bool) -> list[float]:
        """Per fault, the longest gap of any publisher (or consumer) that overlaps it; 0 for none worth writing down."""
        ends = [*self.faults_ns[1:], self.result["ended_ns"]]
        return [
            max(
                (
                    (gap["to_ns"] - max(gap["from_ns"], 0)) / 1e9
                    for gap in self.result["gaps"]
                    if gap["publisher"] == publisher and gap["to_ns"] > began and gap["from_ns"] < end
                ),
                default=0.0,
            )
            for began, end in zip(self.faults_ns, ends, strict=True)
        ]


@contextmanager
def _surviving(load: Load, options: list[str], measured: Measurement, gap_ms: float = 20) -> Iterator[Surviving]:
    """Runs `amqpload survive` beside the block, and ends it in order behind it."""
    options = [*load.options(), *options, "--no-declare", "--seconds", "7200", "--drain", "60", "--gap-ms", str(gap_ms)]
    argv = generator.command("survive", 0, options)
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None, "its output is read"
    watch = threading.Timer(3600, process.kill)
    watch.start()
    try:
        if process.stdout.readline().strip() != "running":
            raise GeneratorError(process.stderr.read() if process.stderr else "the load did not begin")
        surviving = Surviving(process)
        time.sleep(CALM_S)
        yield surviving
        process.send_signal(signal.SIGTERM)
        surviving.result = json.loads(process.stdout.read().strip().splitlines()[-1])
        measured.take(LoadResult(surviving.result), "load through faults")
    finally:
        watch.cancel()
        process.kill()
        process.wait()


def _longest_s(surviving: Surviving, measured: Measurement) -> tuple[list[float], list[float]]:
    """Of publishers and of consumers, fault by fault; kept beside the load's own answer, too."""
    publishers, consumers = surviving.longest_s(True), surviving.longest_s(False)
    measured.raw[-1] |= {"publishers_longest_s": publishers, "consumers_longest_s": consumers}
    return publishers, consumers


def _gap_figures(surviving: Surviving, measured: Measurement) -> dict[str, float]:
    publishers, consumers = _longest_s(surviving, measured)
    return {
        "publisher_gap_p50_s": statistics.median(publishers),
        "publisher_gap_max_s": max(publishers),
        "consumer_gap_p50_s": statistics.median(consumers),
        "consumer_gap_max_s": max(consumers),
        "lost": surviving.result["lost"],
        "faults": len(surviving.faults_ns),
    }


def _whole_again(cluster: Cluster, back: int, since_s: float, timeout_s: float = 120) -> None:
    """Waits until a node that came back counts again, where the cluster says so."""
    deadline_s = time.monotonic() + timeout_s
    while isinstance(cluster, OurCluster) and cluster.in_sync_since(NAMES[back], since_s) is None:
        if time.monotonic() > deadline_s:
            raise GeneratorError(f"node {NAMES[back]} was not in sync {timeout_s:.0f} s after it came back")
        time.sleep(0.05)
    time.sleep(CALM_S)


def _kills(cluster: Cluster, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    cluster.start()
    _declared(cluster, workload.load)
    with _surviving(workload.load, _spread(cluster), measured) as surviving:
        for _ in range(scale.faults):
            owner = cluster.owner("load")
            surviving.fault()
            cluster.nodes[owner].kill()
            time.sleep(AFTER_KILL_S)
            since_s = time.time()
            cluster.nodes[owner].start()
            _whole_again(cluster, owner, since_s)
    measured.figures = _gap_figures(surviving, measured)
    return measured


def _freezes(cluster: Cluster, workload: Workload, scale: Scale) -> Measurement:
    """The clients stay off one node, and the owner is always that one: else it would have to be moved there."""
    measured = Measurement()
    cluster.start()
    owner = _declared(cluster, workload.load)
    for _ in range(max(1, scale.faults // 4)):
        others = ",".join(str(port) for index, port in enumerate(cluster.ports) if index != owner)
        one = Measurement()
        with _surviving(workload.load, ["--publisher-ports", others, "--consumer-ports", others], one) as surviving:
            surviving.fault()
            cluster.nodes[owner].send(signal.SIGSTOP)
            time.sleep(FREEZE_S)
            since_s = time.time()
            cluster.nodes[owner].send(signal.SIGCONT)
            _whole_again(cluster, owner, since_s)
        one.figures = _gap_figures(surviving, one)
        measured.faults += one.faults
        measured.raw += one.raw
        measured.figures = _worse(measured.figures, one.figures)
        owner = cluster.owner("load")
    return _averaged(measured, max(1, scale.faults // 4))


def _worse(all_: dict[str, float], one: dict[str, float]) -> dict[str, float]:
    return {key: max(all_.get(key, 0.0), value) if key.endswith("max_s") else all_.get(key, 0.0) + value
            for key, value in one.items()}  # fmt: skip


def _averaged(measured: Measurement, runs: int) -> Measurement:
    for key in ("publisher_gap_p50_s", "consumer_gap_p50_s"):
        measured.figures[key] /= runs
    return measured


def _declare(cluster: Cluster, _workload: Workload, scale: Scale) -> Measurement:
    cluster.start()
    count = scale.cluster_queues
    options = ["--count", str(count), "--queue", "many", "--args", cluster.arguments(), "--bind", "amq.topic"]
    declared = generator.answer("declare", cluster.ports[0], options)
    return Measurement(
        figures={
            "declared_per_s": count / max(declared["elapsed_s"], 1e-9),
            "bound_per_s": count / max(declared["binding_s"], 1e-9),
            "both_s": declared["elapsed_s"] + declared["binding_s"],
        }
    )


def _return(cluster: Cluster, workload: Workload, scale: Scale) -> Measurement:
    """The backlog lies in a queue of its own; the load before, and while the node catches up, in another one."""
    measured = Measurement()
    cluster.start()
    owner = _declared(cluster, workload.load)
    before = _run(cluster, workload.load, scale, measured, owner, "before")
    away = (owner + 1) % len(cluster.nodes)
    declare = ["--queue", "backlog", "--args", cluster.arguments()]
    generator.load(cluster.ports[owner], [*declare, "--publishers", "0", "--expect", "0"])
    cluster.nodes[away].kill()
    fill = [*workload.load.options(), "--queue", "backlog", "--no-declare", "--consumers", "0"]
    filled = generator.load(cluster.ports[owner], [*fill, "--count", str(scale.cluster_backlog)])
    measured.take(filled, "backlog")
    since_s = time.time()
    cluster.nodes[away].start()
    ports = [port for index, port in enumerate(cluster.ports) if index != away]
    timing = ["--seconds", str(scale.seconds), "--warm", "0", "--no-declare"]
    spread = ["--publisher-ports", str(ports[0]), "--consumer-ports", str(ports[1])]
    meanwhile = generator.load(cluster.ports[owner], [*workload.load.options(), *timing, *spread])
    measured.take(meanwhile, "meanwhile")
    measured.figures = {
        "messages_per_s": before.rate("receive"),
        "share_meanwhile": meanwhile.rate("receive") / max(1.0, before.rate("receive")),
    }
    if isinstance(cluster, OurCluster):
        _whole_again(cluster, away, since_s)
        came = cluster.in_sync_since(NAMES[away], since_s)
        assert came is not None, "it was waited for"
        measured.figures["in_sync_s"] = came - since_s
    return measured


def _moves(cluster: Cluster, workload: Workload, scale: Scale) -> Measurement:
    """RabbitMQ's quorum queues move by an election only; the row is ours."""
    measured = Measurement()
    if not isinstance(cluster, OurCluster):
        return measured
    cluster.start()
    owner = _declared(cluster, workload.load)
    with _surviving(workload.load, _spread(cluster), measured, gap_ms=1) as surviving:
        for _ in range(scale.faults * 5):
            owner = (owner + 1) % len(cluster.nodes)
            surviving.fault()
            cluster.move("load", owner)
            time.sleep(0.5)
    longest_ms = sorted(
        1000 * max(both)
        for both in zip(*_longest_s(surviving, measured), strict=True)
    )  # fmt: skip
    measured.figures = {
        "gap_p50_ms": statistics.median(longest_ms),
        "gap_p99_ms": longest_ms[min(len(longest_ms) - 1, int(len(longest_ms) * 0.99))],
        "moves": len(longest_ms),
    }
    return measured


def _rotating(cluster: Cluster, workload: Workload, scale: Scale) -> Measurement:
    """Ours only: what locality by turns costs."""
    measured = Measurement()
    if not isinstance(cluster, OurCluster):
        return measured
    cluster.start()
    shared = _run(cluster, workload.load, scale, measured, _declared(cluster, workload.load), "shared")
    with type(cluster)(cluster.directory / "rotating") as other:
        other.start()
        owner = _declared(other, workload.load, ",x-ownership=rotating")
        rotating = _run(other, replace(workload.load), scale, measured, owner, "rotating")
    measured.figures = _figures(rotating) | {
        "shared_per_s": shared.rate("receive"),
        "cost": rotating.rate("receive") / max(1.0, shared.rate("receive")),
    }
    return measured


SCENARIOS: dict[Kind, Scenario[Cluster]] = {
    Kind.CLUSTER_LOAD: _load,
    Kind.KILLS: _kills,
    Kind.FREEZES: _freezes,
    Kind.CLUSTER_DECLARE: _declare,
    Kind.RETURN: _return,
    Kind.MOVES: _moves,
    Kind.ROTATING: _rotating,
}
