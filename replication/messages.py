"""Messages between an owner and its backups about queues: heads of frames; records follow as payload.

Every frame also carries its sender's applied wiring index (cluster/link/frames.py), and waits until the receiver has
applied that index. Ranges are (first, last), inclusive. Field order is the order on the wire.
"""

from __future__ import annotations

from typing import Final

import msgspec

from clusterbroker.cluster.link.fields import Bucket, Producer, Short, Term, Whole, Word, check_ranges
from clusterbroker.cluster.link.fields import Range as Range


class ReplicationMessage(msgspec.Struct, frozen=True, array_like=True):
    """Root of these heads."""


class Append(ReplicationMessage, frozen=True, tag=1):
    """Owner to backup: the records of one group commit, as far as they concern this backup."""

    group: Whole
    parts: tuple[tuple[Whole, Term, Whole], ...]
    """(queue_id, epoch, bytes), in the order of the payload."""


class AppendAck(ReplicationMessage, frozen=True, tag=2):
    """Backup to owner: everything up to this group is durable here (in memory for durability "memory"), in link order.

    `refused` parts were not taken (stale epoch, no sync since the last reset): they say so once, before they count.
    """

    group: Whole
    refused: tuple[tuple[Whole, Term], ...] = ()
    """(queue_id, epoch)."""


class SyncOffer(ReplicationMessage, frozen=True, tag=3):
    """Owner to backup: this is the emitted state of the queue; Appends follow from now on."""

    queue_id: Whole
    epoch: Term
    sync: Whole
    """Number of this sync, rising per owner start."""
    next_seq: Whole
    reserved: Whole
    epochs: tuple[tuple[Term, Whole], ...]
    """(epoch, its first seq), ascending."""
    attributes: tuple[tuple[Producer, Word], ...]
    """(name, highest number in the log), the longest silent first."""
    buckets: tuple[tuple[Bucket, Word], ...]
    """(number, digest) of every bucket of BUCKET_SEQS seqs with a live message."""
    unproven: bool = False
    """The owner knows this from its disk alone: a copy that may own the queue and holds more says so."""
    behind: bool = False
    """The owner has heard that this copy lacks what is committed, and takes it out of the in-sync set."""

    def __post_init__(self) -> None:
        before = (-1, -1)
        for entry in self.epochs:
            if entry[0] <= before[0] or entry[1] < before[1] or entry[0] > self.epoch:
                raise ValueError(f"epochs {self.epochs} of an owner in epoch {self.epoch}")
            before = entry


class SyncWant(ReplicationMessage, frozen=True, tag=4):
    """Backup to owner: send this bucket; `have` need no bodies."""

    queue_id: Whole
    epoch: Term
    sync: Whole
    bucket: Bucket
    have: tuple[Range, ...]

    def __post_init__(self) -> None:
        check_ranges(self.have)


class SyncBucket(ReplicationMessage, frozen=True, tag=5):
    """Owner to backup: all that lives in the bucket now. Payload: ENQ records of those not in `have`."""

    queue_id: Whole
    epoch: Term
    sync: Whole
    bucket: Bucket
    live: tuple[Range, ...]
    counts: tuple[tuple[Whole, Short], ...] = ()
    """(seq, delivery count) where it is not 0."""
    dead: tuple[tuple[Whole, Word], ...] = ()
    """(seq, reason) of messages that are held for their dead-letter targets."""

    def __post_init__(self) -> None:
        check_ranges(self.live)


class SyncDone(ReplicationMessage, frozen=True, tag=6):
    """Backup to owner: the sync is durable here."""

    queue_id: Whole
    epoch: Term
    sync: Whole


class SyncRefused(ReplicationMessage, frozen=True, tag=7):
    """Backup to owner: stale epoch, this replica is damaged, or one of the two disks went back; `why` for the log."""

    queue_id: Whole
    epoch: Term
    sync: Whole
    why: str
    ground: Short = 0
    """OTHER, AHEAD, LATER or BEHIND (places.py)."""


OTHER: Final = 0
"""It may be offered again soon."""
AHEAD: Final = 1
"""The owner lacks what this copy knows as committed: nothing of it is cut."""
LATER: Final = 2
"""To an unproven offer: the owner lacks what may have been committed, and this copy may own the queue."""
BEHIND: Final = 3
"""This copy lacks what its owner knows as committed, though it may own the queue. An offer that knows it is taken."""


class Compare(ReplicationMessage, frozen=True, tag=8):
    """Owner to backup: with all Appends before it a copy that is synced has these digests; else it says SyncRefused."""

    queue_id: Whole
    epoch: Term
    sync: Whole
    buckets: tuple[tuple[Bucket, Word], ...]


class SyncOver(ReplicationMessage, frozen=True, tag=9):
    """Owner to backup: nothing of this sync is answered any more. Another offer of the queue comes when it can."""

    queue_id: Whole
    epoch: Term
    sync: Whole


TO_BACKUP: Final = (Append, SyncOffer, SyncBucket, SyncOver, Compare)
TO_OWNER: Final = (AppendAck, SyncWant, SyncDone, SyncRefused)
AnyReplication = Append | AppendAck | SyncOffer | SyncWant | SyncBucket | SyncDone | SyncRefused | Compare | SyncOver
