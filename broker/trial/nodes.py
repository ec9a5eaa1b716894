"""Nodes of a trial: processes of `clusterbroker start` in one directory; each may be killed, frozen, started again.

    DIRECTORY/secret               the join secret that all of them share
    DIRECTORY/NAME/data            the node's data directory
    DIRECTORY/NAME/node.log, .out  what it said: JSON lines on stderr, and its listeners

Ports are chosen free and kept over restarts. `Cluster` is what trials ask for: another broker's nodes can stand in.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.client import Target
from clusterbroker.broker.trial.clocks import Clocks
from clusterbroker.broker.trial.event_log import OWNER_BEGAN, Line, read_log
from clusterbroker.broker.trial.relay import LOOPBACK, Wires

START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 30.0
FIRST_PORT: Final = 15_000
LAST_PORT: Final = 32_000
"""Systems give ports above these to whoever asks for any (Linux: from 32768 on)."""
_given: set[int] = set()
start_process: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
"""What starts a node. Tests have a parent of their own for processes."""


class TrialError(Exception):
    """The trial cannot go on, and it is not the history's fault; one line for the user."""


class Cluster(Protocol):
    """Nodes by name, and what can be done to them."""

    @property
    def names(self) -> list[str]: ...
    @property
    def wires(self) -> Wires | None: ...
    @property
    def clocks(self) -> Mapping[str, Clocks]: ...
    def target(self, name: str) -> Target: ...
    def pid(self, name: str) -> int | None: ...
    def events(self) -> list[Line]: ...
    def data_dir(self, name: str) -> Path: ...
    async def owner(self, queue: str) -> str | None: ...
    async def maps(self) -> dict[str, tuple[int, str]]: ...
    def signal(self, name: str, number: signal.Signals) -> None: ...
    async def kill(self, name: str) -> None: ...
    async def stop(self, name: str) -> None: ...
    async def start(self, name: str) -> None: ...


def free_port() -> int:
    """A port that is free on loopback, for TCP and for UDP, and that this process is given once.

    Nobody holds it until its node listens, or while that one is dead. So it is none of those that the system gives to
    whoever does not care (a relay, a test's server, a client), nor one that was given before.
    """
    while True:
        port = FIRST_PORT + secrets.randbelow(LAST_PORT + 1 - FIRST_PORT)
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            try:
                tcp.bind((LOOPBACK, port))
                udp.bind((LOOPBACK, port))
            except OSError:
                continue
        if port not in _given:
            _given.add(port)
            return port


