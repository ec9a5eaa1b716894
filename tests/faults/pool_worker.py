"""A worker of a pool, as tests want it: the path of a request says what becomes of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from clusterbroker_workers import Request, Worker


class Sample(Worker):
    """`POOL_TEST_FAILS` names a file: while it is there no worker can load."""

    def load(self, key: str) -> None:
        if os.path.exists(os.environ.get("POOL_TEST_FAILS", "")):
            raise RuntimeError(f"nothing to load for {key}")

    def handle(self, request: Request) -> bytes:
        """`echo`, `sleep` (so many seconds), `hold` (until it may go on), `die`."""
        if request.path == "sleep":
            time.sleep(float(request.body))
        elif request.path == "hold":  # until there is `go` in this directory
            directory = Path(request.body.decode())
            (directory / os.environ["WORKER_ID"]).touch()
            while not (directory / "go").exists():
                time.sleep(0.02)
        elif request.path == "die":
            os._exit(9)
        return json.dumps({"worker": os.environ["WORKER_ID"], "pid": os.getpid(), "key": request.key}).encode()
