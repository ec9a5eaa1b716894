"""RaftLog as a node sees it: founding, joining, migrating, proposing, barriers, leases' rounds, failures, disks."""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterbroker.cluster.errors import DamagedLog, DiskFailed, LogWentBack, PreconditionFailed, Unavailable
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.raft import identity, proposals
from clusterbroker.cluster.raft import messages as m
from clusterbroker.cluster.raft.core import Core
from clusterbroker.cluster.raft.disk import FileDisk
from clusterbroker.cluster.raft.fold import Envelope, Fold, seal, unseal
from clusterbroker.cluster.raft.identity import Founder, found, founders_map, join, migrate_local
from clusterbroker.cluster.raft.raft_log import RaftLog
from clusterbroker.cluster.raft.voters import Candidate, Change, next_change, wanted_voters
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import levels
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from clusterbroker.cluster.wiring_log import WiringLog
from tests.simulation.raft.sim_disk import SimDisk


class Cluster:
    """RaftLogs over disks in memory or files, on one queue of calls and a clock that the test moves."""

    def __init__(self, directory: Path | None = None) -> None:
        self.now_s = 1.0
        self.calls: deque[Callable[[], object]] = deque()
        self.logs: dict[str, RaftLog] = {}
        self.disks: dict[str, Any] = {}
        self.directory = directory
        self.down: set[str] = set()
        self.said: list[str] = []
        self.failures: list[Exception] = []
        self.restored: list[str] = []
        self.sent: list[tuple[str, str, Any]] = []

    def disk(self, name: str) -> Any:
        if name not in self.disks:
            self.disks[name] = FileDisk(self.directory / name) if self.directory else SimDisk(name, random.Random(1))
        return self.disks[name]

    def open(self, name: str, **options: Any) -> RaftLog:
        def send(peer: NodeId, head: Any) -> None:
            self.sent.append((name, peer, head))
            raw = m.encode(head)
            if not {name, peer} & self.down and peer in self.logs:
                self.calls.append(lambda: self.logs[peer].received(NodeId(name), raw))

        log = RaftLog(
            self.disk(name),
            now_s=self.now_s,
            chance=random.Random(name).random,
            send=send,
            call_soon=self.calls.append,
            on_failure=self.failures.append,
            on_restored=lambda _map: self.restored.append(name),
            log=self.said.append,
            **options,
        )
        self.logs[name] = log
        return log

    def link(self, one: str, other: str) -> None:
        self.logs[one].linked(NodeId(other))
        self.logs[other].linked(NodeId(one))

    def link_all(self, *names: str) -> None:
        for at, one in enumerate(names):
            for other in names[at + 1 :]:
                self.link(one, other)

    def settle(self) -> None:
        for _ in range(20_000):
            if not self.calls:
                return
            self.calls.popleft()()
        raise AssertionError("it never comes to rest")

    def pass_time(self, span_s: float, step_s: float = 0.02) -> None:
        end_s = self.now_s + span_s
        while self.now_s < end_s:
            self.now_s += step_s
            for name, log in self.logs.items():
                if name not in self.down:
                    log.tick(self.now_s)
            self.settle()

    def until(self, condition: Callable[[], object], limit_s: float = 10.0) -> None:
        end_s = self.now_s + limit_s
        while not condition():
            assert self.now_s < end_s, "waited too long"
            self.pass_time(0.02)

    def take_down(self, name: str) -> None:
        self.down.add(name)
        for other, log in self.logs.items():
            if other != name:
                log.unlinked(NodeId(name))

    @property
    def leader(self) -> RaftLog:
        return next(log for name, log in self.logs.items() if log.is_leader and name not in self.down)

    def do(self, name: str, command: c.AnyCommand) -> Applied:
        outcome: list[Applied] = []
        self.logs[name].propose(command, outcome.append)
        self.until(lambda: outcome, 30)
        return outcome[0]


FOUNDERS = [Founder(NodeId(name), f"{name}:1") for name in "abc"]


def founded(directory: Path | None = None, **options: Any) -> Cluster:
    cluster = Cluster(directory)
    for founder in reversed(FOUNDERS):
        found(cluster.disk(founder.name), founder.name, f"disk-{founder.name}", FOUNDERS)
        cluster.open(founder.name, **options)
    cluster.link_all("a", "b", "c")
    cluster.until(lambda: any(log.is_leader for log in cluster.logs.values()))
    return cluster


