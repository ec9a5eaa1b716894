"""Learnt costs, best fit, and who makes room for whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.pools.facts import PlaceFacts, Settings
from clusterbroker.broker.pools.placement import AFFINITY_S, COSTS_MAX, STARTS_IN_FLIGHT_MAX, Costs, Placement

from .made import facts, group, worker

SETTINGS = Settings(memory=100, start_s=5.0)


def placement(settings: Settings = SETTINGS) -> tuple[Placement, Costs]:
    costs = Costs(settings)
    return Placement(settings, costs), costs


def test_costs_are_learnt() -> None:
    costs = Costs(SETTINGS)
    assert costs.memory("k") == 100
    assert costs.start_s("k") == 5.0
    costs.learn_peak("k", 200)
    assert costs.memory("k") == 230
    costs.learn_peak("k", 100)
    assert costs.memory("k") == 202, "a smaller peak counts by a quarter"
    costs.learn_peak("k", 0)
    assert costs.memory("k") == 202, "nothing is known"
    costs.learn_start("k", 10.0)
    costs.learn_start("k", 20.0)
    assert costs.start_s("k") == 13.0
    for number in range(COSTS_MAX):
        costs.learn_peak(f"other {number}", 1)
    assert len(costs) == COSTS_MAX
    assert costs.memory("k") == 100, "the longest unused is forgotten"


def test_best_fit_then_names() -> None:
    place, _ = placement()
    place.open(facts(group("a", worker("w", place="b")), places={"a": 1_000, "b": 400, "c": 400}), set(), set())
    assert place.fit("k", True, False, 0.0) == "b", "300 left, least of all"
    place.open(facts(places={"d": 400, "c": 400}), set(), set())
    assert place.fit("k", True, False, 0.0) == "c"
    place.open(facts(places={"d": 99}), set(), set())
    assert place.fit("k", True, False, 0.0) is None


def test_a_key_that_takes_more_than_any_place() -> None:
    """It ran once, so it has the largest place alone."""
    place, costs = placement()
    costs.learn_peak("big", 900)
    place.open(facts(places={"a": 500, "b": 1_000}), set(), set())
    assert costs.memory("big") == 1_000
    assert place.fit("big", True, False, 0.0) == "b"


def test_the_same_place_within_an_hour() -> None:
    place, costs = placement()
    costs.seen("k", "big", 0.0)
    place.open(facts(places={"big": 1_000, "fits": 100}), set(), set())
    assert place.fit("k", True, False, AFFINITY_S) == "big"
    assert place.fit("k", True, False, AFFINITY_S + 1) == "fits"


def test_where_nothing_is_started() -> None:
    place, _ = placement()
    given = {
        "alarm": PlaceFacts("alarm", 1_000, alarm=True),
        "away": PlaceFacts("away", 1_000, suspended=True),
        "broken": PlaceFacts("broken", 1_000),
        "full": PlaceFacts("full", 1_000, workers_max=0),
    }
    place.open(facts(given=given), {"broken"}, set())
    assert place.fit("k", True, False, 0.0) is None


def test_starts_in_flight_and_per_second() -> None:
    place, _ = placement(Settings(memory=1))
    starting = [worker(f"w{number}", "starting") for number in range(STARTS_IN_FLIGHT_MAX)]
    place.open(facts(group("a", *starting)), set(), set())
    assert place.fit("k", True, False, 0.0) is None
    for number in range(20):
        place.open(facts(), set(), set())
        assert place.fit(f"k{number}", True, False, 0.0) == "p"
        place.launch(f"k{number}", "p", 0.0)
    place.open(facts(), set(), set())
    assert place.fit("k", True, False, 0.0) is None
    assert place.fit("k", True, False, 0.06) == "p"


def test_max_share_while_others_wait() -> None:
    place, _ = placement()
    hot = group("hot", *(worker(f"w{number}") for number in range(5)))
    place.open(facts(hot, places={"p": 1_000}), set(), set())
    assert place.fit("hot", False, True, 0.0) is None
    assert place.fit("hot", False, False, 0.0) == "p"
    assert place.fit("other", True, True, 0.0) == "p"


def test_lowest_worth_goes_first() -> None:
    place, costs = placement()
    costs.learn_start("cheap", 1.0)
    costs.learn_start("dear", 60.0)
    everything = facts(group("dear", worker("d")), group("cheap", worker("c")), group("k"), places={"p": 200})
    place.open(everything, set(), set())
    for key in ("cheap", "dear"):
        place.touch(key)
    found = place.room("k", everything, ["dear", "cheap"], starved=False, now_s=100.0)
    assert found is not None
    assert [victim.key for victim in found[1]] == ["cheap"]


def test_long_unused_goes_before_what_is_dear_to_start() -> None:
    """The clock of GreedyDual-Size rises with evictions, so what was used before them loses its worth."""
    place, costs = placement()
    costs.learn_start("dear", 20.0)
    place.touch("dear")
    for number in range(10):
        key = f"k{number}"
        everything = facts(group("dear", worker("d")), group(key, worker(key)), group("new"), places={"p": 200})
        place.open(everything, set(), set())
        place.touch(key)
        found = place.room("new", everything, ["dear", key], starved=False, now_s=100.0)
        assert found is not None
        if found[1][0].key == "dear":
            return
    raise AssertionError("it stays for ever")


def test_second_workers_before_a_key_has_none() -> None:
    place, _ = placement()
    most = group("most", *(worker(f"m{number}", held=1, idle_since_s=number) for number in range(3)), held=3)
    two = group("two", worker("t1", held=1), worker("t2", held=1), held=2)
    everything = facts(most, two, group("k"), places={"p": 500})
    place.open(everything, set(), set())
    found = place.room("k", everything, [], starved=False, now_s=100.0)
    assert found is not None
    assert [(victim.key, victim.workers[0].id) for victim in found[1]] == [("most", "m0")]


def test_a_busy_first_worker_makes_room_for_the_starved_only() -> None:
    place, _ = placement()
    everything = facts(group("a", worker("w", held=1), held=1), group("k"), places={"p": 100})
    place.open(everything, set(), set())
    assert place.room("k", everything, [], starved=False, now_s=100.0) is None
    assert place.room("k", everything, [], starved=True, now_s=5.0) == ("p", []), "min_run_s: the place is kept for it"
    place.open(everything, set(), set())
    assert place.room("k", everything, [], starved=True, now_s=100.0) is not None
    pinned = facts(group("a", worker("w"), pinned=True), group("k"), places={"p": 100})
    place.open(pinned, set(), set())
    assert place.room("k", pinned, [], starved=True, now_s=100.0) is None


def test_a_starved_key_that_takes_the_room_of_several() -> None:
    """Small keys that come and go do not take each gap before it."""
    place, costs = placement()
    costs.learn_peak("big", 170)
    everything = facts(
        group("a", worker("x", since_s=0.0)), group("b", worker("y", since_s=15.0)), group("big"), group("small"),
        places={"p": 200},
    )  # fmt: skip
    place.open(everything, set(), set())
    found = place.room("big", everything, [], starved=True, now_s=20.0)
    assert found is not None
    assert [victim.key for victim in found[1]] == ["a"], "the other one has not run min_run_s"
    assert place.room("small", everything, [], starved=True, now_s=20.0) is None
    assert place.fit("small", True, False, 20.0) is None


def test_room_that_comes_is_reserved() -> None:
    place, _ = placement()
    everything = facts(group("a", worker("w", "retiring")), group("k"), group("l"), places={"p": 100})
    place.open(everything, set(), set())
    assert place.room("k", everything, [], starved=False, now_s=0.0) == ("p", [])
    assert place.room("l", everything, [], starved=False, now_s=0.0) is None, "it is k's"
    assert place.fit("l", True, False, 0.0) is None


def test_over_committed_places_give_back() -> None:
    place, costs = placement()
    costs.learn_peak("grew", 300)
    everything = facts(group("grew", worker("g")), group("idle", worker("i")), places={"p": 400})
    place.open(everything, set(), set())
    assert [(name, victim.key) for name, victim in place.over_committed(everything, ["idle"], 0.0)] == [("p", "idle")]
    alarm = facts(
        group("a", worker("x")), group("busy", worker("b"), held=1), given={"p": PlaceFacts("p", 1_000, alarm=True)}
    )
    place.open(alarm, set(), set())
    assert [victim.key for _, victim in place.over_committed(alarm, ["a"], 0.0)] == ["a"]
    place.open(alarm, set(), {"x"})
    assert not list(place.over_committed(alarm, ["a"], 0.0)), "one is on its way out"


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400)), max_size=40),
    st.lists(st.integers(1, 300), min_size=3, max_size=3),
)
def test_no_place_is_promised_more_than_it_has(launches: list[tuple[str, int]], sizes: list[int]) -> None:
    place, costs = placement(Settings(memory=50))
    place.open(facts(places={"x": 500, "y": 300, "z": 0}), set(), set())
    for key, size in zip("abc", sizes, strict=True):
        costs.learn_peak(key, size)
    promised = {"x": 0, "y": 0, "z": 0}
    for second, (key, _) in enumerate(launches):
        where = place.fit(key, True, False, float(second))
        if where is not None:
            promised[where] += place.launch(key, where, float(second))
    assert promised["x"] <= 500
    assert promised["y"] <= 300
    assert promised["z"] == 0
