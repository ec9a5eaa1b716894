"""Time in the wiring log: it passes with monotonic clocks, and wall clocks move its calendar late and slowly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import LogTime
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.passing import GAIN, PASS_MS, STEADY_MS, Passing

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
NOW = 1_800_000_000_000


class Log:
    """A map, and the members that order it one after another; each start of one has clocks of its own."""

    def __init__(self) -> None:
        self.map = ClusterMap()

    def order(self, command: c.PassTime | None) -> bool:
        return command is not None and bool(self.map.apply(LogIndex(self.map.applied + 1), command).changes)

    def life(self, wall_ms: int, lasts_ms: int, *, doubted: bool = False, step_ms: int = 10_000) -> None:
        """One start of who orders the log."""
        passing = Passing()
        for passed_ms in range(0, lasts_ms + 1, step_ms):
            passing.look(True, self.map.time, 77 + passed_ms, wall_ms + passed_ms)
            self.order(passing.proposal(77 + passed_ms, wall_ms + passed_ms, doubted))


def test_age_and_calendar_run_with_the_clocks() -> None:
    log = Log()
    log.life(NOW, HOUR)
    assert HOUR <= log.map.time.lived_ms <= HOUR + 1
    assert log.map.time.wall_ms == NOW + HOUR


def test_no_number_of_starts_with_a_clock_ahead_moves_anything_but_by_what_passed() -> None:
    log = Log()
    log.life(NOW, HOUR)
    before = log.map.time
    for start in range(50):
        log.life(NOW + 31 * DAY * start, 5 * MINUTE)
    assert log.map.time.lived_ms - before.lived_ms <= 50 * 5 * MINUTE
    assert log.map.time.wall_ms - before.wall_ms <= 50 * 5 * MINUTE


def test_a_clock_that_stays_ahead_is_followed_late_and_slowly() -> None:
    log = Log()
    log.life(NOW, HOUR)
    log.life(NOW + 365 * DAY, STEADY_MS - MINUTE)
    assert log.map.time.wall_ms <= NOW + HOUR + STEADY_MS
    before = log.map.time.wall_ms
    log.life(NOW + 365 * DAY, STEADY_MS + HOUR)
    assert DAY / 2 < log.map.time.wall_ms - before <= (GAIN + 1) * (HOUR + STEADY_MS)


def test_after_a_night_the_calendar_is_right_again_within_the_hour() -> None:
    log = Log()
    log.life(NOW, HOUR)
    log.life(NOW + 16 * HOUR, HOUR)
    assert log.map.time.wall_ms == NOW + 17 * HOUR


def test_a_calendar_that_began_wrong_comes_back() -> None:
    log = Log()
    log.life(NOW + 2 * DAY, MINUTE)
    log.life(NOW, 4 * HOUR)
    assert log.map.time.wall_ms == NOW + 4 * HOUR


def test_who_is_far_from_the_others_begins_no_calendar_and_turns_none() -> None:
    log = Log()
    log.life(NOW + DAY, 2 * HOUR, doubted=True)
    assert log.map.time.wall_ms == 0
    assert log.map.time.lived_ms >= 2 * HOUR - PASS_MS
    log.life(NOW, HOUR)
    log.life(NOW + DAY, 2 * HOUR, doubted=True)
    assert log.map.time.wall_ms == NOW + 3 * HOUR


def test_a_clock_that_jumps_is_steady_from_then_on() -> None:
    log, passing = Log(), Passing()
    for passed_ms in range(0, HOUR, 10_000):
        wall_ms = NOW + passed_ms + (DAY if passed_ms >= HOUR / 2 else 0)
        passing.look(True, log.map.time, passed_ms, wall_ms)
        log.order(passing.proposal(passed_ms, wall_ms, False))
        if passed_ms < HOUR / 2 + STEADY_MS:
            assert log.map.time.wall_ms <= NOW + passed_ms
    assert log.map.time.wall_ms > NOW + HOUR + 5 * HOUR


def test_two_who_believe_that_they_order_count_once() -> None:
    log, one, other = Log(), Passing(), Passing()
    log.life(NOW, MINUTE)
    for passing in (one, other):
        passing.look(True, log.map.time, 0, NOW)
    first, second = one.proposal(10 * MINUTE, NOW, False), other.proposal(10 * MINUTE, NOW, False)
    assert log.order(first)
    assert not log.order(second)
    assert not log.order(first), "nor does a repetition count"
    assert log.map.time.lived_ms <= 11 * MINUTE + 1


def test_a_word_comes_early_when_something_ends_by_it_and_not_at_all_from_others() -> None:
    passing = Passing()
    assert passing.proposal(0, NOW, False) is None
    passing.look(True, LogTime(5, NOW), 1000, NOW)
    assert passing.proposal(2000, NOW + 1000, False) is None
    assert passing.lived_ms(2000) == 1005
    command = passing.proposal(2000, NOW + 1000, False, wanted=True)
    assert command is not None
    assert (command.after_ms, command.lived_ms, command.wall_ms) == (5, 1005, NOW + 1000)
    passing.look(True, LogTime(1005, NOW + 1000), 3000, NOW)
    assert passing.lived_ms(3000) == 2005, "from the moment of its command"
    passing.look(False, LogTime(1005, NOW + 1000), 4000, NOW)
    assert passing.lived_ms(4000) == 0


def test_how_far_the_calendar_is_behind() -> None:
    passing = Passing()
    assert passing.behind_ms(0, NOW) == 0
    passing.look(True, LogTime(5, NOW), 0, NOW + DAY)
    assert passing.behind_ms(1000, NOW + DAY + 1000) == DAY
    assert passing.behind_ms(1000, NOW - DAY) == 0


@given(
    st.lists(
        st.tuples(
            st.integers(-400 * DAY, 400 * DAY), st.integers(0, 20), st.booleans(), st.sampled_from([1_000, 10_000])
        ),
        max_size=8,
    )
)
def test_the_age_is_never_more_than_what_passed(lives: list[tuple[int, int, bool, int]]) -> None:
    log, passed_ms = Log(), 0
    for ahead_ms, steps, doubted, step_ms in lives:
        before = log.map.time
        log.life(NOW + ahead_ms, steps * step_ms, doubted=doubted, step_ms=step_ms)
        passed_ms += steps * step_ms + 1  # the first command of all must be later than nothing
        assert before.lived_ms <= log.map.time.lived_ms <= passed_ms
        if before.wall_ms:
            assert log.map.time.wall_ms - before.wall_ms <= steps * step_ms
