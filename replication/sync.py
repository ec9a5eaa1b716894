"""Common seqs of two replicas, and buckets to compare: pure arithmetic.

A message of a queue is identified by (seq, epoch). Epochs grow with seq, so a table of (epoch, first seq) says for
every seq which epoch gave it. A table that was read back from a disk may be vague: where an epoch began with seqs
that left no record, it names a later first seq. That does no harm as long as every message that lives stands under its
true epoch: seqs without a message are compared for nothing.

Ranges are those of `journal.ranges`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final

from clusterbroker.journal.ranges import Range, intersect, merged

BUCKET_SEQS: Final = 4096
"""Seqs of one bucket: bucket number = seq // BUCKET_SEQS."""

Epochs = Sequence[tuple[int, int]]


def epoch_at(epochs: Epochs, seq: int) -> int:
    """The epoch that gave the seq; 0 before the table begins."""
    at = bisect_right(epochs, seq, key=_first) - 1
    return epochs[at][0] if at >= 0 else 0


def _first(entry: tuple[int, int]) -> int:
    return entry[1]


def shorten(epochs: list[tuple[int, int]], oldest: int) -> None:
    """Takes out what says nothing any more when no seq before `oldest` lives: a queue that changes hands all the time
    would have a table that grows for ever. Two replicas may differ in it: below such a table nothing lives at its
    owner, and what lives there at the other is foreign, or is missed in its bucket."""
    known = max(1, bisect_right(epochs, oldest, key=_first))
    del epochs[: known - 1]


def foreign(own: Epochs, own_next: int, owner: Epochs, owner_next: int) -> list[Range]:
    """The seqs of a replica (all below `own_next`) whose messages, if any, are not the owner's of the same seq."""
    bounds = sorted({1, owner_next, own_next, *(first for _, first in own), *(first for _, first in owner)})
    out: list[Range] = []
    for first, end in pairwise(bounds):
        if first >= own_next:
            break
        if first >= owner_next or epoch_at(own, first) != epoch_at(owner, first):
            out.append((first, end - 1))
    return merged(out)


def cut_point(alien: Sequence[Range], own_next: int) -> int | None:
    """From where on all is foreign, so that the log ends there; None when its last seq is not."""
    return alien[-1][0] if alien and alien[-1][1] == own_next - 1 else None


def bucket_range(bucket: int) -> Range:
    """First and last seq of a bucket."""
    return bucket * BUCKET_SEQS, (bucket + 1) * BUCKET_SEQS - 1


def compare(
    own: Mapping[int, int], offered: Iterable[tuple[int, int]], touched: Sequence[Range]
) -> tuple[list[int], list[int]]:
    """(buckets to ask for, buckets of which nothing lives at the owner), by digest, both ascending.

    `touched` are seqs that have just been taken out of the replica: the digest of such a bucket is not believed.
    """
    known = dict(offered)
    wanted = [
        bucket
        for bucket, digest in sorted(known.items())
        if own.get(bucket) != digest or intersect([bucket_range(bucket)], touched)
    ]
    return wanted, [bucket for bucket in sorted(own) if bucket not in known]


def lowered(known: Mapping[bytes, int], offered: Mapping[bytes, int]) -> list[tuple[bytes, int]]:
    """Attributes of which a copy knows more than its owner, with the owner's number; 0: they are to be forgotten."""
    return [(name, offered.get(name, 0)) for name, upto in known.items() if offered.get(name, 0) < upto]


def attribute_updates(
    known: Mapping[bytes, int], offered: Mapping[bytes, int], named: Set[bytes] = frozenset()
) -> list[tuple[bytes, int]]:
    """What is to be said of attributes at the end of a sync, so that their copy has the numbers and the order of the
    owner: the longest silent first. Both mappings are in such an order; `offered` is of the sync's beginning, and of
    those in `named` the owner has spoken since: what is known of them is right, also that they were forgotten. So it is
    of whoever is known with a higher number (a DEAD record raises one). Whoever is told stands at the end."""
    since = {name: upto for name, upto in known.items() if name in named or offered.get(name, 0) < upto}
    order = [(name, upto) for name, upto in offered.items() if upto and name not in named and name not in since]
    order += since.items()
    right = 0
    for have, want in zip(known.items(), order, strict=False):
        if have != want:
            break
        right += 1
    return order[right:]
