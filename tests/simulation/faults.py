"""What goes wrong: at any time, and aimed at the moments where protocols break."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.proxy.messages import Attached, Settle
from cluster import commands as c
from cluster.ids import NodeId
from cluster.state import Applied
from replication.messages import SyncOffer, SyncWant
from tests.simulation.network import DATA
from tests.simulation.site import Site

if TYPE_CHECKING:
    from tests.simulation.world import World

RANDOM = (
    *("kill",) * 4, *("pause",) * 2, *("cut_one",) * 3, *("hand_over",) * 3, *("reset",) * 2, "halves", "halves",
    "ring", "one_way", "control_only", "control_only", "kill_all", "slow_disk", "slow_disk", "stuck_disk",
    "failing_disk", "full_disk", "lose_disk", "clock", "elect", "drain", "join", "leave", "heal",
)  # fmt: skip
DIRECTED = (
    "cut_after_in_sync", "wipe_newcomer", "slow_at_election", "kill_in_hand_over", "kill_settler", "drop_attached",
    "kill_at_election", "unrelated_entry", "kill_in_sync",
)  # fmt: skip
SLOW_S = 1.2
"""Between two faults, on average."""


class Faults:
    """The nemesis of a run. `only`: the faults that may happen, by name; all if empty."""

    def __init__(self, world: World, only: tuple[str, ...] = ()) -> None:
        self.world = world
        self.schedule = world.schedule
        self.rng = world.schedule.rng
        self.random = tuple(name for name in RANDOM if not only or name in only)
        self.directed = tuple(name for name in DIRECTED if not only or name in only)
        self.aim = self.rng.choice((0.0, 0.1, 0.2))
        """How likely a moment is used."""
        self.active = False
        self._then_cut: str | None = None  # an owner whose next change of an in-sync set is followed by a cut
        world.reviews.append(self._reviewed)
        world.control.before_commit = self._before_commit
        world.on_sent = self._sent

    def begin(self) -> None:
        self.active = True
        self.schedule.after(self.rng.random() * 2, self._next)

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

    def _kill(self, site: Site, away_s: float) -> None:
        site.kill()
        self.schedule.after(away_s, site.start)

    # -- at any time

    def kill(self) -> bool:
        site = self._one()
        if site is not None:
            self._kill(site, self.rng.choice((0.05, 0.5, 4)) * (0.5 + self.rng.random()))
        return site is not None

    def kill_all(self) -> bool:
        for site in self._up():
            self._kill(site, self.rng.uniform(0.2, 4))
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

    def reset(self) -> bool:
        one, other = self._names()[:2]
        self.world.network.reset(DATA, one, other)
        return True

    def heal(self) -> bool:
        self.world.network.heal()
        return True

    def slow_disk(self) -> bool:
        return self._slow(self.rng.uniform(0.05, 0.8))

    def stuck_disk(self) -> bool:
        return self._slow(self.rng.uniform(1, 4))

    def _slow(self, delay_s: float, site: Site | None = None) -> bool:
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
        if site is None or not self._may_lose(site):
            return False
        site.kill()
        site.lose_disk()
        self.schedule.after(self.rng.uniform(0.1, 2), site.start)
        return True

    def _may_lose(self, site: Site) -> bool:
        """No more disks than the minimum in sync allows: nobody else's is lost, and others have everything."""
        if any(other.journal.lost for other in self.world.sites.values()):
            return False
        newest = self.world.newest_map
        for queue in newest.queues("/"):
            if queue.transient or site.name not in (*queue.in_sync, *queue.eligible):
                continue
            if newest.min_in_sync(queue) < 2 or not {*queue.in_sync, *queue.eligible} - {site.name}:
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
        queues = [q for q in self.world.newest_map.queues("/") if q.owner is not None and len(q.in_sync) > 1]
        if not queues:
            return False
        queue = self.rng.choice(queues)
        assert queue.owner is not None, "chosen so"
        site = self.world.sites[queue.owner]
        to = self.rng.choice([name for name in queue.in_sync if name != queue.owner])
        if site.node is None:
            return False
        site.do(site.life, site.part.hand_over, queue.queue_id, to)
        return True

    def drain(self) -> bool:
        return self._drain() is not None

    def _drain(self) -> str | None:
        """A member owns nothing for a while; its name."""
        if any(member.draining for member in self.world.newest_map.members()):
            return None
        site = self._one()
        if site is None or site.node is None:
            return None
        self.world.control.commit(c.DrainNode(node=NodeId(site.name)))
        for queue in self.world.newest_map.queues("/"):
            if queue.owner == site.name:
                others = [name for name in queue.in_sync if name != site.name]
                if others:
                    site.do(site.life, site.part.hand_over, queue.queue_id, self.rng.choice(others))
        self.schedule.after(self.rng.uniform(1, 4), self._undrain, site.name)
        return site.name

    def _undrain(self, name: str) -> None:
        member = self.world.newest_map.member(NodeId(name))
        if member is not None and member.draining:
            self.world.control.commit(c.DrainNode(node=NodeId(name), draining=False))

    def join(self) -> bool:
        if len(self.world.sites) > 5 or self.rng.random() < 0.5:
            return False
        self.world.add(chr(ord("f") + len(self.world.sites))).start()
        return True

    def leave(self) -> bool:
        """A member is drained, and forgotten when it owns nothing any more."""
        name = self._drain() if len(self.world.sites) > 3 else None
        if name is None:
            return False
        self.schedule.after(self.rng.uniform(0.5, 0.9), self._forget, name)
        return True

    def _forget(self, name: str) -> None:
        site = self.world.sites.get(name)
        if not self.active or len(self.world.sites) <= 3 or site is None or not site.accepting:
            return
        site.do(site.life, site.turn_clients_away)
        self.world.control.commit(c.ForgetNode(node=NodeId(name)))
        self.schedule.after(2.0, self._stayed, site)

    def _stayed(self, site: Site) -> None:
        """It was refused if the member is still there."""
        site.retiring = False

    # -- aimed

    def _aimed(self, name: str) -> bool:
        if not self.active or name not in self.directed or self.rng.random() >= self.aim:
            return False
        self.schedule.counts[f"fault {name}"] += 1
        return True

    def _reviewed(self, applied: Applied) -> None:
        """A command is in the log, and no node knows it yet."""
        if isinstance(applied.command, c.ForgetNode) and applied.ok:
            self.world.dismiss(applied.command.node)
        if not self.active or not applied.changes:
            return
        command = applied.command
        if isinstance(command, c.ChangeInSync):
            self._in_sync_changed(applied)
        elif isinstance(command, c.FailNode | c.RegisterNode | c.TransferOwner):
            owners = sorted({owner for change in applied.changes if (owner := _elected(change))})
            for owner in owners:
                site = self.world.sites[owner]
                if self._aimed("slow_at_election"):
                    self._slow(self.rng.uniform(0.05, 1.2), site)
                elif site.up and self._aimed("kill_at_election"):
                    self.schedule.after(self.rng.random() * 0.05, self._kill_if_up, site)

    def _kill_if_up(self, site: Site) -> None:
        if site.up and self.active:
            self._kill(site, self.rng.uniform(0.1, 2))

    def _in_sync_changed(self, applied: Applied) -> None:
        """The owner is cut off from the log and from the newcomer, and dies soon after."""
        added = {name for proposal in applied.command.changes for name in proposal.in_sync}  # type: ignore[union-attr]
        owner = applied.command.node  # type: ignore[union-attr]
        added.discard(owner)
        site = self.world.sites.get(owner)
        chosen, self._then_cut = self._then_cut == owner, None
        if site is None or not site.up or not (chosen or self._aimed("cut_after_in_sync")):
            return
        self.world.control.cut_off(owner)
        for name in sorted(added):
            if self.rng.random() < 0.7:
                self.world.network.part(owner, name)
        if self.rng.random() < 0.7:
            self.schedule.after(self.rng.uniform(0.2, 1.0), self._kill_if_up, site)
        self.schedule.after(1.2, self.heal)

    def _before_commit(self, command: c.AnyCommand) -> bool:
        """A proposal has reached the log: True holds it back; its proposer says it again."""
        if not self.active:
            return False
        if isinstance(command, c.ChangeInSync):
            return self._wipe_newcomer(command) or self._come_between(command)
        if isinstance(command, c.TransferOwner) and self._aimed("kill_in_hand_over"):
            site = self.world.sites.get(self.rng.choice((command.node, command.to)))
            if site is not None:
                self._kill_if_up(site)
            return self.rng.random() < 0.5
        return False

    def _wipe_newcomer(self, command: c.ChangeInSync) -> bool:
        for proposal in command.changes:
            queue = self.world.newest_map.queue_by_id(proposal.queue_id)
            if queue is None:
                continue
            for name in proposal.in_sync:
                site = self.world.sites.get(name)
                if site is None or name in queue.in_sync or not site.up or not self._may_lose(site):
                    continue
                if self._aimed("wipe_newcomer"):
                    site.kill()
                    site.lose_disk()
                    self.schedule.after(0.05, site.start)
                    return True
        return False

    def _sent(self, site: Site, peer: str, head: Any) -> None:
        """A frame is about to leave."""
        if not self.active or peer == site.name:
            return
        if isinstance(head, Attached):
            if self.rng.random() < 0.1 and self._aimed("drop_attached"):
                self.schedule.after(0, self.world.network.reset, DATA, site.name, peer)
        elif isinstance(head, Settle):
            if self.rng.random() < 0.002 and self._aimed("kill_settler"):
                self.schedule.after(self.rng.random() * 0.004, self._kill_if_up, site)
        elif isinstance(head, SyncOffer | SyncWant) and self.rng.random() < 0.02 and self._aimed("kill_in_sync"):
            victim = self.world.sites.get(self.rng.choice((site.name, peer)), site)
            self.schedule.after(self.rng.random() * 0.01, self._kill_if_up, victim)

    def _come_between(self, command: c.ChangeInSync) -> bool:
        """Another entry comes first, and the owner does not hear of the change."""
        adds = any(
            set(proposal.in_sync) - set(queue.in_sync)
            for proposal in command.changes
            if (queue := self.world.newest_map.queue_by_id(proposal.queue_id)) is not None
        )
        if not adds or not self._aimed("unrelated_entry"):
            return False
        self.world.control.commit(c.DrainNode(node=command.node, draining=False))
        self._then_cut = command.node
        return True


def _elected(change: Any) -> str:
    return str(change.queue.owner or "") if type(change).__name__ == "OwnerChanged" else ""
