"""One line per peer and minute, however many refusals."""

from __future__ import annotations

from cluster.link.refusals import PEERS_MAX, Refusals


def test_the_first_is_told_then_one_a_minute_with_the_number_of_the_others() -> None:
    refusals = Refusals()
    told = [(second, untold) for second in range(130) if (untold := refusals.count("a", second)) is not None]
    assert told == [(0, 0), (60, 59), (120, 59)]
    assert refusals.count("b", 121) == 0


def test_memory_is_bounded() -> None:
    refusals = Refusals()
    for number in range(3 * PEERS_MAX):
        assert refusals.count(str(number), number / 1000) == 0
    assert len(refusals._told) == PEERS_MAX
    assert refusals.count(str(3 * PEERS_MAX - 1), 4) is None
