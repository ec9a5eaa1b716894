"""The cluster in memory as it is between two moments of rest: some frames are delivered and others are late, a group is
on one disk and not yet on another, the wiring is heard late. And what may befall it: crashes with power or without,
links that are reset or cut, disks and wiring that wait, checkpoints, copy forward, moves, and losses that are accepted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from clusterbroker.cluster.ids import Incarnation, LogIndex, NodeId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.journal.layout import RUN_ENTRY
from tests.property.cluster_lives_books import Broken
from tests.unit.broker.fronts.amqp091.memory_journal import MemoryJournal
from tests.unit.broker.node.node_cluster import Cluster, Site

SEGMENT_BYTES: Final = 2048
TICK_MS: Final = 50


def journal_of(site: Site) -> MemoryJournal:
    assert site.journal is not None, "a node of a cluster has a disk"
    return site.journal


class Shaky(Cluster):
    """While `shaky`, nothing comes to rest by itself: `round` lets some things happen."""

    def __init__(self, rng: random.Random, *names: str) -> None:
        self.rng = rng
        self.shaky = False
        self.worked: Callable[[Site], None] = lambda site: None
        """Called after each turn of a node."""
        self._only: Site | None = None
        super().__init__(*names)
        for site in self.sites.values():
            journal_of(site).segment_bytes = SEGMENT_BYTES
        self._truth = ClusterMap()
        self._told = 0

    @contextmanager
    def only(self, site: Site) -> Iterator[None]:
        """Only this node works."""
        self._only = site
        try:
            yield
        finally:
            self._only = None

    def turn(self) -> None:
        if self._only is not None:
            for _ in range(4):
                self._only._turn()
                for client in tuple(self._only.clients.values()):
                    client.deliver()
        elif not self.shaky:
            super().turn()

    def round(self) -> None:
        """Some nodes have a turn, some groups get to a disk, some frames arrive."""
        rng = self.rng
        for site in self.running:
            if rng.random() < 0.2:
                continue
            site.now_ms = self.now_ms
            if rng.random() < 0.7:
                site.catch_up()
            site._turn()
            if not site.disk_waits and not journal_of(site).idle and rng.random() < 0.6:
                site.complete()
            assert site.node.role is not None
            for peer, frames in site.node.role.hub.take().items():
                if (site.name, peer) in self.links:
                    self.links[site.name, peer].extend(frames)
            for client in tuple(site.clients.values()):
                client.deliver()
            self.worked(site)
        links = list(self.links)
        rng.shuffle(links)
        for link in links:
            frames_left = self.links.get(link)
            for _ in range(rng.choice((0, 1, 2, 100))):
                if not frames_left or self.links.get(link) is not frames_left:
                    break
                self._deliver(*link, frames_left.popleft())

    def pass_time(self, time_ms: int) -> None:
        for _ in range(max(1, time_ms // TICK_MS)):
            self.now_ms += TICK_MS
            for site in self.running:
                site.now_ms = site.node.now_ms = self.now_ms
                assert site.node.role is not None
                site.node.role.tick(self.now_ms)
                for connection in tuple(site.node.clients.values()):
                    connection.tick(self.now_ms)
            self.round()

    # -- looking

    def truth(self, queue: str) -> Any:
        """The queue's entity when all that was ordered is applied, whoever has heard of it."""
        while self._told < len(self.log):
            command = self.log[self._told][0]
            self._told += 1
            self._truth.apply(LogIndex(self._told), command)
        entity = self._truth.queue("/", queue)
        assert entity is not None, "nobody deletes it"
        return entity

    @property
    def all_have_heard(self) -> bool:
        return all(site.applied == len(self.log) for site in self.running)

    def ring(self, site: Site, queue_id: int) -> Any:
        """The node's copy, whether it owns the queue or not."""
        assert site.node.role is not None
        queue = site.node.queues.get(queue_id)
        return queue.ring if queue is not None else site.node.role.copying.replicas.get(queue_id)

    def holds(self, site: Site, queue_id: int) -> list[tuple[int, int]] | None:
        """The messages of the node's copy that the log knows, as ranges of seqs."""
        ring = self.ring(site, queue_id)
        if ring is None:
            return None
        return [span for bucket, _ in ring.emitted_buckets() for span in ring.emitted_live(bucket)]


