"""Three nodes that are one broker: ours, and RabbitMQ with quorum queues, as private processes on loopback.

A cluster stands where a `Server` stands in the harness: it has a name, a directory, a version, is started, killed node
by node, and is gone with its directory. RabbitMQ's nodes share one port mapper and one cookie of their own.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import rabbitmq_root
from bench.servers import OurNode, PortMapper, RabbitMqNode, Server, ServerError
from clusterbroker.broker.trial.event_log import OWNER_BEGAN, REPLICA_IN_SYNC, Line, read_log
from clusterbroker.broker.trial.nodes import free_port

NAMES = ("a", "b", "c")
ANSWER_TIMEOUT_S = 60


class Cluster(ABC):
    """`with` ends all nodes and removes the directory."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.nodes: list[Server] = []

    @property
    def ports(self) -> list[int]:
        """The nodes' AMQP ports, in their order."""
        return [node.port for node in self.nodes]

    @property
    def version(self) -> str:
        return self.nodes[0].version

    @abstractmethod
    def start(self) -> None:
        """Starts all nodes and returns when every one accepts and is a member."""

    @abstractmethod
    def arguments(self, durability: str = "fsync") -> str:
        """Queue arguments for a queue that is replicated on three nodes."""

    @abstractmethod
    def owner(self, queue: str) -> int:
        """The index of the node that leads a queue of vhost "/"."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills the nodes and removes their directory."""
        for node in self.nodes:
            node.send(signal.SIGCONT)
            node.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class OurMember(OurNode):
    """One of the three."""

    def __init__(self, directory: Path, member: str, cluster_port: int, peers: str, secret: Path) -> None:
        super().__init__(directory)
        self.member = member
        self._cluster_port, self._peers, self._secret = cluster_port, peers, secret

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        argv[argv.index("--name") + 1] = self.member
        argv += ["--cluster", f"127.0.0.1:{self._cluster_port}", "--peers", self._peers]
        environment["CLUSTERBROKER_SECRET_FILE"] = str(self._secret)
        environment["CLUSTERBROKER_LOG__FORMAT"] = "json"
        return argv, environment

    def events(self) -> list[Line]:
        """What the node logged about ownership and replicas."""
        return read_log(self.directory / "server.log")


