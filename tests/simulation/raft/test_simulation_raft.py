"""Fresh seeds within a budget of time; and the same world with a bug put into the code, which it must find.

A failure names its seed: `python -m tests.simulation.raft --seed N` runs it again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from clusterbroker.cluster.raft import guards
from clusterbroker.cluster.raft import messages as m
from clusterbroker.cluster.raft.core import Core
from clusterbroker.cluster.raft.fold import BLANK, Envelope, Fold, seal
from clusterbroker.cluster.raft.outbox import Outbox
from clusterbroker.cluster.raft.raft_log import RaftLog
from tests.budget import campaign
from tests.simulation.raft.checkers import Violation
from tests.simulation.raft.run import Faults, run
from tests.simulation.raft.world import World, observe_journals

pytestmark = pytest.mark.campaign

NAMED = {
    2011: "a process that dies in its disk while all is healed",
    3320: "a barrier that was announced once, to a follower that was not in the term yet",
}
"""Seeds that found something once."""


def test_fresh_seeds_within_the_budget() -> None:
    reports = campaign("raft", run, "scripts/simulate raft --seed")
    assert sum(report.succeeded for report in reports) > 0, "something was done"


@pytest.mark.parametrize("seed", NAMED)
def test_named_seeds(seed: int) -> None:
    run(seed)


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(5, span_s=4) == run(5, span_s=4)


# ---- bugs that are put in, each by taking one guard out ----

Bug = Callable[[pytest.MonkeyPatch], Callable[[World], None] | None]


def without_log_matching_filter(patch: pytest.MonkeyPatch) -> None:
    """G4: what is known already reaches pysyncobj, which cuts what follows it."""
    patch.setattr(Core, "_normalised", lambda _self, message: guards.Normalised(message, None))


def without_snapshot_guard(patch: pytest.MonkeyPatch) -> None:
    """G5: an old snapshot is installed over newer state, and pieces move the commit index."""

    def received(self: Core, peer: str, message: m.Snapshot) -> None:
        if self._follows(peer, message.term):
            piece = (message.data, message.first, message.last)
            told = {"term": message.term, "commit_index": message.commit, "serialized": piece}
            self._pass(peer, {"type": "append_entries", **told})

    patch.setattr(Core, "_received_snapshot", received)


def without_common_resets(patch: pytest.MonkeyPatch) -> None:
    """G6: a follower asks again from where its log ends, or one before, whatever it knows to be committed."""
    patch.setattr(Core, "_resend_from", lambda _self, asked: asked)


def without_terms_on_acks(patch: pytest.MonkeyPatch) -> None:
    """G7: an acknowledgement counts whatever its term."""
    patch.setattr(Core, "_is_current_ack", lambda _self, _message: True)


def without_flush_before_ack(patch: pytest.MonkeyPatch) -> None:
    """G2: what was acknowledged is not durable."""

    def flush(self: Outbox) -> bool:
        queues, self._queues = self._queues, {}
        for peer in sorted(queues):
            for message in queues[peer]:
                self._send(peer, message)
        return bool(queues)

    patch.setattr(Outbox, "flush", flush)


def without_sync(_patch: pytest.MonkeyPatch) -> Callable[[World], None]:
    """The disk takes everything and keeps what it likes."""

    def tamper(world: World) -> None:
        for node in world.nodes.values():
            if node.disks:
                node.disk.lies = True

    return tamper


def without_dedup(patch: pytest.MonkeyPatch) -> None:
    """G11: whatever comes is applied."""
    patch.setattr(Fold, "_is_next", lambda _self, _envelope: True)


def without_one_vote(patch: pytest.MonkeyPatch) -> None:
    """Every answer is a vote, and everybody who is asked gives one."""

    def received(self: Core, peer: str, message: m.AskVote) -> None:
        if message.term >= self.term and not self.leads:
            self._outbox.put(peer, m.Vote(message.term))

    patch.setattr(Core, "_received_ask_vote", received)


def without_barrier(patch: pytest.MonkeyPatch) -> None:
    """Success is told as soon as it is applied here."""
    tell = RaftLog._notify

    def told(self: RaftLog) -> None:
        self._barrier.index = self.applied
        tell(self)

    patch.setattr(RaftLog, "_notify", told)


BUGS: tuple[Bug, ...] = (
    without_log_matching_filter,
    without_snapshot_guard,
    without_common_resets,
    without_flush_before_ack,
    without_sync,
    without_dedup,
    without_one_vote,
    without_barrier,
)


FOUND_BY: dict[Bug, int] = {
    without_snapshot_guard: 196,
    without_common_resets: 80,
    without_flush_before_ack: 3,
    without_dedup: 1,
    without_one_vote: 14,
}
"""The seed that finds a bug soonest, where that is not 0. Where it finds nothing any more, a later one does."""


def stale_acknowledgement() -> None:
    """A directed fault, since chance does not find it (G7).

    `a` leads and only `b` hears it; b's acknowledgements come late. The others elect a leader of their own, whom a
    and b follow: what b acknowledged is cut. Then a leads again, by the votes of others, and gets the old
    acknowledgements; it commits with one follower and b. Those two die.
    """
    world = World(1, founders=5, joiners=0, snapshot_every=1000)
    stop = observe_journals(world)
    try:
        for founder in world.founders:
            world.nodes[founder.name].start()
        faults = Faults(world, ())
        world.at(world.now_s, faults.connect)
        world.slowness_s = 0.001
        _lead(world, "a")
        world.lag["b", "a"] = world.now_s + 12
        for pair in itertools.product("ab", "cde"):
            world.cut(*pair)
            world.cut(*reversed(pair))
        world.run_for(0.05)
        _append(world, "a", 1, 40)
        world.run_for(4)
        _lead(world, "c")
        world.heal()
        world.run_for(1)
        acknowledged_at_s = world.lag["b", "a"]
        _lead(world, "a")
        assert world.now_s < acknowledged_at_s - 1, "the old acknowledgements are under way"
        world.run_for(acknowledged_at_s - 0.2 - world.now_s)
        for name in "bce":
            world.cut("a", name)
        _append(world, "a", 2, 30)
        world.run_for(0.25)
        for name in "ad":
            world.nodes[name].die()
        world.heal()
        world.run_for(5)
    finally:
        stop()


def _append(world: World, name: str, life: int, count: int) -> None:
    """Entries that nobody proposes again."""
    node = world.nodes[name]
    log = node.log
    assert log is not None
    core = log._core
    assert core is not None
    entries = [seal(Envelope(f"nobody/{life}", 1, number, BLANK)) for number in range(2, count + 2)]
    node.run(node.life, lambda: core.append(entries) and core.flush())


def _lead(world: World, name: str) -> None:
    """Let chance make this one the leader."""

    def leads() -> bool:
        log = world.nodes[name].log
        if log is not None and log.is_leader:
            return True
        for other, node in world.nodes.items():
            core = node.log._core if node.log is not None else None
            if core is not None and log is not None:
                if core.leads:
                    core._SyncObj__setState(0)  # as if nobody had answered it for long
                core._heard_s = -100.0
                core._election_s = world.now_s + (0 if other == name else 0.5)
        return False

    assert world.run_until(leads, 10), f"{name} leads"


def test_a_stale_acknowledgement_counts_for_nothing() -> None:
    stale_acknowledgement()


def test_a_stale_acknowledgement_is_found_when_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    without_terms_on_acks(monkeypatch)
    with pytest.raises((Violation, AssertionError)):
        stale_acknowledgement()


DEAR = {without_common_resets, without_one_vote, without_snapshot_guard}
"""6 to 16 s each; with a commit a sixth of them."""


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, id=bug.__name__, marks=pytest.mark.matrix if bug in DEAR else ()) for bug in BUGS]
)
def test_a_bug_that_is_put_in_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    tamper = bug(monkeypatch)
    first = FOUND_BY.get(bug, 0)
    for seed in range(first, first + 60):
        try:
            run(seed, tamper=tamper)
        except (Violation, AssertionError):
            return
    raise AssertionError(f"60 seeds do not find it: {bug.__doc__}")
