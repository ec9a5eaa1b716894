"""Proposals of one node on their way into the log."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.errors import LogWentBack
from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.raft.fold import BLANK, Envelope, Fold, unseal
from clusterbroker.cluster.raft.proposals import Proposals
from clusterbroker.cluster.wiring import commands as c


def add(proposals: Proposals, name: str, term: int | None = None) -> None:
    command = c.FailNode(node=NodeId(name), incarnation=Incarnation(1))
    proposals.add(command, c.encode(command), None, 0.0, term)


def sent(entries: list[bytes]) -> list[tuple[int, bool]]:
    found = [unseal(entry) for entry in entries]
    return [(envelope.number, envelope.command == BLANK) for envelope in found if envelope is not None]


def test_what_is_sent_is_sent_again_to_a_new_leader() -> None:
    proposals = Proposals("a/1", 1)
    add(proposals, "b")
    assert sent(proposals.to_send("first", 0.0, 1)) == [(1, False)]
    assert proposals.to_send("first", 0.0, 1) == []
    assert sent(proposals.to_send("second", 0.0, 2)) == [(1, False)]


def test_what_belongs_to_a_term_is_an_empty_entry_in_the_next() -> None:
    proposals = Proposals("a/1", 1)
    add(proposals, "b", term=1)
    add(proposals, "c")
    assert sent(proposals.to_send("first", 0.0, 1)) == [(1, False), (2, False)]
    assert sent(proposals.to_send("second", 0.0, 2)) == [(1, True), (2, False)]


def test_what_belongs_to_a_term_that_is_over_gets_no_number() -> None:
    proposals = Proposals("a/1", 1)
    add(proposals, "b", term=1)
    add(proposals, "c")
    assert sent(proposals.to_send("second", 0.0, 2)) == [(1, False)]


@pytest.mark.parametrize(
    ("session", "life", "went_back"), [(3, 7, False), (2, 5, False), (3, 5, True), (3, 0, True), (4, 7, True)]
)
def test_an_entry_of_a_later_life_is_no_own_one(session: int, life: int, went_back: bool) -> None:
    """A copy of the disk was put back, so a session comes twice."""
    proposals = Proposals("a/d", 3, generation=7)
    of_another = Envelope("b/d", 9, 1, b"", 5)
    proposals.check(of_another)
    entry = Envelope("a/d", session, 1, b"", life)
    if went_back:
        with pytest.raises(LogWentBack, match="copy of an earlier time"):
            proposals.check(entry)
    else:
        proposals.check(entry)


def test_a_snapshot_that_knows_more_of_this_session_than_it_has_said() -> None:
    proposals = Proposals("a/d", 3)
    fold = Fold()
    fold.origins["a/d"] = (2, 50)
    assert proposals.restored(fold) == []
    fold.origins["a/d"] = (3, 1)
    with pytest.raises(LogWentBack):
        proposals.restored(fold)
