"""Real nodes with templates of worker pools: what tests of started workers ask of them."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import psutil

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.nodes import LOOPBACK, free_port
from clusterbroker_workers import Answer, Pool
from tests.faults.fleet import Fleet
from tests.support.children import children_with

T = TypeVar("T")
PATIENCE_S = 60.0
FOREMAN = "clusterbroker.broker.foreman.main"
WORKER = "tests.faults.pool_worker:Sample"
SAMPLE_S = 0.25
"""Tests wait for numbers of the management API."""


def eventually(what: str, found: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """What is true in the end."""
    end_s = time.monotonic() + timeout_s
    last: Any = None
    while time.monotonic() < end_s:
        try:
            last = found()
        except httpx.HTTPError as error:
            last = error
        else:
            if last:
                return last  # type: ignore[no-any-return]
        time.sleep(0.05)
    raise AssertionError(f"not so after {timeout_s:g} s: {what}; last {last!r}")


class PoolNodes:
    """Nodes of one cluster, or one that is alone, each with the same templates."""

    def __init__(self, directory: Path, *names: str, **template: Any) -> None:
        self.directory = directory
        self.names = names
        self.fleet = Fleet(directory)
        self.ports = {name: free_port() for name in names}
        self.variables: dict[str, dict[str, str]] = {}
        """Of nodes to come: more of their environment."""
        self.fails = directory / "fails"
        self.config = directory / "broker.toml"
        self.template(**template)

    def template(self, **settings: Any) -> None:
        """Of the nodes to come: `[pools.core]` has these settings; `more`: other sections, as text."""
        more = settings.pop("more", "")
        command = settings.pop("command", [sys.executable, "-m", "clusterbroker_workers", WORKER])
        user = {"user": "root"} if os.geteuid() == 0 else {}
        lines = {"driver": "subprocess", "command": command, **user, **settings}
        root = Path(__file__).resolve().parents[2]
        text = "[pools.core]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
        text += f'environment = {{ PYTHONPATH = "{root}", POOL_TEST_FAILS = "{self.fails}" }}\n'
        self.config.write_text(text + more)
        self.config.chmod(0o600)

    def start(self, *names: str) -> None:
        for name in names or self.names:
            words = ["--config", str(self.config), "--http", f"{LOOPBACK}:{self.ports[name]}"]
            if len(self.names) > 1:
                words += ["--peers", self.fleet.peers(*self.names)]
            variables = {"CLUSTERBROKER_HTTP_SAMPLE_S": str(SAMPLE_S)} | self.variables.get(name, {})
            self.fleet.launch(name, *words, **variables)  # type: ignore[arg-type]
        for name in names or self.names:
            eventually(f"{name} is ready", lambda name=name: self._ready(name))  # type: ignore[misc]

    def _ready(self, name: str) -> bool:
        """For clients, too: they are listened to after those of HTTP."""
        return self.fleet.node(name).said_ready and self.api("GET", "overview", at=name).is_success

    def api(self, method: str, path: str, document: Any = None, at: str = "") -> httpx.Response:
        port = self.ports[at or self.living[0]]
        url = f"http://{LOOPBACK}:{port}/api/{path}"
        # without `verify` each request would read the system's certificates: 50 ms of processor time, for plain HTTP
        return httpx.request(method, url, json=document, auth=("guest", "guest"), timeout=20, verify=False)

    @property
    def living(self) -> list[str]:
        return [name for name in self.names if self.fleet.node(name).running]

    def members(self) -> list[str]:
        """Names of all members, as the map of a node that runs has them."""
        return [row["name"] for row in self.api("GET", "nodes").raise_for_status().json()]

    def all_run(self) -> bool:
        """Whether each node runs, and is heard of by another one."""
        rows = self.api("GET", "nodes").raise_for_status().json()
        return sum(bool(row.get("running")) for row in rows) == len(self.names) == len(self.living)

    def start_lost(self) -> None:
        """Starts what does not run, until all nodes are members that run."""
        if lost := [name for name in self.names if name not in self.living]:
            self.start(*lost)
        eventually("all are members", self.all_run)

    def url(self, name: str = "") -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.fleet.node(name or self.living[0]).amqp_port}/%2F"

    def caller(self, name: str = "", pool: str = "core") -> Pool:
        return Pool(self.url(name), pool)

    def roaming_caller(self, pool: str = "core") -> Pool:
        """Of a pool, at whichever node lives."""
        return Pool([self.url(name) for name in self.names], pool)

    def declare(self, pool: str = "core", template: str = "core", **settings: Any) -> None:
        """As soon as a foreman has told of the template; returns when all nodes know the pool."""

        def declared() -> bool:
            said = self.api("PUT", f"pools/%2F/{pool}", {"template": template, **settings})
            assert said.is_success or "no template" in said.text, said.text
            return said.is_success

        eventually(f"template {template}", declared)
        for at in self.living:
            eventually(f"{at} has it", lambda at=at: self.api("GET", f"pools/%2F/{pool}", at=at).is_success)  # type: ignore[misc]

    def workers(self, pool: str = "core") -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.api("GET", f"pools/%2F/{pool}/workers").raise_for_status().json()
        return rows

    def groups(self, pool: str = "core") -> dict[str, dict[str, Any]]:
        rows = self.api("GET", f"pools/%2F/{pool}/groups").raise_for_status().json()
        return {row["key"]: row for row in rows}

    def depth(self, queue: str) -> int:
        said = self.api("GET", f"queues/%2F/{quote(queue, safe='')}")
        return int(said.json().get("messages", 0)) if said.is_success else 0

    def owner(self, queue: str) -> str:
        """The node that leads it; empty: none that is known."""
        said = self.api("GET", f"queues/%2F/{quote(queue, safe='')}")
        return str(said.json().get("node") or "") if said.is_success else ""

    def lead(self, queue: str, name: str) -> None:
        """Hands a queue over to this member, as soon as that is in sync."""
        moved = {"vhost": "/", "queue": queue, "to": name}

        def led() -> bool:
            said = ask(self.fleet.node(self.living[0]).data_dir, "queues.move", moved, PATIENCE_S)
            return bool(said and said["ok"])

        eventually(f"{name} leads {queue}", led)

    def log(self) -> str:
        """Of all nodes."""
        logs = [self.fleet.node(name).log for name in self.names]
        return "".join(log.read_text(errors="replace") for log in logs)

    def kill(self, name: str) -> None:
        """SIGKILL of the node. Its process for HTTP notices, and then its port is free."""
        process = self.fleet.node(name).process
        assert process is not None
        process.kill()
        process.wait()
        eventually(f"HTTP of {name} has ended", lambda: not self._listens(name))

    def _listens(self, name: str) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex((LOOPBACK, self.ports[name])) == 0

    def foremen(self, name: str) -> list[psutil.Process]:
        """Of a node that runs."""
        process = self.fleet.node(name).process
        assert process is not None
        return children_with(process.pid, FOREMAN)

    def new_foremen(self) -> None:
        """SIGKILL of all foremen; their nodes start others, which read the config file. Returns before they run."""
        for name in self.living:
            for foreman in self.foremen(name):
                foreman.kill()
                foreman.wait()

    def processes(self, pool: str = "") -> dict[str, psutil.Process]:
        """Workers that run, of one pool or of all, by id."""
        found = {}
        for process in psutil.process_iter():
            try:
                if WORKER in process.cmdline():  # that of a zombie is empty
                    environ = process.environ()
                    ours = environ.get("POOL_TEST_FAILS") == str(self.fails) and "WORKER_ID" in environ
                    if ours and pool in ("", environ["WORKER_POOL"]):
                        found[environ["WORKER_ID"]] = process
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        for node in self.fleet.nodes.values():
            if node.running and node.process is not None:
                node.process.terminate()
        for node in self.fleet.nodes.values():
            if node.process is not None:
                try:
                    node.process.wait(20)
                except Exception:
                    node.process.kill()
                    node.process.wait()
        for process in self.processes().values():
            process.kill()


Nodes = TypeVar("Nodes", bound=PoolNodes)


@contextmanager
def running(made: Nodes) -> Iterator[Nodes]:
    """Started, and gone behind the block."""
    try:
        made.start()
        yield made
    finally:
        made.close()


def told(answer: Answer) -> dict[str, Any]:
    """Of a Sample."""
    document: dict[str, Any] = json.loads(answer.body)
    return document
