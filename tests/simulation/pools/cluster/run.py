"""One run: a pool on three nodes is loaded, disturbed and left alone; what was accepted has ended, and all rests."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.pool_entities import PoolSettings

from . import history
from .agents import POOL
from .places import Temper
from .world import World

LOAD_MS: Final = 45_000
CALM_LOAD_MS: Final = 8_000
QUIET_MS: Final = 110_000
"""At most, after the load: both delays, times to live, places that were lost, failures of keys."""
REST_MS: Final = 2_000

Faults = Callable[[World, random.Random], None]


@dataclass(frozen=True, slots=True)
class Report:
    """Course of a run."""

    scenario: str
    requests: int
    accepted: int
    acked: int
    processes: int
    kills: int
    pauses: int
    cuts: int
    commands: int


def controllers(world: World, rng: random.Random) -> None:
    """The controller's node dies or is paused, amid what it does; the log is slow, and changes its leader."""
    world.nodes.slow_ms = rng.choice(((0, 200), (0, 2_000), (500, 5_000)))
    world.nodes.latency_ms = rng.choice((0, 100))
    moments: tuple[Callable[[], bool], ...] = (
        lambda: any(group.moving for group in world.nodes.truth.pools.groups(world.pool.pool_id)),
        lambda: world.nodes.orders(c.RevokeWorkers),
        lambda: world.nodes.orders(c.LaunchWorkers),
        lambda: True,
    )

    def hit() -> None:
        _when(world, rng.choice(moments), strike)

    def strike() -> None:
        name = world.owner(f"{POOL}-orphan") or "a"
        rounds = rng.randrange(12)
        if rng.random() < 0.5:
            world.kill(name, rng.random() < 0.7, rng.randint(1_000, 8_000), rounds)
        else:
            world.pause(name, rng.choice((1_500, 5_000, 9_000)), rounds)

    _again(world, rng, (5_000, 12_000), hit)
    _again(world, rng, (3_000, 9_000), lambda: world.nodes.elect(rng.randint(300, 3_000)))


def owners(world: World, rng: random.Random) -> None:
    """Owners of groups' queues, of answers and of the dead die; links are slow, and are reset."""
    world.nodes.latency_ms = rng.choice((0, 100, 200))

    def hit() -> None:
        queues = [queue.name for queue in world.nodes.truth.queues("/")]
        name = world.owner(rng.choice(queues)) or "b"
        if rng.random() < 0.7:
            world.kill(name, rng.random() < 0.5, rng.randint(1_000, 8_000), rng.randrange(12))
        else:
            world.pause(name, rng.choice((1_500, 5_000)), rng.randrange(12))

    def reset() -> None:
        one, other = rng.sample(sorted(world.nodes.sites), 2)
        world.reset(one, other)

    _again(world, rng, (4_000, 10_000), hit)
    _again(world, rng, (1_000, 5_000), reset)


def places(world: World, rng: random.Random) -> None:
    """A node is cut off, or frozen, for longer than its place is kept; foremen die."""
    name = rng.choice(sorted(world.nodes.sites))
    for_ms = rng.randint(36_000, 42_000)
    at_ms = rng.randint(2_000, 6_000)
    if rng.random() < 0.6:
        world.after(at_ms, lambda: world.cut(name, for_ms))
    else:
        world.after(at_ms, lambda: world.pause(name, for_ms))
    if rng.random() < 0.3:
        _again(world, rng, (8_000, 16_000), lambda: world.sites[rng.choice(sorted(world.sites))].kill())


def shared_place(world: World, rng: random.Random) -> None:
    """All places are one: Pods outlive nodes. A node is cut off for long, or gone for good and forgotten, while it has
    workers; foremen die, and lists are late and wrong."""
    name = rng.choice(sorted(world.nodes.sites))
    at_ms = rng.randint(4_000, 9_000)
    if rng.random() < 0.7:
        world.after(at_ms, lambda: world.lose(name))
    else:
        world.after(at_ms, lambda: world.cut(name, rng.randint(36_000, 42_000)))
    if rng.random() < 0.5:
        _again(world, rng, (8_000, 16_000), lambda: world.sites[rng.choice(sorted(world.sites))].kill())
    for site in world.sites.values():
        site.driver.temper = Temper(lies=rng.choice((0.0, 0.0, 0.1)), late_s=rng.choice((0.0, 1.0, 4.0)))