def register(cluster: Cluster, *names: str) -> None:
    for name in names:
        applied = cluster.do(
            name,
            c.RegisterNode(
                node=NodeId(name),
                disk_id=f"disk-{name}",
                incarnation=Incarnation(1),
                address=f"{name}:1",
                level=LEVEL,
            ),
        )
        assert applied.ok, applied.error


def test_it_is_a_wiring_log() -> None:
    log: WiringLog = founded().logs["a"]
    assert [member.name for member in log.map.members()] == ["a", "b", "c"]


def test_founders_begin_with_the_same_map_and_elect_one() -> None:
    cluster = founded()
    cluster.pass_time(1)
    assert len({log.map.digest() for log in cluster.logs.values()}) == 1
    assert len({log.leader for log in cluster.logs.values()}) == 1
    assert all(log.voters == ("a", "b", "c") for log in cluster.logs.values())
    assert cluster.leader.term == 1


def test_a_new_cluster_begins_at_the_level_of_its_release() -> None:
    cluster = founded()
    assert {log.map.level for log in cluster.logs.values()} == {LEVEL}
    applied = cluster.do("a", c.RegisterNode(
        node=NodeId("a"), disk_id="disk-a", incarnation=Incarnation(1), address="a:1"
    ))  # fmt: skip
    assert "member 'a' runs a release that knows feature level 1, and the cluster is at" in str(applied.error)


