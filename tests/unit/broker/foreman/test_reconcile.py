"""The table of `reconcile`, cell by cell, and its rules."""

from __future__ import annotations

from dataclasses import replace as replaced

import pytest
from foreman_support import spec
from msgspec.structs import replace

from clusterbroker.broker.foreman.reconcile import (
    ADJUST_AGAIN_MS,
    DOUBT_LOOK_MS,
    DOUBT_MS,
    FENCED_S,
    IN_FLIGHT_MAX,
    OTHERS_MS,
    STARTS_PER_S,
    UNLISTED_MS,
    Action,
    Adjust,
    Books,
    Gone,
    Kill,
    Launch,
    Listed,
    Remove,
    Seen,
    Start,
    State,
    Stop,
    View,
    Wanted,
)
from clusterbroker.broker.foreman.spec import Scale

W = "w1-0"
VANISHED = Gone(W, None, why="it vanished: somebody else removed it")
NEVER = Gone(W, None, why="it was never started")


def books() -> Books:
    return Books("c1u5ter", "node1")


def seen(state: State, worker_id: str = W, cluster: str = "c1u5ter", place: str = "node1") -> Seen:
    ended = state is State.EXITED
    return Seen(worker_id, state, cluster, place, "core", 3 if ended else None, peak_bytes=9 if ended else 0)


def view(*launches: Wanted, fresh: bool = True, unleased_since_ms: int | None = None) -> View:
    return View({one.spec.worker_id: one for one in launches}, fresh, unleased_since_ms)


def wanted(state: Launch = Launch.WANTED, worker_id: str = W) -> Wanted:
    return Wanted(spec(worker_id, grace_s=30.0), state)


def decided(of: Books, what: View, *rows: Seen, now_ms: int = 1000, asked_ms: int | None = None) -> list[Action]:
    return of.decide(what, Listed(now_ms if asked_ms is None else asked_ms, rows), now_ms)


@pytest.mark.parametrize(
    "launch, begun, state, action",
    [
        (Launch.WANTED, False, None, Start(spec(grace_s=30.0))),
        (Launch.WANTED, True, None, VANISHED),
        (Launch.WANTED, True, State.STARTING, None),
        (Launch.WANTED, True, State.RUNNING, None),
        (Launch.WANTED, True, State.EXITED, Gone(W, 3, 9)),
        (Launch.RETIRING, False, None, NEVER),
        (Launch.RETIRING, True, None, VANISHED),
        (Launch.RETIRING, True, State.STARTING, Stop(W, 30.0)),
        (Launch.RETIRING, True, State.RUNNING, Stop(W, 30.0)),
        (Launch.RETIRING, True, State.EXITED, Gone(W, 3, 9)),
        (Launch.REVOKED, False, None, NEVER),
        (Launch.REVOKED, True, None, VANISHED),
        (Launch.REVOKED, True, State.RUNNING, Stop(W, FENCED_S)),
        (Launch.REVOKED, True, State.EXITED, Gone(W, 3, 9)),
        (None, True, None, None),
        (None, True, State.STARTING, Stop(W, FENCED_S)),
        (None, True, State.RUNNING, Stop(W, FENCED_S)),
        (None, True, State.EXITED, Remove(W)),
    ],
)
def test_each_cell(launch: Launch | None, begun: bool, state: State | None, action: Action | None) -> None:
    of = books()
    if begun:
        of.started(W, 500)
    rows = () if state is None else (seen(state),)
    what = view() if launch is None else view(wanted(launch))
    assert decided(of, what, *rows) == ([] if action is None else [action])
    if isinstance(action, (Start, Gone, Stop)):
        assert decided(of, what, *rows, now_ms=1001) == [], "an answer is waited for"


def test_an_unknown_list_is_no_empty_one() -> None:
    of = books()
    of.started(W, 500)
    for state in Launch:
        assert of.decide(view(wanted(state)), None, 1000) == []
    assert of.decide(view(unleased_since_ms=0), None, 99_000) == []


@pytest.mark.parametrize("state", [None, State.RUNNING, State.EXITED])
def test_a_stale_map_starts_and_removes_nothing(state: State | None) -> None:
    rows = () if state is None else (seen(state),)
    assert decided(books(), view(*(() if state else (wanted(),)), fresh=False), *rows) == []


@pytest.mark.parametrize("labels", [("another", "node1"), ("c1u5ter", "node2")])
@pytest.mark.parametrize("state", State)
def test_what_is_anothers_is_left_alone(labels: tuple[str, str], state: State) -> None:
    assert decided(books(), view(), seen(state, W, *labels)) == []
    assert decided(books(), view(unleased_since_ms=0), seen(state, W, *labels), now_ms=99_000) == []


