"""The wiring log as one atomic thing, and its leader: what Raft promises, without Raft.

`AtomicLog` is a place of its own, on the side of the majority: commands are committed there in one order and reach each
node with delay over the control channel; beats are answered with leases by the real LeaseGranter, and whoever is
overdue is declared dead. `AtomicWiring` is a node's end of it: the prefix of the log that the node has applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.liveness.beats import Beat, ReplayGuard
from clusterbroker.cluster.liveness.lease import Grant, LeaseGranter
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.balance import reconfigurations
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from clusterbroker.cluster.wiring_log import unlogged
from tests.simulation.network import BEATS, CONTROL
from tests.simulation.pulse import Judge, Verdict

if TYPE_CHECKING:
    from tests.simulation.site import Site
    from tests.simulation.world import World

NAME = "~log"
RETRY_S = 0.5
GIVE_UP_S = 20.0
NOTHING = c.ClearPermission(user="", vhost="")
Entry = tuple[c.AnyCommand, str, int, int]
"""Command, who proposed it: node, its life, the proposal's number."""


class AtomicLog:
    """The leader. `map` is the newest one that exists."""

    reachable = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.map = ClusterMap()
        self.log: list[Entry] = []
        self.granter = LeaseGranter()
        self.granter.elected(1, 0.0)
        self._guard = ReplayGuard()
        self._judge = Judge()
        self.deaf_until_s = 0.0
        """It is being elected anew."""
        self.barrier = 0
        self._known: set[tuple[str, int, int]] = set()
        self._subscribed: dict[str, int] = {}
        self._applied: dict[str, int] = {}
        self._proposed: list[Callable[[c.AnyCommand], bool]] = []
        self.before_commit: Callable[[c.AnyCommand], bool] = lambda _command: False
        """A directed fault: True holds the command back, to be proposed again by whoever did."""
        world.schedule.after(0.1, self._tick)

    def elect(self, silence_s: float) -> None:
        """The leader is lost, and another one elected: who beat when is forgotten."""
        self.deaf_until_s = self.world.schedule.now_s + silence_s
        for name in self.world.sites:
            self.world.network.reset(CONTROL, name, NAME)
        self.granter.stepped_down()
        self.world.schedule.after(silence_s, self._elected)

    def _elected(self) -> None:
        now_s = self.world.schedule.now_s
        if now_s >= self.deaf_until_s:
            self.granter.elected(int(now_s * 1000) + 2, now_s)

    def _tick(self) -> None:
        now_s = self.world.schedule.now_s
        self.world.schedule.after(0.1, self._tick)
        if now_s < self.deaf_until_s:
            return
        for name, incarnation in self.granter.tick(now_s):
            self.commit(c.FailNode(node=NodeId(name), incarnation=Incarnation(incarnation)))
        if int(now_s * 10) % 10 == 0:
            for command in reconfigurations(self.map):
                self.commit(command)
        self._announce()

    def cut_off(self, name: str, channels: tuple[str, ...] = (CONTROL, BEATS)) -> None:
        """From the log."""
        self.world.network.part(name, NAME, channels)

    def still_votes(self, site: Site) -> bool:
        """Nobody votes."""
        return False

    def leading(self) -> str:
        """Where beats are answered."""
        return NAME

    def condemn(self, name: str, incarnation: int) -> None:
        """The port of a process refuses, and everybody else looks."""
        for site in self.world.sites.values():
            if site.name != name:
                site.do(site.life, site.pulse.refused, name, incarnation)

    def _fail(self, voter: str, verdict: Verdict) -> None:
        _, name, incarnation, _ = verdict
        member = self.map.member(NodeId(name))
        current = member is not None and member.alive and member.incarnation == incarnation
        if self._judge.heard(voter, verdict, self.world.schedule.now_s) and current:
            self.world.schedule.counts["given up"] += 1
            self.granter.condemn(name, incarnation)
            self.commit(c.FailNode(node=NodeId(name), incarnation=Incarnation(incarnation)))

    def commit(self, command: c.AnyCommand, origin: str = "", life: int = 0, number: int = 0) -> None:
        stored = c.decode(c.encode(command))
        self.log.append((stored, origin, life, number))
        now_s = self.world.schedule.now_s
        applied = self.map.apply(LogIndex(len(self.log)), stored)
        alive: dict[str, int] = {member.name: member.incarnation for member in self.map.alive_members()}
        self.granter.set_members(alive, now_s)
        self._judge.voters([member.name for member in self.map.members()], now_s)
        self.granter.committed(len(self.log), now_s)
        self.world.checkers.ordered(applied)
        for name in self._subscribed:
            self._push(name)

    def _push(self, name: str) -> None:
        since = self._subscribed[name]
        if since < len(self.log):
            self.world.network.send(CONTROL, NAME, name, ("log", since, self.log[since:]))
            self._subscribed[name] = len(self.log)

    def _announce(self) -> None:
        holders = self.granter.may_hold(self.world.schedule.now_s)
        barrier = min((self._applied.get(name, 0) for name in holders), default=len(self.log))
        if barrier > self.barrier:
            self.barrier = barrier
            for name in self._subscribed:
                self.world.network.send(CONTROL, NAME, name, ("barrier", barrier))

    # -- links

    def linked(self, channel: str, peer: str, session: int) -> None:
        self._subscribed.pop(peer, None)
        self._judge.verdicts.lost(peer)

    def unlinked(self, channel: str, peer: str, session: int) -> None:
        self._judge.verdicts.lost(peer)

    def arrived(self, channel: str, peer: str, session: int, message: Any) -> None:
        now_s = self.world.schedule.now_s
        if now_s < self.deaf_until_s:
            self.world.network.reset(channel, NAME, peer)
            return
        if channel == BEATS:
            self._beaten(peer, *message)
            return
        what = message[0]
        if what == "subscribe":
            self._subscribed[peer] = message[1]
            self.world.network.send(CONTROL, NAME, peer, ("current", len(self.log)))
            self._push(peer)
            self.world.network.send(CONTROL, NAME, peer, ("barrier", self.barrier))
        elif what == "verdict":
            self._fail(peer, message)
        elif what == "applied":
            self._applied[peer] = max(self._applied.get(peer, 0), message[1])
            self._announce()
        elif what == "propose":
            _, life, number, command = message
            if (peer, life, number) not in self._known and not self.before_commit(command):
                self._known.add((peer, life, number))
                self.commit(command, peer, life, number)

    def _beaten(self, peer: str, incarnation: int, seq: int, applied: int) -> None:
        if not incarnation:
            self.world.network.cast(NAME, peer, (0, seq))
        elif self._guard.is_new(Beat(peer, incarnation, 0, seq, applied)):
            self._applied[peer] = max(self._applied.get(peer, 0), applied)
            hears = peer in self._subscribed
            self.granter.beat(Grant(peer, incarnation, seq), applied if hears else -1, self.world.schedule.now_s)
            self._round()

    def _round(self) -> None:
        now_s = self.world.schedule.now_s
        number = self.granter.round_wanted(now_s)
        if number is not None:
            self.world.schedule.after(0.001, self._round_done, number)

    def _round_done(self, number: int) -> None:
        for grant in self.granter.round_done(number, self.world.schedule.now_s):
            self.world.network.cast(NAME, grant.name, (grant.incarnation, grant.seq))