def test_what_needs_a_higher_level_never_comes_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that cannot read it would stop, so the refusal of the fold would be too late."""
    monkeypatch.setattr(levels, "_NEEDED", {c.AddVhost: LEVEL + 1})
    cluster = founded()
    cluster.pass_time(1)
    before = cluster.leader.applied
    refused: list[Applied] = []
    cluster.logs["b"].propose(c.AddVhost(name="v"), refused.append)
    assert "needs feature level" in str(refused[0].error), "at once"
    assert refused[0].index == 0
    cluster.pass_time(1)
    assert cluster.leader.applied == before


def test_founding_waits_for_all_founders() -> None:
    cluster = Cluster()
    for name in ("a", "b"):
        found(cluster.disk(name), NodeId(name), f"disk-{name}", FOUNDERS)
        cluster.open(name)
    cluster.link_all("a", "b")
    cluster.pass_time(3)
    assert cluster.logs["a"].waiting_for == ("c",)
    assert cluster.logs["a"].leader is None
    assert cluster.logs["a"].term == 0


def test_founders_that_disagree_say_so_in_one_line() -> None:
    cluster = Cluster()
    found(cluster.disk("a"), NodeId("a"), "1", FOUNDERS)
    found(cluster.disk("b"), NodeId("b"), "2", FOUNDERS[:2])
    cluster.open("a")
    cluster.open("b")
    cluster.link_all("a", "b")
    cluster.pass_time(0.1)
    assert "b was started with other peers: it says a=a:1, b=b:1; this node says a=a:1, b=b:1, c=c:1" in cluster.said


def test_a_founder_that_lost_its_disk_becomes_a_learner_and_votes_for_nobody() -> None:
    cluster = founded()
    cluster.do("a", c.AddVhost(name="v"))
    lost = next(name for name in "abc" if not cluster.logs[name].is_leader)
    cluster.take_down(lost)
    cluster.disks.pop(lost)
    found(cluster.disk(lost), NodeId(lost), "another disk", FOUNDERS)
    cluster.down.clear()
    cluster.open(lost)
    for other in sorted(set("abc") - {lost}):
        cluster.link(lost, other)
    cluster.until(lambda: cluster.logs[lost].map.vhost("v") is not None)
    assert f"{lost}/another disk" not in cluster.leader._core.voters  # type: ignore[union-attr]
    assert f"{lost}/disk-{lost}" in cluster.leader._core.voters  # type: ignore[union-attr]
    assert cluster.restored == [lost]


def test_propose_on_any_node_is_applied_on_all_in_one_order() -> None:
    cluster = founded()
    heard: dict[str, list[tuple[int, str]]] = {name: [] for name in "abc"}
    told: list[tuple[str, int]] = []
    for name, log in cluster.logs.items():
        log.listen(lambda applied, name=name: heard[name].append((applied.index, applied.command.name)))
    for number in range(30):
        for name in "abc":
            command = c.AddVhost(name=f"{name}{number}")
            cluster.logs[name].propose(command, lambda applied, name=name: told.append((name, applied.index)))
    cluster.pass_time(0.5)
    assert heard["a"] == heard["b"] == heard["c"]
    assert len(heard["a"]) == 90
    for name in "abc":
        own = [index for node, index in told if node == name]
        assert own == sorted(own)
        assert len(own) == 30
        assert [what for _, what in heard["a"] if what[0] == name] == [f"{name}{number}" for number in range(30)]


def test_a_refused_command_is_answered_with_its_error_and_one_that_cannot_be_stored_at_once() -> None:
    cluster = founded()
    applied = cluster.do("b", c.Bind(vhost="nowhere", source="x", destination="q"))
    assert applied.error is not None
    assert applied.index > 0
    outcome: list[Applied] = []
    cluster.logs["b"].propose(c.PutParameter(vhost="", component="x", name="y", value="z" * 600_000), outcome.append)
    assert isinstance(outcome[0].error, PreconditionFailed)


def test_done_waits_until_every_living_member_has_applied() -> None:
    cluster = founded()
    register(cluster, "a", "b", "c")
    leader = cluster.leader
    late = next(name for name in "abc" if name != leader.name)
    cluster.take_down(late)
    outcome: list[Applied] = []
    leader.propose(c.AddVhost(name="v"), outcome.append)
    cluster.pass_time(0.5)
    assert leader.map.vhost("v") is not None
    assert not outcome
    leader.propose(c.FailNode(node=NodeId(late), incarnation=Incarnation(1)))
    cluster.pass_time(0.5)
    assert outcome
    assert outcome[0].ok


def test_without_a_majority_a_proposal_is_given_up_and_its_number_filled() -> None:
    cluster = founded()
    register(cluster, "a", "b", "c")
    leader = cluster.leader
    others = [name for name in "abc" if name != leader.name]
    for name in others:
        cluster.take_down(name)
    outcome: list[Applied] = []
    leader.propose(c.AddVhost(name="v"), outcome.append)
    cluster.pass_time(proposals.GIVE_UP_S + 0.5, 0.1)
    assert isinstance(outcome[0].error, Unavailable)
    assert outcome[0].error.retriable
    cluster.down.clear()
    for name in others:
        leader.unlinked(NodeId(name))
        cluster.logs[name].unlinked(leader.name)
        cluster.link(leader.name, name)
    cluster.link(*others)
    cluster.until(lambda: any(log.is_leader for log in cluster.logs.values()))
    assert cluster.do(leader.name, c.AddVhost(name="w")).ok, "numbers go on"
    assert len(outcome) == 1


def test_a_dead_leader_is_replaced_within_150_ms_and_proposals_survive_it() -> None:
    for seed in range(20):
        cluster = founded()
        leader = cluster.leader.name
        for log in cluster.logs.values():
            log._core._chance = random.Random(seed).random  # type: ignore[union-attr]
        others = [name for name in "abc" if name != leader]
        outcome: list[Applied] = []
        cluster.take_down(leader)
        for name in others:
            cluster.logs[name].propose(c.AddVhost(name=f"late-{name}"), outcome.append)
        start_s = cluster.now_s
        for name in others:
            cluster.logs[name].peer_gone(leader)
        cluster.until(lambda cluster=cluster, others=others: any(cluster.logs[n].is_leader for n in others))
        assert cluster.now_s - start_s <= 0.15
        cluster.pass_time(0.1)
        assert [applied.ok for applied in outcome] == [True, True]


def test_a_quorum_round_calls_back_once_and_only_a_leader_of_a_majority() -> None:
    cluster = founded()
    leader = cluster.leader
    rounds: list[str] = []
    assert leader.quorum_round(lambda: rounds.append("first"))
    assert leader.quorum_round(lambda: rounds.append("second"))
    assert not rounds
    cluster.settle()
    assert rounds == ["first", "second"]
    others = [name for name in "abc" if name != leader.name]
    assert not cluster.logs[others[0]].quorum_round(lambda: rounds.append("never"))
    for name in others:
        cluster.take_down(name)
    assert leader.quorum_round(lambda: rounds.append("never"))
    cluster.pass_time(3)
    assert rounds == ["first", "second"]
    assert not leader.is_leader


def test_a_joiner_learns_everything_and_becomes_a_voter_when_it_can() -> None:
    cluster = Cluster()
    found(cluster.disk("a"), NodeId("a"), "disk-a", FOUNDERS[:1])
    cluster.open("a")
    cluster.until(lambda: cluster.logs["a"].is_leader)
    register(cluster, "a")
    cluster.do("a", c.AddVhost(name="v"))
    for name, voters in (("b", ("a", "b")), ("c", ("a", "b", "c")), ("d", ("a", "b", "c"))):
        cluster.do("a", c.AddMember(name=NodeId(name), address=f"{name}:1"))
        join(cluster.disk(name), NodeId(name), f"disk-{name}")
        cluster.open(name)
        for other in sorted(set(cluster.logs) - {name}):
            cluster.link(name, other)
        cluster.until(lambda name=name: cluster.logs[name].map.vhost("v") is not None)
        register(cluster, name)
        cluster.until(lambda name=name, voters=voters: cluster.logs[name].voters == voters)
        cluster.pass_time(0.2)
        flagged = tuple(sorted(member.name for member in cluster.logs[name].map.members() if member.voter))
        assert flagged == voters
    assert cluster.do("d", c.AddVhost(name="w")).ok, "a learner proposes as well"


def test_a_dead_voter_is_replaced_by_a_living_learner() -> None:
    cluster = founded()
    register(cluster, "a", "b", "c")
    cluster.do("a", c.AddMember(name=NodeId("d"), address="d:1"))
    join(cluster.disk("d"), NodeId("d"), "disk-d")
    cluster.open("d")
    for other in "abc":
        cluster.link("d", other)
    cluster.until(lambda: cluster.logs["d"].map.members())
    register(cluster, "d")
    dead = next(name for name in "abc" if name != cluster.leader.name)
    cluster.take_down(dead)
    cluster.do(cluster.leader.name, c.FailNode(node=NodeId(dead), incarnation=Incarnation(1)))
    wanted = tuple(sorted({"a", "b", "c", "d"} - {dead}))
    cluster.until(lambda: cluster.leader.voters == wanted)


def test_a_single_node_becomes_a_cluster_and_its_indices_go_on() -> None:
    map_ = ClusterMap()
    for index in (5, 9):
        map_.apply(LogIndex(index), c.AddVhost(name=f"v{index}"))
    cluster = Cluster()
    migrate_local(cluster.disk("a"), NodeId("a"), "disk-a", "a:1", map_, LogIndex(1000))
    log = cluster.open("a")
    assert log.map.vhost("v9") is not None
    assert [member.name for member in log.map.members()] == ["a"]
    assert (log.map.applied, log.map.level) == (1001, LEVEL)
    cluster.until(lambda: log.is_leader)
    assert cluster.do("a", c.AddVhost(name="later")).index > 1000


def test_restart_from_files_with_and_without_snapshots(tmp_path: Path) -> None:
    cluster = founded(tmp_path, snapshot_every=10)
    for number in range(60):
        cluster.do("abc"[number % 3], c.AddVhost(name=f"v{number}"))
    cluster.pass_time(0.3)
    digest = cluster.logs["a"].map.digest()
    sessions = {name: log.session for name, log in cluster.logs.items()}
    for log in cluster.logs.values():
        log.close()
    cluster.disks.clear()
    cluster.logs.clear()
    for name in "abc":
        cluster.open(name, snapshot_every=10)
    cluster.link_all("a", "b", "c")
    cluster.until(lambda: any(log.is_leader for log in cluster.logs.values()))
    cluster.pass_time(0.5)
    assert {log.map.digest() for log in cluster.logs.values()} == {digest}
    assert all(log.session == sessions[name] + 1 for name, log in cluster.logs.items())
    assert cluster.do("b", c.AddVhost(name="after")).ok


@pytest.mark.parametrize(("missed", "anew"), [(4, False), (20, False), (70, True)])
def test_who_is_a_little_behind_a_compaction_gets_the_entries_and_no_snapshot(missed: int, anew: bool) -> None:
    """A snapshot would have its node begin again."""
    cluster = founded(snapshot_every=50)
    leader = cluster.leader
    late = next(name for name in "abc" if name != leader.name)
    core = leader._core
    assert core is not None
    before = core.snapshot_index
    while leader.applied - before < 49:
        cluster.do(leader.name, c.AddVhost(name="again"))
    cluster.take_down(late)
    while core.snapshot_index == before:
        cluster.do(leader.name, c.AddVhost(name="again"))
    end = core.snapshot_index + missed
    while leader.applied < end:
        cluster.do(leader.name, c.AddVhost(name="again"))
    cluster.down.clear()
    cluster.logs[late].unlinked(NodeId(leader.name))
    for name in "abc":
        if name != late:
            cluster.link(name, late)
    cluster.until(lambda: cluster.logs[late].applied == cluster.leader.applied)
    assert cluster.restored == ([late] if anew else [])
    assert cluster.logs[late].map.digest() == cluster.leader.map.digest()
    assert cluster.do(late, c.AddVhost(name="after")).ok


@pytest.mark.parametrize("name", ["journal", "snapshot", "identity"])
def test_a_missing_or_damaged_file_refuses_to_start_in_one_line(tmp_path: Path, name: str) -> None:
    cluster = founded(tmp_path)
    cluster.do("a", c.AddVhost(name="v"))
    cluster.logs["a"].close()
    file = tmp_path / "a" / name
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 3] ^= 1
    file.write_bytes(whole)
    with pytest.raises(DamagedLog, match=rf"{tmp_path}/a/{name}") as damaged:
        RaftLog(FileDisk(tmp_path / "a"), **quiet())
    assert "\n" not in str(damaged.value)
    file.unlink()
    with pytest.raises(DamagedLog, match=f"{tmp_path}/a"):
        RaftLog(FileDisk(tmp_path / "a"), **quiet())


def test_damage_of_the_last_command_is_seen_once_the_log_rests(tmp_path: Path) -> None:
    """It is not taken for a write that a crash tore: what stands behind it holds the commit index only."""
    cluster = founded(tmp_path)
    cluster.do("a", c.AddVhost(name="the last one"))
    cluster.pass_time(2)
    for log in cluster.logs.values():
        log.close()
        file = tmp_path / log.name / "journal"
        whole = bytearray(file.read_bytes())
        whole[whole.rindex(b"the last one")] ^= 1
        file.write_bytes(whole)
        with pytest.raises(DamagedLog, match=rf"{tmp_path}/{log.name}/journal"):
            RaftLog(FileDisk(tmp_path / log.name), **quiet())


def quiet() -> dict[str, Any]:
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    return {"now_s": 1.0, "chance": lambda: 0.5, "send": nothing, "call_soon": nothing, "on_failure": nothing}


def test_a_disk_that_fails_stops_the_node_once() -> None:
    cluster = founded()
    leader = cluster.leader

    def fail(_name: str) -> None:
        raise DiskFailed("no more")

    cluster.disk(leader.name).sync = fail
    outcome: list[Applied] = []
    leader.propose(c.AddVhost(name="v"), outcome.append)
    cluster.pass_time(0.2)
    assert [str(error) for error in cluster.failures] == ["no more"]
    leader.propose(c.AddVhost(name="w"), outcome.append)
    assert isinstance(outcome[-1].error, Unavailable)


def test_an_invariant_that_does_not_hold_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "objection", lambda *_: None)  # who speaks for a second leader does not get so far
    cluster = founded()
    leader = cluster.leader
    follower = next(name for name in "abc" if name != leader.name)
    leader.received(NodeId(follower), m.encode(m.Append(leader.term, 0, 3, 0, ())))
    assert "two leaders in term 1" in str(cluster.failures[0])
    assert len(cluster.failures) == 1


def test_a_barrier_is_heard_of_after_a_new_link_too() -> None:
    cluster = founded()
    register(cluster, "a", "b", "c")
    leader = cluster.leader.name
    follower = next(name for name in "abc" if name != leader)
    outcome: list[Applied] = []
    cluster.logs[follower].propose(c.AddVhost(name="v"), outcome.append)
    while cluster.logs[leader].map.vhost("v") is None or cluster.logs[follower].map.vhost("v") is None:
        cluster.calls.popleft()()
    cluster.calls.clear()
    for log in cluster.logs.values():
        log._turn_is_due = False
    for one, other in ((leader, follower), (follower, leader)):
        cluster.logs[one].unlinked(NodeId(other))
    cluster.link(leader, follower)
    cluster.pass_time(1)
    assert [applied.ok for applied in outcome] == [True]


def test_a_listener_that_raises_harms_nobody_else() -> None:
    cluster = founded()
    heard: list[int] = []

    def bad(_: Applied) -> None:
        raise ZeroDivisionError

    cluster.logs["a"].listen(bad)
    cluster.logs["a"].listen(lambda applied: heard.append(applied.index))
    cluster.logs["a"].propose(c.AddVhost(name="v"))
    raised = 0
    for _ in range(200):
        try:
            cluster.pass_time(0.02)
        except ZeroDivisionError:
            raised += 1
    assert raised == 1
    assert len(heard) == 1
    cluster.pass_time(0.2)
    assert len({log.map.digest() for log in cluster.logs.values()}) == 1


def test_what_is_no_message_ends_the_link() -> None:
    log = founded().logs["a"]
    for head in (b"", b"\x00", b"\x91\x05", b"\xff" * 20):
        with pytest.raises(ValueError, match=r".*"):
            log.received(NodeId("b"), head)


BEGIN = founders_map(FOUNDERS, LEVEL).applied
"""The last entry of the snapshot with which the log begins."""
REGULAR_ENTRY = seal(Envelope("x/disk-x", 1, 1, b""))


def impossible(term: int, commit: int) -> list[m.AnyMessage]:
    """What no correct member says to one in this term that has committed so far; some to leaders, some to followers."""
    end = commit + 1
    return [
        m.Append(term, commit, commit, term - 1, ()),
        m.Append(term, commit, commit - 1, 0, ((REGULAR_ENTRY, commit, 0),)),
        m.Append(term + 1, commit, BEGIN, 0, ((REGULAR_ENTRY, BEGIN + 1, 0),)),
        m.Append(term + 1, commit, commit, term, ((REGULAR_ENTRY, end + 1, term),)),
        m.Append(term + 1, commit, commit, term, ((REGULAR_ENTRY, end, term + 2),)),
        m.Append(term + 1, commit, commit, term, ((REGULAR_ENTRY, end, term - 1),)),
        *(m.Append(term + 1, commit, commit, term, ((entry, end, term),)) for entry in (b"", b"\0x", b"\2\xc1", b"\3")),
        *(m.TermHint(far) for far in (2**33 + term, 2**63, 2**64 - 1)),
        m.AskVote(2**64 - 1, 2**62, 2**64 - 1),
        m.PreVoted(1, False, 2**64 - 1),
    ]


@pytest.mark.parametrize("to", ["leader", "follower"])
@pytest.mark.parametrize("number", range(len(impossible(1, 9))))
def test_what_no_member_says_ends_the_link_and_not_the_node(to: str, number: int) -> None:
    cluster = founded()
    register(cluster, "a", "b", "c")
    leader = cluster.leader
    log = leader if to == "leader" else next(log for log in cluster.logs.values() if log is not leader)
    liar = next(name for name in cluster.logs if name not in (log.name, leader.name))
    term = log.term
    with pytest.raises(ValueError, match=r".*"):
        log.received(NodeId(liar), m.encode(impossible(term, log.applied)[number]))
    cluster.pass_time(0.5)
    assert not cluster.failures
    assert log.term == term, "nothing of it was believed"
    assert cluster.do(log.name, c.PutUser(name="u", password_hash="", hash_algorithm="")).ok
    assert len({log.map.digest() for log in cluster.logs.values()}) == 1


def test_a_second_leader_of_a_term_is_not_believed() -> None:
    cluster = founded()
    leader = cluster.leader
    liar = next(name for name in cluster.logs if name != leader.name)
    for message in (m.Append(leader.term, 3, 3, 0, ()), m.Snapshot(leader.term, 3, 3, True, False, b"x")):
        with pytest.raises(ValueError, match="two lead in term"):
            leader.received(NodeId(liar), m.encode(message))
    cluster.pass_time(0.1)
    assert leader.is_leader
    assert not cluster.failures


def test_a_snapshot_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusterbroker.cluster.raft.core.SNAPSHOT_BYTES_MAX", 1000)
    cluster = founded()
    follower = next(log for log in cluster.logs.values() if not log.is_leader)
    piece = m.Snapshot(follower.term + 1, 3, 1000, True, False, bytes(400))
    follower.received(NodeId("a" if follower.name != "a" else "b"), m.encode(piece))
    with pytest.raises(ValueError, match="a snapshot of more than 1000 bytes"):
        for _ in range(3):
            piece = m.Snapshot(piece.term, 3, 1000, False, False, bytes(400))
            follower.received(NodeId("a" if follower.name != "a" else "b"), m.encode(piece))


def test_a_peer_that_calls_itself_another_is_not_heard() -> None:
    cluster = founded()
    log = cluster.logs["a"]
    log.linked(NodeId("x"))
    log.received(NodeId("x"), m.encode(m.Introduce(NodeId("b"), "disk-b", (), ())))
    assert cluster.said == ["x calls itself b: it is not listened to"]


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("goes_back", [True, False])
def test_a_log_that_goes_back_while_others_go_on_is_told_so(tmp_path: Path, goes_back: bool, leads: bool) -> None:
    """A copy of a directory that was made while its node ran has the number of the last start, and names no later life.
    It would have voted, without what it had acknowledged."""
    cluster = founded(tmp_path)
    register(cluster, "a", "b", "c")
    cluster.pass_time(0.2)
    went = next(name for name, log in cluster.logs.items() if log.is_leader is leads)
    shutil.copytree(tmp_path / went, tmp_path / "copy")
    assert cluster.do(cluster.leader.name, c.AddVhost(name="v")).ok
    cluster.pass_time(0.2)
    cluster.take_down(went)
    cluster.logs.pop(went).close()
    if goes_back:
        shutil.rmtree(tmp_path / went)
        (tmp_path / "copy").rename(tmp_path / went)
    del cluster.disks[went]
    cluster.down.clear()
    cluster.until(lambda: any(log.is_leader for log in cluster.logs.values()))
    leader = cluster.leader
    log = cluster.open(went)
    for other in sorted({"a", "b", "c"} - {went}):
        cluster.link(went, other)
    cluster.pass_time(0.5)
    if not goes_back:
        assert cluster.failures == []
        assert log.applied == leader.applied
    else:
        assert [type(failure) for failure in cluster.failures] == [LogWentBack]
        assert "copy of an earlier time" in str(cluster.failures[0])
        assert f"the metadata log of {went} went back: it is not listened to before it is made anew" in cluster.said
        assert leader.is_leader


def test_close_answers_what_waits() -> None:
    cluster = founded()
    cluster.take_down("a")
    outcome: list[Applied] = []
    cluster.logs["a"].propose(c.AddVhost(name="v"), outcome.append)
    cluster.logs["a"].close()
    cluster.logs["a"].close()
    assert isinstance(outcome[0].error, Unavailable)


@pytest.mark.long
def test_in_flight_proposals_are_bounded_and_syncs_are_shared() -> None:
    cluster = founded()
    leader = cluster.leader
    syncs = leader._core.journal.syncs  # type: ignore[union-attr]
    outcome: list[Applied] = []
    for number in range(2000):
        leader.propose(c.AddVhost(name=f"v{number}"), outcome.append)
    cluster.sent.clear()
    cluster.settle()
    assert len(outcome) == 2000
    sizes = [len(head.entries) for _, _, head in cluster.sent if isinstance(head, m.Append)]
    assert max(sizes) <= proposals.IN_FLIGHT_MAX
    assert leader._core.journal.syncs - syncs <= 20  # type: ignore[union-attr]


def test_one_proposal_on_the_leader_is_one_sync_there_and_one_on_each_follower() -> None:
    cluster = founded()
    cluster.pass_time(0.5)
    before = {name: log._core.journal.syncs for name, log in cluster.logs.items()}  # type: ignore[union-attr]
    outcome: list[Applied] = []
    cluster.leader.propose(c.AddVhost(name="v"), outcome.append)
    cluster.settle()
    assert outcome, "no tick was needed"
    after = {name: log._core.journal.syncs for name, log in cluster.logs.items()}  # type: ignore[union-attr]
    assert {name: after[name] - before[name] for name in after} == {"a": 1, "b": 1, "c": 1}


def test_the_fold_takes_each_number_once_and_in_order() -> None:
    fold = Fold()
    stored = c.encode(c.AddVhost(name="v"))

    def envelope(session: int, number: int) -> Any:
        from clusterbroker.cluster.raft.fold import Envelope

        return Envelope("a/1", session, number, stored)

    taken = []
    order = [(1, 1), (1, 1), (1, 3), (1, 2), (1, 3), (2, 2), (2, 1), (1, 4), (2, 2)]
    for index, (session, number) in enumerate(order, start=1):
        if fold.apply(LogIndex(index), envelope(session, number)) is not None:
            taken.append((session, number))
    assert taken == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]
    with pytest.raises(ValueError, match="not a proposal"):
        unseal(b"\x01")


def test_who_shall_vote() -> None:
    def members(*text: str) -> list[Candidate]:
        return [Candidate(name.rstrip("!"), not name.endswith("!")) for name in text]

    assert wanted_voters(members("a"), ("a",)) == ("a",)
    assert wanted_voters(members("a", "b"), ("a",)) == ("a", "b")
    assert wanted_voters(members("a", "b", "c", "d"), ("a",)) == ("a", "b", "c")
    assert wanted_voters(members("a", "b", "c", "d"), ("a", "c", "d")) == ("a", "c", "d"), "who votes and lives stays"
    assert wanted_voters(members("a", "b!", "c"), ("a", "b", "c")) == ("a", "b", "c"), "nobody can take the place"
    assert wanted_voters(members("a", "b!", "c", "d"), ("a", "b", "c")) == ("a", "c", "d")
    assert len(wanted_voters(members(*"abcdefg"), ("a", "b", "c"))) == 5
    assert next_change(("a", "c", "d"), ("a", "b", "c"), ["d"], "a") == Change("add", "d")
    assert next_change(("a", "c", "d"), ("a", "b", "c"), [], "a") is None, "d has not caught up"
    assert next_change(("a", "c", "d"), ("a", "b", "c", "d"), [], "a") == Change("rem", "b")
    assert next_change(("b", "c"), ("a", "b", "c"), [], "a") is None, "a leader stays"


def test_identity_is_written_once_and_counts_starts(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    assert identity.read(disk) is None
    with pytest.raises(DamagedLog, match="found a cluster, or join one, first"):
        RaftLog(disk, **quiet())
    join(disk, NodeId("x"), "d")
    for session in (1, 2):
        log = RaftLog(FileDisk(tmp_path), **quiet())
        assert (log.session, log.me_id, log.leader) == (session, "x/d", None)
        log.close()


def test_a_new_leader_begins_before_the_dead_one_is_declared_dead() -> None:
    """The barrier waits for a member that will never come; who shall declare it dead must not wait for the barrier."""
    leading: list[int] = []
    cluster = founded(on_leading=leading.append)
    register(cluster, "a", "b", "c")
    old = cluster.leader
    assert leading == [old.term]
    cluster.take_down(old.name)
    cluster.until(lambda: any(log.is_leader and log.name != old.name for log in cluster.logs.values()))
    cluster.pass_time(0.1)
    assert leading[1:] == [cluster.leader.term]
    assert cluster.leader.barrier_index < cluster.leader.applied


def test_a_leader_that_abdicates_is_followed_by_another_one_and_keeps_its_vote() -> None:
    cluster = founded()
    first = cluster.leader
    term = first.term
    first.abdicate(5.0)
    cluster.settle()
    assert not first.is_leader
    cluster.until(lambda: any(log.is_leader for log in cluster.logs.values()))
    assert cluster.leader is not first
    assert cluster.leader.term > term
    cluster.until(lambda: first.leader == cluster.leader.name)
    assert first.voters == cluster.leader.voters
    assert cluster.do(first.name, c.AddVhost(name="behind")).ok


def test_who_stands_back_does_not_lead_while_it_says_so_though_leaders_come_and_go() -> None:
    """a3: a leader that is deaf must not win again at once; its heart says so each second."""
    cluster = founded()
    deaf = cluster.leader
    for _ in range(3):
        for _ in range(4):
            deaf.abdicate(3.0)
            cluster.pass_time(1.0)
            assert not deaf.is_leader
        other = cluster.leader
        assert other is not deaf
        other.abdicate(0.5)  # who leads after it, of the two that may


def test_what_the_leader_proposes_comes_before_what_was_forwarded_since() -> None:
    """Who takes back that it gave a member up proposes something, and what came back says that no FailNode follows."""
    cluster = founded()
    leader = cluster.leader
    other = next(log for log in cluster.logs.values() if log is not leader)
    leader.propose_in_term(c.AddVhost(name="first"))
    forward = m.Forward((seal(Envelope(other.me_id, other.session, 99, c.encode(c.AddVhost(name="last")))),))
    leader.received(other.name, m.encode(forward))
    assert leader._forwarded, "both wait for the next turn"
    core = leader._core
    assert core is not None
    seen: list[bytes] = []
    core.append = lambda entries: seen.extend(entries) or True  # type: ignore[method-assign]
    leader._push_proposals(core)
    assert [c.decode(unseal(entry).command) for entry in seen] == [c.AddVhost(name="first"), c.AddVhost(name="last")]
