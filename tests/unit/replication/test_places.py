"""What the places of two logs prove, and what they do not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.replication.places import (
    PLACE,
    claims,
    lacks,
    may_lack,
    offered_place,
    overwritten,
    place_of,
    went_back,
)
from clusterbroker.replication.sync import epoch_at


def test_a_place_is_read_from_what_a_log_says_of_its_producers() -> None:
    assert place_of({}) == 0
    assert place_of({b"na/1": 5, PLACE: 7}) == 7 == offered_place([(PLACE, 7), (b"na/1", 5)])


def test_one_group_between_two_sound_copies_proves_nothing() -> None:
    assert not lacks(7, 6)
    assert not went_back(6, 7)
    assert may_lack(7, 6)
    assert not may_lack(7, 7)


def test_two_groups_prove_that_a_disk_went_back() -> None:
    assert lacks(7, 5)
    assert went_back(5, 7)
    assert not lacks(0, 0)
    assert not went_back(0, 0)


def test_a_copy_of_before_a_gap_claims_nothing() -> None:
    assert claims([(1, 1), (3, 9)], 3)
    assert claims([], 0)
    assert not claims([(1, 1), (3, 9)], 4)
    assert not claims([], 1)


def test_what_an_owner_has_under_a_later_epoch_is_another_message() -> None:
    assert overwritten([(1, 1)], [(1, 1), (4, 6)], 10) == [(6, 9)]
    assert overwritten([(1, 1)], [(1, 1), (4, 6)], 6) == []


def test_a_table_that_was_shortened_or_read_from_a_disk_proves_nothing() -> None:
    assert overwritten([(1, 1), (2, 5)], [(3, 9)], 9) == []
    assert overwritten([(1, 1), (2, 5)], [(1, 1), (2, 8)], 20) == [], "an epoch may be said to begin later than it did"


tables = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 30)), max_size=5).map(
    lambda entries: sorted(
        {
            epoch: sorted(first for _, first in entries)[n] for n, epoch in enumerate(sorted({e for e, _ in entries}))
        }.items()
    )
)


@given(tables, tables, st.integers(0, 40))
def test_the_ranges_are_those_of_a_walk_over_all_seqs(
    own: list[tuple[int, int]], owner: list[tuple[int, int]], end: int
) -> None:
    found = {seq for first, last in overwritten(own, owner, end) for seq in range(first, last + 1)}
    assert found == {seq for seq in range(1, end) if 0 < epoch_at(own, seq) < epoch_at(owner, seq)}
