"""Founding of a cluster: every founder learns every founder's disk, once.

    waiting --(all founders introduced themselves)--> founded, with all of their Raft ids as voters
       |  '--(one is founded, and has this disk among its voters)--> founded, with the same voters
       '-----(one is founded, without this disk)--> joins: its old disk voted, this one never did

All must have been present once, not a majority. A node that lost its disk and starts again as a founder looks like a
new one, and a majority of such nodes could found the cluster a second time beside the data of the first. A founded
node says so when it introduces itself, so a single one cannot do that either.

The cluster begins at the feature level that all founders know: with an older release among them that is its level. A
founder that learns of the end from another one takes the level from that one, too.
"""

from __future__ import annotations

import msgspec

from clusterbroker.cluster.wiring.levels import LEVEL

from .identity import Founder, Identity, raft_id
from .messages import Introduce


class Founding:
    """Pure: introductions in, the founded identity out."""

    __slots__ = ("_disks", "_identity", "_level", "conflict", "over")

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._disks: dict[str, str] = {identity.name: identity.disk_id}
        self._level = LEVEL
        self.over: Identity | None = None
        """What founding led to: founded (with voters) or joined (without founders)."""
        self.conflict = ""
        """One line about a member that was started with other founders."""
        if not identity.founders or identity.voters:
            self.over = identity
        else:
            self._conclude()

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Founders that were not heard of yet."""
        return tuple(f.name for f in self._founders if f.name not in self._disks) if self.over is None else ()

    @property
    def _founders(self) -> tuple[Founder, ...]:
        return self._identity.founders

    def introduced(self, other: Introduce) -> None:
        """Another member has introduced itself."""
        if self.over is not None:
            return
        me = self._identity
        if other.voters:
            if me.raft_id in other.voters:
                self.over = msgspec.structs.replace(me, voters=other.voters, level=other.level)
            else:
                self.over = msgspec.structs.replace(me, founders=(), voters=())
            return
        if other.founders != me.creed:
            mine, theirs = ", ".join(me.creed), ", ".join(other.founders) or "nobody (it joins)"
            self.conflict = f"{other.name} was started with other peers: it says {theirs}; this node says {mine}"
            return
        self._disks[other.name] = other.disk_id
        self._level = min(self._level, other.level)
        self._conclude()

    def _conclude(self) -> None:
        me = self._identity
        if all(f.name in self._disks for f in self._founders):
            voters = tuple(sorted(raft_id(f.name, self._disks[f.name]) for f in self._founders))
            self.over = msgspec.structs.replace(me, voters=voters, level=self._level)
