"""Lives of a node with crashes (`node_crash.py`), for CLUSTERBROKER_CRASH_SECONDS, 12 unless said otherwise."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.property.node_crash import live_for

pytestmark = pytest.mark.campaign

SECONDS = float(os.environ.get("CLUSTERBROKER_CRASH_SECONDS", "12"))
SEED = int(os.environ.get("CRASH_SEED", random.SystemRandom().randrange(1 << 32)))


@pytest.mark.timeout(SECONDS + 120)
def test_a_node_keeps_its_promises_through_crashes() -> None:
    counts = live_for(SECONDS, SEED)
    assert counts["crashes"], "a life without a crash proves nothing"
    assert counts["confirms"], "a life without a confirm proves nothing"


@pytest.mark.timeout(SECONDS + 120)
def test_so_does_the_half_in_plain_python() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.node_crash", "--seconds", str(SECONDS / 3)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CLUSTERBROKER_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
