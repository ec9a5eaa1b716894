"""What happens to a node's directory: the edges at which the protocol believes what it is told.

    lose_journal    nothing is where the journal was: a mount is missing. Put back where a copy was the only one
    old_journal     a journal of an earlier start of this node is in its place
    lose_raft       nothing is where the Raft log was

    lose_page       a page of its index is as it was before the last commit (where journals are real)
    damage_stream   a message in a file of a stream, at its owner, cannot be read any more (not where journals are real)
    damage          one record of one copy cannot be read any more, and its node perhaps begins anew

the first three each alone, or with every process killed before; and what happens to its machine:

    pause_machine   it stands still, and its clocks with it: a snapshot, a live migration. Also when a queue is
                    declared, of which its node does not hear when it wakes
    slew            its clocks go faster or slower by 8 %, as chrony may have them, but for the raw one

and what operators do meanwhile:

    policy          another minimum in sync, or number of replicas, for every queue
    force_owner     a copy that counts becomes the owner, whether the one there is likes it or not: nothing is lost
    force_behind    a copy that fell behind becomes the owner: what it lacks is given up, and nothing else
    in_between      a member was failed, and before its heirs have synced once it registers, or is forgotten

They have a chance of their own, so that the story of a seed without
them is what it was.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from clusterbroker.cluster.ids import NodeId, QueueId
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from tests.simulation.clients import Pioneer
from tests.simulation.network import DATA
from tests.simulation.publishers import Publisher
from tests.simulation.site import Site
from tests.simulation.workload import LOSSY, TARGETS

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

EDGES: Final = (
    *("lose_journal",) * 2, "old_journal", "lose_raft", "lose_page", "damage", "damage", "pause_machine", "slew",
    "policy", "force_owner", "force_behind",
    "damage_stream",
)  # fmt: skip
BEHIND_S: Final = 4.0
"""So long a copy may take to fall behind, before its operator thinks better of it."""
MOMENT_S: Final = 0.001
IN_BETWEEN: Final = "in_between"
RARE_S: Final = 6.0
"""Between two of them, on average; a run that is restricted to some of them has more."""
AIMED_S: Final = 2.0


class Edges:
    """Those of a run. `only`: the faults that may happen, by name; all if empty."""

    def __init__(self, faults: Faults, only: tuple[str, ...] = ()) -> None:
        self.faults = faults
        self.world = faults.world
        self.schedule = self.world.schedule
        self.rng = Random(f"edges {self.schedule.seed}")
        self.names = tuple(name for name in EDGES if not only or name in only)
        self._shrunk = False
        """Copies leave queues, perhaps the last sound one."""
        self.every_s = AIMED_S if only else RARE_S
        if not only or IN_BETWEEN in only:
            self.world.reviews.append(self._reviewed)
        if "pause_machine" in self.names:
            self.world.reviews.append(self._declared)

    def begin(self) -> None:
        if self.names:
            self.schedule.after(self.rng.expovariate(1 / self.every_s), self._next)

    def _next(self) -> None:
        if not self.faults.active:
            return
        self.begin()
        name = self.rng.choice(self.names)
        if getattr(self, name)():
            self.schedule.counts[f"fault {name}"] += 1

    def _one(self) -> Site | None:
        """Somebody whose directory is whole."""
        sites = [site for site in self.world.sites.values() if not site.journal.lost and not site.voice_lost]
        return self.rng.choice(sites) if sites else None

    def _counts_on_a_lost_disk(self) -> bool:
        """Whether copies might be given up because somebody else has all, whose disk is lost or given up as well: one
        too many."""
        if self.world.going:
            return True
        members = {member.name: member.disk_id for member in self.world.newest_map.members()}
        sites = self.world.sites.values()
        return any(site.journal.rots or members.get(site.name, "") not in ("", site.disk_id) for site in sites)

    def _kill(self, site: Site) -> None:
        """It, or all. They come back."""
        for one in tuple(self.world.sites.values()) if self.rng.random() < 0.5 else (site,):
            if one.up:
                one.kill()
            self.schedule.after(self.rng.uniform(0.1, 3), one.start)

    def lose_journal(self) -> bool:
        site = self._one()
        if site is None or site.journal.stamp is None or self._counts_on_a_lost_disk():
            return False
        self._kill(site)
        site.lose_journal()
        return True

    def old_journal(self) -> bool:
        sites = [] if self._counts_on_a_lost_disk() else list(self.world.sites.values())
        self.rng.shuffle(sites)
        for site in sites:
            old = None if site.journal.lost else site.directory.old_copy()
            if old is not None:
                self._kill(site)
                site.lose_journal(old.copy())
                return True
        return False

    def lose_raft(self) -> bool:
        """No second voter may be missing, or there is no majority for ever. One that is about to go counts as gone: a
        log knows its voters before they are decided."""
        site = self._one()
        world = self.world
        gone = world.going or any(o.voice_lost or o.journal.lost for o in world.sites.values())
        if site is None or not world.raft or gone:
            return False
        voters = [sum(member.voter for member in world.newest_map.members())]
        logs = [one.wiring.log for one in world.sites.values() if one.up]
        voters += [len(log.voters) for log in logs if log is not None]
        if min(voters) < 3:
            return False
        self._kill(site)
        site.lose_raft()
        return True

    def lose_page(self) -> bool:
        site = self._one()
        if site is None or site.journal.stamp is None or self._counts_on_a_lost_disk():
            return False
        self._kill(site)
        return site.journal.lose_page()

    def damage(self) -> bool:
        """Nobody else has damage, and others count: the message lives there."""
        newest = self.world.newest_map
        gone = any(site.journal.lost or site.journal.rots for site in self.world.sites.values())
        if gone or self.world.going or self._shrunk or any(member.draining for member in newest.members()):
            return False
        site = self.rng.choice(list(self.world.sites.values()))
        journal = site.journal
        segment = self.rng.choice(sorted(journal.segments))
        found = [
            (queue_id, seq, offset)
            for queue_id, seq, offset in journal.sound(segment)
            if journal.may_rot(segment, offset) and self._is_elsewhere(site, queue_id, seq)
        ]
        for queue_id, seq, offset in self.rng.sample(found, min(len(found), 3)):
            journal.rot(segment, offset, queue_id, seq)
        if found and self.rng.random() < 0.7:
            self._kill(site)
        return bool(found)

    def damage_stream(self) -> bool:
        """A reader finds it, and the next owner has the stream. Nobody else has damage, and somebody else has all."""
        world, sites = self.world, self.world.sites
        gone = world.going or any(site.journal.lost or site.journal.rots for site in sites.values())
        if gone or self._shrunk or world.real_journals or any(one.draining for one in world.newest_map.members()):
            return False
        for queue in world.queues:
            if queue.owner is not None and world.is_stream(queue.name) and len(queue.in_sync) > 1:
                streams = sites[queue.owner].journal.streams
                if streams is not None and streams.rot(queue.queue_id, self.rng):
                    return True
        return False

    def _is_elsewhere(self, site: Site, queue_id: int, seq: int) -> bool:
        """Whether another copy that counts has the very message on its disk. What was written a moment ago may not."""
        queue = self.world.newest_map.queue_by_id(QueueId(queue_id))
        if queue is None or self.world.is_stream(queue.name):
            return False
        here = site.journal.live[queue_id][seq]
        counted = [name for name in (*queue.in_sync, *queue.eligible) if name != site.name]
        return any(self.world.sites[name].journal.live.get(queue_id, {}).get(seq) == here for name in counted)

    def pause_machine(self) -> bool:
        """Perhaps its network comes back later than the machine."""
        up = [site for site in self.world.sites.values() if site.up]
        if not up:
            return False
        site, span_s = self.rng.choice(up), self.rng.choice((0.1, 1.9, 1.9)) + self.rng.uniform(0, 2)
        if self.rng.random() < 0.7:
            self.world.control.cut_off(site.name)
            self.schedule.after(span_s + self.rng.uniform(0.1, 2), self.faults.heal)
        site.pause(span_s, machine=True)
        return True

    def _declared(self, applied: Applied) -> None:
        """A queue is in the log, and no node knows it yet: a machine stands still until it has been failed, and wakes
        cut off, so that its node does not hear of the queue. Publishers come to it then."""
        if not self.faults.active or not isinstance(applied.command, c.DeclareQueue) or not applied.changes:
            return
        declares = {actor.socket.site for actor in self.world.actors if isinstance(actor, Pioneer) and actor.socket}
        up = [site for site in self.world.sites.values() if site.accepting and site not in declares]
        if not declares or not up or self.rng.random() > (0.7 if self.every_s == AIMED_S else 0.05):
            return
        site, span_s = self.rng.choice(up), self.rng.uniform(2.2, 3)
        self.schedule.counts["fault pause_machine"] += 1
        for moment_s in (0.0, span_s - MOMENT_S):  # others may heal the network meanwhile
            self.schedule.after(moment_s, self.world.control.cut_off, site.name)
        self.schedule.after(span_s, self._publishers_leave)
        self.schedule.after(span_s + 1.5, self.faults.heal)
        site.pause(span_s, machine=True)

    def _publishers_leave(self) -> None:
        for actor in self.world.actors:
            if isinstance(actor, Publisher):
                actor.leave()

    def slew(self) -> bool:
        site = self.rng.choice(list(self.world.sites.values()))
        site.slew(self.rng.choice((0.917, 1.083)))
        self.schedule.after(self.rng.uniform(2, 10), site.slew, 1.0)
        return True

    # -- operators

    def policy(self) -> bool:
        if self.rng.random() < 0.2:
            self.world.control.commit(c.DeletePolicy(vhost="/", name="edge"))
            return True
        definition: dict[str, int] = {}
        if self.rng.random() < 0.8:
            definition["min-in-sync"] = self.rng.choice((1, 2, 3))
        if self.rng.random() < 0.3 or not definition:
            self._shrunk = True
            definition["replicas"] = self.rng.choice((2, 3))
        command = c.PutPolicy(vhost="/", name="edge", pattern=".*", definition=definition, apply_to="queues")
        self.world.control.commit(command)
        return True

    def force_owner(self) -> bool:
        """Where a command is applied as soon as it is given: else the copy may not count any more by then."""
        sites = self.world.sites
        if self.world.raft or any(site.journal.lost for site in sites.values()):
            return False
        newest, chosen = self.world.newest_map, []
        for queue in self.world.queues:
            for name in (*queue.in_sync, *queue.eligible):
                member = newest.member(name)
                if (
                    name != queue.owner
                    and member is not None
                    and member.alive
                    and not queue.transient
                    and sites[name].up
                ):
                    chosen.append(c.ForceOwner(queue_id=queue.queue_id, node=name))
        if chosen:
            self.world.control.commit(self.rng.choice(chosen))
        return bool(chosen)

    def force_behind(self) -> bool:
        """A copy is cut off from the others until it does not count any more, and perhaps the owner dies: an operator
        who takes the others for lost forces it. Not where batches come: their rows are together in other queues."""
        out = TARGETS if "batches" in self.world.pipeline else ()
        queues = [
            queue for queue in self.world.queues
            if queue.owner is not None and len(queue.in_sync) > 1 and queue.name not in out
            and (queue.name in LOSSY or queue.name.startswith("new"))
        ]  # fmt: skip
        if not queues or any(site.journal.lost or site.journal.rots for site in self.world.sites.values()):
            return False
        queue = self.rng.choice(queues)
        to = self.rng.choice([name for name in queue.in_sync if name != queue.owner])
        for other in queue.replicas:
            if other != to:
                self.world.network.part(to, other, (DATA,))
        until_s = self.schedule.now_s + BEHIND_S
        self.schedule.after(self.rng.uniform(0.5, BEHIND_S), self._force_behind, queue.queue_id, to, until_s)
        return True

    def _force_behind(self, queue_id: QueueId, to: NodeId, until_s: float) -> None:
        queue, member = self.world.newest_map.queue_by_id(queue_id), self.world.newest_map.member(to)
        sites = self.world.sites
        if not self.faults.active or queue is None or member is None or self.schedule.now_s > until_s:
            return
        lost = any(site.journal.lost or site.journal.rots for site in sites.values())
        if to in (*queue.in_sync, *queue.eligible) or to not in queue.replicas or not member.alive or lost:
            self.schedule.after(0.1, self._force_behind, queue_id, to, until_s)
            return
        owner = sites.get(str(queue.owner))
        if owner is not None and owner.up and self.rng.random() < 0.5:
            self.faults.strike(owner, self.rng.uniform(0.1, 3))
        self.schedule.counts["forced behind"] += 1
        self.world.control.commit(c.ForceOwner(queue_id=queue_id, node=to))

    def _reviewed(self, applied: Applied) -> None:
        """A command is in the log, and no node knows it yet."""
        if not self.faults.active or not isinstance(applied.command, c.FailNode) or not applied.changes:
            return
        name = applied.command.node
        site = self.world.sites.get(name)
        if site is None or self.rng.random() > (0.7 if self.every_s == AIMED_S else 0.2):
            return
        self.schedule.counts[f"fault {IN_BETWEEN}"] += 1
        rots = any(other.journal.rots for other in self.world.sites.values())
        if len(self.world.sites) > 3 and not rots and self.rng.random() < 0.5:
            self.schedule.after(self.rng.uniform(0, 0.01), self._forget, site)
        else:
            self.schedule.after(0, site.start)

    def _forget(self, site: Site) -> None:
        """It is gone for good, says an operator; refused where it may have the only copy, as far as the map knows. Of a
        disk that was lost it knows when that node registers: forgotten before, the member is the second loss, and what
        the two had is gone whatever the map says (seed 990000 of 45a92a9)."""
        world, name = self.world, NodeId(site.name)
        if world.sites.get(name) is not site or len(world.sites) <= 3:
            return
        if any(other.voice_lost or other.journal.lost or other.journal.rots for other in world.sites.values()):
            self._back(site)
            return
        if site.up:
            site.kill()
        world.going.add(name)
        world.control.commit(c.ForgetNode(node=name))
        if not world.raft:  # else the order may come into the log at any later time
            world.going.discard(name)
        self.schedule.after(3.0, self._back, site)

    def _back(self, site: Site) -> None:
        if self.world.sites.get(site.name) is site:
            site.start()
