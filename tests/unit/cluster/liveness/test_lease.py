"""Leases: the node's side, the leader's side, and that the first ends before the second on any clocks and networks."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.liveness.lease import Grant, LeaseGranter, LeaseKeeper, LeaseOptions, LeaseState
from tests.budget import examples

L, G = 1.6, 1.8


def registered(at: float = 100.0) -> LeaseKeeper:
    keeper = LeaseKeeper()
    keeper.registered(1, at)
    return keeper


# the node's side


def test_a_node_that_never_registered_is_fenced() -> None:
    keeper = LeaseKeeper()
    keeper.sent(1, 100)
    keeper.answered(0, 1, 100.1)
    assert keeper.state(100.1) is LeaseState.FENCED
    assert not keeper.leased(100.1)


def test_a_lease_counts_from_the_sending_of_the_answered_beat() -> None:
    keeper = registered()
    keeper.sent(1, 100.0)
    keeper.sent(2, 100.1)
    keeper.answered(1, 1, 101.0)
    assert (keeper.leased(101.59), keeper.leased(101.6)) == (True, False)
    keeper.answered(1, 2, 101.1)
    keeper.answered(1, 1, 101.2)  # a late answer shortens nothing
    assert (keeper.leased(101.69), keeper.leased(101.7)) == (True, False)


def test_answers_that_prove_nothing_are_ignored() -> None:
    keeper = registered()
    keeper.sent(1, 100.0)
    keeper.answered(1, 2, 100.1)  # never sent
    keeper.answered(0, 1, 100.1)  # another incarnation
    keeper.answered(1, 1, 101.7)  # too old
    assert not keeper.leased(100.2)
    assert keeper.state(101.7) is LeaseState.LOST


def test_lost_is_told_then_regained_then_fenced_until_registered_again() -> None:
    keeper = registered()
    assert keeper.change(100) is LeaseState.LOST
    keeper.sent(1, 100)
    keeper.answered(1, 1, 100.1)
    assert keeper.change(100.1) is LeaseState.LEASED
    assert keeper.change(101.5) is None
    assert keeper.change(101.6) is LeaseState.LOST
    keeper.sent(2, 105)
    keeper.answered(1, 2, 105.1)
    assert keeper.change(105.1) is LeaseState.LEASED
    assert keeper.change(106.7) is LeaseState.LOST
    assert keeper.change(116.5) is None
    assert keeper.change(116.6) is LeaseState.FENCED
    keeper.sent(3, 117)
    keeper.answered(1, 3, 117.1)
    assert not keeper.leased(117.2)
    keeper.registered(2, 118)
    keeper.answered(2, 3, 118.1)  # sent before the registration
    assert not keeper.leased(118.1)
    keeper.sent(4, 118.2)
    keeper.answered(2, 4, 118.3)
    assert keeper.leased(118.4)


def test_a_node_that_stood_still_for_long_is_fenced_although_an_answer_waits() -> None:
    keeper = registered()
    keeper.sent(1, 100)
    keeper.answered(1, 1, 100.1)
    keeper.sent(2, 101.5)
    keeper.answered(1, 2, 120)
    assert keeper.state(120) is LeaseState.FENCED


def test_a_node_that_is_declared_dead_is_silent_at_once() -> None:
    keeper = registered()
    keeper.sent(1, 100)
    keeper.answered(1, 1, 100.1)
    keeper.failed(0)  # of an earlier life
    assert keeper.leased(100.2)
    keeper.failed(1)
    assert not keeper.leased(100.2)
    assert keeper.change(100.2) is LeaseState.FAILED
    keeper.sent(2, 100.3)
    keeper.answered(1, 2, 100.4)
    assert not keeper.leased(100.5)


# the leader's side


def granter(**alive: int) -> LeaseGranter:
    leader = LeaseGranter()
    leader.set_members(alive or {"a": 1, "b": 1}, 0)
    leader.elected(5, 10)
    leader.committed(7, 10)
    return leader


def granted(leader: LeaseGranter, grant: Grant, applied: int, now: float) -> list[Grant]:
    leader.beat(grant, applied, now)
    number = leader.round_wanted(now)
    return leader.round_done(number, now) if number is not None else []


def test_a_beat_is_answered_after_a_round_that_began_after_it() -> None:
    leader = granter()
    leader.beat(Grant("a", 1, 1), 7, 10.1)
    first = leader.round_wanted(10.1)
    assert first is not None
    leader.beat(Grant("b", 1, 1), 7, 10.15)
    assert leader.round_wanted(10.15) is None, "one round at a time"
    assert leader.round_done(first, 10.2) == [Grant("a", 1, 1)]
    second = leader.round_wanted(10.2)
    assert second is not None
    assert leader.round_done(second, 10.3) == [Grant("b", 1, 1)]
    assert leader.round_done(second, 10.3) == []


def test_a_round_that_never_ends_does_not_stop_the_next() -> None:
    leader = granter()
    leader.beat(Grant("a", 1, 1), 7, 10.1)
    first = leader.round_wanted(10.1)
    leader.beat(Grant("a", 1, 2), 7, 10.2)
    assert leader.round_wanted(10.2) is None
    second = leader.round_wanted(10.4)
    assert second is not None
    assert leader.round_done(second, 10.5) == [Grant("a", 1, 2)]
    assert first is not None
    assert leader.round_done(first, 10.6) == []


def test_one_round_serves_all_beats_of_a_while_but_a_member_without_a_lease_does_not_wait() -> None:
    leader = granter()
    leader.beat(Grant("a", 1, 1), 7, 10.1)
    first = leader.round_wanted(10.1)
    assert first is not None
    leader.round_done(first, 10.11)
    leader.beat(Grant("a", 1, 2), 7, 10.13)
    assert leader.round_wanted(10.13) is None, "its lease lasts"
    leader.set_members({"a": 1, "b": 2}, 10.13)
    leader.beat(Grant("b", 2, 1), 7, 10.14)
    assert leader.lasting(10.14) == {"a"}
    second = leader.round_wanted(10.14)
    assert second is not None
    assert leader.round_done(second, 10.15) == [Grant("a", 1, 2), Grant("b", 2, 1)]
    leader.beat(Grant("a", 1, 3), 7, 10.2)
    assert leader.round_wanted(10.2) is None
    assert leader.round_wanted(10.25) is not None


def test_the_lease_of_a_member_without_clients_is_renewed_when_half_of_it_is_over() -> None:
    leader = granter()
    assert granted(leader, Grant("a", 1, 1), 7, 10.1) == [Grant("a", 1, 1)]
    for seq in range(2, 10):
        at = 10.1 + seq / 10
        leader.beat(Grant("a", 1, seq), 7, at, serves=False)
        assert leader.round_wanted(at) is None
        assert leader.tick(at) == []
    leader.beat(Grant("a", 1, 11), 7, 11.15, serves=False)
    number = leader.round_wanted(11.15)
    assert number is not None
    assert leader.round_done(number, 11.16) == [Grant("a", 1, 11)]


def test_rounds_of_a_lost_term_grant_nothing() -> None:
    leader = granter()
    leader.beat(Grant("a", 1, 1), 7, 10.1)
    number = leader.round_wanted(10.1)
    assert number is not None
    leader.stepped_down()
    leader.elected(7, 10.2)
    assert leader.round_done(number, 10.3) == []


def test_strangers_the_failed_and_other_incarnations_are_not_answered() -> None:
    leader = granter()
    for grant in (Grant("x", 1, 1), Grant("a", 2, 1), Grant("a", 0, 1)):
        assert granted(leader, grant, 7, 10.1) == []
    leader.beat(Grant("a", 1, 1), 7, 10.1)
    number = leader.round_wanted(10.1)
    leader.set_members({"b": 1}, 10.15)
    assert number is not None
    assert leader.round_done(number, 10.2) == []


def test_the_silent_are_overdue_after_the_grace_and_condemned() -> None:
    leader = granter()
    assert granted(leader, Grant("a", 1, 1), 7, 10.5) == [Grant("a", 1, 1)]
    for tenths in range(101, 118):
        assert leader.tick(tenths / 10) == []
    assert leader.tick(11.85) == [("b", 1)], "G after the election"
    assert granted(leader, Grant("b", 1, 9), 7, 11.9) == [], "FailNode is on its way"
    assert leader.tick(11.95) == [("b", 1)]
    leader.set_members({"a": 1, "b": 2}, 12.0)
    assert leader.tick(12.05) == []
    leader.stepped_down()
    assert leader.tick(12.1) == []


def test_who_is_condemned_for_a_refused_connection_gets_nothing() -> None:
    leader = granter()
    leader.condemn("a", 9)
    assert granted(leader, Grant("a", 1, 1), 7, 10.1) != []
    leader.condemn("a", 1)
    assert granted(leader, Grant("a", 1, 2), 7, 10.2) == []
    assert leader.tick(10.3) == [("a", 1)]


def test_a_leader_that_stood_still_blames_nobody_for_it() -> None:
    leader = granter()
    leader.tick(10.1)
    assert leader.tick(13.0) == []
    for tenths in range(131, 147):
        assert leader.tick(tenths / 10) == []
    assert leader.tick(14.75) == [("a", 1), ("b", 1)]


def test_who_is_a_lease_behind_is_not_answered() -> None:
    leader = granter()
    leader.committed(8, 10.1)
    assert granted(leader, Grant("a", 1, 1), 7, 10.2) != []
    leader.committed(8, 11.8)
    assert granted(leader, Grant("a", 1, 2), 7, 11.8) == [], "8 was committed 1.7 s ago"
    assert granted(leader, Grant("a", 1, 3), 8, 11.9) != []


def test_who_beats_and_stays_behind_is_overdue() -> None:
    """Its datagrams come, the wiring log does not get there: everybody's commands wait for it."""
    leader = granter()
    overdue: dict[float, list[tuple[str, int]]] = {}
    for tenths in range(101, 170):
        now = tenths / 10
        leader.committed(7 if now < 11 else 8, now)
        granted(leader, Grant("a", 1, tenths), 8 if now > 11 else 7, now)
        granted(leader, Grant("b", 1, tenths), 7, now)
        overdue[now] = leader.tick(now)
    first = min(now for now, names in overdue.items() if names)
    assert 11 + 1.6 + 3 - 0.2 <= first <= 11 + 1.6 + 3 + 0.3
    assert overdue[first] == [("b", 1)]


