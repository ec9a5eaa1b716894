"""Calls by a pool beside jobs by Faktory, a work queue: what goes through one node of either.

    scripts/bench-rivals
    python -m bench.pool_queue [--keys 1000] [--seconds 10] [--rounds 2]

    pool        calls as bench.pool_calls has them: 16 callers, 64 outstanding each, over so many keys with a worker
                each, persistent requests, each answered, acknowledged and counted
    Faktory     jobs as bench/load/jobs.cc has them: 16 producers, 64 pushes in a write, 16 workers that fetch and
                acknowledge; one queue, no keys, and no answers, for Faktory has none. Redis writes its snapshots as
                Faktory configures it: what came since the last one is lost with a crash

Faktory and Redis come from scripts/bench-rivals, in CLUSTERBROKER_DAEMONS, else ~/.cache/clusterbroker/daemons.
Printed: calls or jobs done a second; processor time of the broker (with Redis), and of the generator, us each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

from bench.generator import GeneratorError, LoadResult, answer, compiled
from bench.pool_calls import Meter, pool
from bench.pools import PATIENCE_S, processor_s
from clusterbroker.broker.trial.nodes import free_port

CALLERS: Final = 16
WINDOW: Final = 64
CONFIG: Final = Path("/tmp/redis.conf")
"""Faktory writes it there, and nowhere else."""


@contextmanager
def faktory(directory: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Its port and its process, whose child is Redis. Raises GeneratorError."""
    root = Path(os.environ.get("CLUSTERBROKER_DAEMONS", "~/.cache/clusterbroker/daemons")).expanduser()
    program, redis = root / "faktory", root / "redis/usr"
    if not program.exists() or not (redis / "bin/redis-server").exists():
        raise GeneratorError(f"no faktory or no Redis in {root}: scripts/bench-rivals fetches them")
    variables = {
        "HOME": str(directory),
        "PATH": f"{redis}/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{redis}/lib/x86_64-linux-gnu",
    }
    port, web, left = free_port(), free_port(), not CONFIG.exists()
    argv = [str(program), "-d", str(directory / "db"), "-b", f"127.0.0.1:{port}", "-w", f"127.0.0.1:{web}"]
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen(argv, env=variables, stdout=log, stderr=log)
    try:
        end_s = time.monotonic() + PATIENCE_S
        while b"listening" not in (directory / "log").read_bytes():
            if process.poll() is not None or time.monotonic() > end_s:
                raise GeneratorError(f"faktory does not run: {(directory / 'log').read_text()[-600:]}")
            time.sleep(0.05)
        yield port, psutil.Process(process.pid)
    finally:
        children = psutil.Process(process.pid).children() if process.poll() is None else []
        process.terminate()
        process.wait(PATIENCE_S)
        psutil.wait_procs(children, timeout=PATIENCE_S)
        if left:
            CONFIG.unlink(missing_ok=True)


def tree_s(process: psutil.Process) -> float:
    """Processor time of it and of its children, s."""
    times = [each.cpu_times() for each in (process, *process.children())]
    return sum(each.user + each.system for each in times)


def row(name: str, rate: float, used_us: float, own_us: float) -> str:
    """For people."""
    return f"{name:10}{rate:10.0f}{used_us:12.0f}{own_us:14.1f}{os.getloadavg()[0]:7.1f}"


def jobs(seconds: float) -> str:
    """One row."""
    with tempfile.TemporaryDirectory() as directory, faktory(Path(directory)) as (port, process):
        options = ["--port", str(port), "--producers", str(CALLERS), "--workers", str(CALLERS), "--window", str(WINDOW)]
        used_s = tree_s(process)
        done = subprocess.run(
            [str(compiled("jobs")), *options, "--seconds", f"{seconds:.0f}"],
            capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise GeneratorError(f"jobs ended with {done.returncode}: {done.stdout}{done.stderr}")
        found, used_s = json.loads(done.stdout), tree_s(process) - used_s
    return row("Faktory", found["done_rate"], used_s / found["done"] * 1e6, found["cpu_s"] / found["done"] * 1e6)


def calls(keys: int, seconds: float) -> str:
    """One row."""
    with tempfile.TemporaryDirectory() as directory, pool(Path(directory) / "server", 1, keys) as served:
        server = served.servers[0]
        options = [*served.options, "--publishers", str(CALLERS), "--window", str(WINDOW), "--keys", str(keys)]
        first = ["--count", str(-(-keys // CALLERS)), "--drain", "300", "--timeout", "300"]
        assert LoadResult(answer("calls", server.port, [*options, *first], 1800)).raw["answered"], "all keys are warm"
        with Meter(lambda: processor_s(server)) as meter:
            found = LoadResult(answer("calls", server.port, [*options, "--seconds", str(seconds), "--drain", "60"]))
        assert not found.faults, f"each call is answered once: {found.faults}"
        used_s = meter.between(found.raw["from_ns"], found.raw["to_ns"])
    done = found.rate("call") * found.raw["window_s"]
    return row("pool", found.rate("call"), used_s / done * 1e6, found.raw["cpu_s"] / found.raw["calls"] * 1e6)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m bench.pool_queue", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=2)
    said = parser.parse_args()
    print(f"{'':10}{'done/s':>10}{'broker us':>12}{'generator us':>14}{'load':>7}", flush=True)
    for _ in range(said.rounds):
        print(calls(said.keys, said.seconds), flush=True)
        print(jobs(said.seconds), flush=True)


if __name__ == "__main__":
    main()
