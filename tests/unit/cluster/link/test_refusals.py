"""One line per peer, reason and minute, however many refusals."""

from __future__ import annotations

from clusterbroker.cluster.link.refusals import LINES_MAX, PEERS_MAX, Refusals


def test_the_first_is_told_then_one_a_minute_with_the_number_of_the_others() -> None:
    refusals = Refusals()
    told = [(second, untold) for second in range(130) if (untold := refusals.count("a", "why", second)) is not None]
    assert told == [(0, 0), (60, 59), (120, 59)]
    assert refusals.count("b", "why", 121) == 0


def test_a_reason_hides_no_other_one() -> None:
    refusals = Refusals()
    assert refusals.count("a", "it has dialled connection 7 already", 0) == 0
    assert refusals.count("a", "it has dialled connection 7 already", 1) is None
    assert refusals.count("a", "it speaks another protocol", 2) == 1
    assert refusals.count("a", "it speaks another protocol", 3) is None


def test_reasons_that_are_new_each_time_are_bounded() -> None:
    refusals = Refusals()
    told = [number for number in range(100) if refusals.count("a", f"connection {number}", number / 100) is not None]
    assert told == list(range(LINES_MAX))
    assert refusals.count("a", "connection 100", 60) == 100 - LINES_MAX


def test_memory_is_bounded() -> None:
    refusals = Refusals()
    for number in range(3 * PEERS_MAX):
        assert refusals.count(str(number), "why" * 10_000, number / 1000) == 0
    assert len(refusals._minutes) == PEERS_MAX
    assert max(len(minute.logged[0]) for minute in refusals._minutes.values()) <= 100
    assert refusals.count(str(3 * PEERS_MAX - 1), "why" * 10_000, 4) is None
