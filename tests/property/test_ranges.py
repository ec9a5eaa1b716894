"""Range arithmetic against sets of seqs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.journal import ranges

SEQS = st.sets(st.integers(1, 40))


@given(SEQS, SEQS)
def test_ranges_are_sets(left: set[int], right: set[int]) -> None:
    a, b = ranges.ranges_of(left), ranges.ranges_of(right)
    assert set(ranges.seqs_of(a)) == left
    assert set(ranges.seqs_of(ranges.subtract(a, b))) == left - right
    assert set(ranges.seqs_of(ranges.intersect(a, b))) == left & right
    assert set(ranges.seqs_of(ranges.merged((*a, *b)))) == left | right
    assert all(ranges.contains(a, seq) == (seq in left) for seq in range(45))
    assert all(after[0] > before[1] + 1 for before, after in pairwise(a)), "merged ranges do not touch"


class Counted(list[ranges.Range]):
    """Ranges that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


def test_what_two_lists_of_ranges_share_is_found_without_a_walk_over_both() -> None:
    """A consumer that acknowledges every second message leaves very many ranges, and each new owner compares them."""
    many = Counted((seq, seq) for seq in range(1, 200_000, 2))
    assert ranges.intersect(many, []) == []
    assert ranges.intersect(many, [(150_000, 150_004)]) == [(150_001, 150_001), (150_003, 150_003)]
    assert ranges.subtract(many, [(300_000, 300_001)]) == many
    assert many.looks < 50


@given(SEQS, st.integers(1, 45))
def test_below(seqs: set[int], end: int) -> None:
    assert set(ranges.seqs_of(ranges.below(ranges.ranges_of(seqs), end))) == {seq for seq in seqs if seq < end}