def index_is_whole(site: Site) -> None:
    """What the journal's index names is there: or the node could not start again."""
    journal = journal_of(site)
    named = {entry[4] for entries in journal.runs.values() for entry in RUN_ENTRY.iter_unpack(entries)}
    if missing := sorted(named - set(journal.segments)):
        raise Broken(f"the index of {site.name} names segments that are gone: {missing}")


def checkpoint_some(site: Site, rng: random.Random) -> str:
    """A checkpoint begins at this node, or comes to its end, or both."""
    journal, said = journal_of(site), ""
    if journal.checkpoint is None and journal.idle:
        site.begin_checkpoint()
        said = f"{site.name} begins a checkpoint"
    if journal.checkpoint is not None and rng.random() < 0.7:
        journal.complete_checkpoint()
        index_is_whole(site)
        said = f"{site.name} has a checkpoint"
    return said


def copy_forward(site: Site, rng: random.Random) -> str:
    """An old segment's messages are written again at this node."""
    journal = journal_of(site)
    old = [number for number in journal.segments if number < journal.end.segment and journal.use.live(number)]
    if not old:
        return ""
    segment = rng.choice(old)
    assert site.node.role is not None
    for queue_id, seq, offset, message in journal.old_messages(segment):
        queue = site.node.queues.get(queue_id)
        if queue is None:
            site.node.role.copying.move(queue_id, seq, segment, offset, message)
        elif not queue.deleted:
            queue.ring.rewrite(seq, segment, offset, message)
    return f"{site.name} writes segment {segment} again"


