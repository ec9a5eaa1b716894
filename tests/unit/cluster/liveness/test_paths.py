"""Which ways datagrams pass, as both ends know it."""

from __future__ import annotations

from clusterbroker.cluster.liveness.paths import NEVER_MS, Paths


def test_what_is_told_to_arrive_needs_no_link() -> None:
    paths = Paths()
    assert not paths.arrives("b", 100.0)
    paths.came("b", NEVER_MS, False, 100.0)
    assert not paths.arrives("b", 100.0)
    paths.came("b", 100, False, 100.1)
    assert paths.arrives("b", 100.4)
    assert not paths.arrives("b", 100.5), "it was told too long ago"
    paths.came("b", 400, False, 100.6)
    assert not paths.arrives("b", 100.6), "several were lost"


def test_how_long_ago_a_datagram_came() -> None:
    paths = Paths()
    assert paths.heard_ms("b", 100.0) == NEVER_MS
    paths.came("b", 0, True, 100.0)
    assert paths.heard_ms("b", 100.0) == NEVER_MS, "a link is no datagram"
    paths.came("b", 0, False, 100.0)
    assert paths.heard_ms("b", 100.25) == 250
    assert paths.heard_ms("b", 1000.0) == NEVER_MS
    assert paths.silent_s("b", 100.5) == 0.5
    assert paths.silent_s("c", 100.5) == float("inf")


def test_a_blocked_direction_is_named_by_both_ends() -> None:
    here, there = Paths(), Paths()  # of a and b: datagrams from b to a are lost
    for turn in range(40):
        now = 100.0 + turn * 0.1
        here.came("b", 50, True, now)
        there.came("a", here.heard_ms("b", now), False, now)
        late = turn * 0.1 > 2.01
        assert here.blocked("a", now) == ([("b", "a")] if late else [])
        assert there.blocked("b", now) == ([("b", "a")] if late else [])
    here.came("b", 50, False, 104.0)
    assert here.blocked("a", 104.0) == []
    there.came("a", 0, False, 104.0)
    assert there.blocked("b", 104.0) == []
    assert here.blocked("a", 105.5) == [], "of who says nothing at all nothing is said"
    here.keep(set())
    assert here.silent_s("b", 106.0) == float("inf")


def test_what_another_thread_noted_a_moment_later_was_heard_now() -> None:
    """The loop's thread looked at its clock, did not run for some ms, and the beats' thread heard somebody: no datagram
    holds a time before now, so an answer was lost, and with it all that the round had for others."""
    paths = Paths()
    paths.came("b", 0, False, 10.0)
    assert paths.heard_ms("b", 9.99) == 0


def test_who_was_silent_and_comes_back_by_link_first_is_no_blocked_direction() -> None:
    """A restart of a member raised the alert `udp.blocked` in every second case, for a second."""
    here = Paths()
    here.came("c", 0, False, 0.0)
    here.came("c", NEVER_MS, False, 0.1)
    here.came("c", NEVER_MS, True, 10.0)
    assert here.blocked("a", 10.0) == []
    here.came("c", NEVER_MS, True, 10.5)
    here.came("c", 20, False, 10.6)
    assert here.blocked("a", 10.7) == []
    for turn in range(1, 31):
        here.came("c", NEVER_MS, True, 10.7 + turn * 0.1)
    assert sorted(here.blocked("a", 13.7)) == [("a", "c"), ("c", "a")]