def test_a_newcomer_is_waited_for_before_it_gets_a_lease() -> None:
    leader = granter()
    leader.committed(9, 10.1)
    leader.set_members({"a": 1, "b": 1, "c": 1}, 10.1)
    assert leader.may_hold(10.1) == ["a", "b"]
    assert granted(leader, Grant("c", 1, 1), 8, 10.2) == []
    assert leader.may_hold(10.2) == ["a", "b", "c"]
    leader.committed(12, 10.25)
    assert granted(leader, Grant("c", 1, 2), 9, 10.3) == [Grant("c", 1, 2)], "what was committed when it was admitted"


def test_a_newcomer_that_goes_silent_is_waited_for_no_longer() -> None:
    leader = granter()
    leader.committed(9, 10.1)
    leader.set_members({"a": 1, "b": 1, "c": 1}, 10.1)
    leader.beat(Grant("c", 1, 1), 8, 10.2)
    assert "c" in leader.may_hold(11.7)
    assert "c" not in leader.may_hold(11.9)


def test_options_that_cannot_be_safe_are_refused() -> None:
    with pytest.raises(AssertionError, match="may end before a lease"):
        LeaseOptions(grace_s=1.7)


# both sides, any clocks, any network


@dataclass
class World:
    """One node and a leader after another, in true time; their clocks run at their own rates."""

    rng: random.Random
    node_rate: float
    leader_rates: list[float]
    loss: float
    delay_s: float
    keeper: LeaseKeeper = field(default_factory=LeaseKeeper)
    now: float = 0.0
    leaders: list[LeaseGranter] = field(default_factory=list)
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    dead_since: float | None = None
    ever_leased: bool = False

    def __post_init__(self) -> None:
        self.order = itertools.count()
        self.keeper.registered(1, self.node_clock())
        self.elected = 0
        for number in range(len(self.leader_rates)):
            self.leaders.append(LeaseGranter())
            self.leaders[number].set_members({"n": 1}, self.leader_clock(number))

    def node_clock(self) -> float:
        return 1000 + self.now * self.node_rate

    def leader_clock(self, number: int) -> float:
        return 50 * number + self.now * self.leader_rates[number]

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.order), action))

    def delay(self) -> float:
        return self.rng.uniform(0, self.delay_s) if self.rng.random() < 0.7 else self.rng.uniform(0, 3)

    def arrives(self) -> bool:
        return self.rng.random() >= self.loss

    def elect(self) -> None:
        number = self.elected
        self.elected += 1
        if self.dead_since is not None:  # it has applied what its predecessor ordered
            self.leaders[number].set_members({}, self.leader_clock(number))
        self.leaders[number].elected(number, self.leader_clock(number))
        self.after(0, lambda: self.tick(number))
        if number + 1 < len(self.leader_rates):
            self.after(self.rng.uniform(0.1, 6), self.elect)

    def tick(self, number: int) -> None:
        if number + 1 < self.elected or self.dead_since is not None:
            return  # deposed: what it proposes is not committed
        if self.leaders[number].tick(self.leader_clock(number)):
            self.dead_since = self.now
        self.after(self.rng.choice([0.1, 0.1, 0.1, 0.7]), lambda: self.tick(number))

    def beat(self, seq: int) -> None:
        self.keeper.sent(seq, self.node_clock())
        for number in range(len(self.leader_rates)):
            if self.arrives():
                self.after(self.delay(), lambda number=number: self.heard(number, seq))  # type: ignore[misc]
        silence = self.rng.choice([0.1] * 12 + [1.6, 1.75, 2.5, 4.0])
        self.after(silence, lambda: self.beat(seq + 1))

    def heard(self, number: int, seq: int) -> None:
        leader = self.leaders[number]
        clock = self.leader_clock(number)
        leader.committed(1, clock)
        leader.beat(Grant("n", 1, seq), 1, clock)
        if (round_number := leader.round_wanted(clock)) is not None and self.arrives():
            self.after(self.delay(), lambda: self.majority(number, round_number))

    def majority(self, number: int, round_number: int) -> None:
        if number + 1 < self.elected:
            return  # a majority votes for its successor: it does not answer this term any more
        for grant in self.leaders[number].round_done(round_number, self.leader_clock(number)):
            if self.arrives():
                self.after(
                    self.delay(),
                    lambda grant=grant: self.keeper.answered(1, grant.seq, self.node_clock()),  # type: ignore[misc]
                )

    def run(self, seconds: float) -> None:
        self.elect()
        self.beat(1)
        while self.events[0][0] < seconds:
            self.now, _, action = heapq.heappop(self.events)
            action()
            leased = self.keeper.leased(self.node_clock())
            self.ever_leased |= leased
            assert not (leased and self.dead_since is not None), (
                f"declared dead at {self.dead_since:.3f} s, speaks to clients at {self.now:.3f} s"
            )


