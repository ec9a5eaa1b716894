"""The conversations once more with the halves in plain Python (`journal.build`): they are the specification."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterbroker.journal.build import COMPILED
from tests.budget import ALL

ROOT = Path(__file__).parents[4]
ALWAYS = ("queues/test_queue.py", "session")
IN_TURN = ("node", "queues/test_subscription.py")


@pytest.mark.campaign
@pytest.mark.timeout(3600)  # it is a thousand tests
@pytest.mark.skipif(not COMPILED, reason="this process runs the halves in plain Python itself")
@pytest.mark.parametrize("name", [*ALWAYS, *(pytest.param(name, marks=pytest.mark.matrix) for name in IN_TURN)])
def test_the_halves_in_plain_python_say_the_same(name: str) -> None:
    tier = "all" if ALL else "brief"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/unit/broker/{name}"],
        cwd=ROOT,
        env={**os.environ, "CLUSTERBROKER_PURE": "1", "TESTS_TIER": tier},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
