"""The node's time never jumps, and finds its way to the wall clock."""

from clusterbroker.broker.server.clock import Clock

S = 1_000_000_000


class World:
    def __init__(self) -> None:
        self.wall = 1_700_000_000 * S
        self.monotonic = 5 * S

    def pass_s(self, seconds: float) -> None:
        self.wall += int(seconds * S)
        self.monotonic += int(seconds * S)


def clock_in(world: World) -> Clock:
    return Clock(lambda: world.wall, lambda: world.monotonic)


def test_starts_at_the_wall_clock_and_runs_with_it() -> None:
    world = World()
    clock = clock_in(world)
    assert clock.now_ms() == 1_700_000_000_000
    world.pass_s(12.5)
    clock.lead()
    assert clock.now_ms() == 1_700_000_012_500


def test_a_clock_set_forward_is_followed_slowly() -> None:
    world = World()
    clock = clock_in(world)
    world.wall += 3600 * S
    before = clock.now_ms()
    told = []
    for _ in range(10):
        world.pass_s(0.5)
        told.append(clock.lead())
    assert told == [3600.0, *[0.0] * 9], "a jump is told once"
    assert clock.jumps == 1, "and counted once"
    assert 5_400 <= clock.now_ms() - before <= 5_600, "5 s passed, and a tenth of them on top"


def test_a_clock_set_back_never_makes_time_go_back() -> None:
    world = World()
    clock = clock_in(world)
    world.wall -= 60 * S
    last = clock.now_ms()
    for number in range(2000):
        world.pass_s(0.5)
        assert clock.lead() == (0.0 if number else -60.0)
        assert clock.now_ms() > last
        last = clock.now_ms()
    assert abs(last - world.wall // 1_000_000) <= 1, "after 1,000 s it has caught up"


def test_an_error_of_a_millisecond_is_taken_back_at_once() -> None:
    world = World()
    clock = clock_in(world)
    world.wall += S // 1000
    world.pass_s(0.5)
    assert clock.lead() == 0.0
    assert clock.now_ms() == world.wall // 1_000_000
