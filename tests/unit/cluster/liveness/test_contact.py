"""Contact: the member's side, the voter's, the leader's, and that the first ends before the last can act."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterbroker.cluster.liveness.contact import LEAST_S, SILENT_S, Contact, Hearing, Verdicts, outlasts
from clusterbroker.cluster.liveness.lease import LeaseOptions
from tests.budget import examples

OPTIONS = LeaseOptions()


def contact(name: str = "a", voters: str = "abc") -> Contact:
    made = Contact(name, OPTIONS)
    made.set_voters(voters)
    return made


def hearing() -> Hearing:
    made = Hearing(OPTIONS, 0.0)
    made.confirms = True
    return made


# the member's side


def test_contact_counts_from_the_sending_of_the_beat_that_was_heard() -> None:
    a = contact()
    assert a.until == -math.inf
    a.sent(1, 100.0)
    a.sent(2, 100.1)
    assert a.confirmed("b", 1, 100.15)
    assert a.until == 100.0 + LEAST_S
    assert not a.confirmed("b", 1, 100.16)
    assert a.confirmed("c", 2, 100.17)
    assert not a.confirmed("b", 3, 100.18), "never sent"
    assert not a.confirmed("a", 2, 100.18), "its own"
    assert not a.confirmed("d", 2, 100.18), "no voter"
    assert a.until == 100.1 + LEAST_S


def test_so_many_words_are_needed_that_those_left_are_no_majority() -> None:
    for voters, name, needed in (
        ("a", "a", 0),
        ("ab", "a", 0),
        ("abc", "a", 1),
        ("abcde", "a", 2),
        ("a", "z", 1),
        ("abc", "z", 2),
        ("abcde", "z", 3),
    ):
        made = contact(name, voters)
        made.sent(1, 100.0)
        others = [voter for voter in voters if voter != name]
        for count, voter in enumerate(others, 1):
            assert (made.until > 0) == (count > needed), (voters, name, count)
            made.confirmed(voter, 1, 100.01)
        left = len(others) - needed
        assert left * 2 <= len(voters), "who is left is no majority"
        assert (left + 1) * 2 > len(voters) or needed == 0, "and no more is asked than that"


def test_what_was_said_before_a_registration_or_an_unseen_pause_does_not_count() -> None:
    a = contact()
    a.sent(1, 100.0)
    a.confirmed("b", 1, 100.01)
    a.sent(2, 100.1)
    a.forget()
    assert a.until == -math.inf
    assert not a.confirmed("b", 2, 100.11)


def test_who_is_far_away_relies_for_longer_and_never_for_longer_than_a_lease() -> None:
    a = contact()
    now = 100.0
    for seq in range(100):
        a.sent(seq, now)
        a.confirmed("b", seq, now + 0.2)
        now += 0.1
    assert 0.3 < a.rely_s < 0.6
    for seq in range(100, 1000):
        a.sent(seq, now)
        a.confirmed("b", seq, now + 0.01)
        now += 0.1
    assert a.rely_s == LEAST_S
    a.sent(1000, now)
    a.confirmed("b", 1000, now + 1.5)
    assert a.rely_s == OPTIONS.lease_s


# the voter's side


def test_a_word_is_given_for_each_beat_until_the_member_is_given_up() -> None:
    b = hearing()
    assert b.heard("a", 1, LEAST_S, 100.0)
    assert not b.give_up("a", 1, 100.0 + SILENT_S - 0.001)
    assert b.heard("a", 1, LEAST_S, 100.1)
    assert not b.give_up("a", 1, 100.35)
    assert b.give_up("a", 1, 100.1 + SILENT_S)
    assert not b.spoke_since("a")
    assert not b.heard("a", 1, LEAST_S, 100.5)
    assert b.spoke_since("a")
    b.take_back("a", 1)
    assert b.heard("a", 1, LEAST_S, 100.6)
    assert not b.heard("a", 0, LEAST_S, 100.6), "an earlier life"
    assert b.give_up("a", 1, 101.0)
    assert b.heard("a", 2, LEAST_S, 101.1), "its next life"


def test_nobody_is_given_up_while_it_relies_on_a_word() -> None:
    b = hearing()
    b.heard("a", 1, 1.0, 100.0)
    b.heard("a", 1, LEAST_S, 100.1)
    assert not b.give_up("a", 1, 101.0)
    assert b.give_up("a", 1, 100.0 + outlasts(1.0, OPTIONS.drift))


def test_a_voter_that_has_just_begun_neither_speaks_nor_gives_up() -> None:
    b = Hearing(OPTIONS, 100.0)
    assert not b.heard("a", 1, LEAST_S, 100.1)
    assert not b.give_up("c", 1, 101.7)
    assert b.give_up("c", 1, 100.0 + OPTIONS.grace_s)
    b.confirms = True
    assert b.heard("a", 1, LEAST_S, 100.2)


def test_a_voter_without_a_lease_gives_no_word_and_hears_all_the_same() -> None:
    b = hearing()
    assert not b.heard("a", 1, LEAST_S, 100.0, leased=False)
    assert not b.give_up("a", 1, 100.0 + SILENT_S - 0.001)
    assert b.give_up("a", 1, 100.0 + SILENT_S)


# the leader's side


def test_a_majority_of_the_voters_fails_a_member() -> None:
    verdicts = Verdicts()
    verdicts.given_up("b", "a", 1)
    verdicts.given_up("x", "a", 1)
    verdicts.given_up("a", "a", 1)
    assert not verdicts.agreed("a", 1, "abc")
    verdicts.given_up("c", "a", 2)
    assert not verdicts.agreed("a", 1, "abc"), "of another life"
    verdicts.given_up("c", "a", 1)
    assert verdicts.agreed("a", 1, "abc")
    assert not verdicts.agreed("a", 1, "abcde")
    verdicts.lost("c")
    assert not verdicts.agreed("a", 1, "abc")
    verdicts.given_up("c", "a", 1)
    verdicts.taken_back("b", "a", 1)
    assert not verdicts.agreed("a", 1, "abc")
    verdicts.given_up("b", "a", 1)
    verdicts.clear()
    assert not verdicts.agreed("a", 1, "abc")


# all of them


def rates() -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(1 - OPTIONS.drift, 1 + OPTIONS.drift), min_size=5, max_size=5)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), rates(), st.integers(3, 5), st.booleans())
def test_contact_ends_before_anybody_is_failed_early(seed: int, rate: list[float], count: int, leader: bool) -> None:
    """A member `a` and voters whose clocks run as they like; beats and words are lost, late and doubled; every port
    refuses all the time, so that only silence protects the member. `leader`: whether the member votes."""
    chance = random.Random(seed)
    names = "abcde"[:count]
    voters = names if leader else names[1:]
    zeros = [chance.uniform(0, 1000) for _ in names]
    clocks: dict[str, Callable[[float], float]] = {
        name: lambda true_s, pace=pace, zero=zero: zero + true_s * pace  # type: ignore[misc]
        for name, pace, zero in zip(names, rate, zeros, strict=False)
    }
    a = Contact("a", OPTIONS)
    a.set_voters(voters)
    hearings = {name: Hearing(OPTIONS, clocks[name](0.0)) for name in voters if name != "a"}
    verdicts = Verdicts()
    for each in hearings.values():
        each.confirms = True
    order = itertools.count()
    events: list[tuple[float, int, str, tuple[Any, ...]]] = []

    def after(at_s: float, what: str, *arguments: Any) -> None:
        heapq.heappush(events, (at_s, next(order), what, arguments))

    def way(now_s: float, what: str, *arguments: Any) -> None:
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            after(now_s + chance.choice((0.001, 0.02, chance.uniform(0, 0.5))), what, *arguments)

    after(0.0, "beat", 1)
    for name in hearings:
        after(0.0, "look", name)
    cut_s = chance.uniform(0.5, 6)
    while events:
        now_s, _, what, arguments = heapq.heappop(events)
        if now_s > cut_s + 3:
            break
        if what == "beat":
            (seq,) = arguments
            rely_s = math.ceil(a.rely_s * 1000) / 1000
            a.sent(seq, clocks["a"](now_s))
            after(now_s + 0.1, "beat", seq + 1)
            for name in hearings:
                if now_s < cut_s or chance.random() < 0.05:
                    way(now_s, "hear", name, seq, rely_s)
        elif what == "hear":
            name, seq, rely_s = arguments
            if hearings[name].heard("a", 1, rely_s, clocks[name](now_s)):
                way(now_s, "word", name, seq)
        elif what == "word":
            name, seq = arguments
            a.confirmed(name, seq, clocks["a"](now_s))
        else:
            (name,) = arguments
            after(now_s + 0.02, "look", name)
            if hearings[name].give_up("a", 1, clocks[name](now_s)):
                verdicts.given_up(name, "a", 1)
            if verdicts.agreed("a", 1, voters):
                assert clocks["a"](now_s) >= a.until, "it was failed while it had contact"
                for later_s, _, then, said in sorted(events):
                    if then == "word":  # what is still under way gives none back
                        a.confirmed(*said, clocks["a"](later_s))
                        assert clocks["a"](now_s) >= a.until
                return
