"""Nodes of a pool's cluster in virtual time: real ones, with a log, links, leases and clocks that misbehave.

A node is the real core with its part in the cluster, its queues, desks, controller and map. What is around it is of
here:

    log      one order for all. A command is some time under way to it, each node hears of it some time later. While its
             leader changes nothing is ordered; of what is under way then some is lost, and of some the proposer hears
             "unavailable", and it comes all the same
    links    in order, with a delay; a reset loses what is on its way
    leases   a node that reaches no majority has none after LEASE_MS, and is failed after FAIL_MS; it begins again with
             a new incarnation in the same process
    clocks   each node's time is off by up to some seconds, and is led to another error; it never leaps (a paused node's
             does)
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from clusterbroker.broker.pools.credentials import WorkerKey
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.link.frames import FrameReader
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from clusterbroker.cluster.wiring_log import unlogged
from tests.unit.broker.fronts.amqp091.harness import Client
from tests.unit.broker.node.node_cluster import Cluster, Site

LEASE_MS: Final = 1_000
FAIL_MS: Final = 3_000
ROUNDS_MAX: Final = 2_000
KEY: Final = WorkerKey(b"k" * 32)
TICK_MS: Final = 100
LED_MS: Final = 5
"""A clock is led by so much in a tick."""


class Member(Site):
    """One node over its lives."""

    cluster: Nodes

    def __init__(self, cluster: Nodes, name: str, **options: Any) -> None:
        super().__init__(cluster, name, **options)
        self.paused = False
        self.cut = False
        """It reaches nobody."""
        self.contact_ms = cluster.now_ms
        """When it reached a majority last."""
        self.proposed_ms = 0
        self.clock_ms = 0
        self.clock_to_ms = 0
        self.lag_ms = 0
        """From a command's place in the log until it is heard of here."""
        self.born: Callable[[], None] = lambda: None
        self.died: Callable[[], None] = lambda: None
        """Of its process, or of this life of it."""

    @property
    def time_ms(self) -> int:
        """By its own clock."""
        return self.cluster.now_ms + self.clock_ms

    @property
    def works(self) -> bool:
        return self.alive and not self.paused

    @property
    def leased(self) -> bool:
        return self.works and self.cluster.now_ms - self.contact_ms <= LEASE_MS

    @property
    def may_speak(self) -> bool:  # type: ignore[override]
        """The gate before the sockets."""
        return self.leased

    @property
    def accepting(self) -> bool:
        """Clients may connect."""
        return self.leased and self.node.role is not None and self.node.role.registered

    def start(self) -> None:
        self.contact_ms = self.cluster.now_ms
        super().start()
        self.node.pools.key = KEY
        self.born()

    def crash(self, kept: int = 0) -> None:
        self.died()
        super().crash(kept)
        self.paused = False

    def catch_up(self, quiet: bool = False) -> bool:
        """Applies what it has heard of by now."""
        cluster, moved = self.cluster, False
        while self.applied < len(cluster.log) and (
            quiet or (not self.cut and cluster.committed_ms[self.applied] + self.lag_ms <= cluster.now_ms)
        ):
            command, proposer, done = cluster.log[self.applied]
            self.applied += 1
            applied = self.map.apply(LogIndex(self.applied), command)
            moved = True
            if quiet:
                continue
            self.node.apply(applied.changes)
            if done is not None and proposer is self:
                done(applied)
        if moved and not quiet:
            assert self.node.role is not None, "a member has a part in its cluster"
            self.node.role.hub.advanced()
        return moved

    def propose(self, proposals: Any) -> None:
        for command, done in proposals:
            self.cluster.propose(self, c.decode(c.encode(command)), done)


class Socket(Client):
    """A client's connection, whose node may be paused, or gone."""

    world: Member

    def __init__(self, site: Member) -> None:
        super().__init__(site)

    def deliver(self) -> bool:
        return self.world.works and super().deliver()

    @property
    def open(self) -> bool:
        return self.ended is None

    def take(self) -> list[tuple[int, Any]]:
        """What was heard since."""
        heard, self._heard = self._heard, []
        return heard


