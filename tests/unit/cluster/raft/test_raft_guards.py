"""The defects of pysyncobj that the guards are there for, one deterministic case each (names as in the design page)."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.raft import guards
from clusterbroker.cluster.raft import messages as m
from clusterbroker.cluster.raft.core import Core
from clusterbroker.cluster.raft.fold import Envelope, seal
from clusterbroker.cluster.raft.snapshots import PIECE_BYTES
from clusterbroker.cluster.wiring import commands as c
from tests.unit.cluster.raft.raft_group import Group, Member


def entries(count: int) -> list[bytes]:
    return [b"\x00entry %d" % number for number in range(count)]


def led(count: int = 6, *names: str) -> Group:
    """Three members, `a` leads, with some entries that all have and have applied."""
    group = Group(*(names or ("a", "b", "c")))
    group.elect("a").core.append(entries(count))
    group.carry()
    assert all(member.applied == entries(count) for member in group.members.values())
    return group


def repeated_prefix(group: Group) -> m.Append:
    """What the leader sent first, once more."""
    leader = group.members["a"].core
    return m.Append(leader.term, 3, 3, 0, tuple(leader.journal[2:4]))


def test_s1_a_repeated_prefix_cuts_nothing() -> None:
    group = led()
    follower = group.members["b"]
    before = follower.log()
    follower.core.received("a", repeated_prefix(group))
    assert follower.log() == before
    acks = [message for _, message in follower.turn() if isinstance(message, m.Ack)]
    assert acks == [m.Ack(group.members["a"].core.term, 6, False, True)], "it acknowledges what it was sent, no more"


def test_s1_is_there_without_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "_normalised", lambda _self, message: guards.Normalised(message, None))
    group = led()
    with pytest.raises(AssertionError, match="what is committed is never cut"):
        group.members["b"].core.received("a", repeated_prefix(group))


def test_s2_a_snapshot_piece_commits_nothing_of_its_own() -> None:
    """A deposed leader has entries of its own; the new leader's snapshot pieces carry a high commit index."""
    group = led()
    old = group.members["a"]
    group.deaf = {"a"}
    old.core.append([b"\x00never replicated"])
    old.turn()
    new = group.elect("b")
    new.core.append([b"\x00other", b"\x00another"])
    group.carry()
    before = list(old.applied)
    old.core.received("b", m.Snapshot(new.core.term, new.core.commit, new.core.commit, True, False, b"part"))
    old.turn()
    assert old.applied == before
    old.core.received("b", m.Snapshot(new.core.term, new.core.commit, 3, True, False, b"part"))
    old.core.received("b", m.Snapshot(new.core.term, new.core.commit, 3, False, True, b""))
    old.turn()
    assert old.applied == before, "nor does an old snapshot"


def test_s2_a_damaged_snapshot_commits_nothing() -> None:
    """Its last piece carries a commit index beyond an entry that the follower never compared with the leader's."""
    group = led()
    old = group.members["a"]
    group.deaf = {"a"}
    old.core.append([b"\x00never replicated"])
    old.turn()
    new = group.elect("b")
    new.core.append([b"\x00other", b"\x00another"])
    group.carry()
    before, commit = list(old.applied), old.core.commit
    for first, last, data in ((True, False, b"damaged"), (False, True, b"")):
        old.core.received("b", m.Snapshot(new.core.term, new.core.commit, new.core.commit, first, last, data))
    old.turn()
    assert (old.applied, old.core.commit) == (before, commit), "only what was installed is committed"
    group.deaf = set()
    group.pass_time(1.0)
    assert old.applied == new.applied, "the leader's log replaces it"


def test_s5_an_acknowledgement_of_another_term_or_beyond_the_log_counts_for_nothing() -> None:
    group = led()
    leader = group.members["a"].core
    group.deaf = {"b", "c"}
    leader.append([b"\x00lonely"])
    group.members["a"].turn()
    end = leader.journal[-1][1]
    leader.received("b", m.Ack(leader.term - 1, end + 1, False, True))
    leader.received("b", m.Ack(leader.term, end + 40, False, True))
    group.members["a"].turn()
    assert leader.commit == end - 1
    leader.received("b", m.Ack(leader.term, end + 1, False, True))
    group.members["a"].turn()
    assert leader.commit == end


