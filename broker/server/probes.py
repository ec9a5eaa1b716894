"""Peers whose link went: is their process dead? Then the cluster hears of it long before their lease would tell.

Two connects to the peer's port are refused when its process is gone and its machine is not. Who leads fails it then;
while an election is under way, everybody who knows keeps the news until somebody leads, or until it has come true.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cluster.ids import NodeId

if TYPE_CHECKING:
    from broker.server.cluster_shell import ClusterShell

LOOK_S: Final = 0.02


class Probes:
    """At most one for each peer."""

    def __init__(self, cluster: ClusterShell) -> None:
        self._cluster = cluster
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, peer: str) -> None:
        if peer not in self._tasks:
            self._tasks[peer] = asyncio.get_running_loop().create_task(self._probe(peer))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _probe(self, peer: str) -> None:
        cluster = self._cluster
        raft = cluster.raft
        try:
            member = raft.map.member(NodeId(peer))
            if await cluster.mesh.probe(peer) != "refused":
                return
            raft.peer_gone(NodeId(peer))
            if member is None or not member.alive:
                return
            while True:
                now = raft.map.member(NodeId(peer))
                if now is None or not now.alive or now.incarnation != member.incarnation or cluster.has_data_link(peer):
                    return
                if raft.is_leader:
                    cluster.fail_member(peer, member.incarnation)
                    return
                await asyncio.sleep(LOOK_S)  # another one leads, or an election is under way
        finally:
            del self._tasks[peer]
