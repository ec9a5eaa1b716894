"""A node as its users run it: a process of `clusterbroker start`, which a test may kill, stop, starve and start again.

A restart takes the same data directory and the same port. Limits come as settings
(`limits={"limits.heartbeat_s": 2}`), which become CLUSTERBROKER_* variables.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support.processes import popen, run

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0


class NodeProcess:
    """`start`, then `kill` or `stop`, then `start` again."""

    def __init__(
        self, directory: Path, settings: Mapping[str, Any] | None = None, data_dir: Path | None = None
    ) -> None:
        self.directory = directory
        self.data_dir = data_dir or directory / "data"
        self.settings = dict(settings or {})
        self.environment: dict[str, str] = {}
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the node was started"
        return self.process.pid

    @property
    def log(self) -> str:
        return (self.directory / "node.log").read_text(errors="replace")

    @property
    def rss_bytes(self) -> int:
        """Of its own: pages of files are shared, and a process that was forked takes them one after the other."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    @property
    def cpu_s(self) -> float:
        """Processor time since its start."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def said_ready(self) -> bool:
        """Whether it accepts; takes note of the port."""
        said = (self.directory / "node.out").read_text().splitlines()
        if said[-1:] != ["ready"]:
            return False
        self.port = int(next(line for line in said if line.startswith("amqp ")).rpartition(":")[2])
        return True

    def launch(self) -> None:
        """Starts the process and does not wait for `ready`."""
        assert not self.running, "a node is started once"
        self.directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "clusterbroker.broker.cli.main", "start", "--name", "n1"]
        command += ["--data-dir", str(self.data_dir), "--amqp", f"127.0.0.1:{self.port}"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT), **self.environment}
        for name, value in self.settings.items():
            environment["CLUSTERBROKER_" + name.upper().replace(".", "__")] = str(value)
        (self.directory / "node.out").write_bytes(b"")
        with open(self.directory / "node.out", "wb") as out, open(self.directory / "node.log", "ab") as log:
            self.process = popen(command, stdout=out, stderr=log, env=environment, cwd=self.directory)

    def start(self) -> NodeProcess:
        self.launch()
        assert self.process is not None, "it was launched"
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            if self.said_ready:
                return self
            time.sleep(0.01)
        code = self.process.poll()
        self.kill()
        raise RuntimeError(f"the node did not become ready (exit code {code}): {self.log[-3000:]}")

    def signal(self, number: int) -> None:
        assert self.process is not None, "the node was started"
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: the process has no say; what it wrote stays in the kernel."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None, "the node was started"
        self.signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """The exit code, when the node ends by itself."""
        assert self.process is not None, "the node was started"
        return self.process.wait(timeout_s)


def command(*words: str) -> tuple[int, str]:
    """`clusterbroker WORDS`: exit code, and all that it said."""
    line = [sys.executable, "-m", "clusterbroker.broker.cli.main", *words]
    done = run(line, capture_output=True, text=True, timeout=180, check=False, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def wait_for(reached: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Polls until `reached()` is true and returns what it returned; TimeoutError names `what`."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = reached()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.01)


async def until(reached: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """`wait_for` on the loop."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = reached()
        if value:
            return value
        if time.monotonic() >= deadline_s:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(0.005)