def test_a_list_of_before_the_start_does_not_say_that_it_vanished() -> None:
    of = books()
    decided(of, view(wanted()))
    of.started(W, 2000)
    assert decided(of, view(wanted()), now_ms=2100, asked_ms=1999) == []
    assert decided(of, view(wanted()), now_ms=2200, asked_ms=2001) == [VANISHED]


def test_a_failed_start_may_have_begun_all_the_same() -> None:
    of = books()
    decided(of, view(wanted()))
    of.start_failed(W, 2000, "no answer within 10 s")
    assert decided(of, view(wanted()), now_ms=2100, asked_ms=1999) == []
    assert decided(of, view(wanted()), seen(State.RUNNING), now_ms=2100, asked_ms=2001) == []
    assert decided(of, view(wanted()), now_ms=2200, asked_ms=2150) == [Gone(W, None, why="no answer within 10 s")]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("state", [Launch.WANTED, Launch.REVOKED])
def test_a_list_that_says_nothing_yet_is_followed_by_another_one(fails: bool, state: Launch) -> None:
    """It was asked for in the millisecond of the answer, and nothing else may happen from then on."""
    of = books()
    decided(of, view(wanted()))
    if fails:
        of.start_failed(W, 2000, "no answer within 10 s")
    else:
        of.started(W, 2000)
    assert decided(of, view(wanted(state)), now_ms=2000, asked_ms=2000) == []
    assert of.next_ms == 2001
    assert [type(one) for one in decided(of, view(wanted(state)), now_ms=2001)] == [Gone]


@pytest.mark.parametrize("begins", ["started", "fails", "before"])
def test_what_no_list_had_is_looked_for_though_nothing_else_runs(begins: str) -> None:
    of = books()
    state = Launch.REVOKED if begins == "before" else Launch.WANTED  # of the foreman before this one
    if begins != "before":
        decided(of, view(wanted()))
    if begins == "started":
        of.started(W, 1500)
    elif begins == "fails":
        of.start_failed(W, 1500, "no answer within 10 s")
    (gone,) = decided(of, view(wanted(state)), now_ms=2000)
    assert isinstance(gone, Gone)
    assert decided(of, view(), now_ms=2100) == []
    assert of.next_ms == 2100 + DOUBT_LOOK_MS
    assert [type(one) for one in decided(of, view(), seen(State.RUNNING), now_ms=50_000)] == [Stop]
    assert decided(of, view(), now_ms=51_000) == []
    decided(of, view(), seen(State.EXITED), now_ms=52_000)
    decided(of, view(), now_ms=53_000)
    assert of.next_ms is None, "it was found"


def test_what_no_list_has_for_long_is_looked_for_no_more() -> None:
    of = books()
    decided(of, view(wanted()))
    of.started(W, 1500)
    assert decided(of, view(wanted()), now_ms=2000) == [VANISHED]
    decided(of, view(), now_ms=2000 + DOUBT_MS)
    assert of.next_ms is None


def test_a_start_that_is_not_answered_is_waited_for() -> None:
    of = books()
    decided(of, view(wanted()))
    assert decided(of, view(), seen(State.EXITED), now_ms=1100) == [], "its record would be made anew"
    of.started(W, 1200)
    assert decided(of, view(), seen(State.EXITED), now_ms=1300) == [Remove(W)]


def test_gone_is_told_until_the_map_drops_it() -> None:
    of = books()
    times = [at for at in range(0, 20_000, 100) if decided(of, view(wanted()), seen(State.EXITED), now_ms=at)]
    assert times == [0, 5000, 10_000, 15_000]
    assert of.next_ms == 20_000
    assert decided(of, view(), seen(State.EXITED), now_ms=20_000) == [Remove(W)]


def test_term_first_then_kill_when_its_time_is_over() -> None:
    of = books()
    what = view(wanted(Launch.RETIRING))
    done = [(at, one) for at in range(0, 40_000, 500) for one in decided(of, what, seen(State.RUNNING), now_ms=at)]
    assert done[0] == (0, Stop(W, 30.0))
    assert [at for at, one in done[1:]] == [30_000, 32_000, 34_000, 36_000, 38_000]
    assert {one for _, one in done[1:]} == {Kill(W)}


