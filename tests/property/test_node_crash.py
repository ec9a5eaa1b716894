"""Lives of a node with crashes (`node_crash.py`); longer: `python -m tests.property.node_crash --seconds 600`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.budget import campaign, campaign_s, seed
from tests.property.node_crash import live

pytestmark = pytest.mark.campaign


@pytest.mark.timeout(campaign_s("node_crash") * 4 + 600)
def test_a_node_keeps_its_promises_through_crashes() -> None:
    counts: Counter[str] = sum(campaign("node_crash", live, "python -m tests.property.node_crash --seed"), Counter())
    assert counts["crashes"], "a life without a crash proves nothing"
    assert counts["confirms"], "a life without a confirm proves nothing"


@pytest.mark.timeout(campaign_s("node_crash_pure") * 4 + 600)
def test_so_does_the_half_in_plain_python() -> None:
    words = ["--seconds", str(campaign_s("node_crash_pure")), "--first", str(seed("node_crash"))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.node_crash", *words],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CLUSTERBROKER_PURE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
