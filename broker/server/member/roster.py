"""The members to dial and to beat, from the map as it is applied (waits).

A start has no map yet: it dials the addresses of its last run (`addresses.py`), or the peers of its command.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.server.member.addresses import remember, remembered
from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.liveness.heart import Member as HeartMember

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterbroker.broker.server.ports import ClusterPort

REMEMBER_S: Final = 10.0
FAREWELL_S: Final = 2.0
"""So long a forgotten member keeps its links, to learn of it: a reset link loses what it holds."""
AFTER_S: Final = 0.05


class Roster:
    """Of one start. `dial`: addresses to dial in place of members' own."""

    def __init__(self, cluster: ClusterPort, dial: Mapping[str, str], directory: Path) -> None:
        self._cluster = cluster
        self._dial = dial
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self.reached: dict[str, str] = {}
        """Cluster addresses of the peers to be linked."""
        self._remembered: dict[str, str] = {}
        self._departed: dict[str, float] = {}  # when members were forgotten

    def recall(self) -> dict[str, str]:
        """The addresses of the last run."""
        self._remembered = remembered(self._directory)
        return self._remembered

    def departed(self, name: str) -> None:
        """The member was forgotten."""
        self._departed[name] = self._loop.time()
        self._cluster.again("farewell", FAREWELL_S + AFTER_S, self.review)

    def review(self) -> None:
        """Members or voters have changed."""
        cluster = self._cluster
        members = cluster.raft.map.members()
        if cluster.incarnation or cluster.raft.is_leader:
            known = [m for m in members if m.incarnation]
            cluster.heart.set_members(
                {m.name: HeartMember(self._dial.get(m.name, m.address), m.incarnation, m.alive) for m in known}
            )
        if members:
            peers = {str(member.name): member.address for member in members}
            # a former member must learn that it is none, and that its vote is not needed
            informed_s = self._loop.time() - FAREWELL_S
            late = {
                name: where
                for name, where in self.reached.items()
                if NodeId(name) in cluster.raft.voters or self._departed.get(name, informed_s) > informed_s
            }
            if peers != self._remembered and cluster.name in peers:
                self._remember(peers)
            self.reach({**late, **peers})

    def _remember(self, peers: dict[str, str]) -> None:
        """A failure does not end the node: a disk may be full just when a member is added because of that."""
        try:
            remember(self._directory, peers)
            self._remembered = peers
        except OSError as error:
            self._cluster.log_line("members", f"who they are cannot be written down now: {error.strerror}", "warning")
            self._cluster.again("remember", REMEMBER_S, self.review)

    def reach(self, peers: dict[str, str]) -> None:
        """Dials these peers and no others."""
        cluster = self._cluster
        self.reached = peers
        cluster.heart.set_links(peers)
        peers = {name: self._dial.get(name, where) for name, where in peers.items() if name != cluster.name}
        cluster.mesh.set_peers(peers)
