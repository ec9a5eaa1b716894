"""One run: a pool is made from the seed, loaded, disturbed, left alone, and must be at rest at the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clusterbroker.broker.pools.facts import Settings

from .checkers import require
from .world import Driver, Nature, World

QUIET_S: Final = 2_400.0
"""After the load: the longest wait of all (TTL), both delays, back-offs and trials."""

Load = Callable[[World, random.Random], float]
"""Plans the load of a world; the time at which it ends."""


@dataclass(frozen=True, slots=True)
class Report:
    """Course of a run."""

    scenario: str
    accepted: int
    acked: int
    launches: int
    evictions: int
    fails: int
    steps: int


def steady(world: World, rng: random.Random) -> float:
    for number in range(rng.randint(1, 6)):
        rate, key = rng.choice((0.2, 2.0, 20.0)), f"k{number}"
        world.natures[key] = Nature(rng.uniform(0.5, 8), rng.uniform(0.02, 2), rng.randint(40, 160))
        _arrivals(world, rng, key, 0, 240, lambda _time_s, rate=rate: rate)  # type: ignore[misc]
    return 240


def ramp(world: World, rng: random.Random) -> float:
    world.natures["ramp"] = Nature(rng.uniform(1, 6), rng.uniform(0.05, 0.5))
    _arrivals(world, rng, "ramp", 0, 300, lambda time_s: 0.2 + time_s / 300 * 20)
    return 300


def burst(world: World, rng: random.Random) -> float:
    world.natures["burst"] = Nature(rng.uniform(1, 10), rng.uniform(0.05, 0.4))
    for _ in range(rng.randint(1, 4)):
        world.at(rng.uniform(0, 240), lambda: world.publish("burst", rng.randint(50, 800)))
    return 240


def many_keys(world: World, rng: random.Random, count: int = 150) -> float:
    """Each once. With a count of 1,000: `test_a_thousand_keys_once`."""
    world.default = Nature(1.0, 0.05, 20)
    for number in range(count):
        world.at(rng.uniform(0, 5), lambda number=number: world.publish(f"key {number}"))  # type: ignore[misc]
    return 5


def one_hot_key(world: World, rng: random.Random) -> float:
    """More load than all places bear on one key, and some keys that are wanted now and then."""
    world.natures["hot"] = Nature(2.0, 1.0, 100)
    _arrivals(world, rng, "hot", 0, 300, lambda _time_s: 12.0)
    for number in range(rng.randint(2, 12)):
        key = f"cold{number}"
        world.natures[key] = Nature(rng.uniform(1, 6), rng.uniform(0.1, 3), rng.randint(60, 300))
        _arrivals(world, rng, key, 20, 300, lambda _time_s: 0.05)
    return 300


def periodic(world: World, rng: random.Random) -> float:
    """Load that comes and goes within the window."""
    period_s = rng.choice((15.0, 25.0, 40.0))
    world.natures["wave"] = Nature(1.0, 0.5)
    _arrivals(world, rng, "wave", 0, 400, lambda time_s: 14.0 if time_s % period_s < period_s / 3 else 0.05)
    return 400


def poison(world: World, rng: random.Random) -> float:
    """Keys whose messages kill, and keys that never start."""
    for number in range(rng.randint(1, 5)):
        key = f"k{number}"
        world.natures[key] = Nature(1.0, 0.1, 80, fails=rng.choice((0, 0, 1.0, 0.5)), poison=rng.choice((0, 0.1, 1.0)))
        _arrivals(world, rng, key, 0, 300, lambda _time_s: 0.5)
    return 300


def long_work(world: World, rng: random.Random) -> float:
    """Computations that last longer than both delays."""
    for number in range(rng.randint(1, 4)):
        world.natures[f"long{number}"] = Nature(2.0, rng.uniform(100, 250), 100)
        world.at(rng.uniform(0, 60), lambda number=number: world.publish(f"long{number}", 2))  # type: ignore[misc]
    return 60


def growing_keys(world: World, rng: random.Random) -> float:
    """Keys that take more memory than their template says, one after the other, again and again."""
    for number in range(12):
        world.natures[f"big{number}"] = Nature(rng.uniform(1, 4), 0.2, rng.randint(150, 450))
    for time_s in range(0, 600, 6):
        world.at(time_s, lambda: world.publish(f"big{rng.randrange(12)}"))
    return 600


def two_tenants(world: World, rng: random.Random) -> float:
    """One has few keys that start slowly, one many that start fast; both always have some that wait."""
    world.fairness = {"slow", "fast"}
    for tenant, start_s in (("slow", 12.0), ("fast", 2.0)):
        for number in range(60):
            key = f"{tenant}{number}"
            world.natures[key] = Nature(start_s, 0.5, 100, tenant=tenant)
            world.policy.costs.learn_start(key, start_s)
            world.at(rng.uniform(0, 1), lambda key=key: world.publish(key))  # type: ignore[misc]
    return 1


def rolling(world: World, rng: random.Random) -> float:
    """Load under which the template changes, again before all workers are of the version before."""
    for number in range(rng.randint(1, 4)):
        rate, key = rng.choice((0.2, 2.0, 20.0)), f"k{number}"
        world.natures[key] = Nature(rng.uniform(0.5, 8), rng.uniform(0.02, 1), rng.randint(40, 160))
        _arrivals(world, rng, key, 0, 360, lambda _time_s, rate=rate: rate)  # type: ignore[misc]
    for number in range(2, 2 + rng.randint(1, 3)):
        world.at(rng.uniform(30, 300), lambda number=number: _set_version(world, f"v{number}"))  # type: ignore[misc]
    return 360


LOADS: Final[dict[str, Load]] = {
    load.__name__: load
    for load in (
        steady, ramp, burst, many_keys, one_hot_key, periodic, poison, long_work, growing_keys, two_tenants, rolling,
    )
}  # fmt: skip


def _arrivals(
    world: World, rng: random.Random, key: str, begin_s: float, end_s: float, rate: Callable[[float], float]
) -> None:
    """A Poisson stream whose rate changes with time."""
    time_s = begin_s + rng.random()
    while time_s < end_s:
        world.at(time_s, lambda: world.publish(key))
        time_s += rng.expovariate(max(rate(time_s), 0.01))


def _driver(rng: random.Random, calm: bool) -> Driver:
    if calm:
        return Driver()
    temper = rng.choice(("calm", "slow", "fails", "dies", "forgets", "doubles"))
    return Driver(
        slow_s=rng.uniform(1, 20) if temper == "slow" else 0.0,
        fails=rng.choice((0.2, 1.0)) if temper == "fails" else 0.0,
        dies=0.5 if temper == "dies" else 0.0,
        forgets=0.2 if temper == "forgets" else 0.0,
        doubles=0.5 if temper == "doubles" else 0.0,
    )


def run(seed: int, scenario: str | None = None, calm: bool = False) -> Report:
    """Live one seed; raises Violation."""
    rng = random.Random(seed)
    name = scenario or rng.choice(sorted(LOADS))
    fair = name == "two_tenants"
    settings = Settings(
        min=0 if fair or name in ("one_hot_key", "growing_keys", "many_keys") else rng.choice((0, 0, 0, 1)),
        max=rng.choice((1, 4, 8, 16)) if name not in ("periodic", "burst", "ramp") else rng.choice((8, 16)),
        prefetch=rng.choice((1, 1, 4)),
        target_wait_s=rng.choice((1.0, 5.0)),
        service_s=rng.choice((0.1, 1.0)),
        memory=100,
        start_timeout_s=30.0,
        grace_s=rng.choice((5.0, 30.0)),
        starve_s=1e9 if fair else 30.0,
        eager=rng.random() < 0.2,
        scale_to_zero_while_bound=rng.random() < 0.3,
        rolling=name != "rolling" or rng.random() < 0.9,
        surge=rng.choice((0, 1, 1, 3)) if name == "rolling" else 1,
        max_workers=random.Random(f"{seed} workers").choice((5_000, 5_000, 5_000, 3, 6)),
    )
    world = World(
        seed,
        settings,
        unbind_s=70.0 if name == "periodic" else rng.choice((10.0, 60.0)),
        stop_s=rng.choice((0.0, 30.0)),
    )
    quiet = calm or fair
    for number in range(rng.randint(1, 4)):
        capacity = 500 if fair else rng.choice((500, 1_000, 2_000))
        world.add_place(f"p{number}", capacity, _driver(rng, quiet))
    end_s = LOADS[name](world, rng)
    if not quiet:
        _disturb(world, rng, end_s)
    world.run(end_s)
    for place in world.places.values():  # the load ends, and with it what goes wrong
        place.driver = Driver(slow_s=place.driver.slow_s)
        place.alarm = False
    world.wake()
    world.run(end_s + QUIET_S * (4 if name in ("many_keys", "two_tenants", "one_hot_key") else 1))
    world.checkers.rest()
    counts = world.counts
    ended = counts["acked"] + counts["delivery_limit"] + counts["start_failed"] + counts["expired"]
    require(ended == counts["accepted"], f"I1: {counts['accepted']} accepted, {ended} ended: {dict(counts)}")
    return Report(
        name, counts["accepted"], counts["acked"], counts["launches"], counts["evictions"], counts["fails"], world.steps
    )


def _disturb(world: World, rng: random.Random, end_s: float) -> None:
    """Places that are lost and come back, short of memory, and a new version of the template."""
    names = sorted(world.places)
    for _ in range(rng.choice((0, 0, 1, 3))):
        time_s, name, back_s = rng.uniform(1, end_s + 1), rng.choice(names), rng.uniform(40, 120)
        world.at(time_s, lambda name=name, back_s=back_s: world.lose_place(name, back_s))  # type: ignore[misc]
    if rng.random() < 0.3:
        world.at(rng.uniform(0, end_s), lambda: _set_version(world, "v2"))
    if rng.random() < 0.2:
        world.at(rng.uniform(0, end_s), lambda: _alarm(world, rng.choice(names)))


def _set_version(world: World, version: str) -> None:
    world.version = version
    world.wake()


def _alarm(world: World, name: str) -> None:
    world.places[name].alarm = True
    world.wake()
