"""A stream's copy, as replication asks about it: the ring's part and the past together.

All of a stream lives, with delivery count 0 and nothing dead, so what a bucket has is said by its ranges, and its
digest is of those: no message is looked at. Copies of one stream agree on that, for the map tells all of them that it
is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterbroker.broker.queues.ring import Ring, digest_of
from clusterbroker.broker.queues.states import BUCKET_SEQS
from clusterbroker.journal.ranges import Range, merged
from clusterbroker.replication.ports import ReplicaStore

WORD = (1 << 64) - 1


def store_of(ring: Ring) -> ReplicaStore:
    """What the cores of replication ask."""
    store: Any = ring if ring.past is None else StreamStore(ring)
    return store  # type: ignore[no-any-return]


class StreamStore:
    """Of one ring. `oldest_first`: the order in which a sync brings its buckets."""

    __slots__ = ("_ring",)
    oldest_first = True

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        epochs: Sequence[tuple[int, int]] = self._ring.epochs
        return epochs

    @property
    def next_seq(self) -> int:
        return self._ring.next_seq

    def emitted_end(self) -> int:
        return self._ring.emitted_end()

    def emitted_reserved(self) -> int:
        return self._ring.emitted_reserved()

    def emitted_attributes(self) -> Mapping[bytes, int]:
        return self._ring.emitted_attributes()

    def emitted_buckets(self) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        mixed: set[int] = {bucket for bucket, _ in self._ring.emitted_buckets()}
        for first, last in self._ring.past.ranges:
            low, high = first // BUCKET_SEQS, last // BUCKET_SEQS
            mixed.update((low, high))
            for bucket in range(low + 1, high):
                found[bucket] = digest_of(bucket * BUCKET_SEQS, 0, (bucket + 1) * BUCKET_SEQS - 1)
        for bucket in mixed:
            live = self.emitted_live(bucket)
            if live:
                found[bucket] = sum(digest_of(first, 0, last) for first, last in live) & WORD
        return sorted(found.items())

    def emitted_live(self, bucket: int) -> Sequence[Range]:
        low, high = bucket * BUCKET_SEQS, (bucket + 1) * BUCKET_SEQS - 1
        past = [(max(first, low), min(last, high)) for first, last in self._ring.past.ranges]
        return merged([*(part for part in past if part[0] <= part[1]), *self._ring.emitted_live(bucket)])

    def emitted_counts(self, _: int) -> Sequence[tuple[int, int]]:
        return ()

    def emitted_dead(self, _: int) -> Sequence[tuple[int, int]]:
        return ()
