"""Nodes that a test starts for itself, kills and starts again, and clients of theirs."""

from __future__ import annotations

import asyncio

from clusterbroker.broker.server.control.client import ask
from clusterbroker.broker.trial.nodes import LocalCluster

from .channel import Channel
from .wire import Connection

PATIENCE_S = 60.0


class OwnNodes:
    """Of `cluster`, which begins with this. `end` in the end."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._opened: list[Connection] = []
        asyncio.run(cluster.begin())

    def channel(self, name: str) -> Channel:
        target = self.cluster.target(name)
        self._opened.append(Connection(f"amqp://guest:guest@{target.host}:{target.port}/"))
        return self._opened[-1].channel()

    def owner(self, queue: str) -> str:
        rows = (ask(self.cluster.data_dir("a"), "queues") or {})["queues"]
        return str(next(row["owner"] for row in rows if row["name"] == queue))

    def members(self) -> list[str]:
        """Names, as the map of a node that runs has them."""
        living = next(name for name, node in self.cluster.nodes.items() if node.running)
        return [row["name"] for row in (ask(self.cluster.data_dir(living), "members") or {})["members"]]

    def other(self, name: str) -> str:
        """A member that is not this one; of a node that is alone, itself."""
        return next((one for one in self.cluster.names if one != name), name)

    def kill(self, name: str) -> None:
        asyncio.run(self.cluster.kill(name))

    def lose(self, name: str) -> None:
        """`kill -9`. Where nobody can take over, the node is started again."""
        self.kill(name)
        if len(self.cluster.names) == 1:
            asyncio.run(self.cluster.start(name))

    def restart(self) -> None:
        """`kill -9` of all, then all at once."""
        for name in self.cluster.names:
            self.kill(name)
        asyncio.run(self._start_all())

    async def _start_all(self) -> None:
        await asyncio.gather(*map(self.cluster.start, self.cluster.names))

    def end(self) -> None:
        for connection in self._opened:
            connection.abandon()
        asyncio.run(self.cluster.end())
