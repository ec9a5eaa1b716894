"""Which seqs two replicas have in common, and which buckets must be compared: pure arithmetic.

A message of a queue is identified by (seq, epoch). Epochs grow with seq, so a table of (epoch, first seq) says for
every seq which epoch gave it. A table that was read back from a disk may be vague: where an epoch began with seqs
that left no record, it names a later first seq. That does no harm as long as every message that lives stands under its
true epoch: seqs without a message are compared for nothing.

Ranges are (first, last), inclusive, ascending, and do not touch once they are `merged`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final

from .messages import Range

BUCKET_SEQS: Final = 4096
"""Seqs of one bucket: bucket number = seq // BUCKET_SEQS."""

Epochs = Sequence[tuple[int, int]]


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same seqs as ascending ranges that neither overlap nor touch."""
    out: list[Range] = []
    for first, last in sorted(ranges):
        if out and first <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], last))
        else:
            out.append((first, last))
    return out


def ranges_of(seqs: Iterable[int]) -> list[Range]:
    """Single seqs, in any order, as ranges."""
    return merged((seq, seq) for seq in seqs)


def seqs_of(ranges: Iterable[Range]) -> Iterator[int]:
    """Every seq of the ranges."""
    for first, last in ranges:
        yield from range(first, last + 1)


def subtract(ranges: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    """What is in `ranges` and not in `other`; both merged."""
    if not ranges or not other or other[-1][1] < ranges[0][0] or ranges[-1][1] < other[0][0]:
        return list(ranges)
    out: list[Range] = []
    at = 0
    for first, last in ranges:
        while at < len(other) and other[at][1] < first:
            at += 1
        look = at
        while look < len(other) and other[look][0] <= last:
            if first < other[look][0]:
                out.append((first, other[look][0] - 1))
            first = other[look][1] + 1
            look += 1
        if first <= last:
            out.append((first, last))
    return out


def intersect(ranges: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    """What is in both; both merged."""
    out: list[Range] = []
    if not other:
        return out
    at = max(0, bisect_right(ranges, (other[0][0], 0)) - 1)
    look = 0
    while at < len(ranges) and look < len(other):
        first, last = max(ranges[at][0], other[look][0]), min(ranges[at][1], other[look][1])
        if first <= last:
            out.append((first, last))
        if ranges[at][1] < other[look][1]:
            at += 1
        else:
            look += 1
    return out


def below(ranges: Sequence[Range], end: int) -> list[Range]:
    """The part of the ranges before seq `end`."""
    return [(first, min(last, end - 1)) for first, last in ranges if first < end]


def contains(ranges: Sequence[Range], seq: int) -> bool:
    """Whether merged ranges hold the seq."""
    at = bisect_right(ranges, (seq, 1 << 64)) - 1
    return at >= 0 and seq <= ranges[at][1]


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
    """Producers of whom a copy knows more than its owner, with the owner's number; 0: they are to be forgotten."""
    return [(name, offered.get(name, 0)) for name, upto in known.items() if offered.get(name, 0) < upto]


def told_again(
    known: Mapping[bytes, int], offered: Mapping[bytes, int], named: Set[bytes] = frozenset()
) -> list[tuple[bytes, int]]:
    """What is to be said of producers at the end of a sync, so that their copy has the numbers and the order of the
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
