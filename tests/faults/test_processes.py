"""The parent of all processes that tests start: what it starts is as real as what is executed, and outlives no run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.faults.node import ROOT, wait_for
from tests.support.processes import COMMAND, popen, run

RUN = """
import subprocess, sys, time
from tests.support.processes import COMMAND, popen
words = [*COMMAND, "start", "--data-dir", sys.argv[1], "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
node = popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
for line in node.stdout:
    if line.strip() == "ready":
        break
orphan = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
other = popen([sys.executable, "-c", orphan], stdout=subprocess.PIPE, text=True)
print(node.pid, int(other.stdout.readline()), flush=True)
time.sleep(1000)
"""


def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    """Neither the node, nor the process beside it, nor one whose own parent has ended."""
    run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert run.stdout is not None
        started = [psutil.Process(int(pid)) for pid in run.stdout.readline().split()]
        zygote = psutil.Process(run.pid).children()
        wait_for(lambda: len(started[0].children()) == 1, "its management process runs")
        all_of_them = [*zygote, *started, *started[0].children()]
        assert len(all_of_them) == 4
        assert all(process.is_running() for process in all_of_them)
    finally:
        run.kill()
        run.wait()
    # a zombie that only init may reap is over too
    over = lambda one: not one.is_running() or one.status() == psutil.STATUS_ZOMBIE  # noqa: E731
    wait_for(lambda: all(map(over, all_of_them)), "all have ended with the run")


@pytest.mark.parametrize("environment", [{}, {"LC_TIME": "C"}], ids=["forked", "executed"])
def test_a_process_is_as_real_as_any(tmp_path: Path, environment: dict[str, str]) -> None:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = run([*COMMAND, "settings"], capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "journal.segment_bytes" in done.stdout
    wrong = run([*COMMAND, "nothing"], capture_output=True, text=True, env=variables)
    assert wrong.returncode == 2
    assert "No such command" in wrong.stderr
    words = [*COMMAND, "start", "--data-dir", str(tmp_path), "--amqp", "127.0.0.1:0"]
    for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)):
        node = popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path, env=variables)
        assert [node.stdout.readline().split(" ")[0] for _ in range(2)] == ["amqp", "ready\n"]
        assert Path(f"/proc/{node.pid}/cwd").resolve() == tmp_path
        assert ("zygote" in " ".join(psutil.Process(node.pid).cmdline())) == (not environment)
        assert node.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            node.wait(0)
        node.send_signal(number)
        assert node.wait(20) == code
        assert node.poll() == code
        node.stdout.close()
