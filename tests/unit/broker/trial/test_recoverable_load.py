"""Programs of a trial that end by themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from clusterbroker.broker.trial.client import Target
from clusterbroker.broker.trial.recoverable_load import RecoverableLoad


def test_a_program_that_has_ended_hinders_no_stop(tmp_path: Path) -> None:
    """Otherwise the trial's nodes were left running."""
    load = RecoverableLoad(tmp_path, (Target("127.0.0.1", 1),), "t")
    program = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE)
    program.wait()
    load._programs["t-program-0"] = program
    load.resume()  # its command stays in the pipe's buffer
    asyncio.run(load._end("t-program-0"))
    assert program.stdin is not None
    assert program.stdin.closed
