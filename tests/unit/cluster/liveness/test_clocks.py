"""Differences of the members' clocks: who is far from the middle, and who cannot say."""

from __future__ import annotations

import pytest

from clusterbroker.cluster.liveness.clocks import FRESH_S, Clocks

MONTH = 31 * 86_400_000


@pytest.mark.parametrize(
    ("others", "off"),
    [
        ((), 0),
        ((5,), -5),
        ((0, MONTH), 0),  # one of three is wrong, and it is not this one
        ((-MONTH, -MONTH + 40), MONTH - 40),  # it is this one
        ((0, 0, MONTH), 0),
        ((0, MONTH, MONTH), -MONTH),  # two and two: nobody knows
        ((MONTH,), -MONTH),
        ((MONTH, MONTH, MONTH, 3), -MONTH),
    ],
)
def test_the_distance_from_the_middle(others: tuple[int, ...], off: int) -> None:
    clocks = Clocks()
    for number, ahead in enumerate(others):
        clocks.heard(f"n{number}", ahead, 1.0)
    assert clocks.off_ms(1.0) == off


def test_another_clock_of_the_same_node_is_judged_by_the_same_middle() -> None:
    clocks = Clocks()
    clocks.heard("b", 10, 0.0)
    clocks.heard("c", -10, 0.0)
    assert clocks.off_ms(0.0, MONTH) == MONTH - 10


def test_only_what_was_heard_lately_counts() -> None:
    clocks = Clocks()
    clocks.heard("b", MONTH, 0.0)
    assert clocks.ahead_ms(FRESH_S) == {"b": MONTH}
    assert clocks.ahead_ms(FRESH_S + 0.1) == {}
    assert clocks.off_ms(FRESH_S + 0.1) == 0
    clocks.heard("b", 1, 20.0)
    clocks.keep({"c"})
    assert clocks.ahead_ms(20.0) == {}
