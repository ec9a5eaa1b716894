"""A cluster of RaftLogs in one process and in virtual time: links that break, disks that forget, nodes that die.

Everything that happens follows from the seed: which message takes how long, what fails and when, what a disk keeps.
A link keeps order and repeats nothing, as TCP does; a fault resets it and loses what was under way.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from clusterbroker.cluster.ids import Incarnation, NodeId
from clusterbroker.cluster.raft import identity
from clusterbroker.cluster.raft.journal import Journal
from clusterbroker.cluster.raft.messages import encode
from clusterbroker.cluster.raft.raft_log import RaftLog
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import Applied

from .checkers import Checkers, Violation, require
from .sim_disk import Crash, SimDisk

TICK_S = 0.03


class SimNode:
    """A node over its lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = NodeId(name)
        self.disks = 0
        self.disk: SimDisk
        self.log: RaftLog | None = None
        self.life = 0
        self.highest = 0
        self.registering = False
        self.incarnation = 0
        self.paused_until_s = 0.0

    def format(self, founders: list[identity.Founder] | None) -> None:
        """A new disk: of a founder, or of somebody who joins."""
        self.disks += 1
        self.disk = SimDisk(f"{self.name}.{self.disks}", self.world.rng)
        self.highest = 0
        if founders is None:
            identity.join(self.disk, self.name, f"{self.name}{self.disks}")
        else:
            identity.found(self.disk, self.name, f"{self.name}{self.disks}", founders)

    def start(self) -> None:
        self.life += 1
        world, life = self.world, self.life
        self.registering = False
        self.incarnation = 0
        self.paused_until_s = 0.0

        def soon(call: Callable[[], object]) -> None:
            world.at(world.now_s + world.rng.random() * 0.0002, lambda: self.run(life, call))

        def failed(error: Exception) -> None:
            raise Violation(f"{self.name} stopped: {error}")

        def diverged(peer: str, first: int, differs: bool) -> None:
            raise Violation(f"{self.name} and {peer} differ in what came of the commands from {first} on: {differs}")

        try:
            self.log = ObservedLog(
                self,
                self.disk,
                now_s=world.now_s,
                chance=world.rng.random,
                send=lambda peer, head: world.send(self.name, peer, encode(head)),
                call_soon=soon,
                on_failure=failed,
                on_diverged=diverged,
                snapshot_every=world.snapshot_every,
            )
        except Crash:
            self.die()
            return
        self.log.listen(self.heard)
        self.tick(life)

    def heard(self, applied: Applied) -> None:
        if isinstance(applied.command, c.AddVhost) and applied.ok:
            self.world.checkers.told(self.name, applied.command.name, applied.index)

    def run(self, life: int, call: Callable[[], object]) -> None:
        """Do something as this node, if it is still in that life; its death inside is its death."""
        if life != self.life or self.log is None:
            return
        if self.paused_until_s > self.world.now_s:
            self.world.at(self.paused_until_s, lambda: self.run(life, call))
            return
        try:
            self.log.advance(self.world.now_s)
            call()
        except Crash:
            self.die()
            return
        log = self.log
        if log is not None and log._core is not None:
            self.highest = max(self.highest, log.applied)
            if log.is_leader:
                self.world.checkers.leads(self.name, log.term, log._core.journal)

    def tick(self, life: int) -> None:
        def once() -> None:
            assert self.log is not None
            if self.world.now_s >= self.log.next_tick_s:
                self.log.tick(self.world.now_s)
            self.register()

        self.run(life, once)
        if self.life == life and self.log is not None:
            self.world.at(self.world.now_s + TICK_S, lambda: self.tick(life))

    def register(self) -> None:
        """Do as a node does: propose to be alive, in an incarnation of one's own."""
        log = self.log
        assert log is not None
        member = log.map.member(self.name)
        if self.registering or member is None or (member.alive and member.incarnation == self.incarnation):
            return
        self.registering = True
        self.incarnation = Incarnation(max(member.incarnation, self.incarnation) + 1)

        def done(_: Applied) -> None:
            self.registering = False

        log.propose(
            c.RegisterNode(
                node=self.name,
                disk_id=f"{self.name}{self.disks}",
                incarnation=Incarnation(self.incarnation),
                address=f"{self.name}:1",
                level=LEVEL,
            ),
            done,
        )

    def die(self) -> None:
        """kill -9, or the power."""
        self.log = None
        self.life += 1
        self.disk.crash()
        self.world.links_of_dead(self.name)


class ObservedLog(RaftLog):
    """A RaftLog that shows what it applies to the checkers."""

    def __init__(self, node: SimNode, disk: SimDisk, **options: Any) -> None:
        self._node = node
        super().__init__(disk, **options)

    def apply(self, index: int, entry: bytes) -> None:
        checkers = self._node.world.checkers
        checkers.applied(self._node.name, self.term, index, entry)
        super().apply(index, entry)
        if index % 7 == 0:
            checkers.state(self._node.name, index, self._fold.map.digest())


