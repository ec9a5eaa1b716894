"""A worker of a pool, as tests want it: the path of a request says what becomes of it."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from clusterbroker_workers import Request, Worker

IGNORED: Final = 1
"""SIG_IGN of the C library."""
LEAK_BYTES: Final = 64 << 20


class Sample(Worker):
    """`POOL_TEST_FAILS` names a file: while it is there no worker can load."""

    def load(self, key: str) -> None:
        self.leaked: list[mmap.mmap] = []
        if os.path.exists(os.environ.get("POOL_TEST_FAILS", "")):
            raise RuntimeError(f"nothing to load for {key}")

    def handle(self, request: Request) -> bytes:
        """`echo`, `sleep` (so many seconds), `hold` (until it may go on), `die` (each time); of the first worker that
        has it, whose id becomes a file in the directory `body`: `stop` (SIGSTOP), `killed` (SIGKILL, as for want of
        memory). `leak`: all memory that it may have; `deaf`: to TERM from now on; `fork`: a child of another session.
        """
        more = {}
        if request.path == "sleep":
            time.sleep(float(request.body))
        elif request.path == "hold":  # until there is `go` in this directory
            directory = Path(request.body.decode())
            (directory / os.environ["WORKER_ID"]).touch()
            while not (directory / "go").exists():
                time.sleep(0.02)
        elif request.path == "die":
            os._exit(9)
        elif request.path in ("stop", "killed"):
            self._first(Path(request.body.decode()), signal.SIGSTOP if request.path == "stop" else signal.SIGKILL)
        elif request.path == "leak":
            while True:
                self.leaked.append(mmap.mmap(-1, LEAK_BYTES))
        elif request.path == "deaf":
            ctypes.CDLL(None).signal(signal.SIGTERM, ctypes.c_void_p(IGNORED))
        elif request.path == "fork":
            more["child"] = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True).pid
        worker = {"worker": os.environ["WORKER_ID"], "pid": os.getpid(), "key": request.key}
        return json.dumps(worker | more).encode()

    def _first(self, directory: Path, number: int) -> None:
        if not any(directory.iterdir()):
            (directory / os.environ["WORKER_ID"]).touch()
            os.kill(os.getpid(), number)
