"""One run: found a cluster, let things go wrong while nodes propose, heal, and see that all is as it must be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.raft import outbox
from clusterbroker.cluster.wiring import commands as c

from .checkers import require
from .world import World, observe_journals


@dataclass
class Report:
    """What a run did."""

    succeeded: int
    unknown: int
    terms: int
    crashes: int
    entries: int


def run(
    seed: int,
    *,
    span_s: float = 12.0,
    tamper: Callable[[World], None] | None = None,
    only: tuple[str, ...] = (),
) -> Report:
    """Run a seed; raises Violation. `tamper` seeds a bug; `only`: the faults that may happen, all if empty."""
    founders = 3 if seed % 4 else 5
    world = World(seed, founders=founders, joiners=2, snapshot_every=(40, 15, 400)[seed % 3])
    stop = observe_journals(world)
    batch_bytes = outbox.BATCH_BYTES_MAX
    outbox.BATCH_BYTES_MAX = world.rng.choice((500, 2_000, batch_bytes))  # type: ignore[misc]
    try:
        return _run(world, span_s, tamper, only or EVERY_FAULT)
    finally:
        outbox.BATCH_BYTES_MAX = batch_bytes  # type: ignore[misc]
        stop()


EVERY_FAULT = (
    *("crash", "crash", "crash_in_disk", "crash_all", "reset", "reset", "partition", "one_way", "isolate_leader"),
    *("lag", "lag", "pause", "pause_leader", "join", "slow", "compact", "replace"),
)


def _run(world: World, span_s: float, tamper: Callable[[World], None] | None, only: tuple[str, ...]) -> Report:
    if tamper is not None:
        tamper(world)
    for founder in world.founders:
        world.nodes[founder.name].start()
    faults = Faults(world, only)
    world.at(world.now_s, faults.connect)
    if world.rng.random() < 0.5:  # else faults may hit the founding
        require(world.run_until(lambda: world.leader is not None, 10), "liveness: no first leader")
    faults.active = True
    faults.next_fault()
    faults.next_proposal()
    world.run_for(span_s)
    faults.active = False
    _heal(world)
    _check_end(world)
    leader = world.leader
    assert leader is not None, "checked before"
    return Report(
        len(world.checkers.succeeded), world.checkers.unknown, leader.term, faults.crashes, int(leader.applied)
    )


def _heal(world: World) -> None:
    world.heal()
    world.lag.clear()
    for name, node in world.nodes.items():
        if node.disks:
            node.disk.crash_after = None
        if node.log is None and (name in {f.name for f in world.founders} or node.disks):
            node.start()

    def quiet() -> bool:
        logs = [node.log for node in world.nodes.values() if node.log is not None]
        return world.leader is not None and all(log.pending == 0 for log in logs)

    require(world.run_until(quiet, 40), "liveness: proposals stay open after healing")
    names: list[str] = []
    for name, node in world.nodes.items():
        if node.log is not None and (vhost := world.propose(name)) is not None:
            names.append(vhost)
    known = world.checkers.succeeded
    require(world.run_until(lambda: all(name in known for name in names), 10), "liveness: no success after healing")


def _check_end(world: World) -> None:
    logs = [node.log for node in world.nodes.values() if node.log is not None]
    world.run_until(lambda: len({log.map.applied for log in logs}) == 1, 5)
    digests = {log.map.digest() for log in logs}
    require(len(digests) == 1, f"state machine equality: {len(digests)} maps at the end")
    for name in world.checkers.succeeded:
        require(logs[0].map.vhost(name) is not None, f"lost: {name} was answered with success")
    require(len({log.voters for log in logs}) == 1, "membership: nodes know different voters at the end")


class Faults:
    """What goes wrong, one thing after another."""

    def __init__(self, world: World, only: tuple[str, ...]) -> None:
        self.world = world
        self.only = only
        self.active = False
        self.crashes = 0
        self._silent: dict[str, float] = {}

    def connect(self) -> None:
        self.world.connect()
        self._fail_dead()
        self.world.at(self.world.now_s + 0.02 + self.world.rng.random() * 0.1, self.connect)

    def next_proposal(self) -> None:
        world = self.world
        if self.active:
            for _ in range(world.rng.choice((1, 1, 1, 5))):
                world.propose(world.rng.choice(sorted(world.nodes)))
            world.at(world.now_s + world.rng.random() * 0.06, self.next_proposal)

    def next_fault(self) -> None:
        world = self.world
        if not self.active:
            return
        getattr(self, world.rng.choice(self.only))()
        world.at(world.now_s + world.rng.random() * 0.9, self.next_fault)

    def _up(self) -> list[str]:
        return sorted(name for name, node in self.world.nodes.items() if node.log is not None)

    def _back(self, name: str, after_s: float) -> None:
        def start() -> None:
            if self.world.nodes[name].log is None:
                self.world.nodes[name].start()

        self.world.at(self.world.now_s + after_s, start)

    def crash(self) -> None:
        if up := self._up():
            self._crash(self.world.rng.choice(up))

    def _crash(self, name: str) -> None:
        self.crashes += 1
        self.world.nodes[name].die()
        self._back(name, self.world.rng.random() * 2.5)

    def crash_in_disk(self) -> None:
        if up := self._up():
            name = self.world.rng.choice(up)
            self.crashes += 1
            self.world.nodes[name].disk.crash_after = self.world.rng.randrange(1, 6)
            self._back(name, 0.5 + self.world.rng.random() * 2)

    def crash_all(self) -> None:
        for name in self._up():
            self._crash(name)

    def reset(self) -> None:
        up = self._up()
        if len(up) >= 2:
            self.world.reset(*self.world.rng.sample(up, 2))

    def partition(self) -> None:
        names = sorted(self.world.nodes)
        self.world.rng.shuffle(names)
        half = names[: self.world.rng.randrange(1, len(names))]
        self._cut([(a, b) for a, b in itertools.permutations(names, 2) if (a in half) != (b in half)])

    def one_way(self) -> None:
        one, other = self.world.rng.sample(sorted(self.world.nodes), 2)
        self._cut([(one, other)])

    def isolate_leader(self) -> None:
        leader = self.world.leader
        if leader is not None:
            self._cut([(a, b) for a, b in itertools.permutations(sorted(self.world.nodes), 2) if leader.name in (a, b)])

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.world.cut(*pair)
        self.world.at(self.world.now_s + 0.2 + self.world.rng.random() * 2.5, self.world.heal)

    def lag(self) -> None:
        """For a while nothing arrives in one direction, and then all of it."""
        pair = self.world.rng.sample(sorted(self.world.nodes), 2)
        self.world.lag[pair[0], pair[1]] = self.world.now_s + self.world.rng.random() * 4

    def pause(self) -> None:
        """SIGSTOP, SIGCONT."""
        if up := self._up():
            self._pause(self.world.rng.choice(up))

    def pause_leader(self) -> None:
        if (leader := self.world.leader) is not None:
            self._pause(leader.name)

    def _pause(self, name: str) -> None:
        """Not twice at a time: what waits for the first's end would be overtaken by what waits for the second's."""
        node, until_s = self.world.nodes[name], self.world.now_s + self.world.rng.random() * 3
        if node.paused_until_s <= self.world.now_s:
            node.paused_until_s = until_s

    def slow(self) -> None:
        self.world.slowness_s = self.world.rng.choice((0.001, 0.01, 0.05, 0.3))

    def compact(self) -> None:
        for name in self._up():
            log = self.world.nodes[name].log
            if log is not None and log._core is not None and self.world.rng.random() < 0.5:
                log._core.compact()

    def join(self) -> None:
        """A new member: somebody adds it to the map, it starts with an empty disk."""
        world = self.world
        unused = [name for name in world.joiners if world.nodes[name].disks == 0]
        if unused and (leader := world.leader) is not None:
            node = world.nodes[unused[0]]
            owner = world.nodes[leader.name]
            command = c.AddMember(name=node.name, address=f"{node.name}:1")
            owner.run(owner.life, lambda: leader.propose(command))
            node.format(None)
            node.start()

    def replace(self) -> None:
        """A member loses its disk and comes back with an empty one, if a majority of the others is there."""
        world = self.world
        up = self._up()
        leader = world.leader
        if leader is None or len(up) < len([n for n in world.nodes.values() if n.disks]) or world.rng.random() < 0.5:
            return
        name = world.rng.choice([name for name in up if name != leader.name])
        voters = leader._core.voters if leader._core is not None else ()
        if any(other.disks > 1 and f"{n}/{n}{other.disks}" not in voters for n, other in sorted(world.nodes.items())):
            return
        self.crashes += 1
        node = world.nodes[name]
        node.die()
        node.format(None)
        self._back(name, world.rng.random() * 2)

    def _fail_dead(self) -> None:
        """What liveness does: the leader proposes to fail a member that is dead for long."""
        world = self.world
        leader = world.leader
        if leader is None:
            return
        for name in world.nodes:
            member = leader.map.member(NodeId(name))
            if member is None or not member.alive:
                continue
            linked = name == leader.name or (leader.name, name) in world._links
            if linked:
                self._silent.pop(name, None)
                continue
            since_s = self._silent.setdefault(name, world.now_s)
            if world.now_s - since_s > 1.0:
                self._silent.pop(name)
                owner = world.nodes[leader.name]
                command = c.FailNode(node=NodeId(name), incarnation=member.incarnation)
                owner.run(owner.life, lambda: leader.propose(command))  # noqa: B023
