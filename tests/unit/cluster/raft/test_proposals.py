"""Proposals of one node on their way into the log."""

from __future__ import annotations

from cluster import commands as c
from cluster.ids import Incarnation, NodeId
from cluster.raft.fold import BLANK, unseal
from cluster.raft.proposals import Proposals


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
