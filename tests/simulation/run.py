"""One seed: found a cluster, let things go wrong while clients work, heal, and see that all is as it must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from clusterbroker.cluster.ids import QueueId
from tests.simulation.checkers import Violation
from tests.simulation.checkers.history import Mistake
from tests.simulation.faults import Faults, undrain
from tests.simulation.site import Site
from tests.simulation.world import World

DECLARED_S = 15.0
CONVERGED_S = 30.0
REPAIR_S = 12.0
"""By then whatever another copy can mend is mended."""
RETRIED_S = 70.0
"""So much longer it takes where rows wait for room in a queue that has refused them: a minute between two trials."""


@dataclass
class Report:
    """What a run did."""

    seed: int
    simulated_s: float
    events: int
    trace: int
    counts: Counter[str]


class Failure(Exception):
    """A seed and what it found."""

    def __init__(self, seed: int, at_s: float, what: str) -> None:
        super().__init__(f"seed {seed} at {at_s:.3f} s: {what}")


def run(
    seed: int,
    *,
    seconds: float = 20.0,
    only: tuple[str, ...] = (),
    nodes: int | None = None,
    raft: bool | None = None,
    pipeline: Collection[str] | None = None,
    tamper: Callable[[World], object] | None = None,
    edges: bool = True,
    journal: bool | None = None,
) -> Report:
    """Raises Failure. `raft`: by the real wiring log, or by an atomic one; None: by Raft in every fourth seed.
    `pipeline`: what it has of `workload.PIPELINE`; None: as its seed says.

    `journal`: on the real journal, or on the model of one; None: one seed in ten is on the real one.

    `only`: the faults that may happen; `edges`: also those of edges.py; `tamper` sees the world before it turns."""
    world = World(seed, nodes, seed % 4 == 0 if raft is None else raft, pipeline, journal)
    try:
        if tamper is not None:
            tamper(world)
        _run(world, seconds, only, edges)
    except Mistake as mistake:
        error = mistake.error
        raise Failure(seed, world.schedule.now_s, f"{type(error).__name__} {error}") from error
    except (Exception, Violation) as error:
        name = "" if isinstance(error, Violation) else f"{type(error).__name__} "
        raise Failure(seed, world.schedule.now_s, f"{name}{error}") from error
    finally:
        world.end()
    schedule = world.schedule
    return Report(seed, schedule.now_s, schedule.events, schedule.trace, schedule.counts)


def _run(world: World, seconds: float, only: tuple[str, ...], edges: bool) -> None:
    schedule = world.schedule
    faults = Faults(world, only, edges)
    while not world.started:
        schedule.run_until(schedule.now_s + 0.2)
        if schedule.now_s > DECLARED_S:
            raise Violation("liveness: the queues are not declared")
    faults.begin()
    schedule.run_until(schedule.now_s + seconds)
    faults.active = False
    conclude(world)


def conclude(world: World) -> None:
    """Heals, and sees that all is as it must be."""
    schedule = world.schedule
    heal(world)
    deadline_s = schedule.now_s + CONVERGED_S
    if "batches" in world.pipeline and "full" in world.kinds:
        deadline_s += RETRIED_S
    repair_s = schedule.now_s + REPAIR_S
    missing = "everything"
    while missing:
        if schedule.now_s > deadline_s:
            raise Violation(f"I18Convergence: {missing}")
        schedule.run_until(schedule.now_s + 0.5)
        if schedule.now_s >= repair_s:
            repair(world)
            repair_s = float("inf")
        undrain_all(world)
        missing = world.checkers.convergence.missing()
    schedule.run_until(schedule.now_s + 0.5)
    world.checkers.ended()
    maps = [site.wiring.map for site in world.sites.values()]
    while len({each.applied for each in maps}) > 1:  # a command is on its way to some of them
        if schedule.now_s > deadline_s:
            raise Violation("I18Convergence: the nodes are not at the same command at the end")
        schedule.run_until(schedule.now_s + 0.01)
        maps = [site.wiring.map for site in world.sites.values()]
    digests = {each.digest() for each in maps}
    if len(digests) != 1:
        raise Violation(f"I14SameMaps: {len(digests)} maps at the end")


def undrain_all(world: World) -> None:
    """No member drains any more. (The order of the fault that began it may have been lost, or be late itself.)"""
    for member in world.newest_map.members():
        undrain(world, member.name)


def repair(world: World) -> None:
    """A message that cannot be read at the one node that has it is held back, and said to be: its disk is mended. (The
    last owner had written that it left, and that was never committed.)"""
    for site in tuple(world.sites.values()):
        lone = [one for one in site.journal.rotten.values() if _counts_at(world, *one) == [site.name]]
        if lone and site.node is not None:
            for queue_id, seq in lone:
                if seq not in site.node.damages.held_back(queue_id):
                    raise Violation(
                        f"damage: {seq} of queue {queue_id} cannot be read at {site.name}, and nobody says so"
                    )
            world.schedule.counts["held back"] += len(lone)
            _mend(site)
        elif _only_stream_rots(world, site):
            _mend(site)


def _only_stream_rots(world: World, site: Site) -> bool:
    """Whether a stream has a file with damage here, and nobody else has all of it."""
    streams = site.journal.streams
    queue = world.newest_map.queue_by_id(QueueId(streams.rots)) if streams is not None and streams.rots else None
    return queue is not None and {*queue.in_sync, *queue.eligible} == {site.name}


def _mend(site: Site) -> None:
    site.kill()
    site.journal.mend()
    site.start()


def _counts_at(world: World, queue_id: int, seq: int) -> list[str]:
    """Who has the message. A copy that is not in sync, and has it still, mends nobody's."""
    queue = world.newest_map.queue_by_id(QueueId(queue_id))
    counted = {*queue.in_sync, *queue.eligible} if queue is not None else set()
    names = [site.name for site in world.sites.values() if seq in site.journal.live.get(queue_id, ())]
    return [name for name in names if name in counted] or names


def heal(world: World) -> None:
    """The last fault is over."""
    world.healed = world.quiet = True
    world.network.heal()
    world.network.late_share = 0.0
    for site in world.sites.values():
        site.journal.delay_s = 0.0
        if site.paused_until_s is not None:
            site._resume(site.life)
        if site.node is not None:
            site.do(site.life, site.node.set_alarm, "disk", False)
        world.schedule.after(0.1, site.start)
