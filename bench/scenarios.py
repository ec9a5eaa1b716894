"""How each kind of workload is carried out on a fresh broker.

Every scenario returns a Measurement: the figures that its workload names, and the faults that make the run a
failed one. Figures of a run with a fault are kept for the reader but never counted.
"""

from __future__ import annotations

import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bench import generator
from bench.generator import GeneratorError, LoadResult
from bench.machine import interpreter_start_s
from bench.servers import OurNode, Server
from bench.workloads import Kind, Load, Scale, Workload

MB = 1_000_000
KB = 1_000
MICROSECONDS = 1_000_000
ANSWER_TIMEOUT_S = 300

doing: ContextVar[Callable[[str], object]] = ContextVar("doing", default=lambda _what: None)
"""Told by a long run what it does now."""


@dataclass(slots=True)
class Measurement:
    """What one run on one broker gave."""

    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    raw: list[dict[str, Any]] = field(default_factory=list)

    def take(self, result: LoadResult, what: str) -> LoadResult:
        """Keeps the generator's answer, without each single gap, and its faults."""
        self.raw.append({"part": what} | {key: value for key, value in result.raw.items() if key != "gaps"})
        self.faults += [f"{what}: {fault}" for fault in result.faults]
        return result


@contextmanager
def _peak_memory(server: Server, interval_s: float = 0.25) -> Iterator[list[int]]:
    """Samples memory while the block runs: [peak RSS, peak anonymous] in bytes."""
    peaks = [0, 0]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(interval_s):
            now = server.memory()
            peaks[0] = max(peaks[0], now.rss_bytes)
            peaks[1] = max(peaks[1], now.anonymous_bytes)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _load(server: Server, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    server.start()
    timing = ["--seconds", str(scale.seconds), "--warm", str(scale.warm_s)]
    options = [*workload.load.options(server.durable_arguments), *timing]
    before_s = server.processor_s()
    result = measured.take(generator.load(server.port, options), "load")
    taken_s = server.processor_s() - before_s
    measured.figures = {
        "messages_per_s": result.rate("receive"),
        "broker_us": taken_s * MICROSECONDS / max(1, result.raw["received"]),
        "latency_p50_ms": result.latency_ms("p50"),
        "latency_p99_ms": result.latency_ms("p99"),
        "confirm_p50_ms": result.latency_ms("p50", "confirm_latency_us"),
        "confirm_p99_ms": result.latency_ms("p99", "confirm_latency_us"),
    }
    return measured


def _fill(server: Server, load: Load, count: int, measured: Measurement) -> LoadResult:
    options = [*load.options(server.durable_arguments), "--consumers", "0", "--count", str(count)]
    return measured.take(generator.load(server.port, options), "fill")


def _drain(server: Server, load: Load, count: int, measured: Measurement) -> LoadResult:
    options = [*load.options(server.durable_arguments), "--publishers", "0", "--expect", str(count)]
    return measured.take(generator.load(server.port, options), "drain")


def _backlog(server: Server, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    server.start()
    timing = ["--seconds", str(scale.seconds), "--warm", str(scale.warm_s), "--queue", "empty"]
    options = [*workload.load.options(server.durable_arguments), *timing]
    plain = measured.take(generator.load(server.port, options), "no backlog")
    before = server.settled_memory()
    with _peak_memory(server) as peaks:
        filled = _fill(server, workload.load, scale.backlog, measured)
    drained = _drain(server, workload.load, scale.backlog, measured)
    measured.figures = {
        "rss_growth_mb": (peaks[0] - before.rss_bytes) / MB,
        "anonymous_growth_mb": (peaks[1] - before.anonymous_bytes) / MB,
        "publish_per_s": filled.rate("confirm"),
        "drain_per_s": drained.rate("receive"),
        "drain_share": drained.rate("receive") / max(1.0, plain.rate("receive")),
    }
    return measured


def _restart_until_counted(server: Server, count: int, measured: Measurement, what: str) -> float:
    """Starts the broker; seconds until it accepts and answers for the queue with all its messages."""
    started = time.perf_counter()
    server.start()
    messages = -1
    while time.perf_counter() - started < ANSWER_TIMEOUT_S:
        try:
            messages = generator.answer("depth", server.port, [])["messages"]
        except GeneratorError:
            time.sleep(0.02)
            continue
        break
    taken_s = time.perf_counter() - started
    if messages != count:
        measured.faults.append(f"{what}: {messages} messages in the queue instead of {count}")
    return taken_s


def _restart(server: Server, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    server.start()
    empty = server.settled_memory()
    _fill(server, workload.load, scale.backlog, measured)
    server.stop()
    with _peak_memory(server) as peaks:
        after_stop_s = _restart_until_counted(server, scale.backlog, measured, "after SIGTERM")
        server.settled_memory()
    server.kill()
    after_kill_s = _restart_until_counted(server, scale.backlog, measured, "after kill -9")
    drained = _drain(server, workload.load, scale.backlog, measured)
    measured.figures = {
        "accepting_s": after_stop_s,
        "accepting_after_kill_s": after_kill_s,
        "rss_growth_mb": (peaks[0] - empty.rss_bytes) / MB,
        "anonymous_growth_mb": (peaks[1] - empty.anonymous_bytes) / MB,
        "drain_per_s": drained.rate("receive"),
    }
    return measured


def _connections(server: Server, workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    server.start()
    protocol = workload.load.sends
    with idle_connections(server, 1, protocol):  # whatever the first connection ever needs is not counted
        pass
    before = server.settled_memory()
    with idle_connections(server, scale.connections, protocol) as elapsed_s:
        after = server.settled_memory()
    measured.figures = {
        "kb_each": (after.rss_bytes - before.rss_bytes) / scale.connections / KB,
        "opened_per_s": scale.connections / max(elapsed_s, 1e-9),
    }
    return measured


@contextmanager
def idle_connections(server: Server, count: int, protocol: str = "0-9-1") -> Iterator[float]:
    """Holds connections open during the block; yields the seconds that opening took."""
    argv = generator.command("idle", server.port, ["--count", str(count), "--protocol", protocol])
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert holder.stdin is not None, "the holder waits for its input to end"
    assert holder.stdout is not None, "the holder says when it is ready"
    started = time.perf_counter()
    try:
        holder.stdout.readline()
        elapsed_s = time.perf_counter() - started
        if holder.stdout.readline().strip() != "ready":
            raise GeneratorError(holder.stderr.read() if holder.stderr else "connections could not be opened")
        yield elapsed_s
    finally:
        holder.stdin.close()
        holder.wait(timeout=60)


def _queues(server: Server, _workload: Workload, scale: Scale) -> Measurement:
    measured = Measurement()
    server.start()
    with idle_connections(server, 1):
        pass
    empty = server.settled_memory()
    options = ["--count", str(scale.queues), "--queue", "many"]
    options += ["--args", server.durable_arguments] if server.durable_arguments else []
    declared = generator.answer("declare", server.port, options)
    full = server.settled_memory()
    server.stop()
    times = server.start()
    for number in (0, scale.queues // 2, scale.queues - 1):
        try:
            generator.answer("depth", server.port, ["--queue", f"many{number}"])
        except GeneratorError as error:
            measured.faults.append(f"queue many{number} is gone after the restart: {error}")
    restarted = server.settled_memory()
    measured.figures = {
        "kb_each": (full.rss_bytes - empty.rss_bytes) / scale.queues / KB,
        "kb_each_after_restart": (restarted.rss_bytes - empty.rss_bytes) / scale.queues / KB,
        "start_s": times.ready_s,
        "declared_per_s": scale.queues / max(declared["elapsed_s"], 1e-9),
    }
    return measured


def _cold_start(server: Server, _workload: Workload, scale: Scale) -> Measurement:
    interpreter_s = interpreter_start_s(3) if isinstance(server, OurNode) else 0.0
    taken = []
    for number in range(scale.cold_starts):
        again = type(server)(server.directory / f"cold{number}")
        with again:
            taken.append(again.start().ready_s - interpreter_s)
        server.version = again.version
    return Measurement(figures={"start_s": statistics.median(taken)})


Measured = TypeVar("Measured")
Scenario = Callable[[Measured, Workload, Scale], Measurement]
SCENARIOS: dict[Kind, Scenario[Server]] = {
    Kind.LOAD: _load,
    Kind.BACKLOG: _backlog,
    Kind.RESTART: _restart,
    Kind.CONNECTIONS: _connections,
    Kind.QUEUES: _queues,
    Kind.COLD_START: _cold_start,
}


def measure(
    scenarios: Mapping[Kind, Scenario[Measured]], on: Measured, workload: Workload, scale: Scale
) -> Measurement:
    """Carries one workload out; a broker (or a cluster) or generator that fails becomes a fault of the run."""
    try:
        return scenarios[workload.kind](on, workload, scale)
    except Exception as error:  # whatever went wrong belongs into the report beside the other rows
        return Measurement(faults=[f"{type(error).__name__}: {error}".strip()])
