"""Ports of replication: a queue's messages, and the node as each core sees it.

*Emitted state* is what the records of all groups cut so far come down to: messages written, less those whose SET is
written. An unwritten message, or an acknowledgement that no group carries yet, is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

from clusterbroker.cluster.wiring.commands import InSyncProposal
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.journal.layout import Location

from .messages import Range, ReplicationMessage

Bytes = bytes | memoryview


class OwnerStore(Protocol):
    """The questions to a queue, at its owner."""

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        """(epoch, its first seq), ascending."""

    def emitted_end(self) -> int:
        """The first seq that no group has passed."""

    def emitted_reserved(self) -> int:
        """Newest reservation in a group."""

    def emitted_attributes(self) -> Mapping[bytes, int]:
        """Producer to the highest number of it that a group holds."""

    def emitted_buckets(self) -> Iterable[tuple[int, int]]:
        """(number, digest) of each bucket with a live message; digest over (seq, delivery count, dead)."""

    def emitted_live(self, bucket: int) -> Sequence[Range]:
        """The live seqs of a bucket, merged."""

    def emitted_counts(self, bucket: int) -> Iterable[tuple[int, int]]:
        """(seq, delivery count) where it is not 0."""

    def emitted_dead(self, bucket: int) -> Iterable[tuple[int, int]]:
        """(seq, reason) of those that are held for their dead-letter targets."""


class ReplicaStore(OwnerStore, Protocol):
    """The same questions to a replica; "emitted" is here what was folded."""

    @property
    def oldest_first(self) -> bool:
        """Whether a sync brings the oldest buckets first: what is added at their end is kept in files."""

    @property
    def next_seq(self) -> int:
        """One past the highest seq it has heard of."""


class ReplicaRing(Protocol):
    """A replica's messages, as `copying` keeps them up."""

    @property
    def queue_id(self) -> int: ...

    @property
    def volatile(self) -> bool:
        """Its records have no journal."""

    @property
    def replicated(self) -> bool: ...

    @property
    def committed(self) -> int: ...

    @property
    def past(self) -> Any:
        """A stream's files; None of a queue."""

    @property
    def epochs(self) -> list[tuple[int, int]]: ...

    def epoch_of(self, seq: int) -> int: ...

    def restore_epoch(self, epoch: int, first_seq: int) -> None: ...

    def emitted_live(self, bucket: int) -> Sequence[Range]: ...

    def location(self, seq: int) -> Location: ...

    def delivery_count(self, seq: int) -> int: ...

    def fold(self, data: Bytes, segment: int, offset: int) -> None:
        """Takes the owner's records, now in the own journal at (segment, offset)."""


class OwnedLog(Protocol):
    """A queue or stream that this node owns."""

    @property
    def entity(self) -> Queue: ...

    @property
    def ring(self) -> Any:
        """Its messages: a `ReplicaRing` that was taken over, with `write(writer)`, `mark()` and `needs_write`."""

    @property
    def settings(self) -> Any: ...

    @property
    def committed(self) -> Callable[[int], None]:
        """Called when everything before this seq is committed."""

    def copy(self, seqs: Sequence[Range], bytes_max: int, then: Callable[[bytes], None]) -> None:
        """As `OwnerHost.load`."""


class Host(Protocol):
    """What both cores need of their node. None of the calls may come back before they return, except `load`'s `then`
    and `Backup.folded`."""

    def send(self, peer: str, head: ReplicationMessage, payload: Sequence[bytes | memoryview] = ()) -> object:
        """To the peer over its present link; dropped when there is none."""

    def link_stumbled(self, peer: str, error: Exception) -> None:
        """Something raised over what is said to the peer: the link is to end, and all is said anew on the next one."""

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        """For the log and the operator: "caught_up", "fell_behind", "refused", "rolled_back", "later", "in_doubt",
        "kept_apart", "hand_over_failed", "damaged", "differs". `node`: of the copy, or the heir."""


class OwnerHost(Host, Protocol):
    """What the owner's side needs of its node."""

    def load(self, queue_id: int, seqs: Sequence[Range], bytes_max: int, then: Callable[[bytes], None]) -> None:
        """Calls `then`, now or later, with the ENQ records of the seqs in ascending order: as many as fit into
        `bytes_max`, at least one if any of them still lives. What lives no more at the moment of the call is left out.
        Each record carries the epoch that gave the seq. Not called when they cannot be read."""

    def change_in_sync(self, changes: tuple[InSyncProposal, ...], done: Callable[[], None]) -> None:
        """Proposes ChangeInSync; `done` when it is applied or failed (what changed is told by entity_changed)."""

    def committed(self, queue_id: int, group: int) -> None:
        """The queue's records of that group are committed, and it may be written again."""

    def first_sync_complete(self, queue_id: int) -> None:
        """All that was taken over is committed: the queue may be written and handed out."""

    def stumbled(self, queue_id: int, error: Exception) -> None:
        """Something raised over this queue. The core has given it up: nothing of it is committed any more, whatever is
        in flight. What the node holds of it is not to be believed."""

    def transfer_owner(self, queue_id: int, epoch: int, version: int, to: str, done: Callable[[bool], None]) -> None:
        """Proposes TransferOwner; `done(False)` when it was refused or failed."""

    def yield_to(self, queue_id: int, epoch: int, to: str, lacks: bool, done: Callable[[bool], None]) -> None:
        """Proposes that `to` owns the queue, and with `lacks` that this node's copy leaves the in-sync and eligible
        sets; `done(False)` when that was refused. Asks again as long as nobody decides."""

    def freeze(self, queue_id: int) -> None:
        """Stop hand-out and appends of the queue: it is about to be handed over."""

    def thaw(self, queue_id: int) -> None:
        """The hand-over came to nothing: go on."""


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


class BackupHost(Host, Protocol):
    """What the backup's side needs of its node."""

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
