"""Port of the backup's side of replication to its node: a queue in the map, and the actions on it."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple, Protocol

from .messages import Range, ReplicationMessage
from .store import ReplicaStore


class Replica(NamedTuple):
    """A queue as this node's map sees it."""

    owner: str | None
    epoch: int
    store: ReplicaStore | None
    """None: this node holds no copy, or a damaged one."""
    electable: bool = True
    """Whether this node is in the queue's in-sync or eligible set."""
    gap_epoch: int = 0
    """What is known as committed from before that epoch is the queue's no longer."""


class Host(Protocol):
    """What the backup's side needs of its node. None of these may call back before they return, except `folded`."""

    def send(self, peer: str, head: ReplicationMessage) -> object:
        """To the peer over its present link; dropped when there is none."""

    def queue(self, queue_id: int) -> Replica | None:
        """The queue in the map as applied; None: no such queue, or this node's registration is not applied yet."""

    def spare(self, queue_id: int) -> bool:
        """Whether enough others are in sync, at least two, so that nobody waits for this node's copy."""

    def waited_for(self, queue_id: int) -> bool:
        """Whether publishes cannot be confirmed before this node's copy is in sync."""

    def sound(self, queue_id: int, records: memoryview) -> bool:
        """Whether these are whole, sound records of that queue, of whatever kind."""

    def attributes_named(self, records: memoryview) -> Set[bytes]:
        """Of whom these sound records say a number, or that they are forgotten (ATTR)."""

    def verify(self, queue_id: int, records: memoryview) -> Sequence[Range] | None:
        """The seqs of the ENQ records; None when these are not whole, sound ENQ records of that queue."""

    def write(self, queue_id: int, records: bytes | memoryview, epochs: tuple[tuple[int, int], ...] | None) -> int:
        """Puts the records into this node's next group, whole, and folds them then into the queue's store; `epochs`
        replaces the store's table at that moment. Returns the mark that `durable` will reach; for durability "memory"
        a mark that it has reached."""

    def link_stumbled(self, peer: str, error: Exception) -> None:
        """Something raised over what this owner wants: the link is to end; its queues are synced on the next one."""

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        """For the log: "damaged", "rolled_back", "differs"."""