class OurCluster(Cluster):
    """Three nodes of this project, started as a user starts them."""

    name = "clusterbroker"
    member_kind: type[OurMember] = OurMember

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        secret = directory / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        cluster_ports = [free_port() for _ in NAMES]
        peers = ",".join(f"{name}@127.0.0.1:{port}" for name, port in zip(NAMES, cluster_ports, strict=True))
        self.members = [
            self.member_kind(directory / name, name, port, peers, secret)
            for name, port in zip(NAMES, cluster_ports, strict=True)
        ]
        self.nodes = list(self.members)

    def start(self) -> None:
        _start_together(self.nodes)

    def arguments(self, durability: str = "fsync") -> str:
        return f"x-durability={durability}"

    def events(self) -> list[Line]:
        """All nodes' events, in order of time."""
        return sorted((line for member in self.members for line in member.events()), key=lambda line: line.at_s)

    def owner(self, queue: str) -> int:
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline_s:
            began = [line for line in self.events() if line.event == OWNER_BEGAN and line.facts.get("queue") == queue]
            if began:
                latest = max(began, key=lambda line: line.number("epoch"))
                return NAMES.index(str(latest.facts["node"]))
            time.sleep(0.02)
        raise ServerError(f"no node began to own {queue}")

    def in_sync_since(self, member: str, after_s: float) -> float | None:
        """When (time of day, s) the last replica of a member came in sync after a moment; None: none has yet."""
        found = [
            line.at_s
            for line in self.events()
            if line.event == REPLICA_IN_SYNC and line.facts.get("node") == member and line.at_s >= after_s
        ]
        return max(found, default=None)

    def move(self, queue: str, to: int) -> None:
        """Hands a queue over to a node, as an operator does."""
        script = [sys.executable, "-m", "clusterbroker.broker.cli.main"]
        data = self.members[to].directory / "data"
        words = ["queues", "move", queue, NAMES[to], "--data-dir", str(data)]
        done = subprocess.run([*script, *words], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ServerError(f"clusterbroker queues move: {done.stderr.strip() or done.stdout.strip()}")


class _RabbitMember(RabbitMqNode):
    """A member; the mapper and the cookie belong to the cluster."""

    def __init__(self, directory: Path, member: str, mapper: PortMapper) -> None:
        super().__init__(directory, mapper)
        self.member = f"{member}@localhost"
        self._home = directory.parent

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        environment["RABBITMQ_NODENAME"] = self.member
        return argv, environment

    def await_rejoined(self, timeout_s: float = 120) -> None:
        """Waits until the node's queues are up again after a restart."""
        self.control("await_startup", "--timeout", str(int(timeout_s)), timeout_s=timeout_s + 30)

    def control(self, *words: str, timeout_s: float = ANSWER_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """rabbitmqctl's answer of this node."""
        _, environment = self._command()
        program = rabbitmq_root.installed("rabbitmqctl") or "rabbitmqctl"
        argv = rabbitmq_root.command([program, "-n", self.member, "-q", *words], self._home)
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=timeout_s)


class RabbitMqCluster(Cluster):
    """Three RabbitMQ nodes with their defaults; queues are quorum queues."""

    name = "rabbitmq"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        if rabbitmq_root.installed() is None:
            raise ServerError("RabbitMQ is not installed")
        cookie = directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        self._mapper = PortMapper()
        tag = self._mapper.port  # nodes of two clusters of one machine must not meet
        members = [f"{name}{tag}" for name in NAMES]
        self.members = [
            _RabbitMember(directory / name, member, self._mapper) for name, member in zip(NAMES, members, strict=True)
        ]
        self.nodes = list(self.members)

    def start(self) -> None:
        first, *others = self.members
        for member in self.members:
            member.start()
            member.await_rejoined()
        for member in others:  # by hand: how members discover each other differs between releases
            for words in (("stop_app",), ("reset",), ("join_cluster", first.member), ("start_app",)):
                done = member.control(*words)
                if done.returncode:
                    raise ServerError(f"rabbitmqctl {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while (count := self._running()) < len(self.nodes):
            if time.monotonic() > deadline_s:
                raise ServerError(f"{count} of {len(self.nodes)} RabbitMQ nodes found each other")

    def arguments(self, durability: str = "fsync") -> str:  # noqa: ARG002 - a quorum queue has one
        return "x-queue-type=quorum"

    def _ask(self, *words: str) -> object:
        """rabbitmqctl's answer; whichever node answers."""
        for member in self.members:
            done = member.control(*words, "--formatter", "json")
            if done.returncode == 0:
                return json.loads(done.stdout)
        raise ServerError(f"rabbitmqctl {' '.join(words)}: {done.stderr.strip()}")

    def _running(self) -> int:
        status = self._ask("cluster_status")
        assert isinstance(status, dict), "an object with the members"
        return len(status["running_nodes"])

    def owner(self, queue: str) -> int:
        listed = self._ask("list_queues", "name", "leader")
        assert isinstance(listed, list), "a list of queues"
        leader = next((entry["leader"] for entry in listed if entry["name"] == queue), "")
        for index, member in enumerate(self.members):
            if member.member == leader:
                return index
        raise ServerError(f"RabbitMQ names no leader for {queue}: {leader!r}")

    def close(self) -> None:
        """As Cluster.close; the port mapper goes with the nodes."""
        super().close()
        self._mapper.end()


def _start_together(nodes: list[Server]) -> None:
    """Founding members wait for each other, so that all are launched before one is waited for."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(nodes)) as pool:
        for started in [pool.submit(node.start) for node in nodes]:
            started.result()


CLUSTERS: dict[str, type[Cluster]] = {kind.name: kind for kind in (OurCluster, RabbitMqCluster)}