def rolling(world: World, rng: random.Random) -> None:
    """The template changes, again before all workers are of the version before; nodes are well."""
    _again(world, rng, (6_000, 14_000), world.roll)


def drivers(world: World, rng: random.Random) -> None:
    """Drivers fail, forget, hang, lie and are slow; workers are deaf, or never get ready; foremen die."""

    def temper() -> None:
        world.sites[rng.choice(sorted(world.sites))].driver.temper = Temper(
            slow_s=rng.choice((0.0, 2.0, 9.0)),
            fails=rng.choice((0.0, 0.0, 0.5)),
            forgets=rng.choice((0.0, 0.0, 0.3)),
            unlisted=rng.choice((0.0, 0.3, 1.0)),
            lies=rng.choice((0.0, 0.0, 0.1)),
            late_s=rng.choice((0.0, 1.0, 4.0)),
        )

    world.deaf = rng.choice((0.0, 0.5))
    world.hangs = rng.choice((0.0, 0.2))
    _again(world, rng, (2_000, 8_000), temper)
    for site in world.sites.values():
        site.hears_ms = rng.choice((0, 100, 400))
    _again(world, rng, (6_000, 15_000), lambda: world.sites[rng.choice(sorted(world.sites))].kill())


def hangs(world: World, rng: random.Random) -> None:
    """Nodes are well; some workers never get ready."""
    world.hangs = rng.choice((0.3, 0.5))
    world.checks_waiting = True


def idle(world: World, rng: random.Random) -> None:
    """Little load and short delays: groups come and go; maps lag, clocks differ, owners change."""

    def lag() -> None:
        world.nodes[rng.choice(sorted(world.nodes.sites))].lag_ms = rng.choice((0, 300, 1_500))

    def clock() -> None:
        world.nodes[rng.choice(sorted(world.nodes.sites))].clock_to_ms = rng.randint(-1_000, 1_000)

    world.nodes.slow_ms = rng.choice(((0, 50), (0, 1_500)))
    _again(world, rng, (2_000, 6_000), lag)
    _again(world, rng, (4_000, 9_000), clock)
    if rng.random() < 0.7:
        _again(
            world, rng, (6_000, 12_000),
            lambda: world.kill(_owner_of_a_group(world, rng), rng.random() < 0.7, rng.choice((2_000, 5_000))),
        )  # fmt: skip


def _owner_of_a_group(world: World, rng: random.Random) -> str:
    queues = [queue for queue in world.nodes.truth.queues("/") if "-req-" in queue.name]
    return (rng.choice(queues).owner if queues else None) or "a"


def pauses(world: World, rng: random.Random) -> None:
    """An operator pauses the pool and lets it go on: requests wait among the orphans. Its owner dies meanwhile."""

    world.start_ms = (3_000, 5_000)

    def pause() -> None:
        world.nodes.order(c.PausePool(vhost="/", name=POOL, paused=not world.pool.paused))

    _again(world, rng, (3_000, 12_000), pause)
    if rng.random() < 0.5:
        _again(world, rng, (6_000, 14_000), lambda: world.kill(world.owner(f"{POOL}-orphan") or "a", False, 3_000))


def poison(world: World, rng: random.Random) -> None:
    """Some requests kill who computes them; nodes die as well."""
    world.poison = rng.choice((0.05, 0.2))
    if rng.random() < 0.6:
        owners(world, rng)


def company(world: World, rng: random.Random) -> None:
    """Some requests kill who computes them, and workers hold several; nodes are well."""
    world.poison = 0.1
    world.checks_suspects = True
    world.service = (200, 1_500)


