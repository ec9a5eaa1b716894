"""Start-time fair queueing: the bound of its theorem, and the order of the classes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.broker.pools.admission import TENANTS_MAX, Admission, Wish

COSTS = st.dictionaries(st.sampled_from("abcd"), st.lists(st.floats(0.1, 100), min_size=1, max_size=6), min_size=2)


@given(COSTS, st.dictionaries(st.sampled_from("abcd"), st.floats(0.2, 5)), st.integers(1, 200))
def test_shares_of_waiting_tenants(costs: dict[str, list[float]], weights: dict[str, float], rounds: int) -> None:
    """Goyal, Vin, Cheng, theorem 1: at any time at most one largest cost of each lies between two that wait."""
    admission = Admission(weights)
    got = dict.fromkeys(costs, 0.0)
    for number in range(rounds):
        wishes = [Wish(f"{tenant}{number}", tenant, of[number % len(of)], 0.0, 0) for tenant, of in costs.items()]
        wish = next(admission.order(wishes))
        admission.admitted(wish)
        got[wish.tenant] += wish.cost / weights.get(wish.tenant, 1.0)
        for one in costs:
            for other in costs:
                bound = sum(max(costs[name]) / weights.get(name, 1.0) for name in (one, other))
                assert got[one] - got[other] <= bound + 1e-6


def test_a_tenant_with_many_keys_gets_no_more() -> None:
    admission = Admission({})
    wishes = [Wish(f"many{number}", "many", 1.0, 0.0, 0) for number in range(1_000)]
    wishes += [Wish(f"few{number}", "few", 1.0, 0.0, 0) for number in range(10)]
    first = []
    for wish in admission.order(wishes):
        admission.admitted(wish)
        first.append(wish.tenant)
        if len(first) == 20:
            break
    assert first.count("few") == 10


def test_a_tenant_that_was_away_has_no_credit() -> None:
    admission = Admission({})
    for _ in range(100):
        admission.admitted(Wish("a", "a", 1.0, 0.0, 0))
    got = []
    for _ in range(10):
        wish = next(admission.order([Wish("a", "a", 1.0, 0.0, 0), Wish("b", "b", 1.0, 0.0, 0)]))
        admission.admitted(wish)
        got.append(wish.tenant)
    assert 4 <= got.count("b") <= 6


def test_classes() -> None:
    wishes = [
        Wish("second", "a", 1.0, 0.0, 1),
        Wish("new", "a", 1.0, 9.0, 0),
        Wish("old", "a", 1.0, 5.0, 0),
        Wish("starved later", "a", 1.0, 3.0, 0, starved=True),
        Wish("starved", "b", 1.0, 2.0, 0, starved=True),
    ]
    order = [wish.key for wish in Admission({}).order(wishes)]
    assert order == ["starved", "starved later", "old", "new", "second"]


def test_tags_are_bounded() -> None:
    """Tenants that come and go leave no tags behind: what the virtual time has passed is forgotten."""
    admission = Admission({})
    for number in range(25_000):
        admission.admitted(Wish("k", f"tenant {number}", 1.0, 0.0, 0))
        admission.admitted(Wish("k", "always", 1.0, 0.0, 0))
    assert len(admission._finish) <= TENANTS_MAX
