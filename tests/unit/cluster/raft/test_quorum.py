"""What a leader counts: who has applied what."""

from __future__ import annotations

from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.raft.quorum import AppliedCount


def test_what_all_have_applied_is_no_more_than_what_the_leader_has() -> None:
    """A leader that was just elected may have applied less than the others: its clients would miss what was told."""
    count = AppliedCount()
    for name in "bc":
        count.heard(name, LogIndex(100))
    assert count.minimum("abc", "a", LogIndex(95)) == 95
    assert count.minimum("abc", "a", LogIndex(120)) == 100
    count.lost("c")
    assert count.minimum("abc", "a", LogIndex(120)) == 0
