"""Three nodes that are one broker, as the target of the suite.

Each connection goes to the next node in turn, or all to one of them: whatever a client of one node sees, clients of a
cluster see, wherever the queues' owners are. Hooks that the wiring carries are used at one node; what is a node's own
(alarms, limits of a process) at all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.nodes import LocalCluster
from tests.authority import Authority

from .target import Clusterbroker, Target, listeners, served

WITH_HTTP = "b"
"""One management API does for the cluster."""


class ServedCluster(LocalCluster):
    """Nodes that speak AMQP inside TLS too, and one of them HTTP."""

    def __init__(self, directory: Path, authority: Path) -> None:
        super().__init__(directory)
        self._authority = authority

    def _environment(self, name: str) -> dict[str, str]:
        return super()._environment(name) | served(self._authority, http=name == WITH_HTTP)

    def listeners(self, name: str) -> dict[str, str]:
        return listeners((self.nodes[name].directory / "node.out").read_text())


class ClusterTarget(Clusterbroker):
    """`only`: the node to which all connections go; "" means that they are spread."""

    def __init__(self, directory: Path, only: str = "") -> None:
        Target.__init__(self)
        Authority(directory)
        self.authority = directory
        self.cluster = ServedCluster(directory, directory)
        names = [only] if only else self.cluster.names
        assert set(names) <= set(self.cluster.names), f"the nodes are {', '.join(self.cluster.names)}"
        self._turns = itertools.cycle([f"amqp://guest:guest@127.0.0.1:{self._port(name)}/" for name in names])
        try:
            asyncio.run(self.cluster.begin())
        except BaseException:
            self.stop()
            raise
        self.http = f"http://{self.cluster.listeners(WITH_HTTP)['http']}"
        self.tls = [self.cluster.listeners(name)["amqps"] for name in names]

    def _port(self, name: str) -> int:
        return self.cluster.nodes[name].amqp_port

    @property
    def address(self) -> str:
        return next(self._turns)

    def node_log(self) -> str:
        return "".join(node.log.read_text(errors="replace") for node in self.cluster.nodes.values())

    def command(self, *words: str) -> str:
        return self._command_at(self.cluster.data_dir("a"), *words)

    def _everywhere(self, *words: str) -> None:
        for name in self.cluster.names:
            self._command_at(self.cluster.data_dir(name), *words)

    def set_alarm(self, kind: str, on: bool) -> None:
        for name in self.cluster.names:
            self._set_alarm_at(name, kind, on)

    def set_alarm_at_one_node(self, kind: str, on: bool) -> None:
        self._set_alarm_at("a", kind, on)

    def _set_alarm_at(self, name: str, kind: str, on: bool) -> None:
        ask(self.cluster.data_dir(name), "alarm.set", {"name": kind, "raised": on})

    def set_consumers_per_channel_max(self, limit: int | None) -> None:
        self._everywhere("limit", "consumers-per-channel", str(limit or 0))

    def set_exchanges_max(self, limit: int | None) -> None:
        self._everywhere("limit", "exchanges", str(limit or 0))

    def stop(self) -> None:
        asyncio.run(self.cluster.end())
