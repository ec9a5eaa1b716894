"""A whole cluster in one process and in virtual time: nodes, disks, links, clients, and chance out of one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.levels import LEVEL
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from tests.simulation.atomic_log import NAME, AtomicLog, AtomicWiring
from tests.simulation.batches import Batcher
from tests.simulation.checkers import Checkers, Violation
from tests.simulation.clients import Actor, Churner, Declarer, Pioneer
from tests.simulation.consumers import Consumer, Poller
from tests.simulation.delays import Delayer
from tests.simulation.leases import LeaseReader
from tests.simulation.links import LinkReceiver, LinkSender
from tests.simulation.machine import EPOCH_MS
from tests.simulation.network import CONTROL, DATA, Network
from tests.simulation.publishers import Insister, NamedPublisher, Publisher, Route, Transaction, Transactor
from tests.simulation.raft_wiring import RaftControl, RaftWiring
from tests.simulation.real_journal import RealJournal
from tests.simulation.schedule import Schedule
from tests.simulation.sim_journal import SimJournal
from tests.simulation.site import Site
from tests.simulation.streams import StreamReader
from tests.simulation.upkeep import Upkeep
from tests.simulation.workload import FEATURES, KEPT, PIPELINE, PIPELINE_SHARE, PLAIN, TARGETS, Kind

FOUNDERS = "abcde"
NEWCOMERS = "fghijklmnopqrstuvwxyz"
SHAPES = 11
"""Of so many seeds one has two members that hold messages and a witness, and one has two members alone."""
INSISTER = "i1"
FAN: list[Route] = [("fan", "", {}, ("q1", "q2"))]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
RETIRE_S = 15.0
REAL_SHARE = 0.1
"""Of seeds that run on the journal itself."""
"""So long a member that left stays for its vote."""
UNEXPECTED = (501, 502, 503, 504, 505, 530, 540, 541)
"""Codes with which no client of these may be closed."""


class SiteShell:
    """The process around a simulated member (MemberShell)."""

    leader = None

    def __init__(self, world: World, site: Site) -> None:
        self._world = world
        self._site = site

    def backlog(self, _peer: str) -> int:
        return 0

    def bad_frame(self, peer: str, why: str) -> None:
        if "wiring index" not in why:
            raise Violation(f"frames: {self._site.name} ends its link to {peer}: {why}")
        self._world.schedule.counts["waited in vain"] += 1
        self._world.network.reset(DATA, self._site.name, peer)

    def silent(self, peer: str, silent_ms: int) -> None:
        """No link is dead here."""

    def log_event(self, event: str, facts: Any) -> None:
        self._world.schedule.counts[event] += 1
        if event == "owner.began":
            self._world.checkers.began(self._site, facts["queue_id"], facts["epoch"])


class World:
    """One run. `quiet`: publishers say nothing new, consumers take everything. `pipeline`: which of PIPELINE it has,
    `journal`: whether on the real one; None: its seed says."""

    def __init__(
        self,
        seed: int,
        nodes: int | None = None,
        raft: bool = False,
        pipeline: Collection[str] | None = None,
        journal: bool | None = None,
    ) -> None:
        self.schedule = Schedule(seed)
        rng = self.schedule.rng
        self.network = Network(self.schedule)
        self.quiet = False
        self.healed = False
        self.disks: Counter[str] = Counter()
        """How many disks a name has had."""
        self.pace_s = rng.choice((0.06, 0.1, 0.25))
        self.actors: list[Actor] = []
        self.transactions: list[Transaction] = []
        features = [name for name in FEATURES if rng.random() < 0.3]
        apart = Random(f"pipeline {seed}")
        drawn = [name for name in PIPELINE if apart.random() < PIPELINE_SHARE]
        self.pipeline: tuple[str, ...] = tuple(drawn if pipeline is None else pipeline)
        kinds = [*PLAIN, *(kind for name in features for kind in FEATURES[name])]
        kinds += [kind for name in self.pipeline for kind in PIPELINE[name]]
        if rng.random() < 0.2:  # owners may go on alone
            kinds = [replace(kind, arguments={**kind.arguments, "x-min-in-sync": 1}) for kind in kinds]
        self.kinds: dict[str, Kind] = {kind.name: kind for kind in kinds}
        by_clock = "ttl" in self.kinds or "delays" in self.pipeline
        self.clocks = Random(f"clocks {seed}") if "clocks" in self.pipeline and not by_clock else None
        """Chance of wall clocks that are wrong after a start. TTLs and delays go by them, so there are none then."""
        self.has_streams = any(kind.stream for kind in kinds)
        real = Random(f"journal {seed}").random() < REAL_SHARE if journal is None else journal
        self._files = TemporaryDirectory(dir=MEMORY) if real or self.has_streams else None
        self.folder = None if self._files is None else Path(self._files.name)
        """Where disks have their files; None: they have none."""
        self.real_journals = real
        if real:
            self.schedule.counts["on the real journal"] = 1
        self.dead_letters = [(k.name, k.dead_letters_to) for k in self.kinds.values() if k.dead_letters_to]
        self.reviews: list[Callable[[Applied], None]] = []
        self.on_sent: Callable[[Site, str, Any], None] = lambda _site, _peer, _head: None
        self.on_settling: Callable[[Consumer], None] = lambda _consumer: None
        self.on_stream_read: Callable[[Site], float] = lambda _site: 0.0
        self.slow_read_s = 0.0
        """So much longer it takes to read messages than to write them."""
        self.checkers = Checkers(self)
        self.raft = raft
        self.sites: dict[str, Site] = {}
        self.left: list[Site] = []
        """Members that were forgotten."""
        self.going: set[str] = set()
        """Dead members that an operator has ordered to be forgotten: what they hold is no copy any more."""
        self.started = False
        count = rng.choice((3, 3, 3, 4, 5))
        witness = ""
        if nodes is not None:
            count = nodes
        elif seed % SHAPES == 3:
            count, witness = 3, "c"
        elif seed % SHAPES == 7:
            count = 2
        founders = FOUNDERS[:count]
        self.control: Any = RaftControl(self, list(founders), witness) if raft else AtomicLog(self)
        if isinstance(self.control, AtomicLog):
            self.network.ends[NAME] = self.control
        for name in founders:
            self._place(name)
            if not raft:
                self.control.commit(c.AddMember(name=NodeId(name), address=f"{name}:1", witness=name == witness))
        if not raft:
            self.control.commit(c.RaiseLevel(level=LEVEL))
        for site in self.sites.values():
            site.start()
        self._first_user()
        self.actors.append(Declarer(self))

    def _first_user(self) -> None:
        if not self.started:
            self.control.commit(c.PutUser(name="guest", password_hash="guest", hash_algorithm="scrypt"))
            self.control.commit(c.SetPermission(user="guest", vhost="/", configure=".*", write=".*", read=".*"))
            self.schedule.after(2.0, self._first_user)

    def free_name(self) -> str:
        """Of a newcomer; perhaps that of a member that has left."""
        ends = self.network.ends
        return next(
            name for name in NEWCOMERS if name not in self.sites and not (name in ends and ends[name].reachable)
        )

    def add(self, name: str) -> Site:
        """A new member."""
        site = self._place(name)
        self._admit(name)
        return site

    def _admit(self, name: str) -> None:
        """An operator asks until it is done."""
        if name in self.sites and self.newest_map.member(NodeId(name)) is None:
            self.control.commit(c.AddMember(name=NodeId(name), address=f"{name}:1"))
            self.schedule.after(2.0, self._admit, name)

    def _place(self, name: str) -> Site:
        site = Site(self, name)
        site.wiring = self.new_wiring(site)
        self.network.ends[name] = site
        for other in self.sites:
            self.network.pair(DATA, name, other)
            if self.raft:
                self.network.pair(CONTROL, name, other)
        if not self.raft:
            self.network.pair(CONTROL, name, NAME)
        self.sites[name] = site
        return site

    def dismiss(self, name: str) -> None:
        """It is no member any more, and ends when the others do without its vote; what it holds is of no use."""
        site = self.sites.pop(name)
        self.going.discard(name)
        self.left.append(site)
        self.schedule.counts["left"] += 1
        until_s = self.schedule.now_s + RETIRE_S
        self.schedule.after(self.schedule.rng.random(), self._retire, site, until_s)

    def _retire(self, site: Site, until_s: float) -> None:
        if site.up and self.schedule.now_s < until_s and self.control.still_votes(site):
            self.schedule.after(0.1, self._retire, site, until_s)
        else:
            site.kill()

    def clock_at_start(self, site: Site) -> None:
        """Its machine starts, perhaps with a wall clock that is hours to two years ahead."""
        if self.clocks is None or site.starts == 1:  # what begins with a wrong clock has no other one
            return
        ahead_ms = 0
        if self.clocks.random() < 0.5:
            self.schedule.counts["fault clock_at_start"] += 1
            ahead_ms = int(self.clocks.choice((1, 24, 31 * 24, 366 * 24)) * 3_600_000 * self.clocks.uniform(1, 2))
        site.set_clock(EPOCH_MS + int(self.schedule.now_s * 1000) + ahead_ms)

    def new_journal(self, name: str) -> SimJournal:
        """An empty one."""
        if self.real_journals:
            assert self.folder is not None, "files have a folder"
            return RealJournal(self.folder / name, self.has_streams)
        return SimJournal(self.folder and self.folder / name)

    def new_wiring(self, site: Site) -> Any:
        return RaftWiring(site, self.control) if self.raft else AtomicWiring(site, self.control)

    @property
    def newest_map(self) -> ClusterMap:
        newest: ClusterMap = self.control.map
        return newest

    @property
    def queues(self) -> tuple[Queue, ...]:
        """All of them; those that hold staged rows are the last."""
        return (*self.newest_map.queues("/"), *self.newest_map.staging_queues("/"))

    # -- what may be expected of a queue

    def keeps_all(self, queue: str) -> bool:
        return queue in self.kinds and self.kinds[queue].keeps_all

    def acknowledged(self, queue: str) -> bool:
        return queue in self.kinds and self.kinds[queue].acknowledged

    def keeps_order(self, queue: str) -> bool:
        return queue in self.kinds and self.kinds[queue].keeps_order

    def goes_on_in_order(self, publisher: bytes) -> bool:
        """Who publishes again what was refused does so behind later messages."""
        return publisher != INSISTER.encode()

    def is_stream(self, queue: str) -> bool:
        return queue in self.kinds and self.kinds[queue].stream

    def volatile(self, queue: str) -> bool:
        return queue in self.kinds and self.kinds[queue].volatile

    # -- what happens

    def declared(self) -> None:
        """The wiring stands: clients come."""
        if self.started:
            return
        self.started = True
        rng, actors = self.schedule.rng, self.actors
        plain: list[Route] = [("", name, {}, (name,)) for name in self.kinds if name not in ("dst", "late")]
        wide: list[Route] = [("fan", "", {}, ("q1", "q2")), ("heads", "", {"to": "q0"}, ("q0",))]
        actors.append(Publisher(self, "p1", [*plain, *wide]))
        actors.append(Publisher(self, "p2", [("", "q0", {}, ("q0",)), ("fan", "", {}, ("q1", "q2"))]))
        actors.append(NamedPublisher(self, "n1", [("", "q0", {}, ("q0",)), ("fan", "", {}, ("q1", "q2"))]))
        if "full" in self.kinds:
            actors.append(Insister(self, INSISTER, [("", "full", {}, ("full",))]))
        if rng.random() < 0.5:
            actors.append(Transactor(self, "t1", ("q1", "q2")))
        for kind in self.kinds.values():
            if kind.name == "ttl":
                continue
            for number in range(rng.choice((1, 2, 2))):
                self._consumer(kind, number)
        if rng.random() < 0.4:
            actors.append(Churner(self, "churn"))
        if rng.random() < 0.5:
            actors.append(Pioneer(self, "pioneer"))
        if "stream" in self.pipeline:
            actors.append(Publisher(self, "s1", [("", "log", {}, ("log",))]))
            actors.append(NamedPublisher(self, "s2", [("", "log", {}, ("log",))]))
        if "clocks" in self.pipeline:
            actors.append(Publisher(self, "k1", [("", KEPT, {}, (KEPT,))]))
        if "leases" in self.pipeline:
            actors.append(Publisher(self, "l1", [("", "leased", {}, ("leased",))]))
        if "links" in self.pipeline:
            actors.append(LinkSender(self, "x1", "/queues/held", ("held",)))
            actors.append(LinkSender(self, "x2", "/exchanges/pair", ("held", "shared")))
        if "delays" in self.pipeline:
            actors.append(Delayer(self, "d1"))
        if "batches" in self.pipeline:
            self._producers()
        Upkeep(self).look()

    def _producers(self) -> None:
        """Of micro-batches, one or two."""
        into: list[Route] = [("", name, {}, (name,)) for name in self.kinds if name in TARGETS]
        for name in self.schedule.rng.choice((("b1",), ("b1", "b2"))):
            self.actors.append(Batcher(self, name, into if self.schedule.rng.random() < 0.7 else FAN))

    def end(self) -> None:
        """Its files go."""
        for site in (*self.sites.values(), *self.left):
            site.journal.close()
        if self._files is not None:
            self._files.cleanup()

    def settled(self, name: str) -> None:
        """A queue was declared and bound while the cluster works, and its client has been told."""
        kind = self.kinds[name] = Kind(name)
        for actor in self.actors:
            if isinstance(actor, Publisher) and not isinstance(actor, NamedPublisher):
                actor.routes += [("news", name, {}, (name,)), ("", name, {}, (name,))]
        self._consumer(kind, 0)

    def _consumer(self, kind: Kind, number: int) -> None:
        rng = self.schedule.rng
        name = f"c-{kind.name}-{number}"
        if kind.stream:
            self.actors.append(StreamReader(self, name, kind.name))
            return
        if kind.leased:
            if not number:
                self.actors.append(LeaseReader(self, name, kind.name))
            return
        if number and rng.random() < 0.3 and kind.acknowledged and kind.name != "rot":
            self.actors.append(Poller(self, name, kind.name, 0))
            return
        if kind.links:
            if number < kind.links:
                self.actors.append(LinkReceiver(self, name, kind.name))
            return
        prefetch = rng.choice((1, 3, 10, 50, 0))
        self.actors.append(
            Consumer(
                self, name, kind.name, prefetch, no_ack=not kind.acknowledged, rejects=kind.name == "src",
                priority=rng.choice((0, 0, 5)),
            )
        )  # fmt: skip

    def died(self, site: Site, incarnation: int) -> None:
        """Its port refuses connections, and somebody tries."""
        if self.schedule.rng.random() < 0.6:
            self.schedule.after(0.06 + self.schedule.rng.random() * 0.1, self._refused, site, incarnation)

    def _refused(self, site: Site, incarnation: int) -> None:
        if not site.up and incarnation:
            self.control.condemn(site.name, incarnation)

    def closed(self, actor: Actor, said: Any) -> None:
        if said.reply_code in UNEXPECTED and self.started:  # before, the user may not be there yet
            raise Violation(f"clients: {actor.name} is closed with {said.reply_code} {said.reply_text}")

    def reviewed(self, applied: Applied) -> None:
        """After each command of the wiring log."""
        for site in self.sites.values():
            if site.journal.lost and self._is_whole(site):
                site.journal.lost = False
        for review in self.reviews:
            review(applied)

    def _is_whole(self, site: Site) -> bool:
        return not self.disk_unknown(site.name) and all(
            site.name in queue.in_sync for queue in self.queues if site.name in queue.replicas and not queue.transient
        )

    def disk_unknown(self, name: str) -> bool:
        """The map counts on a disk or a journal that is lost: its node has not registered since."""
        member, site = self.newest_map.member(NodeId(name)), self.sites[name]
        return site.journal.lost and (
            member is None or member.disk_id != site.disk_id or member.incarnation <= site.journal.lost_before
        )

    def shell_of(self, site: Site) -> SiteShell:
        """The shell of a new node's role."""
        return SiteShell(self, site)

    def observe(self, site: Site) -> None:
        """Shows the checkers what a new node does."""
        role = site.role

        copying = role.copying
        committed, first_sync_complete = copying.committed, copying.first_sync_complete

        def observed(queue_id: int, group: int) -> None:
            self.checkers.committed(site, queue_id)
            committed(queue_id, group)

        def complete(queue_id: int) -> None:
            self.checkers.taken_over(site, queue_id, role.node.queues[queue_id].ring.epoch)
            first_sync_complete(queue_id)

        send = role.hub.send

        def sent(peer: str, head: Any, payload: Any = ()) -> bool:
            self.on_sent(site, peer, head)
            return send(peer, head, payload)

        role.hub.send = sent  # type: ignore[method-assign]
        copying.committed = observed  # type: ignore[method-assign]
        copying.first_sync_complete = complete  # type: ignore[method-assign]

    def checkpoint(self, site: Site) -> None:
        """The journal's index catches up."""
        journal = site.journal
        if site.node is None or not journal.idle or journal.checkpoint is not None:
            return
        runs, metas, forgotten = site.node.checkpoint()
        filings, site.node.filings = site.node.filings, []
        journal.begin_checkpoint(runs, metas, forgotten, filings)
        self.schedule.counts["checkpoints"] += 1
        self.schedule.after(0.002 + journal.delay_s, site.do, site.life, self._checkpointed, site)

    def _checkpointed(self, site: Site) -> None:
        if site.journal.checkpoint is not None:
            site.journal.complete_checkpoint()
            site.loop.checkpointed()
