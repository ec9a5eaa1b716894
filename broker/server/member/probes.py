"""Probes of peers with a lost link: a dead process is reported long before its lease ends.

Two signs together are a proof, and one alone is none: two connects to the peer's port are refused, as they are when
its process is gone and its machine is not; and no beat of it has come, by any way, for three beats and for as long as
it may rely on this node's word (`cluster.liveness.contact`). A node with both gives the peer up and tells the leader,
which fails it when a majority of the voters has done so. An election does no harm: a leader whose port refuses is
followed at once.

A peer that is heard again after that is taken back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring.entities import Member

if TYPE_CHECKING:
    from clusterbroker.broker.server.ports import ClusterPort
    from clusterbroker.cluster.liveness.heart import Heart

LOOK_S: Final = 0.01
AGAIN_S: Final = 0.05
LOOKS_MAX: Final = 5


class Judge(Protocol):
    """The member's liveness (`liveness`)."""

    heart: Heart

    def tell_leader(self, member: Member, told: object, taken_back: bool = False) -> object: ...


class Probes:
    """At most one for each peer."""

    def __init__(self, cluster: ClusterPort, liveness: Judge) -> None:
        self._cluster = cluster
        self._liveness = liveness
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, peer: str) -> None:
        if peer not in self._tasks:
            self._tasks[peer] = asyncio.get_running_loop().create_task(self._probe(peer))

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _probe(self, peer: str) -> None:
        cluster = self._cluster
        try:
            member = cluster.raft.map.member(NodeId(peer))
            for _ in range(LOOKS_MAX):
                if (found := await cluster.mesh.probe(peer)) == "refused" or cluster.has_data_link(peer):
                    break
                await asyncio.sleep(AGAIN_S)  # on a busy machine a dying process accepts or resets for a while
            if found != "refused":
                return
            cluster.raft.peer_gone(NodeId(peer))
            if member is None or not member.alive:
                return
            while not self._liveness.heart.give_up(peer, member.incarnation):
                if self._is_over(member) or cluster.has_data_link(peer):
                    return
                await asyncio.sleep(LOOK_S)
            await self._given_up(member)
        finally:
            del self._tasks[peer]

    async def _given_up(self, member: Member) -> None:
        peer, told = str(member.name), None
        while not self._is_over(member):
            if self._liveness.heart.spoke_since(peer) or self._cluster.has_data_link(peer):
                self._liveness.tell_leader(member, told, taken_back=True)
                # nothing that the leader ordered before it heard that is still to come when this has come back
                await self._cluster.barrier()
                self._liveness.heart.take_back(peer, member.incarnation)
                return
            told = self._liveness.tell_leader(member, told)
            await asyncio.sleep(LOOK_S)

    def _is_over(self, member: Member) -> bool:
        now = self._cluster.raft.map.member(member.name)
        return now is None or not now.alive or now.incarnation != member.incarnation