def test_l1_a_follower_with_a_conflict_and_a_backlog_catches_up_in_one_reset() -> None:
    group = led()
    old = group.members["a"]
    group.deaf = {"a"}
    old.core.append([b"\x00false %d" % number for number in range(50)])
    old.turn()
    new = group.elect("b")
    for number in range(40):
        new.core.append([b"\x00true %d" % number + b"." * 100_000])
        group.carry()
    group.deaf = set()
    old.core.unlinked("b")
    new.core.unlinked("a")
    old.core.linked("b")
    new.core.linked("a")
    group.pass_time(0.5)
    assert old.applied == new.applied
    assert len(old.applied) == 6 + 40


def test_resets_ask_from_the_committed_end() -> None:
    assert guards.resend_from(500, 20) == 21
    assert guards.resend_from(7, 20) == 7


def test_a_follower_that_was_away_deposes_nobody() -> None:
    group = led()
    term = group.members["a"].core.term
    group.deaf = {"c"}
    group.pass_time(4)
    group.deaf = set()
    group.pass_time(2)
    assert group.members["a"].core.leads
    assert group.members["a"].core.term == term


def test_a_leader_that_nobody_answers_leads_no_more() -> None:
    group = led()
    group.deaf = {"b", "c"}
    group.pass_time(2)
    assert not group.members["a"].core.leads


def test_an_old_leader_is_told_of_the_term() -> None:
    group = led()
    group.deaf = {"a"}
    group.elect("b")
    group.deaf = set()
    group.pass_time(0.3)
    assert not group.members["a"].core.leads
    assert group.members["a"].core.leader == "b"


def test_a_vote_is_counted_once_and_only_from_voters() -> None:
    group = Group("a", "b", "c", "d", "e")
    core = group.members["a"].core
    core._campaign = True
    group.members["a"].turn()
    for peer in ("b", "b", "b", "stranger"):
        core.received(peer, m.Vote(core.term))
    assert not core.leads
    core.received("c", m.Vote(core.term))
    assert core.leads


def test_a_vote_of_the_term_before_does_not_hide_the_next_one() -> None:
    """It arrives between the pre-votes for the next term and the candidacy."""
    group = Group("a", "b", "c", "d", "e")
    core = group.members["a"].core
    core._campaign = True
    group.members["a"].turn()
    term = core.term
    core.tick(10.0)
    core._election_s = 0.0
    group.members["a"].turn()
    for peer in ("b", "c"):
        core.received(peer, m.PreVoted(term + 1, True, term))
    core.received("d", m.Vote(term))
    group.members["a"].turn()
    assert core.term == term + 1
    for peer in ("d", "e"):
        core.received(peer, m.Vote(term + 1))
    assert core.leads


def test_who_has_given_its_vote_does_not_stand_at_once_against_who_got_it() -> None:
    voter = Member("b", ("a", "b", "c"))
    for peer in ("a", "c"):
        voter.core.linked(peer)
    voter.turn()
    voter.core.leader_gone(1)
    term, last = voter.core.term + 1, voter.core.journal[-1]
    voter.core.tick(1.03)
    assert {type(message) for _, message in voter.turn()} == {m.PreVote}
    voter.core.received("a", m.PreVoted(term, True, term - 1))  # it may campaign, but
    voter.core.received("c", m.AskVote(term, last[1], last[2]))  # another one was first
    assert [type(message) for _, message in voter.turn()] == [m.Vote]
    voter.core.tick(1.05)
    assert (voter.turn(), voter.core.term) == ([], term)
    voter.core.tick(1.1)
    assert {type(message) for _, message in voter.turn()} == {m.PreVote}, "nobody has won"


def test_a_learner_gets_a_snapshot_and_then_entries_and_is_not_counted() -> None:
    group = Group("a", "b", "c", learners=("d",))
    leader = group.elect("a")
    leader.core.append(entries(3))
    group.carry()
    learner = group.members["d"]
    assert learner.applied == entries(3)
    assert learner.core.voters == ("a", "b", "c")
    group.deaf = {"b", "c"}
    leader.core.append([b"\x00lonely"])
    group.carry()
    assert leader.core.commit < leader.core.journal[-1][1]