def later(world: World, rng: random.Random) -> None:
    """Most requests are delayed, and their owner, or another one, dies when some are due; keys come and go."""
    world.later = 0.7
    world.nodes.latency_ms = rng.choice((100, 200, 300))

    def due() -> bool:
        name = world.owner(f"amq.delay.{POOL}-delayed")
        entity = world.nodes.truth.queue("/", f"amq.delay.{POOL}-delayed")
        queue = None if name is None or entity is None else world.nodes[name].node.queues.get(entity.queue_id)
        return queue is not None and bool(queue.ring.dead())

    def strike() -> None:
        name = world.owner(rng.choice((f"amq.delay.{POOL}-delayed", f"{POOL}-orphan"))) or "a"
        rounds = rng.randrange(12)
        if rng.random() < 0.7:
            world.kill(name, rng.random() < 0.5, rng.randint(1_000, 8_000), rounds)
        else:
            world.pause(name, rng.choice((1_500, 5_000)), rounds)

    _again(
        world, rng, (3_000, 9_000),
        lambda: _when(world, due, lambda: world.after(rng.randrange(0, 8) * 100, strike)),
    )  # fmt: skip


def operators(world: World, rng: random.Random) -> None:
    """Words about keys, amid long work: workers are retired with what they hold."""
    world.service = (50, 6_000)

    def word() -> None:
        groups = world.nodes.truth.pools.groups(world.pool.pool_id)
        word = rng.choice(("stop", "stop", "stop", "retry", "start", "pin", "unpin"))
        if groups:
            world.nodes.order(c.DirectGroup(vhost="/", name=POOL, key=rng.choice(groups).key, word=word))

    _again(world, rng, (1_000, 4_000), word)


def spares(world: World, rng: random.Random) -> None:
    """The pool keeps spares, more or fewer from time to time, while something else goes wrong."""
    world.want_spares(rng.choice((1, 2, 3)))
    _again(world, rng, (6_000, 15_000), lambda: world.want_spares(rng.randrange(4)))
    rng.choice((controllers, owners, drivers, idle, operators))(world, rng)


def several(world: World, rng: random.Random) -> None:
    """Workers serve three keys, of which there are more, while something else goes wrong."""
    if rng.random() < 0.5:
        world.want_spares(1)
    rng.choice((controllers, owners, drivers, idle, operators))(world, rng)


def several_in_company(world: World, rng: random.Random) -> None:
    """Some requests kill who computes them, and workers have three keys; nodes are well."""
    company(world, rng)


def everything(world: World, rng: random.Random) -> None:
    for faults in rng.sample((controllers, owners, drivers, idle, pauses, poison, operators), 3):
        faults(world, rng)


SCENARIOS: Final[dict[str, Faults]] = {
    faults.__name__: faults
    for faults in (
        controllers,
        owners,
        places,
        shared_place,
        drivers,
        hangs,
        idle,
        pauses,
        poison,
        company,
        operators,
        spares,
        several,
        several_in_company,
        everything,
    )
}


SEVERAL: Final = ("several", "several_in_company")
"""Workers serve several keys."""


SELDOM: Final[dict[str, Faults]] = {faults.__name__: faults for faults in (rolling, later)}
"""When asked for: the choice of a seed among the others is as it was before there were these."""


def _again(world: World, rng: random.Random, between_ms: tuple[int, int], action: Callable[[], None]) -> None:
    """Now and then, until it is calm."""

    def act() -> None:
        if not world.calm:
            action()
            world.after(rng.randint(*between_ms), act)

    world.after(rng.randint(*between_ms), act)


def _when(world: World, moment: Callable[[], bool], action: Callable[[], None], tries: int = 60) -> None:
    """At the moment, or when it does not come."""
    if world.calm:
        return
    if moment() or not tries:
        action()
    else:
        world.after(1, lambda: _when(world, moment, action, tries - 1))


