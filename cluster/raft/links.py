"""The control links of a member, and which Raft id is at the other end of each."""

from __future__ import annotations

from clusterbroker.cluster.ids import NodeId

from .identity import name_of


class Links:
    """Links by peer. A link carries nothing but introductions until the peer's Raft id is known."""

    __slots__ = ("_ids", "made")

    def __init__(self) -> None:
        """No links."""
        self._ids: dict[NodeId, str | None] = {}
        self.made = 0
        """Rises with each link and each introduction: what was sent before may be lost."""

    def open(self, peer: NodeId) -> None:
        """A link exists."""
        self._ids[peer] = None
        self.made += 1

    def introduced(self, peer: NodeId, raft_id: str) -> bool:
        """The peer has introduced itself; whether that is news."""
        if self._ids[peer] is not None:
            return False
        self._ids[peer] = raft_id
        self.made += 1
        return True

    def close(self, peer: NodeId) -> str | None:
        """A link is gone: the Raft id that was known of it."""
        return self._ids.pop(peer, None)

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._ids

    def raft_id(self, peer: NodeId) -> str | None:
        """The Raft id of a linked peer, if it is known."""
        return self._ids[peer]

    def reach(self, raft_id: str) -> bool:
        """Whether a link leads to this Raft id."""
        return self._ids.get(name_of(raft_id)) == raft_id

    def peers(self) -> list[NodeId]:
        """All linked peers, by name."""
        return sorted(self._ids)

    def raft_ids(self) -> list[str]:
        """All Raft ids that are known, by the names of their peers."""
        return [known for _, known in sorted(self._ids.items()) if known is not None]
