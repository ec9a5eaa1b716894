"""What goes wrong at the very moments where protocols break: chance alone meets them once in thousands of seeds.

    right after an in-sync set changes     cut_after_in_sync   its owner is cut off from the log, and dies
    before a newcomer's addition commits   wipe_newcomer       the newcomer loses its disk
                                           unrelated_entry     another entry comes first, and the owner is cut off
    a queue gets an owner                  slow_at_election    whose disk is slow
                                           kill_at_election    who dies at once
                                           late_owner          who is the last to know, and all links to it are new
    a hand-over                            kill_in_hand_over   one of the two dies
    a damaged copy is given up             hand_over_damaged   its node hands the queue over first, and has a copy
    frames are about to leave              drop_attach, drop_attached, drop_delivery    they are lost, with their link
                                           late_attached       they are slow, with all that comes after
                                           kill_settler        who settles dies
                                           kill_in_sync        a sync begins, and one of the two dies
                                           half_sync           part of it is written, the rest is not
    an acknowledgement reaches a node      stall_settler       which stands still until it has been failed
    an owner reads a stream's file         late_read           it takes long, and who may have asked dies and is back
    messages are read from a disk          slow_reads          each time it takes long; only where a run names it

A moment is used with a chance that the run draws (`aim`), times a share where such moments are many. When a run is
restricted to certain faults, it is about them, and every second moment is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.remote.messages import Attach, Attached, Deliver, Settle
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.replication.messages import SyncBucket, SyncOffer, SyncWant
from tests.simulation.consumers import Consumer
from tests.simulation.network import DATA
from tests.simulation.site import Site
from tests.simulation.streams import StreamReader

if TYPE_CHECKING:
    from tests.simulation.faults import Faults

DIRECTED: Final = (
    "cut_after_in_sync", "wipe_newcomer", "slow_at_election", "kill_in_hand_over", "kill_settler", "drop_attached",
    "kill_at_election", "unrelated_entry", "kill_in_sync", "drop_attach", "drop_delivery", "late_owner", "half_sync",
    "stall_settler", "late_attached", "late_read", "hand_over_damaged",
)  # fmt: skip
SLOW_READ_S: Final = 0.3
LOST: Final[dict[type, tuple[str, float]]] = {
    Attach: ("drop_attach", 0.2),
    Attached: ("drop_attached", 0.1),
    Deliver: ("drop_delivery", 0.03),
}
"""Frames that may be lost: the fault, and its share of such moments."""
GRACE_S: Final = 1.9
"""Who stands still for longer has been failed: by then its last beat is 1.8 s old, and the leader has looked."""


Proposed = tuple[str, int, int]
"""A proposal for an in-sync set: who makes it, the queue, and the version that it is for."""


class Directed:
    """Those of a run. `only`: the faults that may happen, by name; all if empty."""

    def __init__(self, faults: Faults, only: tuple[str, ...] = ()) -> None:
        self.faults = faults
        self.world = faults.world
        self.schedule = self.world.schedule
        self.rng = self.schedule.rng
        self.names = tuple(name for name in DIRECTED if not only or name in only)
        self.aim = 0.5 if only else self.rng.choice((0.0, 0.1, 0.2))
        self._then_cut: set[Proposed] = set()  # additions whose owner is cut off when they commit
        self._added: dict[Proposed, tuple[str, ...]] = {}  # whom each proposal adds
        self._policies = 0
        self.world.reviews.append(self._reviewed)
        self.world.control.before_commit = self._before_commit
        self.world.on_sent = self._sent
        self.world.on_settling = self._settling
        self.world.on_stream_read = self._stream_read
        self.world.slow_read_s = SLOW_READ_S if "slow_reads" in only else 0.0

    def _aimed(self, name: str, share: float = 1.0) -> bool:
        if not self.faults.active or name not in self.names or self.rng.random() >= self.aim * share:
            return False
        self.schedule.counts[f"fault {name}"] += 1
        return True

    def _kill_if_up(self, site: Site) -> None:
        if site.up and self.faults.active:
            self.faults.strike(site, self.rng.uniform(0.1, 2))

    # -- commands

    def _reviewed(self, applied: Applied) -> None:
        """A command is in the log, and no node knows it yet."""
        if isinstance(applied.command, c.ForgetNode) and applied.ok:
            self.world.dismiss(applied.command.node)
        if not self.faults.active or not applied.changes:
            return
        command = applied.command
        if isinstance(command, c.ChangeInSync):
            self._in_sync_changed(applied)
        elif isinstance(command, c.FailNode | c.RegisterNode | c.TransferOwner):
            owners = sorted({owner for change in applied.changes if (owner := _elected(change))})
            for owner in owners:
                self._elected(self.world.sites[owner])

    def _elected(self, site: Site) -> None:
        if self._aimed("slow_at_election"):
            self.faults.slow(self.rng.uniform(0.05, 1.2), site)
        elif site.up and self._aimed("kill_at_election"):
            self.schedule.after(self.rng.random() * 0.05, self._kill_if_up, site)
        elif self._aimed("late_owner"):
            self.world.control.cut_off(site.name)
            for name in self.world.sites:
                if name != site.name:
                    self.world.network.reset(DATA, site.name, name)
            self.schedule.after(self.rng.uniform(0.2, 0.8), self.faults.heal)

    def _in_sync_changed(self, applied: Applied) -> None:
        """The owner is cut off from the log and from the newcomer, and dies soon after."""
        owner, proposals = applied.command.node, applied.command.changes  # type: ignore[union-attr]
        added = {name for one in proposals for name in self._added.get(_key(owner, one), ())}
        chosen = any(_key(owner, one) in self._then_cut for one in proposals)
        site = self.world.sites.get(owner)
        if site is None or not site.up or not (chosen or self._aimed("cut_after_in_sync")):
            return
        self.world.control.cut_off(owner)
        for name in sorted(added):
            if self.rng.random() < 0.7:
                self.world.network.part(owner, name)
        if self.rng.random() < 0.7:
            self.schedule.after(self.rng.uniform(0.2, 1.0), self._kill_if_up, site)
        self.schedule.after(1.2, self.faults.heal)

    # -- proposals

    def _before_commit(self, command: c.AnyCommand) -> bool:
        """A proposal has reached the log: True holds it back; its proposer says it again."""
        if not self.faults.active:
            return False
        if isinstance(command, c.ChangeInSync):
            adds = self._newcomers(command)
            return self._wipe_newcomer(command, adds) or self._come_between(command, adds)
        if isinstance(command, c.TransferOwner) and self._aimed("kill_in_hand_over"):
            site = self.world.sites.get(self.rng.choice((command.node, command.to)))
            if site is not None:
                self._kill_if_up(site)
            return self.rng.random() < 0.5
        return isinstance(command, c.GiveUpCopy) and command.damaged and self._hand_over_damaged(command)

    def _hand_over_damaged(self, command: c.GiveUpCopy) -> bool:
        """The command comes too late for its epoch. Its node gives up the copy that it has by then."""
        queue = self.world.newest_map.queue_by_id(command.queue_id)
        site = self.world.sites.get(command.node)
        if queue is None or queue.owner != command.node or site is None or site.node is None:
            return False
        others = [name for name in queue.in_sync if name != command.node]
        if not others or not self._aimed("hand_over_damaged"):
            return False
        site.do(site.life, site.role.hand_over, command.queue_id, self.rng.choice(others))
        return True

    def _newcomers(self, command: c.ChangeInSync) -> tuple[str, ...]:
        """Those whom the command would add, remembered for the time when it has."""
        found: dict[str, None] = {}
        for proposal in command.changes:
            queue = self.world.newest_map.queue_by_id(proposal.queue_id)
            if queue is not None:
                new = tuple(name for name in proposal.in_sync if name not in queue.in_sync)
                self._added[_key(command.node, proposal)] = new
                found.update(dict.fromkeys(new))
        return tuple(found)

    def _wipe_newcomer(self, command: c.ChangeInSync, newcomers: tuple[str, ...]) -> bool:
        """It comes back at once, and nobody can bring it what it lost before the proposal is made again."""
        joins = {int(proposal.queue_id) for proposal in command.changes}
        for name in newcomers:
            site = self.world.sites.get(name)
            if site is None or not site.up or not self.faults.may_lose(site, joins):
                continue
            if self._aimed("wipe_newcomer"):
                site.kill()
                site.lose_disk()
                self.schedule.after(0.05, site.start)
                self.world.network.part(command.node, name, (DATA,))
                self.schedule.after(self.rng.uniform(0.6, 1.0), self.faults.heal)
                return True
        return False

    def _come_between(self, command: c.ChangeInSync, newcomers: tuple[str, ...]) -> bool:
        """Another entry comes first, which every owner looks at and which concerns no queue; and the owner does not
        hear of the change."""
        if not newcomers or not self._aimed("unrelated_entry"):
            return False
        self._policies += 1
        definition = {"max-length": self._policies}
        self.world.control.commit(c.PutPolicy(vhost="/", name="none", pattern="^nobody$", definition=definition))
        self._then_cut.update(key for one in command.changes if self._added.get(key := _key(command.node, one)))
        return True

    # -- frames

    def _sent(self, site: Site, peer: str, head: Any) -> None:
        """A frame is about to leave."""
        if not self.faults.active or peer == site.name:
            return
        lost = LOST.get(type(head))
        if lost is not None and self._aimed(*lost):
            self.schedule.after(0, self.world.network.reset, DATA, site.name, peer)
        elif isinstance(head, Attached):
            if self._aimed("late_attached", 0.1):  # the proxy attaches anew, and the old answer comes after all
                self.world.network.stall(DATA, site.name, peer, self.rng.uniform(0.5, 0.9))
        elif isinstance(head, Settle):
            if self._aimed("kill_settler", 0.002):
                self.schedule.after(self.rng.random() * 0.004, self._kill_if_up, site)
        elif isinstance(head, SyncOffer | SyncWant):
            if self._aimed("kill_in_sync", 0.02):
                victim = self.world.sites.get(self.rng.choice((site.name, peer)), site)
                self.schedule.after(self.rng.random() * 0.01, self._kill_if_up, victim)
        elif isinstance(head, SyncBucket):
            self._half_sync(site, peer, head)

    def _half_sync(self, site: Site, peer: str, head: SyncBucket) -> None:
        """A copy that may be elected writes what it lacked, slowly; its owner dies before the disk is done."""
        queue = self.world.newest_map.queue_by_id(head.queue_id)  # type: ignore[arg-type]
        copy = self.world.sites.get(peer)
        if queue is None or copy is None or peer not in (*queue.in_sync, *queue.eligible):
            return
        if self._aimed("half_sync"):
            self.faults.slow(self.rng.uniform(0.2, 0.6), copy)
            self.schedule.after(self.rng.uniform(0.003, 0.006), self._kill_if_up, site)

    def _stream_read(self, site: Site) -> float:
        """An owner, or a member that copies, is about to read: how much longer it takes."""
        readers = [actor.socket.site for actor in self.world.actors if isinstance(actor, StreamReader) and actor.socket]
        asking = [reader for reader in readers if reader is not site]
        if not asking or not self._aimed("late_read", 0.5):
            return 0.0
        victim = self.rng.choice(asking)
        if victim.up:
            self.faults.strike(victim, 0.02)
        return self.rng.uniform(0.3, 1.5)

    def _settling(self, consumer: Consumer) -> None:
        """A client is about to acknowledge what somebody else gets, at another node, when this node is failed."""
        if consumer.socket is None:
            return
        site = consumer.socket.site
        queue = self.world.newest_map.queue("/", consumer.queue)
        if queue is None or queue.owner in (None, site.name):
            return
        rivals = (
            other for other in self.world.actors
            if isinstance(other, Consumer) and other.queue == consumer.queue and other.slow_s >= 0.2
            and other.socket is not None and other.socket.site is not site
        )  # fmt: skip
        if any(rivals) and self._aimed("stall_settler", 0.02):
            site.pause(self.rng.uniform(GRACE_S, GRACE_S + 0.3))


def _key(proposer: str, proposal: c.InSyncProposal) -> Proposed:
    return proposer, proposal.queue_id, proposal.version


def _elected(change: Any) -> str:
    return str(change.queue.owner or "") if type(change).__name__ == "OwnerChanged" else ""
