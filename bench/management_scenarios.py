"""How each kind of management workload is carried out; the sister of `scenarios.py`.

What something costs is a fall: full loads with and without it take turns, each on a fresh node, and the medians of both
sides are compared. The load comes over all connections: half of them publish, each to a queue of its own, and the other
half consume, so that between two samples everything that may change has changed.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import generator
from bench.clusters import NAMES
from bench.first_page import visited
from bench.generator import LoadResult
from bench.machine import percentile
from bench.managed import PAGE, ManagedCluster, ManagedNode, ManagedServer, asked
from bench.polling import Polls, faults_of, polling, spread_ms
from bench.scenarios import Measurement, Scenario, doing, idle_connections
from bench.servers import Server, ServerError
from bench.workloads import Kind, Load, Scale, Workload

POLL_EVERY_S = 0.2
"""A page and the metrics, each five times a second."""
SAMPLE_EVERY_S = 5.0
"""As often as the management process of ours takes samples while somebody asks."""
IMPORT_TIMEOUT_S = 600.0


def _declared(server: Server, scale: Scale, active: int) -> None:
    """The queues that no load touches."""
    options = ["--count", str(scale.managed_queues - active), "--queue", "idle"]
    options += ["--args", server.durable_arguments] if server.durable_arguments else []
    generator.answer("declare", server.port, options)


def _load_of(scale: Scale, workload: Workload) -> Load:
    half = scale.managed_connections // 2
    return dataclasses.replace(workload.load, publishers=half, consumers=half, queues=half)


def _loaded(
    server: Server, load: Load, scale: Scale, measured: Measurement, what: str, seconds: float | None = None
) -> LoadResult:
    timing = ["--seconds", str(seconds or scale.seconds), "--warm", str(scale.warm_s)]
    options = [*load.options(server.durable_arguments), *timing]
    return measured.take(generator.load(server.port, options), what)


def _polled(
    server: ManagedServer, load: Load, scale: Scale, measured: Measurement, what: str, seconds: float | None = None
) -> tuple[LoadResult, Polls]:
    """A load while the page and the metrics are asked for."""
    with polling([server.page_url, server.metrics_url], POLL_EVERY_S) as polls:
        result = _loaded(server, load, scale, measured, what, seconds)
    measured.raw[-1]["processor_s"] = server.processor_s()
    for name, url in (("page", server.page_url), ("metrics", server.metrics_url)):
        answers = polls.between(url, result.raw["from_ns"], result.raw["to_ns"])
        measured.faults += faults_of(answers, f"{what}: {name}")
        measured.raw[-1][f"{name}_ms"] = [round(answer.taken_ms, 3) for answer in answers]
    return result, polls


def _fresh(
    server: ManagedServer, place: str, scale: Scale, active: int, run: Callable[[ManagedServer], float]
) -> float:
    """A run on a node that has not lived before, with all its queues."""
    with type(server)(server.directory / place) as fresh:
        fresh.start()
        server.version = fresh.version
        _declared(fresh, scale, active)
        return run(fresh)


def fall_percent(without: Sequence[float], with_it: Sequence[float]) -> dict[str, float]:
    """By how much the median falls, and the lowest and highest fall of a pair."""
    assert len(without) == len(with_it) >= 1, "they take turns"
    pairs = [100 * (1 - there / away) for away, there in zip(without, with_it, strict=True) if away > 0]
    median = statistics.median(without)
    return {
        "fall_percent": 100 * (1 - statistics.median(with_it) / median) if median else 100.0,
        "fall_min_percent": min(pairs, default=100.0),
        "fall_max_percent": max(pairs, default=100.0),
    }


def _read(server: ManagedServer, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    load = _load_of(scale, workload)
    active = load.queues

    def full(node: ManagedServer) -> float:
        return _loaded(node, load, scale, measured, "full load").rate("receive")

    def full_polled(node: ManagedServer) -> float:
        return _polled(node, load, scale, measured, "full load, polled")[0].rate("receive")

    without, with_it = [], []
    for number in range(scale.pairs):
        doing.get()(f"full load, pair {number + 1} of {scale.pairs}")
        without.append(_fresh(server, f"full{number}", scale, active, full))
        with_it.append(_fresh(server, f"polled{number}", scale, active, full_polled))
    half = dataclasses.replace(load, rate=statistics.median(without) / 2)
    doing.get()(f"half load, alone and polled, {2 * scale.polled_s:.0f} s")
    server.start()
    _declared(server, scale, active)
    alone = _loaded(server, half, scale, measured, "half load", scale.polled_s)
    result, polls = _polled(server, half, scale, measured, "half load, polled", scale.polled_s)
    measured.faults += _page_faults(server, min(100, scale.managed_queues))
    window = result.raw["from_ns"], result.raw["to_ns"]
    measured.figures = {
        **spread_ms(polls.between(server.page_url, *window), "page"),
        **spread_ms(polls.between(server.metrics_url, *window), "metrics"),
        "half_per_s": result.rate("receive"),
        "half_fall_percent": 100 * (1 - result.rate("receive") / max(1.0, alone.rate("receive"))),
        "latency_p99_ms": result.latency_ms("p99"),
        "latency_alone_p99_ms": alone.latency_ms("p99"),
        "full_per_s": statistics.median(without),
        **{f"full_{name}": value for name, value in fall_percent(without, with_it).items()},
    }
    return measured


def _page_faults(server: ManagedServer, items: int) -> list[str]:
    """The page that was polled shows what it should."""
    page = asked(server.page_url)
    shown = len(page["items"])
    return [] if shown == items else [f"{PAGE} showed {shown} queues instead of {items}"]


def _counting(server: ManagedServer, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    load = _load_of(scale, workload)
    active = load.queues

    def watched(node: ManagedServer) -> float:
        with polling([f"{node.url}/api/overview"], SAMPLE_EVERY_S) as polls:
            rate = _loaded(node, load, scale, measured, "with --http").rate("receive")
        answers = [one for told in polls.answers.values() for one in told]
        measured.faults += faults_of(answers, "/api/overview")
        measured.raw[-1]["processor_s"] = node.processor_s()
        return rate

    without, with_it = [], []
    for number in range(scale.pairs):
        doing.get()(f"without and with management, pair {number + 1} of {scale.pairs}")
        with server.plain(server.directory / f"plain{number}") as plain:
            plain.start()
            _declared(plain, scale, active)
            without.append(_loaded(plain, load, scale, measured, "without").rate("receive"))
        with_it.append(_fresh(server, f"watched{number}", scale, active, watched))
    measured.figures = fall_percent(without, with_it) | {
        "without_per_s": statistics.median(without),
        "with_per_s": statistics.median(with_it),
    }
    return measured


def definitions(queues: int, arguments: dict[str, Any]) -> bytes:
    """A document with that many durable queues of the vhost "/", as it is posted."""
    declared = [
        {
            "name": f"many{number}",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": arguments,
        }
        for number in range(queues)
    ]
    return json.dumps({"queues": declared, "exchanges": [], "bindings": []}).encode()


def _definitions(server: ManagedServer, _workload: Workload, scale: Scale) -> Measurement:
    """Ours only. All nodes have a queue when their management API lists it with an owner, and AMQP finds it there."""
    measured = Measurement()
    if not isinstance(server, ManagedNode):
        return measured
    count = scale.definitions
    with ManagedCluster(server.directory / "cluster") as cluster:
        cluster.start()
        server.version = cluster.version
        document = definitions(count, {"x-durability": "fsync"})
        doing.get()(f"{count:,} queues in one document")
        began_s = time.monotonic()
        try:
            asked(f"{cluster.urls[0]}/api/definitions", document, IMPORT_TIMEOUT_S)
            answered_s = time.monotonic() - began_s
            owned_s = [_owned_s(url, count, began_s, ("owner",)) for url in cluster.urls]
            opened_s = _found_s(cluster.ports, count, began_s, measured)
            synced_s = [_owned_s(url, count, began_s, ("owner", "in_sync")) for url in cluster.urls]
        except OSError as error:  # the nodes' directories will be gone with what they had to say
            logs = "; ".join(f"{name}: {node.last_words()}" for name, node in zip(NAMES, cluster.nodes, strict=True))
            raise ServerError(f"{error}; the logs end: {logs}") from error
    measured.figures = {
        "everywhere_s": max(*owned_s, opened_s),
        "answered_s": answered_s,
        "in_sync_s": max(synced_s),
        "queues": count,
    }
    return measured


def _owned_s(url: str, count: int, began_s: float, needed: Sequence[str]) -> float:
    """Seconds until a node lists so many queues that have an owner, or three copies in sync as well."""
    columns = ",".join(needed)
    while True:
        if asked(f"{url}/api/queues?page=1&page_size=1&columns=name")["total_count"] >= count:
            listed = asked(f"{url}/api/queues?columns={columns}")
            if all(
                queue.get("owner") and ("in_sync" not in needed or len(queue["in_sync"]) == 3)
                for queue in listed
            ):  # fmt: skip
                return time.monotonic() - began_s
        if time.monotonic() - began_s > IMPORT_TIMEOUT_S:
            raise generator.GeneratorError(f"{url} did not list {count} queues with {columns}")
        time.sleep(0.1)


def _found_s(ports: Sequence[int], count: int, began_s: float, measured: Measurement) -> float:
    """Seconds until each node finds the first, the middle and the last one by AMQP."""
    for port in ports:
        for number in (0, count // 2, count - 1):
            try:
                generator.answer("depth", port, ["--queue", f"many{number}"])
            except generator.GeneratorError as error:
                measured.faults.append(f"queue many{number} is not there at port {port}: {error}")
    return time.monotonic() - began_s


def _page_first(server: ManagedServer, _workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    if not isinstance(server, ManagedNode):
        return measured
    server.start()
    _declared(server, scale, 0)
    with idle_connections(server, scale.managed_connections):
        taken = visited(server.url, scale.visits)
    for name, seconds in taken.items():
        measured.figures[f"{name}_p50_s"] = statistics.median(seconds)
        measured.figures[f"{name}_p99_s"] = percentile(seconds, 0.99)
    measured.figures["visits"] = scale.visits
    measured.raw.append({"part": "visits"} | taken)
    return measured


SCENARIOS: dict[Kind, Scenario[ManagedServer]] = {
    Kind.MANAGEMENT_READ: _read,
    Kind.MANAGEMENT_COUNTING: _counting,
    Kind.DEFINITIONS: _definitions,
    Kind.PAGE_FIRST: _page_first,
}
