"""Which sparse segments are copied forward: those that stay, not those that empty by themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.journal.lingering import Lingering

SEGMENT_BYTES = 64 << 20


def test_what_is_shown_a_second_time_lingers() -> None:
    lingering = Lingering()
    assert lingering.shown({3: 100, 1: 50}) == []
    assert lingering.shown({3: 100, 1: 50, 4: 9}) == [1, 3]
    assert lingering.shown({3: 90, 1: 25, 4: 9}) == [1, 3, 4]


def test_what_empties_by_itself_does_not() -> None:
    lingering = Lingering()
    for live in (1000, 499, 249, 124, 61, 30):
        assert lingering.shown({1: live}) == []
    assert lingering.shown({1: 15}) == [1]


def test_what_was_taken_or_was_not_sparse_for_once_begins_anew() -> None:
    lingering = Lingering()
    lingering.shown({1: 10, 2: 10})
    assert lingering.shown({1: 10, 2: 10}) == [1, 2]
    lingering.taken(1)
    assert lingering.shown({1: 10, 2: 10}) == [2]
    assert lingering.shown({1: 10}) == [1]
    assert lingering.shown({1: 10, 2: 10}) == [1]


@given(st.lists(st.floats(0, 1), min_size=30, max_size=30))
def test_after_26_checkpoints_a_sparse_segment_is_empty_or_lingers(shares: list[float]) -> None:
    """However fast it empties: the bound on how long dead bytes are kept."""
    lingering, live, taken = Lingering(), SEGMENT_BYTES // 4, False
    for share in shares[:26]:
        live = int(live * share)
        taken = taken or (live > 0 and lingering.shown({1: live}) == [1])
    assert taken or live == 0