class Faults:
    """What befalls the nodes of one queue. Each deed returns its line of the story, empty when there was no occasion.

    `power`: crashes may take what was not flushed; else a process ends, and its machine goes on.
    """

    def __init__(self, cluster: Shaky, queue: str, *, power: bool) -> None:
        self.cluster = cluster
        self._queue = queue
        self._power = power
        self.forgotten: list[str] = []
        self.accepted_loss = False
        self.ended: list[str] = []
        """Nodes that had a copy when their process ended."""

    @property
    def _up(self) -> list[str]:
        return [site.name for site in self.cluster.running]

    def kill(self) -> tuple[str, bool] | None:
        """(who, whether with power) ended."""
        cluster, rng = self.cluster, self.cluster.rng
        if len(self._up) < 2:
            return None
        site = cluster[rng.choice(self._up)]
        kept = rng.randint(0, journal_of(site).unsynced) if self._power else journal_of(site).unsynced
        power = kept < journal_of(site).unsynced
        if site.name in cluster.truth(self._queue).replicas:
            self.ended.append(site.name)
        site.crash(kept)
        site.disk_waits = site.wiring_waits = False
        for other in cluster.sites:
            if other != site.name:
                cluster.unlink(site.name, other)
        if rng.random() < 0.8:
            cluster.order(c.FailNode(node=NodeId(site.name), incarnation=Incarnation(site.incarnation)))
        return site.name, power

    def start(self) -> str:
        down = [site for site in self.cluster.sites.values() if not site.alive and site.name not in self.forgotten]
        if not down:
            return ""
        site = self.cluster.rng.choice(down)
        index_is_whole(site)
        site.start()
        self.cluster.relink()
        return f"{site.name} starts again"

    def _pair(self) -> tuple[str, str] | None:
        if len(self._up) < 2:
            return None
        one, other = sorted(self.cluster.rng.sample(self._up, 2))
        return one, other

    def reset(self) -> str:
        pair = self._pair()
        if pair is None:
            return ""
        self.cluster.unlink(*pair)
        if self.cluster.rng.random() < 0.7:
            self.cluster.relink()
        return f"the link of {pair} is reset"

    def cut(self) -> str:
        pair = self._pair()
        if pair is None:
            return ""
        self.cluster.cuts.add(pair)
        self.cluster.unlink(*pair)
        return f"{pair} are cut off from each other"

    def heal(self) -> str:
        self.cluster.cuts.clear()
        self.cluster.relink()
        return "all links are back"

    def disk(self) -> str:
        site = self.cluster[self.cluster.rng.choice(self._up)]
        site.disk_waits = not site.disk_waits
        return f"the disk of {site.name} {'waits' if site.disk_waits else 'goes on'}"

    def wiring(self) -> str:
        site = self.cluster[self.cluster.rng.choice(self._up)]
        site.wiring_waits = not site.wiring_waits
        return f"what {site.name} proposes {'waits' if site.wiring_waits else 'is ordered'}"

    def checkpoint(self) -> str:
        """It takes a while, or is done at once."""
        rng = self.cluster.rng
        return checkpoint_some(self.cluster[rng.choice(self._up)], rng)

    def forward(self) -> str:
        """An old segment's messages are written again."""
        rng = self.cluster.rng
        return copy_forward(self.cluster[rng.choice(self._up)], rng)

    def move(self) -> str:
        """The owner gives the queue to another."""
        entity = self.cluster.truth(self._queue)
        if entity.owner not in self._up:
            return ""
        part = self.cluster[entity.owner].node.role
        assert part is not None
        to = self.cluster.rng.choice(sorted(self.cluster.sites))
        part.hand_over(entity.queue_id, to)
        return f"{entity.owner} shall give the queue to {to}"

    def replace(self) -> str:
        """A copy ends, and is made anew at the same node."""
        entity = self.cluster.truth(self._queue)
        others = [name for name in entity.replicas if name != entity.owner]
        if not others:
            return ""
        name = NodeId(self.cluster.rng.choice(others))
        self.cluster.order(c.MoveReplica(queue_id=entity.queue_id, remove=(name,)))
        self.cluster.order(c.MoveReplica(queue_id=entity.queue_id, add=(name,)))
        return f"the copy of {name} ends and is made anew"

    def policy(self) -> str:
        rules = ({"max-length": 10_000}, {"max-length": 20_000}, {"min-in-sync": 1}, {"min-in-sync": 2})
        rule = self.cluster.rng.choice(rules)
        self.cluster.order(c.PutPolicy(vhost="/", name="p", pattern="^q$", definition=rule, apply_to="queues"))
        return f"the policy says {rule}"

    def force(self) -> str:
        """An operator makes a copy the owner, most likely when nobody is left who may have all."""
        entity = self.cluster.truth(self._queue)
        if entity.owner is not None and self.cluster.rng.random() < 0.9:
            return ""
        able = [name for name in entity.replicas if name in self._up]
        if not able:
            return ""
        name = NodeId(self.cluster.rng.choice(able))
        self.accepted_loss = True
        self.cluster.order(c.ForceOwner(queue_id=entity.queue_id, node=name))
        return f"an operator forces {name} to own the queue"

    def forget(self) -> str:
        """Who is away never comes back, and what it alone had is lost. It happens once, and not to three nodes."""
        entity = self.cluster.truth(self._queue)
        away = [name for name in entity.replicas if name not in self._up]
        if not away or self.forgotten or len(self.cluster.sites) < 4:
            return ""
        site = self.cluster[self.cluster.rng.choice(away)]
        self.cluster.order(c.FailNode(node=NodeId(site.name), incarnation=Incarnation(site.incarnation)))
        self.cluster.order(c.ForgetNode(node=NodeId(site.name), accept_loss=True))
        self.forgotten.append(site.name)
        self.accepted_loss = True
        return f"{site.name} is forgotten"

    # -- the end

    def begin_all(self) -> None:
        """Nothing waits any more, and all nodes are there. When one is forgotten whose copy alone had all, an operator
        must say which of the older ones counts."""
        cluster = self.cluster
        cluster.cuts.clear()
        for site in cluster.sites.values():
            site.disk_waits = site.wiring_waits = False
            if journal_of(site).checkpoint is not None:
                journal_of(site).complete_checkpoint()
        while self.start():
            pass
        cluster.relink()
        entity = cluster.truth(self._queue)
        if entity.owner is None and self.forgotten:
            cluster.order(c.ForceOwner(queue_id=entity.queue_id, node=NodeId(cluster.rng.choice(entity.replicas))))
