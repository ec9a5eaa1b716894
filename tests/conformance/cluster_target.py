"""Three nodes that are one broker, as the target of the suite.

Each connection goes to the next node in turn, or all to one of them: whatever a client of one node sees, clients of a
cluster see, wherever the queues' owners are. Hooks that the wiring carries are used at one node; what is a node's own
(alarms, limits of a process) at all of them.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

from broker.server.admin import ask
from broker.trial.nodes import LocalCluster

from .target import Clusterbroker, Target


class ClusterTarget(Clusterbroker):
    """`only`: the node to which all connections go; "" means that they are spread."""

    def __init__(self, directory: Path, only: str = "") -> None:
        Target.__init__(self)
        self.cluster = LocalCluster(directory)
        names = [only] if only else self.cluster.names
        assert set(names) <= set(self.cluster.names), f"the nodes are {', '.join(self.cluster.names)}"
        self._turns = itertools.cycle([f"amqp://guest:guest@127.0.0.1:{self._port(name)}/" for name in names])
        try:
            asyncio.run(self.cluster.begin())
        except BaseException:
            self.stop()
            raise

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
        ask(self.cluster.data_dir(name), {"do": "alarm.set", "name": kind, "raised": on})

    def set_consumers_per_channel_max(self, limit: int | None) -> None:
        self._everywhere("limit", "consumers-per-channel", str(limit or 0))

    def set_exchanges_max(self, limit: int | None) -> None:
        self._everywhere("limit", "exchanges", str(limit or 0))

    def stop(self) -> None:
        asyncio.run(self.cluster.end())
