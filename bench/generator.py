"""The load generator as seen from Python: compiled on first use, run as a process, answers in JSON.

Its source is `bench/load/`. A run that finds a loss, a duplicate, a wrong order, a corrupt body, a gap in delivery
tags or a missing confirm is not clean and exits with 1; `LoadResult.faults` says so in words.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "load"
CACHE = Path(__file__).parent / ".cache"
FAULT_COUNTS = ("lost", "duplicates", "misordered", "corrupt", "bad_tags", "unconfirmed")


class GeneratorError(Exception):
    """The generator could not be compiled, or it failed before it could measure anything."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One run's JSON, with the questions that a benchmark asks of it."""

    raw: dict[str, Any]

    def rate(self, what: str) -> float:
        """Messages per second; `what` is `publish`, `confirm` or `receive`."""
        return float(self.raw[f"{what}_rate"])

    def latency_ms(self, quantile: str, of: str = "latency_us") -> float:
        """Publish-to-consume latency, or with `of="confirm_latency_us"` publish-to-confirm."""
        return float(self.raw[of][quantile]) / 1000

    @property
    def faults(self) -> list[str]:
        """What makes this run a failed one, in words; empty when it is clean."""
        found = [f"{self.raw[name]} {name.replace('_', ' ')}" for name in FAULT_COUNTS if self.raw.get(name)]
        if self.raw.get("error"):
            found.append(str(self.raw["error"]))
        return found


def compiled(program: str) -> Path:
    """The path of a compiled program of `bench/load/`, built again whenever a source has changed.

    Raises GeneratorError where no C++ compiler is found or the build fails.
    """
    sources = sorted([*SOURCES.glob("*.h"), SOURCES / f"{program}.cc"])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    target = CACHE / f"{program}-{digest}"
    if target.exists():
        return target
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise GeneratorError("the load generator needs a C++ compiler (g++)")
    CACHE.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    options = [
        "-O2",
        "-std=c++17",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-o",
        str(partial),
        str(SOURCES / f"{program}.cc"),
    ]
    built = subprocess.run([compiler, *options], capture_output=True, text=True, check=False)
    if built.returncode:
        raise GeneratorError(f"{compiler} failed:\n{built.stderr}")
    partial.rename(target)
    return target


def command(verb: str, port: int, options: Sequence[str]) -> list[str]:
    """The argument vector of one generator process against a broker on loopback."""
    return [str(compiled("amqpload")), verb, "--port", str(port), *options]


def load(port: int, options: Sequence[str], timeout_s: float = 3600) -> LoadResult:
    """Runs publishers and consumers and returns what they counted. Raises GeneratorError without a result."""
    return LoadResult(answer("run", port, options, timeout_s))


def answer(verb: str, port: int, options: Sequence[str], timeout_s: float = 600) -> dict[str, Any]:
    """Runs one verb and returns its JSON. An unclean run answers too; only no answer at all is an error."""
    try:
        done = subprocess.run(
            command(verb, port, options), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise GeneratorError(f"amqpload {verb} took longer than {timeout_s:.0f} s") from error
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise GeneratorError(done.stderr.strip() or f"amqpload {verb} ended with {done.returncode} and no result")
    result: dict[str, Any] = json.loads(lines[-1])
    return result
