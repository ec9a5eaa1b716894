"""A real Celery worker."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

from tests.faults.node import ROOT, wait_for
from tests.support import processes


class Worker:
    """A worker process of the application and its children, with these settings in its environment."""

    def __init__(self, directory: Path, app: str, host: str, *options: str, **settings: str) -> None:
        self.log = directory / f"{host}.log"
        command = [sys.executable, "-m", "celery", "-A", app, "worker"]
        command += ["-n", f"{host}@test", "-c", "2", "-l", "info", *options]
        with open(self.log, "wb") as log:
            self.process = processes.popen(command, cwd=ROOT, env={**os.environ, **settings}, stdout=log, stderr=log)
        wait_for(lambda: "ready." in self.said or self.process.poll() is not None, "the worker", 120)
        assert self.process.poll() is None, self.said

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL to the worker and its pool."""
        if self.process.poll() is None:
            family = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
            for process in family:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    pass
            self.process.wait(10)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(20)
        finally:
            self.kill()