def test_a_revoke_shortens_the_grace_of_one_that_retires() -> None:
    of = books()
    assert decided(of, view(wanted(Launch.RETIRING)), seen(State.RUNNING), now_ms=0) == [Stop(W, 30.0)]
    assert decided(of, view(wanted(Launch.REVOKED)), seen(State.RUNNING), now_ms=1000) == []
    assert of.next_ms == 6000
    assert decided(of, view(wanted(Launch.REVOKED)), seen(State.RUNNING), now_ms=6000) == [Kill(W)]


@pytest.mark.parametrize("what", [view(), view(wanted(Launch.REVOKED))], ids=["no launch", "revoked"])
def test_a_list_that_lacks_a_worker_by_mistake_does_not_put_off_its_kill(what: View) -> None:
    of = books()
    assert decided(of, what, seen(State.RUNNING), now_ms=0) == [Stop(W, FENCED_S)]
    of.started(W, 0)
    decided(of, what, now_ms=3000)
    assert of.next_ms == 5000
    assert decided(of, what, seen(State.RUNNING), now_ms=3500) == []
    decided(of, what, now_ms=5000)
    assert of.next_ms == 7000, "a list that has it is waited for"
    assert decided(of, what, seen(State.RUNNING), now_ms=6000) == [Kill(W)]


def test_the_kill_of_a_lost_lease_is_not_put_off_by_a_list_either() -> None:
    of = books()
    what = view(wanted(), fresh=False, unleased_since_ms=0)
    assert decided(of, what, seen(State.RUNNING), now_ms=15_000) == [Stop(W, 10.0)]
    decided(of, what, now_ms=20_000)
    assert decided(of, what, seen(State.RUNNING), now_ms=25_000) == [Kill(W)]


def test_a_worker_that_ends_and_is_not_listed_for_long_is_gone() -> None:
    of = books()
    decided(of, view(), seen(State.RUNNING), now_ms=0)
    rounds, now_ms = 0, 1000
    while of.next_ms is not None:
        decided(of, view(), now_ms=now_ms)
        rounds, now_ms = rounds + 1, of.next_ms or now_ms
    assert (rounds, now_ms) == (5, 1000 + UNLISTED_MS)
    assert decided(of, view(), seen(State.RUNNING), now_ms=20_000) == [Stop(W, FENCED_S)]


def test_without_a_lease_term_after_15_s_and_kill_at_25_s() -> None:
    of = books()
    what = view(wanted(), fresh=False, unleased_since_ms=1000)
    done = [(at, one) for at in range(1000, 27_000, 500) for one in decided(of, what, seen(State.RUNNING), now_ms=at)]
    assert done == [(16_000, Stop(W, 10.0)), (26_000, Kill(W))]


def test_a_lease_that_comes_back_begins_the_next_end_with_term() -> None:
    of = books()
    decided(of, view(wanted(), fresh=False, unleased_since_ms=0), seen(State.RUNNING), now_ms=16_000)
    assert decided(of, view(wanted()), seen(State.RUNNING), now_ms=20_000) == []
    assert decided(of, view(wanted(Launch.RETIRING)), seen(State.RUNNING), now_ms=60_000) == [Stop(W, 30.0)]


def test_a_shared_place_is_not_stopped_by_one_node_without_a_lease() -> None:
    of = Books("c1u5ter", "node1", shared=True)
    assert decided(of, view(wanted(), fresh=False, unleased_since_ms=0), seen(State.RUNNING), now_ms=99_000) == []


def shared() -> Books:
    return Books("c1u5ter", "node1", shared=True)


def elsewhere(launches: dict[str, bool] | None, index: int = 50, fresh: bool = True) -> View:
    return View({}, fresh, None, launches, index)


OTHERS = {"place": "node2", "worker_id": "w7-0"}


@pytest.mark.parametrize(
    "launches, state, action",
    [
        ({}, State.RUNNING, Stop("w7-0", FENCED_S)),
        ({}, State.EXITED, Remove("w7-0")),
        ({"w7-0": True}, State.RUNNING, Stop("w7-0", FENCED_S)),
        ({"w7-0": True}, State.EXITED, None),
        ({"w7-0": False}, State.RUNNING, None),
        ({"w7-0": False}, State.EXITED, None),
        (None, State.RUNNING, None),
    ],
)
def test_what_is_over_at_another_place_of_a_shared_one_is_ended_a_while_later(
    launches: dict[str, bool] | None, state: State, action: Action | None
) -> None:
    of, row = shared(), seen(state, **OTHERS)
    assert decided(of, elsewhere(launches), row, now_ms=1_000) == [], "its own foreman may do it"
    assert of.next_ms == (None if action is None else 1_000 + OTHERS_MS)
    done = decided(of, elsewhere(launches), row, now_ms=1_000 + OTHERS_MS)
    assert done == ([] if action is None else [action])
    if isinstance(action, Stop):
        later_ms = 1_000 + OTHERS_MS + int(FENCED_S * 1000)
        assert decided(of, elsewhere(launches), row, now_ms=later_ms) == [Kill("w7-0")]