class World:
    """Nodes, links, time, and the faults of a run."""

    def __init__(self, seed: int, *, founders: int = 3, joiners: int = 2, snapshot_every: int = 60) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1.0
        self.snapshot_every = snapshot_every
        self.checkers = Checkers()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._links: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._link_numbers = itertools.count(1)
        self._cut: set[tuple[str, str]] = set()
        self.lag: dict[tuple[str, str], float] = {}
        """Until when nothing arrives in this direction, though nothing is lost."""
        self.refusing = True
        """A dead process refuses connections, and its peers tell."""
        names = [chr(ord("a") + i) for i in range(founders + joiners)]
        self.founders = [identity.Founder(NodeId(name), f"{name}:1") for name in names[:founders]]
        self.nodes = {name: SimNode(self, name) for name in names}
        for name in names[:founders]:
            self.nodes[name].format(self.founders)
        self.joiners = names[founders:]

    # ---- time ----

    def at(self, when_s: float, call: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), call))

    def run_for(self, span_s: float) -> None:
        end_s = self.now_s + span_s
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        self.now_s = end_s

    def run_until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        end_s = self.now_s + limit_s
        while not condition():
            if self.now_s >= end_s:
                return False
            self.run_for(0.05)
        return True

    # ---- links ----

    def connect(self) -> None:
        """Every pair that can has a link, soon."""
        up = [name for name, node in self.nodes.items() if node.log is not None]
        for one, other in itertools.combinations(up, 2):
            if (one, other) not in self._links and not {(one, other), (other, one)} & self._cut:
                number = next(self._link_numbers)
                self._links[(one, other)] = self._links[(other, one)] = (number, self.now_s, self.now_s)
                for me, peer in ((one, other), (other, one)):
                    self._deliver(me, lambda log, peer=peer: log.linked(NodeId(peer)))  # type: ignore[misc]

    def _deliver(self, name: str, call: Callable[[RaftLog], object]) -> None:
        node = self.nodes[name]
        log = node.log
        if log is not None:
            node.run(node.life, lambda: call(log))

    def send(self, sender: str, receiver: str, head: bytes) -> None:
        link = self._links.get((sender, receiver))
        if link is None:
            return
        number, start_s, last_s = link
        flight_s = 0.0001 + self.rng.random() ** 4 * self.slowness_s
        arrive_s = max(last_s, self.now_s + flight_s, self.lag.get((sender, receiver), 0.0))
        self._links[(sender, receiver)] = (number, start_s, arrive_s)
        self.at(arrive_s, lambda: self._arrive(sender, receiver, number, head))

    slowness_s = 0.01

    def _arrive(self, sender: str, receiver: str, number: int, head: bytes) -> None:
        link = self._links.get((sender, receiver))
        if link is not None and link[0] == number and (sender, receiver) not in self._cut:
            self._deliver(receiver, lambda log: log.received(NodeId(sender), head))

    def reset(self, one: str, other: str) -> None:
        """The link breaks, with what was under way."""
        if self._links.pop((one, other), None) is None:
            return
        self._links.pop((other, one), None)
        for me, peer in ((one, other), (other, one)):
            self._deliver(me, lambda log, peer=peer: log.unlinked(NodeId(peer)))  # type: ignore[misc]

    def links_of_dead(self, name: str) -> None:
        for peer in self.nodes:
            if (name, peer) in self._links:
                self.reset(name, peer)
        if self.refusing:
            self.at(self.now_s + 0.005, lambda: self._tell_gone(name))

    def _tell_gone(self, name: str) -> None:
        if self.nodes[name].log is None:
            for peer in self.nodes:
                self._deliver(peer, lambda log: log.peer_gone(NodeId(name)))

    def cut(self, one: str, other: str) -> None:
        """What `one` sends does not reach `other`; after a while both notice."""
        self._cut.add((one, other))
        self.at(self.now_s + 0.3 + self.rng.random(), lambda: (one, other) in self._cut and self.reset(one, other))

    def heal(self) -> None:
        """Everybody reaches everybody; a link that lost something does not outlive that."""
        cut, self._cut = sorted(self._cut), set()
        for one, other in cut:
            self.reset(one, other)

    # ---- proposals ----

    def propose(self, name: str) -> str | None:
        node = self.nodes[name]
        log = node.log
        if log is None:
            return None
        vhost = f"v{next(self._numbers)}"

        def done(applied: Applied) -> None:
            if applied.ok:
                self.checkers.success(name, vhost, applied.index)
                self._check_barrier(name, applied.index)
            elif applied.index == 0:
                self.checkers.unknown += 1
            else:
                self.checkers.refused += 1

        node.run(node.life, lambda: log.propose(c.AddVhost(name=vhost), done))
        return vhost

    def _check_barrier(self, told: str, index: int) -> None:
        """Who is told of a success: every living member has applied it; living as the newest map has it."""
        logs = [node.log for node in self.nodes.values() if node.log is not None]
        newest = max(logs, key=lambda log: log.applied)
        for node in self.nodes.values():
            member = newest.map.member(node.name)
            if node.log is None or member is None or not member.alive or member.incarnation != node.incarnation:
                continue
            require(
                node.registering or node.highest >= index or node.log.applied >= index,
                f"barrier: {told} was told of {index}, {node.name} has {node.log.applied}",
            )

    @property
    def leader(self) -> RaftLog | None:
        leading = [node.log for node in self.nodes.values() if node.log is not None and node.log.is_leader]
        return max(leading, key=lambda log: log.term) if leading else None


def observe_journals(world: World) -> Callable[[], None]:
    """Show every entry that any journal takes to the checkers; returns how to stop."""
    add = Journal.add

    def observed(self: Journal, command: bytes, idx: int, term: int) -> None:
        add(self, command, idx, term)
        world.checkers.added(self._disk.path, self[-1])

    Journal.add = observed  # type: ignore[method-assign]

    def stop() -> None:
        Journal.add = add  # type: ignore[method-assign]

    return stop