class Nodes(Cluster):
    """See the module. `applied` is told of each command as the log has it, with the map of the log itself."""

    sites: dict[str, Member]  # type: ignore[assignment]

    def __init__(self, rng: random.Random, *names: str, **options: Any) -> None:
        self.rng = rng
        self.truth = ClusterMap()
        self.committed_ms: list[int] = []
        self.electing_until_ms = 0
        self.proposed_ms = 0
        """When the command was proposed that `before` and `applied` are told of."""
        self.slow_ms = (0, 50)
        """A command is so long under way."""
        self.latency_ms = 0
        self.proposes: Callable[[c.AnyCommand], None] = lambda _command: None
        """Told of each command as a node thinks of it."""
        self.applied: Callable[[Applied], None] = lambda _applied: None
        self.before: Callable[[c.AnyCommand], None] = lambda _command: None
        self.unsure: Callable[[c.AnyCommand], None] = lambda _command: None
        """Told of each command whose proposer hears that it was given up."""
        self.given_up = False
        """Its proposer was told that it would not come true."""
        self._way: list[tuple[int, int, int, c.AnyCommand, Member, int, Any]] = []
        self._nth = 0
        super().__init__(*names, **options)

    def site(self, name: str, **options: Any) -> Member:
        return Member(self, name, **options)

    # -- the log

    def order(self, command: Any) -> None:
        """By nobody: it is in the log at once."""
        self._commit(c.decode(c.encode(command)), None, None, self.now_ms)

    def _commit(self, command: c.AnyCommand, proposer: Member | None, done: Any, proposed_ms: int) -> None:
        self.proposed_ms = proposed_ms
        self.log.append((command, proposer, done))
        self.committed_ms.append(self.now_ms)
        self.before(command)
        self.applied(self.truth.apply(LogIndex(len(self.log)), command))

    def propose(self, site: Member, command: c.AnyCommand, done: Any) -> None:
        self.proposes(command)
        self._nth += 1
        at_ms = max(site.proposed_ms, self.now_ms + self.rng.randint(*self.slow_ms))
        site.proposed_ms = at_ms  # those of one node keep their order
        life = site.incarnation

        def told(applied: Applied) -> None:
            if site.alive and site.incarnation == life:
                done(applied)

        heapq.heappush(self._way, (at_ms, self._nth, self.now_ms, command, site, life, told))

    def elect(self, for_ms: int) -> None:
        """The leader of the log changes."""
        self.electing_until_ms = max(self.electing_until_ms, self.now_ms + for_ms)
        way, self._way = self._way, []
        for at_ms, nth, proposed_ms, command, site, life, told in way:
            fate = self.rng.random()
            if fate < 0.5:
                self.unsure(command)
                told(unlogged(command, Unavailable("no leader")))
            if fate > 0.25:  # of these, half that were given up come true
                then = told if fate >= 0.5 else _unheard
                heapq.heappush(self._way, (at_ms, nth, proposed_ms, command, site, life, then))

    def _order_due(self) -> bool:
        moved = False
        held = []
        while self._way and self._way[0][0] <= self.now_ms and self.now_ms >= self.electing_until_ms:
            entry = heapq.heappop(self._way)
            _, _, proposed_ms, command, site, life, told = entry
            if site.cut and site.incarnation == life and site.alive:
                held.append(entry)
                continue
            self.given_up = told is _unheard
            self._commit(command, site, told, proposed_ms)
            self.given_up = False
            moved = True
        for entry in held:
            heapq.heappush(self._way, entry)
        return moved

    @property
    def ordering(self) -> int:
        """Commands under way."""
        return len(self._way)

    def orders(self, kind: type[Any]) -> bool:
        """Whether such a command is under way."""
        return any(isinstance(entry[3], kind) for entry in self._way)

    def hands_over(self, queue_id: LogIndex | None) -> bool:
        """Whether a queue is between two owners: its owner takes no acknowledgements. One that has ended is not."""
        entity = None if queue_id is None else self.truth.queue_by_id(queue_id)
        if entity is None:
            return False
        if any(isinstance(entry[3], c.TransferOwner) and entry[3].queue_id == queue_id for entry in self._way):
            return True
        site = None if entity.owner is None else self[entity.owner]
        queue = None if site is None or not site.works else site.node.queues.get(entity.queue_id)
        return not isinstance(queue, LocalQueue) or queue.paused

    # -- links

    def _link(self, one: Site, other: Site) -> None:
        if self[one.name].cut or self[other.name].cut or not (self[one.name].works and self[other.name].works):
            return
        self.sessions += 1
        for here, there in ((one, other), (other, one)):
            self.links[here.name, there.name] = deque()
            self.readers[here.name, there.name] = FrameReader()
            here.node.role.linked(there.name, self.sessions)  # type: ignore[union-attr]

    def __getitem__(self, name: str) -> Member:
        return self.sites[name]

    def bad(self, name: str, peer: str, why: str) -> None:
        if "wiring index" not in why:
            raise AssertionError(f"{name} ends its link to {peer}: {why}")
        super().bad(name, peer, why)

    # -- turns

    def _round(self) -> bool:
        moved = self._order_due()
        for site in self.sites.values():
            if not site.works:
                continue
            site.now_ms = site.time_ms
            moved = site.catch_up() or moved
            site._turn()
            if not site.disk_waits and not site.journal.idle:
                site.complete()
                moved = True
            node = site.node
            assert node.role is not None, "a member has a part in its cluster"
            for peer, frames in node.role.hub.take().items():
                link = self.links.get((site.name, peer))
                if link is not None:
                    due_ms = self.now_ms + self.latency_ms
                    link.extend((due_ms, frame) for frame in frames)  # type: ignore[arg-type]
            moved = moved or node.busy or bool(node.proposals or site.loads or (node.sending and site.may_speak))
            for client in tuple(site.clients.values()):
                moved = client.deliver() or moved
        for (source, target), waiting in tuple(self.links.items()):
            while waiting and self[target].works and waiting[0][0] <= self.now_ms:  # type: ignore[operator]
                self._deliver(source, target, waiting.popleft()[1])  # type: ignore[arg-type]
                moved = True
        return moved

    def turn(self) -> None:
        """Until nothing moves at this moment."""
        if self._working:
            return
        self._working = True
        try:
            rounds = 0
            while self._round():
                rounds += 1
                assert rounds < ROUNDS_MAX, "the cluster comes to rest"
        finally:
            self._working = False

    def half_turn(self, rounds: int) -> None:
        """So many rounds: what follows happens in the middle of something."""
        self._working = True
        try:
            for _ in range(rounds):
                self._round()
        finally:
            self._working = False

    # -- time

    def tick(self, now_ms: int) -> None:
        """Leases, failures, clocks, links; then everybody's own."""
        self.now_ms = now_ms
        reach = [site for site in self.sites.values() if site.works and not site.cut]
        if 2 * len(reach) > len(self.sites):
            for site in reach:
                member = self.truth.member(NodeId(site.name))
                if site.incarnation > (member.incarnation if member else 0) or (member is not None and member.alive):
                    site.contact_ms = now_ms  # who was failed has no lease any more
            self._fail_silent()
        for site in self.sites.values():
            if site.works:
                self._tick_site(site)
        self._end_dead_links()
        self.relink()

    def _fail_silent(self) -> None:
        for site in self.sites.values():
            member = self.truth.member(NodeId(site.name))
            if member is not None and member.alive and self.now_ms - site.contact_ms > FAIL_MS:
                self.order(c.FailNode(node=NodeId(site.name), incarnation=Incarnation(member.incarnation)))

    def _tick_site(self, site: Member) -> None:
        lead_ms = site.clock_to_ms - site.clock_ms
        site.clock_ms += max(-LED_MS, min(LED_MS, lead_ms))
        role = site.node.role
        assert role is not None, "a member has a part in its cluster"
        member = site.map.member(NodeId(site.name))
        known = member is not None and member.incarnation >= site.incarnation
        if known and not role.registered and not site.cut:
            site.crash(site.journal.unsynced)  # declared dead: it begins again in the same process
            for other in self.sites:
                if other != site.name:
                    self.unlink(site.name, other)
            site.start()
            return
        site.now_ms = site.node.now_ms = site.time_ms
        role.lease(site.leased)
        role.tick(site.now_ms)
        for connection in tuple(site.node.clients.values()):
            connection.tick(site.now_ms)

    def _end_dead_links(self) -> None:
        """A link to who is silent for long ends."""
        for one, other in tuple(self.links):
            if one < other and any(
                not each.alive or ((each.paused or each.cut) and self.now_ms - each.contact_ms > FAIL_MS)
                for each in (self[one], self[other])
            ):
                self.unlink(one, other)

    def stop(self, name: str) -> None:
        """Its process is gone; others find out."""
        self[name].crash()
        for other in self.sites:
            if other != name:
                self.unlink(name, other)

    def again(self, name: str) -> None:
        self[name].cut = False
        self[name].start()


def least_ms(own_ms: int) -> int:
    """How long it takes at least until a node's clock, which is led, has gone so far."""
    return own_ms * TICK_MS // (TICK_MS + LED_MS)


def _unheard(applied: Applied) -> None:
    """Its proposer was told that it was given up."""
