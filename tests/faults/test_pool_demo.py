"""`scripts/demo --pools`: the verdict, the plot, and the whole on real nodes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import processes

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "demo_pools.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_pools", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(key: str, number: int, **other: Any) -> dict[str, Any]:
    return {"key": key, "number": number, "square": number**2, "worker": "w1", "again": False, **other}


def test_what_is_wrong_is_said(demo: ModuleType) -> None:
    def call(key: str, *answers: dict[str, Any], confirmed: bool = True, refused: bool = False) -> Any:
        return demo.Call(key, 1.0, confirmed, refused, list(answers), 2.0)

    well = [call("a", answer("a", 0)), call("b", answer("b", 1), answer("b", 1, again=True, worker="w2"))]
    assert demo.findings(well, 0) == []
    assert "2 requests of 2 keys, 0 lost, 0 by a wrong worker, 1 answered again" in demo.figures(well)
    assert demo.findings([call("a")], 0) == ["1 requests lost"]
    assert demo.findings([call("a", answer("a", 0), answer("a", 0))], 0) == [
        "1 requests answered twice without redelivered"
    ]
    assert demo.findings([call("a", answer("b", 0))], 0) == ["1 requests answered by a worker of another key"]
    assert demo.findings([call("a", answer("a", 0, square=1))], 0) == ["1 requests answered wrongly"]
    assert demo.findings([call("a", confirmed=False, refused=True)], 0) == ["1 requests refused"]
    assert demo.findings([call("a", confirmed=False)], 0) == ["1 requests not confirmed"]
    assert demo.findings(well, 2) == ["2 requests answered by the broker"]


def test_the_plot(demo: ModuleType) -> None:
    samples = [
        demo.Sample(0.0, 0, 0, {}, 0.0),
        demo.Sample(1.0, 10, 4, {"a": 1}, 100.0),
        demo.Sample(2.0, 30, 8, {"a": 2, "b": 1}, 800.0),
    ]
    rows = demo.plot(samples, [(0.5, "N"), (1.5, "W")])
    assert rows == [
        "load, at most 20/s       ▄█",
        "waiting, at most 8       ▄█",
        "p95, at most 0.8 s       ▁█",
        "workers, by key           b",
        "                          a",
        "                         aa",
        "kills: N node, W worker  NW",
    ]
    assert len(demo.columns(samples * 100, 76)) <= 76
    assert demo.plot([], []) == []


@pytest.mark.processes
@pytest.mark.matrix
def test_the_whole() -> None:
    line = [sys.executable, str(SCRIPT), "--seconds", "2"]
    done = processes.run(line, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT)
    assert isinstance(done, subprocess.CompletedProcess)
    *story, verdict = done.stdout.strip().splitlines() or [done.stderr]
    assert done.returncode == 0, verdict
    assert verdict.startswith("demo passed: ")
    assert " of 12 keys, 0 lost, 0 by a wrong worker, " in verdict
    assert any(row.startswith("kills: ") and "N" in row[24:] and "W" in row[24:] for row in story)
