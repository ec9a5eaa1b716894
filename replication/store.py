"""Port of the cores to a queue's messages and to a record encoder. Rings implement this by their shape.

*Emitted state* is what the records of all groups cut so far come down to: messages written, less those whose SET is
written. An unwritten message, or an acknowledgement that no group carries yet, is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from .messages import Range


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


class RecordMaker(Protocol):
    """Encodes single records with their checksums, ready to stand in a group of the own journal."""

    def cut(self, queue_id: int, epoch: int, from_seq: int) -> bytes:
        """CUT: nothing from this seq on is in the log any more; from 1: nor any attribute."""

    def settle(self, queue_id: int, epoch: int, ranges: Sequence[Range]) -> bytes:
        """SET: the messages have left. Seqs that are not there are passed over by the fold."""

    def reserve(self, queue_id: int, epoch: int, upto: int) -> bytes:
        """RSV: messages up to this seq may have been handed out."""

    def count(self, queue_id: int, epoch: int, seq: int, delivery_count: int) -> bytes:
        """REQ: the delivery count is now this, higher or lower."""

    def dead(self, queue_id: int, epoch: int, seq: int, reason: int) -> bytes:
        """DEAD: held for its dead-letter targets."""

    def set_attribute(self, queue_id: int, epoch: int, name: bytes, upto: int) -> bytes:
        """ATTR: the fold takes this number, higher or lower than before; 0 takes the name out."""
