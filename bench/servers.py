"""Brokers that can be started, measured, stopped and killed: ours, RabbitMQ, and the bare relay.

Each has a directory of its own and a free loopback port, runs alone, and is ended by its own process id. A restart
keeps directory and port. RabbitMQ gets a private node: own name, own port mapper, own distribution port, all on
loopback, no plugins, so that nothing it does can meet another node of the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from bench import rabbitmq_root
from bench.generator import compiled
from clusterbroker.broker.trial.nodes import free_port

START_TIMEOUT_S = 300
STOP_TIMEOUT_S = 120


class ServerError(Exception):
    """A broker did not start, or ended by itself; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds since the process was created."""

    accepting_s: float
    """until a connection attempt was answered with connection.start"""
    ready_s: float
    """until the broker itself said that it is ready; equal to accepting_s where it says nothing"""


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes of a broker's process tree."""

    rss_bytes: int
    """all resident pages, those of mapped files included"""
    anonymous_bytes: int
    """resident pages that belong to no file: what a memory limit cannot get back from the page cache"""


def greeting(port: int, timeout_s: float = 10) -> bytes | None:
    """The broker's connection.start as bytes, or None while nobody answers."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            connection.settimeout(timeout_s)
            received = connection.recv(65536)
            return received if received[:1] == b"\x01" else None
    except OSError:
        return None


def version_in(connection_start: bytes) -> str:
    """The server-properties' `version`, a long string; "unknown" where there is none."""
    marker = b"\x07versionS"
    at = connection_start.find(marker)
    if at < 0:
        return "unknown"
    at += len(marker)
    length = int.from_bytes(connection_start[at : at + 4], "big")
    return connection_start[at + 4 : at + 4 + length].decode("utf-8", "replace")


