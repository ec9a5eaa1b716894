"""Nodes whose pools start workers: what tests of a session share, for nodes and foremen take long to start.

Each test has a pool of its own. Templates: `core`, workers of the library; `changing`, likewise, and a test changes it;
`idle`, which only says how it would sign in; `slow`, which never consumes; `stubborn`, deaf to TERM; `dies`, at once.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from clusterbroker_workers import Unserved
from tests.faults.pools import LOOPBACK, PATIENCE_S, WORKER, PoolNodes

BYTES: Final = 1 << 20
"""What a worker is promised: as many of them as a test wants."""
HOPELESS: Final = "hopeless"
USER: Final = 'user = "root"\n' if os.geteuid() == 0 else ""
IDLE: Final = (
    "umask 077; echo $WORKER_AMQP_URI > {0}/$WORKER_ID.part; mv {0}/$WORKER_ID.part {0}/$WORKER_ID; exec sleep 600"
)
STUBBORN: Final = "trap 'touch {0}/term' TERM; sleep 600 & echo $! > {0}/child; while :; do sleep 0.1; done"


class StartedNodes(PoolNodes):
    """Nodes with these templates. `close` in the end."""

    def __init__(self, directory: Path, *names: str) -> None:
        super().__init__(directory, *names)
        self._threads = ThreadPoolExecutor(1)
        self.hopeless: Future[list[Unserved]]
        """What two callers of the pool HOPELESS have heard, whose worker dies each time."""
        self.write()

    def write(self, changing_bytes: int = BYTES) -> None:
        """The config file of foremen to come."""
        shells = {"idle": IDLE, "slow": "exec sleep 600", "stubborn": STUBBORN, "dies": "exit 3"}
        commands = {name: ["/bin/sh", "-c", words.format(self.directory)] for name, words in shells.items()}
        commands["changing"] = [sys.executable, "-m", "clusterbroker_workers", WORKER]
        root = Path(__file__).resolve().parents[3]
        more = ""
        for name, command in commands.items():
            more += f'[pools.{name}]\ndriver = "subprocess"\n{USER}command = {json.dumps(command)}\n'
            more += f"memory_bytes = {changing_bytes if name == 'changing' else BYTES}\n"
            more += f'environment = {{ PYTHONPATH = "{root}", POOL_TEST_FAILS = "{self.fails}" }}\n'
        self.template(memory_bytes=BYTES, more=more)

    def begin_hopeless(self) -> None:
        """What comes of it takes a minute, in which tests run."""
        self.hopeless = self._threads.submit(self._hopeless)

    def _hopeless(self) -> list[Unserved]:
        self.declare(HOPELESS, "dies", start_failures_max=2)
        heard: list[Unserved] = []
        with self.caller(pool=HOPELESS) as caller:
            for _ in range(2):
                try:
                    caller.call("hopeless", timeout_s=PATIENCE_S)
                except Unserved as error:
                    heard.append(error)
        return heard

    def lines(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """What the logs of all nodes say of such events, by time."""
        found = [json.loads(line) for line in self.log().splitlines() if f'"{event}"' in line]
        return sorted((one for one in found if one.items() >= facts.items()), key=lambda one: str(one["timestamp"]))

    def workers_of(self, pool: str) -> dict[str, psutil.Process]:
        """Processes of the library's workers that are in the pool's list, by id."""
        listed = {row["id"] for row in self.workers(pool)}
        return {worker: process for worker, process in self.processes().items() if worker in listed}

    def metric(self, pool: str, name: str, state: str = "") -> float:
        """`clusterbroker_pool_NAME` of the pool, the sum of what the nodes say; -1: there is none yet."""
        found = []
        for port in self.ports.values():
            url = f"http://{LOOPBACK}:{port}/metrics"
            text = httpx.get(url, auth=("guest", "guest"), timeout=20, verify=False).text
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    which = sample.name, sample.labels.get("pool"), sample.labels.get("state", "")
                    if which == (f"clusterbroker_pool_{name}", pool, state):
                        found.append(float(sample.value))
        return sum(found) if found else -1

    def close(self) -> None:
        self._threads.shutdown()
        super().close()
        for process in psutil.process_iter():  # of a test that failed
            try:
                if process.environ().get("POOL_TEST_FAILS") == str(self.fails):
                    process.kill()
            except psutil.Error:
                continue
