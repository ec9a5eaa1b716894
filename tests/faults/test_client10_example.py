"""The example of docs/amqp10.md is run as a reader would: nodes are killed under a sender and a receiver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "amqp10_exactly_once.py"

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.timeout(240)]


def test_nothing_is_lost_or_doubled_while_nodes_are_killed() -> None:
    words = [sys.executable, str(EXAMPLE), "--messages", "3000", "--kills", "2"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9") == 2
    assert "0 lost, 0 doubled" in done.stdout
    assert done.stdout.endswith("EXACTLY ONCE\n")
