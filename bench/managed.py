"""Brokers that are started with their management API: ours with `--http`, RabbitMQ with its plugins.

Both listen on loopback only. `page_url` is the first page of 100 queues, `metrics_url` what Prometheus scrapes.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.clusters import NAMES, OurCluster, OurMember
from bench.servers import OurNode, RabbitMqNode, Server, ServerError, StartTimes
from clusterbroker.broker.trial.nodes import free_port

READY_S = 120
PAGE = "/api/queues?page=1&page_size=100"
ROLES = {
    "clusterbroker.broker.http": "management",
    "clusterbroker.broker.foreman": "foreman",
    "clusterbroker_workers": "worker",
}
"""Modules of the node's other processes."""


def asked(url: str, body: bytes | None = None, timeout_s: float = 600, user: str = "guest:guest") -> Any:
    """The document that a GET answers, or a POST of JSON. Raises OSError; refused: urllib's HTTPError, one of these."""
    headers = {"authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
    if body is not None:
        headers["content-type"] = "application/json"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=timeout_s) as answer:
        told = answer.read()
    return json.loads(told) if told else None


def await_ready(url: str, timeout_s: float = READY_S) -> None:
    """Waits until a management API answers for its node."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            asked(f"{url}/api/overview")
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline_s:
                raise ServerError(f"{url} did not answer in {timeout_s:.0f} s: {error}") from error
            time.sleep(0.05)
        else:
            return


class ManagedServer(Server):
    """A broker with a management API."""

    http_port: int
    metrics_port: int

    @property
    def url(self) -> str:
        """Of the management API, without a path."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def page_url(self) -> str:
        """The first page of queues."""
        return self.url + PAGE

    @property
    def metrics_url(self) -> str:
        """Sums, as Prometheus scrapes them."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def start(self) -> StartTimes:
        """As Server.start; the management API answers, too."""
        times = super().start()
        await_ready(self.url)
        return times

    @abstractmethod
    def plain(self, directory: Path) -> Server:
        """The same broker without a management API."""

    def processor_s(self) -> dict[str, float]:
        """Seconds of processor time of each of the broker's processes, by what it is."""
        used: dict[str, float] = {}
        for name, process in self._roles():
            times = process.cpu_times()
            used[name] = used.get(name, 0.0) + times.user + times.system
        return used

    def memory_of(self) -> dict[str, int]:
        """Resident bytes of each of them."""
        found: dict[str, int] = {}
        for name, process in self._roles():
            found[name] = found.get(name, 0) + process.memory_info().rss
        return found

    def _roles(self) -> Iterator[tuple[str, psutil.Process]]:
        for place, process in enumerate(self._tree()):
            name = self.name if place == 0 else process.name()
            for module, role in ROLES.items():
                if any(module in word for word in process.cmdline()):
                    name = role
            yield name, process


class ManagedNode(ManagedServer, OurNode):
    """A node of ours with `--http`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.http_port = self.metrics_port = free_port()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        return [*argv, "--http", f"127.0.0.1:{self.http_port}"], environment

    def plain(self, directory: Path) -> Server:
        """Without `--http`."""
        return OurNode(directory)


class ManagedRabbitMq(ManagedServer, RabbitMqNode):
    """RabbitMQ with `rabbitmq_management` and `rabbitmq_prometheus`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.http_port, self.metrics_port = free_port(), free_port()

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command = super()._command()
        (self.directory / "enabled_plugins").write_text("[rabbitmq_management,rabbitmq_prometheus].\n")
        places = (("management", self.http_port), ("prometheus", self.metrics_port))
        lines = [f"{what}.tcp.ip = 127.0.0.1\n{what}.tcp.port = {port}\n" for what, port in places]
        (self.directory / "rabbitmq.conf").write_text("".join(lines))
        return command

    def plain(self, directory: Path) -> Server:
        """Without plugins."""
        return RabbitMqNode(directory)


MANAGED: dict[str, type[ManagedServer]] = {kind.name: kind for kind in (ManagedNode, ManagedRabbitMq)}


class _ManagedMember(OurMember):
    def __init__(self, directory: Path, member: str, cluster_port: int, peers: str, secret: Path) -> None:
        super().__init__(directory, member, cluster_port, peers, secret)
        self.http_port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def _command(self) -> tuple[list[str], dict[str, str]]:
        argv, environment = super()._command()
        return [*argv, "--http", f"127.0.0.1:{self.http_port}"], environment


class ManagedCluster(OurCluster):
    """Three nodes of ours with `--http`."""

    member_kind = _ManagedMember

    @property
    def urls(self) -> list[str]:
        """Of the nodes' management APIs, in their order."""
        return [member.url for member in self.members if isinstance(member, _ManagedMember)]

    def start(self) -> None:
        """All nodes, and their management APIs know all nodes."""
        super().start()
        for url in self.urls:
            await_ready(url)
            deadline_s = time.monotonic() + READY_S
            while sum(node["running"] for node in asked(f"{url}/api/nodes")) < len(NAMES):
                if time.monotonic() > deadline_s:
                    raise ServerError(f"{url} does not know all nodes after {READY_S} s")
                time.sleep(0.05)


__all__ = ["MANAGED", "PAGE", "ManagedCluster", "ManagedNode", "ManagedRabbitMq", "ManagedServer", "asked"]