class AtomicWiring:
    """One node's end: what it has applied survives its process, as a Raft log on its disk would."""

    def __init__(self, site: Site, log: AtomicLog) -> None:
        self.site = site
        self.log = log
        self.map = ClusterMap()
        self.applied = 0
        self.barrier = 0
        self.log_id = ""
        self._target: int | None = None
        self._numbers = 0
        self._pending: dict[int, tuple[c.AnyCommand, Callable[[Applied], None] | None, float, float]] = {}
        self._waiting: list[tuple[int, Callable[[Applied], None], Applied]] = []

    def stop(self, crash: bool) -> None:
        """The process ends; what it applied it knows again, crash or not."""

    def start(self) -> None:
        """A new process: nothing of what the old one proposed is awaited."""
        self._pending.clear()
        self._waiting.clear()
        self._target = None

    def linked(self) -> None:
        self._send(("subscribe", self.applied))
        for number in self._pending:
            self._tell(number)

    def _send(self, message: Any) -> None:
        self.site.world.network.send(CONTROL, self.site.name, NAME, message)

    def beat(self, incarnation: int, seq: int, rely_s: float = 0.0) -> None:
        network = self.site.world.network
        network.cast(self.site.name, NAME, (incarnation, seq, self.applied))
        for member in self.map.members():
            if incarnation and member.name != self.site.name:
                network.cast(self.site.name, member.name, (incarnation, seq, rely_s))

    def beaten(self, peer: str, message: Any) -> None:
        """The log's answer to a beat, or a beat."""
        if peer == NAME:
            self.site.granted(*message)
        else:
            self.site.pulse.beaten(peer, *message)

    def verdict(self, name: str, incarnation: int, taken_back: bool, told: object) -> object:
        """Tells the log, once over each link; what was told."""
        session = self.site.world.network.sessions.get((CONTROL, self.site.name, NAME))
        if session is not None and (session != told or taken_back):
            self._send(("verdict", name, incarnation, taken_back))
        return session

    def propose_now(self, command: c.AnyCommand, done: Callable[[Applied], None]) -> None:
        self.propose(command, done)

    def propose(self, command: c.AnyCommand, done: Callable[[Applied], None] | None = None) -> None:
        self._numbers += 1
        now_s = self.site.boot_s()
        self._pending[self._numbers] = (c.decode(c.encode(command)), done, now_s, now_s)
        self._tell(self._numbers)

    def _tell(self, number: int) -> None:
        command, done, since_s, _ = self._pending[number]
        self._pending[number] = (command, done, since_s, self.site.boot_s())
        self._send(("propose", self.site.life, number, command))

    def tick(self) -> None:
        now_s = self.site.boot_s()
        self.site.pulse.set_voters([member.name for member in self.map.members()])
        for number, (command, done, since_s, told_s) in tuple(self._pending.items()):
            if now_s - since_s > GIVE_UP_S:
                del self._pending[number]
                if done is not None:
                    done(unlogged(command, Unavailable("no outcome in time")))
            elif now_s - told_s > RETRY_S:
                self._tell(number)

    def received(self, message: Any) -> None:
        what = message[0]
        if what == "log":
            _, since, entries = message
            for index, entry in enumerate(entries, since + 1):
                if index == self.applied + 1:
                    self._apply(entry)
            self._send(("applied", self.applied))
            self.site.advanced()
        elif what == "barrier":
            self.barrier = max(self.barrier, message[1])
        elif what == "current":
            self._target = message[1]
        self._answer()
        if self._target is not None and self.applied >= self._target:
            self._target = None
            self.site.caught_up()

    def _apply(self, entry: Entry) -> None:
        command, origin, life, number = entry
        self.applied += 1
        applied = self.map.apply(LogIndex(self.applied), command)
        self.site.applied(applied)
        if origin == self.site.name and life == self.site.life:
            pending = self._pending.pop(number, None)
            if pending is not None and pending[1] is not None:
                self._waiting.append((self.applied, pending[1], applied))

    def _answer(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.barrier:
            _, done, applied = self._waiting.pop(0)
            done(applied)
