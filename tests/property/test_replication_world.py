"""The simulated cluster, with a small budget: lives without a bug end well, and bugs that are put in are found.

More of both: python -m tests.property.replication_world --help.
"""

from __future__ import annotations

import pytest

from tests.budget import campaign
from tests.property.replication_mutations import MUTATIONS
from tests.property.replication_world import live, seeds_until_found

pytestmark = pytest.mark.campaign

LIVES_MAX = 40
"""In so many lives from its first seed on every bug shows; most do in the first few."""
FIRST = {
    "removes_nothing": 2, "never_atomic": 11, "producers_not_lowered": 9, "stale_owner_obeyed": 235,
    "old_session_acks": 7, "pending_addition_ignored": 2, "pending_addition_cleared": 6, "shrink_before_applied": 2,
    "below_minimum": 3, "refused_ignored": 3, "writes_before_first_sync": 3, "local_disk_ignored": 2,
    "half_synced_proposed": 2, "behind_proposed": 26, "incarnation_ignored": 10, "cuts_below_the_committed": 15,
    "who_is_ahead_waits": 16, "lost_copy_believed": 3, "doubts_are_members": 95, "nothing_foreign": 12,
}  # fmt: skip
"""The seed that shows a bug soonest, for the others it is 1. Where it shows nothing any more, a later one does."""


def test_lives_with_faults_break_no_invariant() -> None:
    def life(seed: int) -> None:
        stats, wrong = live(seed)
        assert wrong is None, wrong
        assert stats["confirmed"] > 100, "the cluster did something in this life"

    campaign("replication", life, "python -m tests.property.replication_world --seed")


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_bug_is_found(mutation: str) -> None:
    assert seeds_until_found(mutation, FIRST.get(mutation, 1), LIVES_MAX), (
        f"{mutation} lived {LIVES_MAX} lives and was not noticed"
    )
