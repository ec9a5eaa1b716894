"""What goes wrong at any time. What is aimed at the moments where protocols break is in `directed`."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from clusterbroker.cluster.ids import NodeId
from clusterbroker.cluster.wiring import commands as c
from tests.simulation.directed import Directed
from tests.simulation.edges import Edges
from tests.simulation.network import BEATS, CONTROL, DATA
from tests.simulation.site import Site

if TYPE_CHECKING:
    from tests.simulation.world import World

RANDOM = (
    *("kill",) * 4, *("pause",) * 2, *("cut_one",) * 3, *("hand_over",) * 3, *("reset",) * 2, "halves", "halves",
    "ring", "one_way", "control_only", "control_only", "no_beats", "no_beats",
    "no_control", "kill_all", "slow_disk", "slow_disk", "stuck_disk",
    "failing_disk", "full_disk", "lose_disk", "clock", "elect", "drain", "join", "leave", "heal", "lie", "lie",
)  # fmt: skip
SLOW_S = 1.2
"""Between two faults, on average."""
LOOK_S = 0.4
"""So often it is looked whether a member may leave."""
OUTCOME_S = 2.0
"""So long its outcome may take: it was refused if the member is still there."""


def undrain(world: World, name: str) -> None:
    """The member drains no more, if it does."""
    member = world.newest_map.member(NodeId(name))
    if member is not None and member.draining:
        world.control.commit(c.DrainNode(node=NodeId(name), draining=False))


class Faults:
    """The nemesis of a run. `only`: the faults that may happen, by name; all if empty. `edges`: those of edges.py."""

    def __init__(self, world: World, only: tuple[str, ...] = (), edges: bool = True) -> None:
        self.world = world
        self.schedule = world.schedule
        self.rng = world.schedule.rng
        self.random = tuple(name for name in RANDOM if not only or name in only)
        self.active = False
        self.directed = Directed(self, only)
        self.edges = Edges(self, only) if edges else None

    def begin(self) -> None:
        self.active = True
        self.schedule.after(self.rng.random() * 2, self._next)
        if self.edges is not None:
            self.edges.begin()

    def _next(self) -> None:
        if not self.active:
            return
        self.schedule.after(self.rng.expovariate(1 / SLOW_S), self._next)
        if self.random:
            name = self.rng.choice(self.random)
            if getattr(self, name)():
                self.schedule.counts[f"fault {name}"] += 1
            if self.rng.random() < 0.4:
                self.schedule.after(self.rng.uniform(0.3, 4), self.heal)

    # -- who

    def _up(self) -> list[Site]:
        return [site for site in self.world.sites.values() if site.up]

    def _one(self) -> Site | None:
        up = self._up()
        return self.rng.choice(up) if up else None

    def _names(self) -> list[str]:
        names = list(self.world.sites)
        self.rng.shuffle(names)
        return names

    def strike(self, site: Site, away_s: float) -> None:
        site.kill()
        self.schedule.after(away_s, site.start)

    # -- at any time

    def kill(self) -> bool:
        site = self._one()
        if site is not None:
            self.strike(site, self.rng.choice((0.05, 0.5, 4)) * (0.5 + self.rng.random()))
        return site is not None

    def kill_all(self) -> bool:
        for site in self._up():
            self.strike(site, self.rng.uniform(0.2, 4))
        return True

    def failing_disk(self) -> bool:
        """A write fails: the process ends, for nobody knows what the disk has."""
        return self.kill()

    def pause(self) -> bool:
        site = self._one()
        if site is not None:
            site.pause(self.rng.uniform(0.1, 5))
        return site is not None

    def cut_one(self) -> bool:
        names = self._names()
        for other in (*names[1:],):
            self.world.network.part(names[0], other)
        self.world.control.cut_off(names[0])
        return True

    def halves(self) -> bool:
        names = self._names()
        few, most = names[: len(names) // 2], names[len(names) // 2 :]
        for one in few:
            for other in most:
                self.world.network.part(one, other)
            if not self.world.raft:
                self.world.control.cut_off(one)
        return True

    def ring(self) -> bool:
        """Everybody reaches a majority, each another one."""
        names = self._names()
        for place, name in enumerate(names):
            if len(names) > 3:
                self.world.network.part(name, names[(place + 2) % len(names)])
        if len(names) == 3:
            self.world.network.part(names[0], names[1])
        return True

    def one_way(self) -> bool:
        one, other = self._names()[:2]
        self.world.network.cut(DATA, one, other)
        return True

    def control_only(self) -> bool:
        self.world.control.cut_off(self._names()[0])
        return True

    def no_beats(self) -> bool:
        """Datagrams alone are lost: a node's to the leader, its answers, or both."""
        name, leader = self._names()[0], self.world.control.leading()
        if leader in ("", name):
            return False
        out, back = (name, leader), (leader, name)
        for source, target in self.rng.choice(((out,), (back,), (out, back))):
            self.world.network.cut(BEATS, source, target)
        return True

    def no_control(self) -> bool:
        """The control links of a node alone: it beats, and hears nothing of the wiring."""
        self.world.control.cut_off(self._names()[0], (CONTROL,))
        return True

    def reset(self) -> bool:
        one, other = self._names()[:2]
        self.world.network.reset(DATA, one, other)
        return True

    def heal(self) -> bool:
        self.world.network.heal()
        return True

    def lie(self) -> bool:
        """What carries a living node's TCP ends: its links break, its port refuses, and everybody looks. Perhaps its
        beats, or what is said to it, are lost as well."""
        site = self._one()
        if site is None or site.node is None:
            return False
        world, name = self.world, site.name
        ways = self.rng.choice(((), (), ("out",), ("back",), ("out", "back")))
        for other in world.network.ends:
            for channel in (DATA, CONTROL):
                world.network.part(name, other, (channel,))
                world.network.reset(channel, name, other)
            if "out" in ways:
                world.network.cut(BEATS, name, other)
            if "back" in ways:
                world.network.cut(BEATS, other, name)
        self.schedule.after(self.rng.uniform(0.05, 0.2), world.control.condemn, name, site.incarnation)
        if self.rng.random() < 0.5:  # for a moment
            self.schedule.after(self.rng.uniform(0.1, 0.8), self.heal)
        return True

    def slow_disk(self) -> bool:
        return self.slow(self.rng.uniform(0.05, 0.8))

    def stuck_disk(self) -> bool:
        return self.slow(self.rng.uniform(1, 4))

    def slow(self, delay_s: float, site: Site | None = None) -> bool:
        site = site or self._one()
        if site is not None:
            site.journal.delay_s = delay_s
            self.schedule.after(self.rng.uniform(1, 4), self._quick, site.journal)
        return site is not None

    @staticmethod
    def _quick(journal: Any) -> None:
        journal.delay_s = 0.0

    def full_disk(self) -> bool:
        """The alarm: publishers are blocked until there is room."""
        site = self._one()
        if site is None or site.node is None:
            return False
        site.do(site.life, site.node.set_alarm, "disk", True)
        self.schedule.after(self.rng.uniform(0.5, 3), site.do, site.life, site.node.set_alarm, "disk", False)
        return True

    def lose_disk(self) -> bool:
        site = self._one()
        if site is None or not self.may_lose(site, all_up=True):
            return False
        site.kill()
        site.lose_disk()
        self.schedule.after(self.rng.uniform(0.1, 2), site.start)
        return True

    def may_lose(self, site: Site, joins: Collection[int] = (), all_up: bool = False) -> bool:
        """No more disks than the minimum in sync allows: nobody else's is lost, and others have everything.
        `joins`: queues in whose in-sync set it is about to be. `all_up`: those others are there; who is away may leave
        the set before it is known there that this disk is gone (seed 6001238)."""
        if any(other.journal.lost or other.journal.rots or other.voice_lost for other in self.world.sites.values()):
            return False
        if self.world.going:
            return False
        newest = self.world.newest_map
        members = newest.members()
        if not any(m.alive and not m.draining and not m.witness and m.name != site.name for m in members):
            return False  # what is declared before it is found dead would have its only copy there
        voters = [member.name for member in members if member.voter]
        if len(voters) == 2 and site.name in voters:  # the other alone is no majority, for ever
            return False
        for queue in self.world.queues:
            alone = newest.min_in_sync(queue) < 2  # and any owner may be about to count this copy in (seed 3000256)
            counts = queue.queue_id in joins or site.name in (
                queue.replicas if alone else queue.in_sync + queue.eligible
            )
            if queue.transient or not counts:
                continue
            others = {*queue.in_sync, *queue.eligible} - {site.name}
            if alone or not others or (all_up and not all(self.world.sites[name].up for name in others)):
                return False
        return True

    def clock(self) -> bool:
        """Somebody sets the wall clock: the node's time is led there."""
        site = self._one()
        if site is not None:
            site.lead_clock(site.rate * self.rng.choice((0.9, 1.1)))
            self.schedule.after(self.rng.uniform(1, 5), site.lead_clock, site.rate)
        return site is not None

    def elect(self) -> bool:
        """The wiring log's leader is lost."""
        self.world.control.elect(self.rng.uniform(0.3, 1.5))
        return True

    def hand_over(self) -> bool:
        queues = [queue for queue in self.world.queues if queue.owner is not None and len(queue.in_sync) > 1]
        if not queues:
            return False
        queue = self.rng.choice(queues)
        assert queue.owner is not None, "chosen so"
        site = self.world.sites[queue.owner]
        to = self.rng.choice([name for name in queue.in_sync if name != queue.owner])
        if site.node is None:
            return False
        site.do(site.life, site.role.hand_over, queue.queue_id, to)
        return True

    def drain(self) -> bool:
        """A member owns nothing for a while."""
        site = self._drainable()
        if site is None:
            return False
        self.world.control.commit(c.DrainNode(node=NodeId(site.name)))
        self._hand_over_all(site)
        self.schedule.after(self.rng.uniform(1, 4), undrain, self.world, site.name)
        return True

    def _drainable(self) -> Site | None:
        if any(member.draining for member in self.world.newest_map.members()):
            return None
        site = self._one()
        return site if site is not None and site.node is not None else None

    def _hand_over_all(self, site: Site) -> None:
        if site.node is None:
            return
        for queue in self.world.queues:
            if queue.owner == site.name:
                others = [name for name in queue.in_sync if name != site.name]
                if others:
                    site.do(site.life, site.role.hand_over, queue.queue_id, self.rng.choice(others))

    def join(self) -> bool:
        if len(self.world.sites) > 5 or self.rng.random() < 0.5:
            return False
        self.world.add(self.world.free_name()).start()
        return True

    def leave(self) -> bool:
        """A member is drained, and forgotten when it owns nothing any more."""
        rots = any(site.journal.rots for site in self.world.sites.values())
        site = self._drainable() if len(self.world.sites) > 3 and not rots else None
        if site is not None:
            self.begin_leave(site, self.rng.uniform(2, 8))
        return site is not None

    def begin_leave(self, site: Site, patience_s: float) -> None:
        """As `clusterbroker leave` does it: it drains as one that leaves, hands over what it owns, waits until no queue
        counts on its copy, turns its clients away and is forgotten; or stays after all when that takes too long."""
        self.world.control.commit(c.DrainNode(node=NodeId(site.name), leaving=True))
        self._leave(site, self.schedule.now_s + patience_s)

    def _leave(self, site: Site, until_s: float) -> None:
        if self.world.sites.get(site.name) is not site:
            return  # it has left
        if not self.active or self.schedule.now_s >= until_s or len(self.world.sites) <= 3:
            site.retiring = False
            undrain(self.world, site.name)
            return
        name, newest = NodeId(site.name), self.world.newest_map
        again_s = LOOK_S
        if newest.owned(name):
            self._hand_over_all(site)
        elif (site.accepting or site.retiring) and not any(newest.counting_on(name)):
            site.do(site.life, site.turn_clients_away)
            self.world.control.commit(c.ForgetNode(node=name, leaves=True))
            again_s = OUTCOME_S
        self.schedule.after(again_s, self._leave, site, until_s)
