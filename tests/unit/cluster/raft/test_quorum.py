"""What a leader counts: how far all members have applied the log."""

from __future__ import annotations

from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.raft.quorum import Barrier


def test_what_all_have_applied_is_no_more_than_what_the_leader_has() -> None:
    """A leader that was just elected may have applied less than the others: its clients would miss what was told."""
    barrier = Barrier(0.0)
    for name in "bc":
        barrier.reported(name, LogIndex(100))
    barrier.count("abc", "a", LogIndex(95))
    assert barrier.index == 95
    barrier.count("abc", "a", LogIndex(120))
    assert barrier.index == 100
    barrier.lost("c")
    barrier.count("abc", "a", LogIndex(120))
    assert barrier.index == 100, "what was told of it stays true"


def test_a_barrier_is_announced_when_it_is_news_and_from_time_to_time() -> None:
    barrier = Barrier(0.0)
    assert barrier.is_announced(1, 0, 0.0)
    assert not barrier.is_announced(1, 0, 0.1)
    assert barrier.is_announced(1, 1, 0.1), "there is a link more"
    barrier.raised(LogIndex(5))
    assert barrier.is_announced(1, 1, 0.2)
    assert not barrier.is_announced(1, 1, 0.7)
    assert barrier.is_announced(1, 1, 0.71), "a member that was not in this term has dropped it"


def test_a_report_is_made_once_for_each_leader_term_and_link() -> None:
    barrier = Barrier(0.0)
    assert barrier.is_reported(1, "a/x", 1, 5)
    assert not barrier.is_reported(1, "a/x", 1, 5)
    assert barrier.is_reported(1, "a/x", 2, 5)