class Server(ABC):
    """One broker process with its directory. `with` starts it and removes the directory in the end."""

    name: str
    durable_arguments = ""
    """queue arguments that make a durable queue as safe as the benchmark's table wants it"""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.version = "unknown"
        self.times = StartTimes(0, 0)
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    @abstractmethod
    def _command(self) -> tuple[list[str], dict[str, str]]:
        """The argument vector and the environment."""

    says_ready = False

    def start(self) -> StartTimes:
        """Starts the broker (again) and returns once it accepts and, where it says so, is ready."""
        assert self._process is None, "a broker that runs is not started a second time"
        self.directory.mkdir(parents=True, exist_ok=True)
        argv, environment = self._command()
        self._log = (self.directory / "server.log").open("a")
        started = time.perf_counter()
        self._process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, stderr=self._log, stdin=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        said_ready = threading.Event()
        ready_at = [0.0]
        threading.Thread(target=self._follow_output, args=(self._process, said_ready, ready_at), daemon=True).start()
        while (hello := greeting(self.port)) is None:
            self._check_alive(started)
            time.sleep(0.005)
        accepting_s = time.perf_counter() - started
        self.version = version_in(hello)
        while self.says_ready and not said_ready.wait(0.05):
            self._check_alive(started)
        self.times = StartTimes(accepting_s, ready_at[0] - started if self.says_ready else accepting_s)
        return self.times

    def _follow_output(self, process: subprocess.Popen[str], ready: threading.Event, at: list[float]) -> None:
        assert process.stdout is not None, "the broker's output is piped"
        for line in process.stdout:
            if line.strip() == "ready" or '"node.listening"' in line:
                at[0] = time.perf_counter()
                ready.set()
            with contextlib.suppress(ValueError, AttributeError):  # the log was closed while the rest came in
                assert self._log is not None, "the log is open while the broker runs"
                self._log.write(line)

    def _check_alive(self, started: float) -> None:
        assert self._process is not None, "only a started broker is watched"
        if self._process.poll() is not None:
            raise ServerError(f"{self.name} ended with {self._process.returncode}; its log ends: {self.last_words()}")
        if time.perf_counter() - started > START_TIMEOUT_S:
            raise ServerError(f"{self.name} did not accept in {START_TIMEOUT_S} s; its log ends: {self.last_words()}")

    def last_words(self, lines: int = 12) -> str:
        """The end of the log, which is gone with the directory."""
        if self._log is not None:
            self._log.flush()
        text = (self.directory / "server.log").read_text(errors="replace")
        return " / ".join(text.strip().splitlines()[-lines:]) or "it logged nothing"

    def _tree(self) -> list[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return []
        try:
            root = psutil.Process(self._process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def memory(self) -> Memory:
        """Resident memory now, over all processes of the broker."""
        rss = anonymous = 0
        for process in self._tree():
            with contextlib.suppress(psutil.Error, OSError):
                rss += process.memory_info().rss
                anonymous += _status_bytes(process.pid, "RssAnon:")
        return Memory(rss, anonymous)

    def processor_s(self) -> float:
        """Seconds of processor time that all processes of the broker have taken since they began."""
        taken = 0.0
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                taken += times.user + times.system
        return taken

    def settled_memory(self, timeout_s: float = 6) -> Memory:
        """Resident memory once it has stopped moving by more than 0.5 % in half a second."""
        before = self.memory()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            time.sleep(0.5)
            now = self.memory()
            if abs(now.rss_bytes - before.rss_bytes) < before.rss_bytes * 0.005:
                return now
            before = now
        return before

    def stop(self) -> float:
        """Ends the broker in order (SIGTERM) and returns how many seconds it took."""
        started = time.perf_counter()
        self._end(signal.SIGTERM)
        return time.perf_counter() - started

    def kill(self) -> None:
        """Ends the broker as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal (SIGSTOP, SIGCONT) to every process of the broker."""
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _signalled(self, tree: list[psutil.Process]) -> list[psutil.Process]:
        """Which processes the end signal goes to; the rest follows by itself."""
        return tree[:1]

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        tree = self._tree()
        for process in tree if number == signal.SIGKILL else self._signalled(tree):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, alive = psutil.wait_procs(tree, timeout=STOP_TIMEOUT_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
        if alive and number != signal.SIGKILL:
            raise ServerError(f"{self.name} did not end within {STOP_TIMEOUT_S} s of SIGTERM")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the broker and removes its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


class OurNode(Server):
    """A node of this project, started as a user starts it."""

    name = "clusterbroker"
    durable_arguments = "x-durability=fsync"
    says_ready = True

    def _command(self) -> tuple[list[str], dict[str, str]]:
        script = Path(sys.executable).parent / "clusterbroker"
        program = [str(script)] if script.exists() else [sys.executable, "-m", "clusterbroker.broker.cli.main"]
        where = ["--name", "b1", "--data-dir", str(self.directory / "data"), "--amqp", f"127.0.0.1:{self.port}"]
        return [*program, "start", *where], dict(os.environ)


class PortMapper:
    """An epmd of our own: RabbitMQ would leave a daemon behind, and meet other nodes of the machine."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, directory: Path) -> None:
        """Starts it unless it runs; the directory is one of a node that it maps."""
        if self._process is None:
            argv = rabbitmq_root.command(["epmd", "-address", "127.0.0.1", "-port", str(self.port)], directory)
            self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RabbitMqNode(Server):
    """A private RabbitMQ node with its defaults, except that nothing listens beyond loopback."""

    name = "rabbitmq"

    def __init__(self, directory: Path, mapper: PortMapper | None = None) -> None:
        super().__init__(directory)
        self._distribution_port = free_port()
        self._mapper = mapper or PortMapper()
        self._home = directory
        """where the cookie is made; the node's directory is this one, or in it"""

    def start(self) -> StartTimes:
        """As Server.start; the port mapper is started first so that no daemon is left behind."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._mapper.start(self.directory)
        return super().start()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        program = rabbitmq_root.installed()
        if program is None:
            raise ServerError("RabbitMQ is not installed")
        files = {"enabled_plugins": "[].\n", "rabbitmq.conf": "", "env.conf": ""}
        for name, text in files.items():
            (self.directory / name).write_text(text)
        settings = {
            "HOME": self._home,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": self._mapper.port,
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._distribution_port,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": self.directory / "mnesia",
            "RABBITMQ_LOG_BASE": self.directory / "log",
            "RABBITMQ_PID_FILE": self.directory / "pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "enabled_plugins",
            "RABBITMQ_CONFIG_FILE": self.directory / "rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": self.directory / "env.conf",
        }
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")}
        command = rabbitmq_root.command([program], self._home)
        return command, inherited | {key: str(value) for key, value in settings.items()}

    def _signalled(self, tree: list[psutil.Process]) -> list[psutil.Process]:
        # the script is a shell around the emulator, which alone knows how to end in order
        return [process for process in tree if process.name().startswith("beam")] or tree[:1]

    def close(self) -> None:
        """As Server.close; the port mapper goes with the node."""
        super().close()
        self._mapper.end()


class RelayNode(Server):
    """The bare relay of bench/load/relay.cc: what the load generator itself can do on this machine."""

    name = "relay"
    says_ready = True

    def _command(self) -> tuple[list[str], dict[str, str]]:
        return [str(compiled("relay")), str(self.port)], dict(os.environ)


SERVERS: dict[str, type[Server]] = {kind.name: kind for kind in (OurNode, RabbitMqNode, RelayNode)}
