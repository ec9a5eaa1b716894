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

from clusterbroker_workers import Pool, PoolError, Request, Worker

IGNORED: Final = 1
"""SIG_IGN of the C library."""
LEAK_BYTES: Final = 64 << 20


class Sample(Worker):
    """`POOL_TEST_FAILS` names a file: while it is there no worker can load, or none the key that it has."""

    def __init__(self) -> None:
        self.leaked: list[mmap.mmap] = []
        self.loads: dict[str, int] = {}
        """Keys that are loaded, and how often they were."""
        self.loaded: set[str] = set()

    def load(self, key: str) -> None:
        fails = Path(os.environ.get("POOL_TEST_FAILS", ""))
        if fails.is_file() and fails.read_text() in ("", key):
            raise RuntimeError(f"nothing to load for {key}")
        assert key not in self.loaded, "it is loaded once"
        self.loaded.add(key)
        self.loads[key] = self.loads.get(key, 0) + 1

    def unload(self, key: str) -> None:
        self.loaded.remove(key)

    def handle(self, request: Request) -> bytes:
        """`echo`, `sleep` (so many seconds), `hold` (until it may go on), `die` (each time); of the first worker that
        has it, whose id becomes a file in the directory `body`: `stop` (SIGSTOP), `killed` (SIGKILL, as for want of
        memory). `leak`: all memory that it may have; `deaf`: to TERM from now on; `fork`: a child of another session;
        `call`: what a worker of the key `body` answers.
        """
        assert request.key in self.loaded, "a request of a key that is loaded"
        more: dict[str, object] = {"loaded": sorted(self.loaded), "loads": self.loads[request.key]}
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
        elif request.path == "call":
            with Pool(os.environ["WORKER_AMQP_URIS"], os.environ["WORKER_POOL"]) as pool:
                try:
                    more["heard"] = json.loads(pool.call(request.body.decode(), timeout_s=30).body)
                except (PoolError, PermissionError) as error:
                    more["refused"] = str(error)
        worker = {"worker": os.environ["WORKER_ID"], "pid": os.getpid(), "key": request.key}
        return json.dumps(worker | more).encode()

    def _first(self, directory: Path, number: int) -> None:
        if not any(directory.iterdir()):
            (directory / os.environ["WORKER_ID"]).touch()
            os.kill(os.getpid(), number)