def _settings(rng: random.Random, scenario: str) -> PoolSettings:
    quick = scenario in ("idle", "controllers", "pauses", "spares", "later", "everything")
    return PoolSettings(
        request_ttl_ms=20_000,
        process_timeout_ms=30_000,
        delivery_limit=2,
        unbind_delay_s=rng.choice((0, 1, 2, 4)) if quick else rng.choice((2, 4)),
        stop_delay_s=rng.choice((0, 1)) if quick else rng.choice((0, 3)),
        max=rng.choice((1, 2, 3)),
        max_workers=2 if scenario in SEVERAL else 1000,
        prefetch=3 if scenario == "company" else 1 if scenario in ("poison", "everything") else rng.choice((1, 1, 3)),
        start_timeout_s=6,
        start_failures_max=3,
        grace_s=rng.choice((1, 3)),
    )


def _load(world: World, rng: random.Random, scenario: str) -> Callable[[], None]:
    """Begins; the returned ends it."""
    sparse = scenario in ("idle", "controllers", "pauses", "later")
    counts = (4, 6) if sparse else (5, 9) if scenario in SEVERAL else (2, 3, 5)
    keys = [f"k{number}" for number in range(rng.choice(counts))]
    pace_ms = rng.choice((500, 1_000)) if sparse else rng.choice((250, 600, 1_200))
    by_name = 0.4 if scenario in ("idle", "everything") else 0.0
    ended = [False]

    def call() -> None:
        if ended[0]:
            return
        for _ in range(rng.choice((1, 1, 1, 4))):
            expiration_ms = rng.choice((0, 5_000)) if scenario == "pauses" else rng.choice((0, 0, 0, 5_000))
            caller = rng.choice(world.callers)
            caller.call(rng.choice(keys), rng.random() < world.poison, expiration_ms, rng.random() < by_name)
        world.after(rng.expovariate(1 / pace_ms), call)

    def end() -> None:
        ended[0] = True

    world.after(0, call)
    return end


def run(seed: int, scenario: str | None = None) -> Report:
    """Live one seed; raises Violation."""
    rng = random.Random(f"pool cluster {seed}")
    name = scenario or rng.choice(sorted(SCENARIOS))
    settings, keys = _settings(rng, name), 3 if name in SEVERAL else 1
    world = World(
        seed, settings, places=rng.choice((2, 4, 8)), keys_per_worker=keys, shared=name == shared_place.__name__
    )
    try:
        world.run(1_000)
        stop = _load(world, rng, name)
        {**SCENARIOS, **SELDOM}[name](world, rng)
        if random.Random(f"rolls {seed}").random() < 0.1:  # one of its own: other runs are those of before
            world.after(LOAD_MS // 3, world.roll)
        world.run(LOAD_MS)
        world.heal()
        world.run(CALM_LOAD_MS)
        world.poison = 0.0
        stop()
        _rest(world)
        world.checkers.rest()
        world.read_answers()
        world.checkers.ends()
        history.check(world, world.read_events())
    finally:
        world.end()
    accepted = sum(request.confirmed for request in world.requests)
    counts = world.counts
    return Report(
        name, len(world.requests), accepted, counts["acked"], counts["processes"], counts["kills"], counts["pauses"],
        counts["cuts"], len(world.nodes.log),
    )  # fmt: skip


def _rest(world: World) -> None:
    """Until the pool is empty, and a little longer."""
    end_ms = world.now_ms + QUIET_MS
    pools = world.nodes.truth.pools
    while world.now_ms < end_ms:
        world.run(1_000)
        world.forget_ended()
        pool_id = world.pool.pool_id
        late = any(each.published_ms + each.ttl_ms > world.now_ms for each in world.requests[-50:])
        late = late or world.delayed()
        left = [launch for launch in pools.launches(pool_id) if not launch.spare]
        if not pools.groups(pool_id) and not left and not late and len(world.processes) == pools.spares(pool_id):
            break
    world.run(REST_MS)
