"""Need, starts that must pay, and the window of a minute."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.pools.demand import DOWN_EVERY_S, LOAD, STARTS_MAX, WINDOW_S, Demand
from clusterbroker.broker.pools.facts import Scaling, Settings

from .made import group

MEASURED = 100


def measured(service_s: float, arrivals: float = 0.0) -> Demand:
    return Demand(service_s, samples=MEASURED, short=arrivals, at_s=0.0)


def test_need_by_backlog_and_by_arrivals() -> None:
    settings = Settings(max=100, target_wait_s=5.0)
    assert measured(1.0).need(group("k", ready=20), settings) == 4
    assert measured(1.0, arrivals=7.0).need(group("k", ready=1), settings) == 10, "7 / 0.7"
    assert measured(1.0).need(group("k", ready=20, held=20), settings) == 8, "what is held counts"
    assert measured(1.0).need(group("k", ready=20), Settings(max=100, target_wait_s=5.0, prefetch=4)) == 1


def test_arrivals_of_before_it_was_unbound_ask_for_no_worker() -> None:
    busy = measured(1.0, arrivals=7.0)
    assert busy.reasoned(group("k", state="unbound"), Settings()) == (0, "idle")
    assert busy.reasoned(group("k", state="draining"), Settings()) == (0, "idle")
    assert busy.reasoned(group("k", state="unbound", ready=1), Settings()) == (1, "backlog")


def test_need_within_min_and_max() -> None:
    assert measured(1.0).need(group("k", ready=10_000), Settings(max=8)) == 8
    assert measured(1.0).need(group("k"), Settings(min=3)) == 3
    assert measured(1.0).need(group("k", state="draining"), Settings(min=3)) == 0


def test_one_worker_while_bound_or_busy() -> None:
    none = Settings(scale_to_zero_while_bound=True)
    assert measured(1.0).need(group("k"), Settings()) == 1
    assert measured(1.0).need(group("k"), none) == 0
    assert measured(1.0).need(group("k", held=1), none) == 1
    assert measured(1.0).need(group("k", state="unbound"), Settings()) == 0


def test_a_second_worker_is_never_started_on_a_guess() -> None:
    guess = Demand(1.0)
    assert guess.need(group("k", ready=1_000), Settings()) == 1
    assert guess.need(group("k", ready=1_000), Settings(eager=True)) == 8


def test_other_scalings() -> None:
    busy = group("k", ready=1_000)
    assert measured(1.0).need(busy, Settings(scaling=Scaling.FIXED, min=2)) == 2
    assert measured(1.0).need(busy, Settings(scaling=Scaling.OUTSIDE)) == 1
    assert measured(1.0).need(group("k", state="draining"), Settings(scaling=Scaling.FIXED, min=2)) == 0


def test_a_start_must_pay() -> None:
    demand, settings = measured(0.1), Settings()
    assert demand.pays(group("k", ready=1), 0, 60.0, settings), "the first one always"
    assert not demand.pays(group("k", ready=100), 1, 11.0, settings), "gone after 10 s, and a start takes 11"
    assert demand.pays(group("k", ready=100), 1, 9.0, settings)
    assert not demand.pays(group("k", ready=100), 2, 9.0, settings)


@given(st.lists(st.tuples(st.floats(0.1, 40.0), st.integers(0, 20)), min_size=1, max_size=60))
def test_the_window_is_the_largest_need_of_a_minute(steps: list[tuple[float, int]]) -> None:
    demand, now_s, past = Demand(1.0), 0.0, []
    for passed_s, need in steps:
        began_s = now_s
        now_s += passed_s
        if past:
            past[-1] = (began_s, now_s, past[-1][2])
        past.append((now_s, now_s, need))
        demand.remember(need, now_s)
        in_force = [each for begin_s, end_s, each in past if end_s >= now_s - WINDOW_S]
        assert demand.largest(now_s) == max(in_force)


def test_down_late_and_slowly() -> None:
    demand, settings = measured(1.0), Settings(max=100)
    demand.remember(20, 0.0)
    demand.remember(1, 1.0)
    idle = group("k")
    assert demand.surplus(idle, 20, 59.0, settings) == 0
    assert demand.surplus(idle, 20, 62.0, settings) == 5, "a quarter"
    demand.down_s = 62.0
    assert demand.surplus(idle, 15, 62.0 + DOWN_EVERY_S - 0.1, settings) == 0
    assert demand.surplus(idle, 15, 62.0 + DOWN_EVERY_S, settings) == 3
    assert demand.surplus(group("k", held=15), 15, 100.0, settings) == 0, "never below what is held"


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 50), st.integers(0, 50), st.floats(0, 100)), max_size=40)
)
def test_measurements_are_finite_and_not_negative(steps: list[tuple[float, int, int, float]]) -> None:
    demand, now_s, arrived, settled, spent_s = Demand(1.0), 0.0, 0, 0, 0.0
    for passed_s, more, done, took_s in steps:
        now_s, arrived, settled, spent_s = now_s + passed_s, arrived + more, settled + done, spent_s + took_s
        demand.observe(group("k", arrived=arrived, settled=settled, service_s=spent_s), now_s)
        assert 0 <= demand.arrivals < math.inf
        assert 0 <= demand.service_s < math.inf
        assert 1 <= demand.need(group("k", ready=5), Settings()) <= 8


def test_a_steady_rate_is_measured() -> None:
    demand = Demand(1.0)
    for second in range(300):
        demand.observe(group("k", arrived=4 * second, settled=4 * second, service_s=0.5 * 4 * second), float(second))
    assert abs(demand.arrivals - 4.0) < 0.1
    assert abs(demand.service_s - 0.5) < 0.01
    assert demand.need(group("k"), Settings()) == math.ceil(4 * 0.5 / LOAD)
    for second in range(300, 900):
        demand.observe(group("k", arrived=1196, settled=1196, service_s=598.0), float(second))
    assert demand.need(group("k", state="unbound"), Settings()) == 0, "an EWMA that fades counts as nothing"


def test_counters_that_begin_anew() -> None:
    """The next owner of a queue counts from zero."""
    demand = Demand(1.0)
    demand.observe(group("k", arrived=1_000, settled=1_000, service_s=500.0), 0.0)
    demand.observe(group("k", arrived=3, settled=2, service_s=1.0), 1.0)
    assert demand.arrivals == 0
    assert demand.service_s == 1.0


def test_idle_time() -> None:
    demand = Demand(1.0)
    demand.observe(group("k", held=1), 5.0)
    demand.observe(group("k", held=1), 500.0)
    assert demand.idle_since_s == 500.0, "a long computation is not idleness"
    demand.observe(group("k", settled=1), 501.0)
    assert demand.idle_since_s == 501.0
    demand.observe(group("k", settled=1), 600.0)
    assert demand.idle_since_s == 501.0


def test_starts_in_a_minute() -> None:
    demand = Demand(1.0)
    for number in range(20):
        assert demand.may_start(number, 0, 0.0), "growth is free"
        demand.started(number, 0.0)
    for number in range(20):
        assert demand.may_start(number, 0, 1.0), "all of them are replaced once"
        demand.started(number, 1.0)
    assert not demand.may_start(0, 0, 2.0)
    assert demand.may_start(0, 0, 2.0 + WINDOW_S)

    alone = Demand(1.0)
    for _ in range(1 + STARTS_MAX):
        assert alone.may_start(0, 0, 0.0), "one that dies at once, again and again"
        alone.started(0, 0.0)
    assert not alone.may_start(0, 0, 1.0)