@pytest.mark.parametrize(
    "of, view_, labels",
    [
        (shared(), elsewhere({}, index=6), OTHERS),
        (shared(), elsewhere({}, fresh=False), OTHERS),
        (shared(), elsewhere({}), OTHERS | {"cluster": "another"}),
        (shared(), elsewhere({}), OTHERS | {"worker_id": "made by hand"}),
        (books(), elsewhere({}), OTHERS),
    ],
    ids=["ordered later than the map counts", "stale map", "another cluster", "no worker id", "not shared"],
)
def test_of_another_place_only_what_is_over_is_ended(of: Books, view_: View, labels: dict[str, str]) -> None:
    for at in range(0, 60_000, 1_000):
        assert decided(of, view_, seen(State.RUNNING, **labels), now_ms=at) == []


def test_a_launch_of_another_place_that_comes_into_the_map_is_over_no_more() -> None:
    of, row = shared(), seen(State.RUNNING, **OTHERS)
    decided(of, elsewhere({}), row, now_ms=0)
    assert decided(of, elsewhere({"w7-0": False}), row, now_ms=5_000) == []
    assert decided(of, elsewhere({}), row, now_ms=OTHERS_MS) == [], "its time begins anew"


def test_rule_i8_starts_are_bounded_at_once_and_in_a_second() -> None:
    of = books()
    many = view(*(wanted(worker_id=f"w{index}-0") for index in range(50)))
    started: list[tuple[int, str]] = []
    running: list[Seen] = []
    for at in range(0, 3000, 10):
        found = [one for one in decided(of, many, *running, now_ms=at) if isinstance(one, Start)]
        assert len(of.pace.in_flight) <= IN_FLIGHT_MAX
        for one in found:
            started.append((at, one.spec.worker_id))
            of.started(one.spec.worker_id, at)
            running.append(seen(State.RUNNING, one.spec.worker_id))
    assert len(started) == 50
    for at, _ in started:
        assert sum(at <= other < at + 1000 for other, _ in started) <= STARTS_PER_S
    slow = books()
    assert len(decided(slow, many)) == IN_FLIGHT_MAX
    assert slow.next_ms is None, "the answer of one in flight begins the next round"


BOUNDS = Scale(by="hpa", least=1, most=4, backlog=5)


def bounded(worker_id: str = W, state: Launch = Launch.WANTED, most: int = 4) -> Wanted:
    return Wanted(spec(worker_id, scale=replace(BOUNDS, most=most)), state)


def test_rule_10_a_launch_gets_the_bounds_of_the_map() -> None:
    of, one = books(), bounded()
    there = [replaced(seen(state), fit=one.spec.fit) for state in (State.STARTING, State.RUNNING)]
    for row in there:
        assert decided(of, view(one), row) == []
    later = bounded(most=9)
    assert decided(of, view(later, fresh=False), there[0]) == [], "the map may be of before"
    assert decided(of, view(later), there[0]) == [Adjust(later.spec)]
    assert decided(of, view(later), there[0], now_ms=1001) == []
    assert of.next_ms == 1000 + ADJUST_AGAIN_MS
    assert decided(of, view(later), there[1], now_ms=1000 + ADJUST_AGAIN_MS) == [Adjust(later.spec)]
    assert Adjust(later.spec) not in decided(of, view(bounded(state=Launch.REVOKED, most=9)), there[1], now_ms=20_000)


def test_rule_10_not_beside_its_start_nor_of_one_worker() -> None:
    of, one = books(), bounded()
    assert decided(of, view(one)) == [Start(one.spec)]
    assert decided(of, view(one), seen(State.STARTING)) == [], "its start has not ended"
    of.started(W, 1001)
    assert decided(of, view(one), seen(State.STARTING)) == [Adjust(one.spec)], "it ended, and has not done all"
    assert decided(books(), view(wanted()), seen(State.RUNNING)) == []


def test_rule_10_so_many_in_a_round() -> None:
    of = books()
    many = [bounded(f"w1-{number}") for number in range(IN_FLIGHT_MAX + 3)]
    rows = [seen(State.RUNNING, one.spec.worker_id) for one in many]
    assert len(decided(of, view(*many), *rows)) == IN_FLIGHT_MAX
    assert of.next_ms == 1001
    assert len(decided(of, view(*many), *rows, now_ms=1001)) == 3
