"""Nodes in memory that are one cluster: each a World's worth of node, disk and clients, links that the test may cut.

    cluster = Cluster("a", "b", "c")
    alice = cluster["a"].client()
    alice.declare("q")
    cluster["b"].client().publish("", "q", b"x")

The wiring is one list of commands that every node applies at once, unless it is cut off. Frames arrive at once, in the
order of their link. Nothing happens by itself but in `Cluster.turn`; a test moves the clock by `Cluster.wait`.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from clusterbroker.broker.fronts.amqp091.connection import Connection
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.node.driver import Driver
from clusterbroker.broker.node.member import MemberRole
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.server.recovery import recovered
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.link.frames import FrameReader
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from tests.unit.broker.fronts.amqp091.harness import Client, Story, World, entropy
from tests.unit.broker.fronts.amqp091.memory_journal import MemoryJournal


class Site(World):
    """One node of a cluster. `alive`: its process runs."""

    def __init__(self, cluster: Cluster, name: str, **options: Any) -> None:
        self.cluster = cluster
        self.name = name
        self.now_ms = cluster.now_ms
        self.story = Story()
        self.passwords = {"guest": b"guest"}
        self.tokens = {}
        self.journal = MemoryJournal()
        self.checkpoint_due = False
        self.disk_waits = self.wiring_waits = self.passwords_wait = self.reads_wait = False
        self.clients: dict[Connection, Client] = {}
        self.group = None
        self.loads: list[Any] = []
        self.checks: list[Any] = []
        self.options = options
        self.incarnation = 0
        self.alive = False
        self.map = ClusterMap()
        self.applied = 0
        self.events: list[tuple[str, Any]] = []

    # -- life

    def start(self) -> None:
        """As the shell: the wiring first, then the journal, then the node registers and is linked."""
        self.incarnation += 1
        self.alive = True
        self.catch_up(quiet=True)
        options = NodeOptions(name=self.name, incarnation=self.incarnation, **self.options)
        node = self.node = Node(options, self.map, self.journal.use, self.story, entropy=entropy())
        node.now_ms = self.now_ms
        self.driver = Driver(node, self, lambda: self.now_ms, lazy_ms=0)
        node.role = role = MemberRole(node, self)
        recovered(node, self.journal).adopt_into(node)
        role.linked(self.name, 0)
        role.lease(True)
        self.cluster.order(
            c.RegisterNode(
                node=NodeId(self.name), disk_id=f"disk-{self.name}", incarnation=Incarnation(self.incarnation),
                address=f"{self.name}:1", amqp=(f"amqp://{self.name}:5672",), level=LEVEL,
            )
        )  # fmt: skip

    def crash(self, kept: int = 0) -> None:
        """The process is gone; clients hear nothing."""
        for client in self.clients.values():
            client.ended = "crash"
        self.clients = {}
        self.journal.crash(min(kept, self.journal.unsynced))
        self.group, self.loads, self.checks = None, [], []
        self.alive = False

    # -- the shell of its role (MemberShell)

    leader = None

    def backlog(self, peer: str) -> int:
        return 0

    def bad_frame(self, peer: str, why: str) -> None:
        self.cluster.bad(self.name, peer, why)

    def silent(self, peer: str, silent_ms: int) -> None:
        """No link is dead here."""

    def log_event(self, event: str, facts: Any) -> None:
        self.events.append((event, dict(facts)))

    # -- the wiring

    def catch_up(self, quiet: bool = False) -> bool:
        """Applies what it may hear of the shared log."""
        moved = False
        while self.applied < len(self.cluster.log):
            command, proposer, done = self.cluster.log[self.applied]
            self.applied += 1
            applied = self.map.apply(LogIndex(self.applied), command)
            moved = True
            if quiet:
                continue
            self.node.apply(applied.changes)
            if proposer is self and done is not None:
                done(applied)
        if moved and not quiet:
            assert self.node.role is not None
            self.node.role.hub.advanced()
        return moved

    def propose(self, proposals: Any) -> None:
        for command, done in proposals:
            self.cluster.log.append((c.decode(c.encode(command)), self, done))

    def turn(self) -> None:
        self.cluster.turn()


class Cluster:
    """All of them, and what is between them."""

    def __init__(self, *names: str, level: int = LEVEL, **options: Any) -> None:
        self.now_ms = 1_000_000
        self.log: list[tuple[c.AnyCommand, Site | None, Any]] = []
        self.links: dict[tuple[str, str], deque[bytes]] = {}
        self.readers: dict[tuple[str, str], FrameReader] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.bad_frames: list[tuple[str, str, str]] = []
        """(node, peer, why) of links that a node has ended."""
        self.sessions = 0
        self._working = False
        for name in names:
            self.order(c.AddMember(name=NodeId(name), address=f"{name}:1"))
        self.order(c.RaiseLevel(level=level))
        self.order(c.PutUser(name="guest", password_hash="guest", hash_algorithm="scrypt"))
        self.order(c.SetPermission(user="guest", vhost="/", configure=".*", write=".*", read=".*"))
        self.sites = {name: self.site(name, **options) for name in names}
        for site in self.sites.values():
            site.start()
        self.relink()
        self.turn()

    def __getitem__(self, name: str) -> Site:
        return self.sites[name]

    @property
    def running(self) -> list[Site]:
        return [site for site in self.sites.values() if site.alive]

    def site(self, name: str, **options: Any) -> Site:
        """One of them, that has not begun."""
        return Site(self, name, **options)

    def order(self, command: Any) -> None:
        self.log.append((c.decode(c.encode(command)), None, None))

    # -- links

    def relink(self) -> None:
        """Every pair that is not cut has a link again."""
        for one in self.running:
            for other in self.running:
                if one.name < other.name and (one.name, other.name) not in self.links:
                    self._link(one, other)

    def _link(self, one: Site, other: Site) -> None:
        if (one.name, other.name) in self.cuts:
            return
        self.sessions += 1
        for here, there in ((one, other), (other, one)):
            self.links[here.name, there.name] = deque()
            self.readers[here.name, there.name] = FrameReader()
            here.node.role.linked(there.name, self.sessions)  # type: ignore[union-attr]

    def unlink(self, one: str, other: str) -> None:
        """The link between two nodes is reset, and comes back with `relink` unless it is cut."""
        for here, there in ((one, other), (other, one)):
            if self.links.pop((here, there), None) is not None and self[here].alive:
                self[here].node.role.unlinked(there)  # type: ignore[union-attr]

    def bad(self, name: str, peer: str, why: str) -> None:
        self.bad_frames.append((name, peer, why))
        self.unlink(name, peer)
        self[name].node.role.relay.drop(peer, why)  # type: ignore[union-attr]

    def kill(self, name: str, failed: bool = True) -> None:
        """kill -9; with `failed` the others have noticed."""
        site = self[name]
        site.crash()
        for other in self.sites:
            if other != name:
                self.unlink(name, other)
        if failed:
            self.order(c.FailNode(node=NodeId(name), incarnation=Incarnation(site.incarnation)))
        self.turn()

    def restart(self, name: str) -> None:
        self[name].start()
        self.relink()
        self.turn()

    # -- time

    def turn(self) -> None:
        """Until nothing moves any more."""
        if self._working:
            return
        self._working = True
        try:
            rounds = 0
            while self._round():
                rounds += 1
                assert rounds < 10_000, "the cluster comes to rest"
        finally:
            self._working = False

    def _round(self) -> bool:
        moved = False
        for site in self.running:
            site.now_ms = self.now_ms
            moved = site.catch_up() or moved
            site._turn()
            if not site.disk_waits and not site.journal.idle:
                site.complete()
                moved = True
            node = site.node
            assert node.role is not None
            for peer, frames in node.role.hub.take().items():
                if (site.name, peer) in self.links:
                    self.links[site.name, peer].extend(frames)
            proposals = bool(node.proposals) and not site.wiring_waits
            moved = moved or node.busy or proposals or bool(node.sending or (site.loads and not site.reads_wait))
            for client in tuple(site.clients.values()):
                moved = client.deliver() or moved
        for (source, target), frames in tuple(self.links.items()):
            while frames:
                self._deliver(source, target, frames.popleft())
                moved = True
        return moved or any(site.applied < len(self.log) for site in self.running)

    def _deliver(self, source: str, target: str, frame: bytes) -> None:
        role = self[target].node.role
        assert role is not None
        for index, head, payload in self.readers[target, source].feed(frame):
            role.hub.received(source, index, head, payload)

    def wait(self, time_ms: int, step_ms: int = 50) -> None:
        end_ms = self.now_ms + time_ms
        while self.now_ms < end_ms:
            self._tick(min(end_ms, self.now_ms + step_ms))
            self.turn()

    def _tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for site in self.running:
            site.now_ms = self.now_ms
            site.node.now_ms = self.now_ms
            site.node.role.tick(self.now_ms)  # type: ignore[union-attr]
            for connection in tuple(site.node.clients.values()):
                connection.tick(self.now_ms)

    def begin(self, rounds: int, command: Any = None, time_ms: int = 0) -> None:
        """Orders a command, or lets time pass, and stops after so many rounds: in the middle of what comes of it."""
        self._working = True
        try:
            if command is not None:
                self.order(command)
            self._tick(self.now_ms + time_ms)
            for _ in range(rounds):
                self._round()
        finally:
            self._working = False

    # -- looking

    def queue(self, name: str) -> Any:
        """The queue's entity, as the first node that runs has it."""
        entity = self.running[0].map.queue("/", name)
        assert entity is not None
        return entity

    def digests(self) -> set[str]:
        return {site.map.digest() for site in self.running}


__all__ = ["Applied", "Cluster", "Site"]