def environment(secret: Path) -> dict[str, str]:
    """What a node of a trial inherits: nothing of the caller's own settings, small segments, logs as JSON lines."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("CLUSTERBROKER_")}
    own = {
        "PYTHONUNBUFFERED": "1",
        "CLUSTERBROKER_SECRET_FILE": str(secret),
        "CLUSTERBROKER_LOG__FORMAT": "json",
        "CLUSTERBROKER_JOURNAL__SEGMENT_BYTES": "8MiB",
        "CLUSTERBROKER_ALARMS__DISK_FREE_BYTES": "8MiB",
    }
    return inherited | own


class Node:
    """One process and its directory."""

    def __init__(self, name: str, directory: Path, amqp_port: int, cluster_port: int) -> None:
        self.name = name
        self.directory = directory
        self.data_dir = directory / "data"
        self.amqp_port = amqp_port
        self.cluster_port = cluster_port
        self.process: subprocess.Popen[bytes] | None = None
        self.words: list[str] = []
        """More of its command line."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        return self.directory / "node.log"

    def launch(self, peers: str, environment: dict[str, str]) -> None:
        """Starts the process and does not wait."""
        assert not self.running, "a node is started once"
        self.directory.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "clusterbroker.broker.cli.main", "start", "--name", self.name]
        words += ["--data-dir", str(self.data_dir), "--amqp", f"{LOOPBACK}:{self.amqp_port}"]
        words += ["--cluster", f"{LOOPBACK}:{self.cluster_port}", "--peers", peers, *self.words]
        with open(self.directory / "node.out", "wb") as out, open(self.log, "ab") as log:
            self.process = start_process(
                words, stdout=out, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    @property
    def said_ready(self) -> bool:
        # one whole line, for logs are JSON (`environment`)
        return b'"node.listening"' in (said := (self.directory / "node.out").read_bytes()) and said.endswith(b"\n")

    async def ready(self) -> None:
        """Waits for `ready`. Raises TrialError when the process ends or takes too long."""
        await all_ready((self,))

    def last_words(self) -> str:
        """The end of its log, on one line."""
        try:
            said = self.log.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            said = []
        return " / ".join(said[-3:]) or "it said nothing"

    def send(self, number: signal.Signals) -> None:
        """A signal; nothing when the process is gone."""
        if self.process is not None:
            self.process.send_signal(number)

    async def end(self, number: signal.Signals) -> None:
        """Ends the process. Raises TrialError when it outlives SIGTERM."""
        if self.process is None:
            return
        self.process.send_signal(number)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while self.process.poll() is None:
            if time.monotonic() > deadline_s:
                raise TrialError(f"node {self.name} did not end within {STOP_TIMEOUT_S:g} s of {number.name}")
            await asyncio.sleep(0.005)


async def all_ready(nodes: Iterable[Node]) -> None:
    """Waits until each has said `ready`. Raises TrialError when one ends, for the others may wait for it, or when it
    takes too long."""
    waiting = list(nodes)
    everybody = tuple(waiting)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while waiting := [node for node in waiting if not node.said_ready]:
        for node in waiting:
            assert node.process is not None, "it was launched"
            if node.process.poll() is not None:
                raise TrialError(f"node {node.name} ended with {node.process.returncode}: {node.last_words()}")
        if time.monotonic() > deadline_s:
            names = ", ".join(node.name for node in waiting)
            said = "; ".join(f"{node.name}: {node.last_words()}" for node in everybody)
            raise TrialError(f"not ready in {START_TIMEOUT_S:g} s: {names}. {said}")
        await asyncio.sleep(0.02)


class LocalCluster:
    """Nodes `a`, `b`, ... on loopback. With `wired` all that passes between them goes through relays of ours."""

    def __init__(self, directory: Path, count: int = 3, wired: bool = False) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.nodes = {name: Node(name, directory / name, free_port(), free_port()) for name in "abcdefgh"[:count]}
        self.wires = Wires({name: node.cluster_port for name, node in self.nodes.items()}) if wired else None
        self.clocks: dict[str, Clocks] = {}
        """Of nodes whose clocks may be wrong; to be filled before `begin`."""
        self._peers = ",".join(f"{name}@{LOOPBACK}:{node.cluster_port}" for name, node in self.nodes.items())
        self._secret = directory / "secret"

    @property
    def names(self) -> list[str]:
        return list(self.nodes)

    def target(self, name: str) -> Target:
        return Target(LOOPBACK, self.nodes[name].amqp_port)

    def pid(self, name: str) -> int | None:
        process = self.nodes[name].process
        return process.pid if process is not None and process.poll() is None else None

    def data_dir(self, name: str) -> Path:
        return self.nodes[name].data_dir

    async def begin(self) -> None:
        """Starts all nodes, together: founders wait for each other. Raises TrialError."""
        self._secret.touch(mode=0o600)
        self._secret.write_text(secrets.token_hex(32))
        if self.wires is not None:
            await self.wires.start()
        for node in self.nodes.values():
            node.launch(self._peers, self._environment(node.name))
        await all_ready(self.nodes.values())

    def _environment(self, name: str) -> dict[str, str]:
        dial = {} if self.wires is None else {"CLUSTERBROKER_CLUSTER_DIAL": self.wires.dial_of(name)}
        clocks = self.clocks[name].environment if name in self.clocks else {}
        return environment(self._secret) | dial | clocks

    async def start(self, name: str) -> None:
        """Starts a node again and waits until it is ready. Raises TrialError."""
        if self.wires is not None:
            await self.wires.refuse(name, False)
        self.nodes[name].launch(self._peers, self._environment(name))
        await self.nodes[name].ready()

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        await self.nodes[name].end(signal.SIGKILL)
        if self.wires is not None:
            await self.wires.refuse(name, True)

    async def stop(self, name: str) -> None:
        """SIGTERM."""
        await self.nodes[name].end(signal.SIGTERM)
        if self.wires is not None:
            await self.wires.refuse(name, True)

    def signal(self, name: str, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        self.nodes[name].send(number)

    async def end(self) -> None:
        """Kills what runs."""
        for node in self.nodes.values():
            node.send(signal.SIGCONT)
            await node.end(signal.SIGKILL)
        if self.wires is not None:
            await self.wires.stop()

    def events(self) -> list[Line]:
        """What the nodes logged about ownership, in order of time."""
        lines = [line for node in self.nodes.values() for line in read_log(node.log)]
        return sorted(lines, key=lambda line: line.at_s)

    async def owner(self, queue: str) -> str | None:
        """The node that last began to own a queue of vhost "/", None while none has."""
        return owner_of(queue, self.events())

    async def maps(self) -> dict[str, tuple[int, str]]:
        """(applied wiring index, digest of the map) of each running node, by its control socket."""
        running = [name for name in self.names if self.pid(name) is not None]
        answers = await asyncio.gather(*(asyncio.to_thread(_status, self.data_dir(name)) for name in running))
        return {
            name: (answer["wiring_index"], answer["wiring_digest"])
            for name, answer in zip(running, answers, strict=True)
            if "wiring_digest" in answer
        }


def _status(data_dir: Path) -> dict[str, Any]:
    """`clusterbroker status`; nothing where the node does not answer."""
    try:
        return ask(data_dir, "status") or {}
    except (OSError, ValueError):
        return {}


def owner_of(queue: str, events: list[Line]) -> str | None:
    """By the nodes' logs: the owner of the queue's highest epoch."""
    began = [line for line in events if line.event == OWNER_BEGAN and line.facts.get("queue") == queue]
    if not began:
        return None
    return str(max(began, key=lambda line: line.number("epoch")).facts["node"])
