"""What was heard of another's log, and which introductions cannot be true after it."""

from __future__ import annotations

from clusterbroker.cluster.raft import messages as m
from clusterbroker.cluster.raft.promises import Promise, Promises


def test_an_acknowledgement_holds_for_its_term() -> None:
    promises = Promises()
    promises.record("b/1", m.Ack(5, 11, False, True))
    promises.record("b/1", m.Ack(5, 8, False, True))  # repeated
    promises.record("b/1", m.Ack(5, 3, True, True))  # whence to send again: no promise
    promises.record("b/1", m.Ack(4, 90, False, True))  # of a term before, late
    for term, end in ((5, 10), (5, 12), (6, 3)):
        assert promises.contradicts("b/1", term, end) is None, "entries that nobody committed are cut in a later term"
    for term, end in ((5, 9), (4, 10), (4, 100)):
        assert promises.contradicts("b/1", term, end) == Promise(5, 10)
    assert promises.contradicts("b/2", 1, 0) is None, "that is another log"
    assert promises.contradicts("b/1", 0, 0) is None, "a release before does not say"


def test_a_leader_has_what_it_says_is_committed() -> None:
    promises = Promises()
    promises.record("a/1", m.Append(5, 8, 10, 5, ()))
    assert promises.contradicts("a/1", 5, 8) is None, "what it sends may not be on its own disk yet"
    assert promises.contradicts("a/1", 5, 7) == Promise(5, 8)


def test_a_vote_holds_for_its_term() -> None:
    promises = Promises()
    promises.record("b/1", m.Ack(5, 11, False, True))
    promises.record("b/1", m.Vote(6))
    promises.record("c/1", m.AskVote(7, 3, 2))
    promises.record("d/1", m.PreVote(9, 3, 2))
    assert promises.contradicts("b/1", 5, 10) == Promise(6, 0)
    assert promises.contradicts("b/1", 6, 2) is None
    assert promises.contradicts("c/1", 6, 3) == Promise(7, 0)
    assert promises.contradicts("d/1", 1, 0) is None, "it binds nobody"
