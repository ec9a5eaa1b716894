"""Sets of seqs as ranges: (first, last), inclusive.

Merged ranges ascend and neither overlap nor touch, so that two sets are the same when their ranges are. `merged` makes
them; all functions give them, and take them where they say so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]


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
