"""Three nodes of the broker as processes on this machine, and what becomes of one of them (waits)."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 60.0
COMMAND: Final = (sys.executable, "-m", "clusterbroker.broker.cli.main")


class ShowcaseFailed(Exception):
    """One line for the user: what went wrong, and where to look."""


class Node:
    """One process and its directory."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.amqp, self.cluster = _free_port(), _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"{HOST}:{self.amqp}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self, peers: str, secret: Path, more: Sequence[str] = ()) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        words = [*COMMAND, "start", "--name", self.name, "--data-dir", str(self.directory / "data")]
        words += ["--amqp", self.endpoint, "--cluster", f"{HOST}:{self.cluster}", "--peers", peers, *more]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CLUSTERBROKER_")}
        environment["CLUSTERBROKER_SECRET_FILE"] = str(secret)
        with (self.directory / "out").open("wb") as out, (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own command
                words, stdout=out, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )

    def wait(self) -> None:
        """Until it is ready. Raises ShowcaseFailed."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "ready" not in (self.directory / "out").read_text().split():
            if not self.is_running or time.monotonic() > deadline_s:
                raise ShowcaseFailed(f"node {self.name} did not start: see {self.directory / 'log'}")
            time.sleep(0.02)

    def end(self, number: int) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(number)
            self.process.wait()


class Nodes:
    """`with Nodes(directory) as nodes`: three, ready."""

    def __init__(self, directory: Path) -> None:
        self._secret = directory / "secret"
        self.all = [Node(name, directory / name) for name in ("a", "b", "c")]
        self._peers = ",".join(f"{node.name}@{HOST}:{node.cluster}" for node in self.all)

    @property
    def endpoints(self) -> str:
        return ",".join(node.endpoint for node in self.all)

    def __enter__(self) -> Nodes:
        self._secret.parent.mkdir(parents=True, exist_ok=True)
        self._secret.touch(mode=0o600)
        self._secret.write_text(secrets.token_hex(32))
        try:
            for node in self.all:  # one management API is enough to ask whose a queue is
                node.launch(self._peers, self._secret, ("--http", f"{HOST}:0") if node is self.all[0] else ())
            for node in self.all:
                node.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.all:
            node.end(signal.SIGKILL)

    def owner(self, queue: str) -> Node:
        """Of a queue, before any node was killed. Raises ShowcaseFailed."""
        asked = self.all[0]
        words = [*COMMAND, "queues", "show", queue, "--json", "--data-dir", str(asked.directory / "data")]
        said = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if said.returncode:
            raise ShowcaseFailed(f"queue {queue} is not to be seen at node {asked.name}: {said.stderr.strip()}")
        name = json.loads(said.stdout)["node"]
        return next(node for node in self.all if node.name == name)

    def restart(self, node: Node) -> None:
        """After it was killed."""
        node.launch(self._peers, self._secret)
        node.wait()


def _free_port() -> int:
    """For TCP, and UDP too. It is free until somebody else takes it: an example may fail for that."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind((HOST, 0))
            port = int(tcp.getsockname()[1])
            try:
                udp.bind((HOST, port))
            except OSError:
                continue
            return port
