"""What the figures were measured on, without any name that identifies the host."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

APPEND_BYTES = 4096


def cpu_model(cpuinfo: str) -> str:
    """The model name out of /proc/cpuinfo's text."""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return re.sub(r"\s+", " ", found.group(1)).strip() if found else platform.machine()


def machine_tag(model: str, cores: int, memory_gib: int) -> str:
    """A short tag for file names, such as `2x-intel-xeon-processor-24gib`."""
    words = re.sub(r"\((?:r|tm)\)", "", model.lower())
    slug = re.sub(r"[^a-z0-9]+", "-", words.split("@")[0]).strip("-")
    return f"{cores}x-{slug}-{memory_gib}gib"


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the sorted values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def fdatasync_latency_ms(directory: Path, times: int = 500) -> dict[str, float]:
    """p50 and p99 in milliseconds of appending 4 KiB to a file and waiting for fdatasync."""
    block = os.urandom(APPEND_BYTES)
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - started) * 1000)
    return {"p50": round(percentile(taken, 0.50), 3), "p99": round(percentile(taken, 0.99), 3)}


def interpreter_start_s(rounds: int = 7) -> float:
    """Median seconds that this interpreter needs to start and do nothing."""
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def file_system(directory: Path) -> str:
    """The type of the file system that holds a directory, as `ext4`."""
    target = directory.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if target.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def commit() -> str:
    """What is measured, as git names it; "+" behind it: with changes that are not committed. Empty without git."""
    here = Path(__file__).parent
    try:
        named = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, check=True)
        changed = subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=here, capture_output=True, check=False)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return named.stdout.decode().strip() + ("+" if changed.returncode else "")


def describe(directory: Path) -> dict[str, Any]:
    """The machine as it stands in a report; `directory` is where the brokers keep their data."""
    model = cpu_model(Path("/proc/cpuinfo").read_text())
    cores = os.cpu_count() or 1
    memory_gib = round(psutil.virtual_memory().total / 2**30)
    return {
        "tag": machine_tag(model, cores, memory_gib),
        "cpu": model,
        "cores": cores,
        "memory_gib": memory_gib,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "file_system": file_system(directory),
        "fdatasync_4kib_ms": fdatasync_latency_ms(directory),
        "interpreter_start_s": round(interpreter_start_s(), 4),
        "load_average_before": round(os.getloadavg()[0], 2),
    }