RATE = st.sampled_from([0.98, 0.99, 1.0, 1.01, 1.02])


@settings(max_examples=examples(150), deadline=None)
@given(
    st.integers(0, 2**32), RATE, st.lists(RATE, min_size=1, max_size=4), st.sampled_from([0.0, 0.2, 0.6]),
    st.sampled_from([0.01, 0.3, 1.5]),
)  # fmt: skip
def test_a_lease_ends_before_the_leader_gives_the_node_up(
    seed: int, node_rate: float, leader_rates: list[float], loss: float, delay_s: float
) -> None:
    World(random.Random(seed), node_rate, leader_rates, loss, delay_s).run(25)


def test_on_a_good_network_the_lease_is_never_lost() -> None:
    world = World(random.Random(1), 0.98, [1.02], 0.0, 0.01)
    world.rng.choice = lambda values: values[0]  # type: ignore[method-assign, assignment]
    world.rng.random = lambda: 0.5  # type: ignore[method-assign]
    world.elect()
    world.beat(1)
    while world.events[0][0] < 60:
        world.now, _, action = heapq.heappop(world.events)
        action()
        assert world.now < 0.1 or world.keeper.leased(world.node_clock())
    assert world.dead_since is None


@given(RATE, RATE, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_one_beat_and_then_silence(
    node_rate: float, leader_rate: float, out_s: float, round_s: float, back_s: float, successor: bool
) -> None:
    """The lease of the last beat ends before the node is overdue, be it with the leader that answered or the next one,
    who was elected the moment after the majority had answered."""
    keeper = registered(0)
    leader = LeaseGranter()
    leader.set_members({"n": 1}, 0)
    leader.elected(1, 0)
    leader.committed(1, 0)
    keeper.sent(1, 0)
    leader.beat(Grant("n", 1, 1), 1, out_s * leader_rate)
    number = leader.round_wanted(out_s * leader_rate)
    assert number is not None
    answered = out_s + round_s
    (grant,) = leader.round_done(number, answered * leader_rate)
    if successor:
        leader.elected(2, answered * leader_rate)
    overdue = 0.0
    for hundredths in range(500):
        now = hundredths / 100
        if now >= answered + back_s:
            keeper.answered(1, grant.seq, now * node_rate)
        if now > (answered if successor else 0) and not overdue and leader.tick(now * leader_rate):
            overdue = now
        assert not (overdue and keeper.leased(now * node_rate)), f"overdue at {overdue} s, leased at {now} s"
    assert overdue < (answered if successor else out_s) + G * 1.03