def test_a_large_snapshot_arrives_in_pieces() -> None:
    group = Group("a", "b", "c")
    leader = group.elect("a")
    large = [b"\x00" + bytes([number]) * 300_000 for number in range(8)]
    assert sum(map(len, large)) > 2 * PIECE_BYTES
    for entry in large:
        leader.core.append([entry])
        group.carry()
    group.pass_time(0.2)
    leader.core.compact()
    group.carry()
    joined = Group("d").members["d"]
    group.members["e"] = joined.__class__("e", (), founded=False)
    for name, member in group.members.items():
        if name != "e":
            member.core.linked("e")
            group.members["e"].core.linked(name)
    group.pass_time(0.5)
    assert group.members["e"].applied == large


def test_a_leader_with_a_damaged_snapshot_writes_it_anew() -> None:
    group = Group("a", "b", "c")
    leader = group.elect("a")
    for entry in entries(3):
        leader.core.append([entry])
        group.carry()
    leader.core.compact()
    group.carry()
    file = leader.disk.read("snapshot")
    assert file is not None
    leader.disk.replace("snapshot", file[:-1] + bytes([file[-1] ^ 1]))
    leader.core.append([b"\x00later"])
    group.carry()
    group.members["e"] = Member("e", (), founded=False)
    for name in ("a", "b", "c"):
        group.members[name].core.linked("e")
        group.members["e"].core.linked(name)
    group.pass_time(0.5)
    assert group.members["e"].applied == [*entries(3), b"\x00later"]
    assert group.members["e"].core.snapshot_index == leader.core.snapshot_index > 0


def test_voters_change_one_at_a_time() -> None:
    group = Group("a", "b", "c", learners=("d", "e"))
    leader = group.elect("a").core
    group.carry()
    assert leader.caught_up() == ["d", "e"]
    assert leader.change_voters("add", "d")
    assert not leader.change_voters("add", "e"), "the one before is under way"
    group.carry()
    assert leader.voters == ("a", "b", "c", "d")
    assert leader.change_voters("rem", "b")
    group.carry()
    assert all(member.core.voters == ("a", "c", "d") for member in group.members.values())
    assert not leader.change_voters("rem", "a"), "a leader does not remove itself"
    group.deaf = {"a"}
    assert group.elect("d").core.leads


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    group = led()
    follower = group.members["b"]
    follower.core.received("a", m.Append(group.members["a"].core.term, 0, *end_of(group), ((b"\x00new", 11, 1),)))
    assert follower.core.journal.dirty
    order: list[str] = []
    sync = follower.disk.sync
    follower.disk.sync = lambda name: (order.append("sync"), sync(name))[1]  # type: ignore[method-assign]
    follower.core._outbox._send = lambda _to, message: order.append(type(message).__name__)
    follower.turn()
    assert order == ["sync", "Ack"]


def end_of(group: Group) -> tuple[int, int]:
    last = group.members["b"].core.journal[-1]
    return last[1], last[2]


def test_a_leader_syncs_while_its_entries_are_under_way() -> None:
    group = led()
    leader = group.members["a"]
    order: list[str] = []
    sync = leader.disk.sync
    leader.disk.sync = lambda name: (order.append("sync"), sync(name))[1]  # type: ignore[method-assign]
    leader.core._outbox._send = lambda _to, message: order.append(type(message).__name__)
    leader.core.append([b"\x00new"])
    leader.core.flush()
    assert order == ["Append", "Append", "sync"]


def test_followers_hear_of_a_members_end_before_the_leader_is_through_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its queues follow from it: done one after the other by leader and followers it takes twice the time."""
    group = Group("a", "b", "c")
    leader = group.elect("a")
    group.carry()
    failed = seal(Envelope("a", 1, 1, c.encode(c.FailNode(node=NodeId("c"), incarnation=Incarnation(1)))))
    other = seal(Envelope("a", 1, 2, c.encode(c.AddVhost(name="v"))))
    told: dict[bytes, bool] = {}

    def apply(index: int, entry: bytes) -> None:
        told[entry] = any(isinstance(message, m.Append) and message.commit >= index for _, message in leader.sent)

    monkeypatch.setattr(leader, "apply", apply)
    for entry in (failed, other):
        leader.core.append([entry])
        group.carry()
    assert told == {failed: True, other: False}
