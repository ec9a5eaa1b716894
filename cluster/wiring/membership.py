"""The part of the fold about members and ownership: a member's registrations and failures, owners, in-sync sets,
replicas.

One command about a member is one pass over its queues, in ascending queue_id. The election for a queue depends on the
elections before it, so the order belongs to the result.

*Leaving alive.* A member that simply goes takes its copies with it. Its queues then have one copy less until another
has caught up; if a disk is lost in that time, that copy may have been the last one. So a member leaves in three steps:

    DrainNode(leaving)              nothing new comes, its queues are handed over, it counts among nobody's copies
    MoveReplica add, remove         so the leader sees queues with a copy too few (balance.py), and has others made, one
                                    at a time; when enough of the others are in sync, its own is removed
    ForgetNode(leaves)              refused as long as a queue counts on it: the map alone decides, on every node alike

Its copies count until they are removed: commits wait for them as for any others, and elections may choose them. Enough
copies without it are as many as the queue's settings ask for, but no more than there are members that stay; if those
are too few, its copy goes with the last step. Of two members that leave at once neither counts for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from clusterbroker.cluster.errors import AlreadyExists, PreconditionFailed, queue_text
from clusterbroker.cluster.ids import Epoch, NodeId

from . import changes as events
from . import commands as c
from . import ownership
from .changes import Change
from .entities import Member, Queue
from .levels import Levels
from .members import Members
from .passing import LogClock
from .placement import one_more
from .queue_index import QueueIndex
from .queue_rules import check_length
from .queues import Queues
from .replicas import Replicas
from .vhosts import Vhosts


class Short(NamedTuple):
    """A queue that counts on the copy of a member that leaves."""

    queue: Queue
    in_sync: int
    """Number of members that stay and are in sync."""
    wanted: int
    """Number of copies that there shall be at members that stay."""
    hopeful: bool
    """A member that is alive is catching up, or can be given a copy: waiting may help."""


@dataclass(slots=True, eq=False)
class Membership:
    """The commands about members. The members are `Members`'."""

    _clock: LogClock
    _members: Members
    _vhosts: Vhosts
    _index: QueueIndex
    _replicas: Replicas
    _queues: Queues
    _levels: Levels

    def add(self, command: c.AddMember, changes: list[Change]) -> Member:
        """Fold AddMember."""
        name = command.name
        if not name:
            raise PreconditionFailed("a member's name is empty")
        check_length("member", name)
        if self._members.get(name) is not None:
            raise AlreadyExists(f"member '{name}' is there already: forget it first, or choose another name")
        if not self._members and command.witness:
            raise PreconditionFailed(f"the first member, '{name}', must hold messages: it cannot be a witness")
        self._levels.check_room()
        first = not self._members
        member = Member(
            name=name,
            address=command.address,
            # a name that comes back goes on from where it was, so that its former messages stay of the past
            incarnation=self._members.last_incarnation(name),
            witness=command.witness,
            joined_index=self._clock.applied,
        )
        self._put(member, changes)
        if first:
            self._queues.end_all_transient(changes)
            self._vhosts.predeclare_failover(changes)
            for queue in self._index.lasting():
                self._replicas.replace(queue, ownership.adopted(queue, name), self._replicas.terms(queue), changes)
        return member

    def register(self, command: c.RegisterNode, changes: list[Change]) -> Member:
        """Fold RegisterNode."""
        known = self._members.require(command.node)
        self._levels.check_registration(command)
        self._check_disk(command)
        if command.incarnation <= known.incarnation:
            raise PreconditionFailed(
                f"member '{known.name}' has registered as incarnation {known.incarnation} before, so "
                f"{command.incarnation} is of the past: register as {known.incarnation + 1}"
            )
        held = list(self._index.held_by(known.name))
        empty = bool(known.disk_id) and known.disk_id != command.disk_id
        if empty:
            self._check_old_disk(known, held)
        damaged = set(command.damaged)
        if command.all_damaged and (not command.given_up_as or known.incarnation <= command.given_up_as):
            damaged = {queue.queue_id for queue in held}
        if command.spare_last:
            only = [q for q in held if q.queue_id in damaged and self._replicas.is_only_copy(q, known.name)]
            if only:
                raise PreconditionFailed(
                    f"the damaged copies of member '{known.name}' may be the only ones of {len(only)} queues, the "
                    f"first is {queue_text(only[0].vhost, only[0].name)}"
                )
        member = replace(
            known,
            address=command.address,
            amqp=command.amqp,
            incarnation=command.incarnation,
            disk_id=command.disk_id,
            log_id=command.log_id,
            alive=not command.spare_last,
        )
        self._put(member, changes)
        self._queues.end_transient_of(member.name, changes)
        for queue in self._index.held_by(member.name):
            terms = self._replicas.terms(queue)
            after = queue
            # a damaged copy begins anew only where others may have all; of an only copy, what is readable is all
            hurt = queue.queue_id in damaged and (
                command.all_damaged or not self._replicas.is_only_copy(queue, member.name)
            )
            if empty or terms.memory or hurt:
                after = ownership.lost(after, member.name)
            if queue.owner == member.name or queue.owner is None:
                after = self._replicas.elected(after, terms)
            after = self._replicas.replace(queue, after, terms, changes)
            if hurt and not command.all_damaged:
                changes.append(events.CopyLost(after, member.name))
        return member

    def _check_disk(self, command: c.RegisterNode) -> None:
        disk = command.disk_id
        if not disk:
            raise PreconditionFailed(f"member '{command.node}' names no disk")
        forgotten = self._members.forgotten(disk)
        if forgotten is not None:
            raise PreconditionFailed(
                f"the data directory of '{command.node}' was that of member '{forgotten.name}', which was forgotten: "
                "what it holds is of the past; start with an empty data directory"
            )
        for other in self._members.all():
            if other.disk_id == disk and other.name != command.node:
                raise PreconditionFailed(
                    f"the data directory of '{command.node}' is that of member '{other.name}': "
                    "give each member its own data directory"
                )

    def _check_old_disk(self, known: Member, held: list[Queue]) -> None:
        """Raise 406 when the old disk may have an only copy. The disk may be elsewhere and not lost: a mount is
        missing, or the wrong directory was named. Once the map had struck off its copies, no node would wait for it."""
        only = [q for q in held if known.name in (*q.in_sync, *q.eligible)]
        only = [q for q in only if self._replicas.is_only_copy(q, known.name)]
        if only:
            raise PreconditionFailed(
                f"member '{known.name}' had another disk, which may have the only copy of {len(only)} queues, the "
                f"first is {queue_text(only[0].vhost, only[0].name)}: start it with that disk, or take it out and "
                "accept the loss before it joins anew"
            )

    def fail(self, command: c.FailNode, changes: list[Change]) -> bool:
        """Fold FailNode."""
        known = self._members.require(command.node)
        if not self._members.is_current(known.name, command.incarnation):
            return False
        self._put(replace(known, alive=False), changes)
        self._queues.end_transient_of(known.name, changes)
        for queue in self._index.held_by(known.name):
            terms = self._replicas.terms(queue)
            # a "memory" replica ends with its process, and a failed member registers as a new one
            after = ownership.lost(queue, known.name) if terms.memory else ownership.dropped(queue, known.name)
            if queue.owner == known.name:
                after = self._replicas.elected(after, terms)
            self._replicas.replace(queue, after, terms, changes)
        assert not self._members.owned(known.name), "a member that is not alive owns nothing"
        return True

    def drain(self, command: c.DrainNode, changes: list[Change]) -> None:
        """Fold DrainNode."""
        leaving = command.draining and command.leaving
        known = self._members.require(command.node)
        self._put(replace(known, draining=command.draining, leaving=leaving), changes)

    def forget(self, command: c.ForgetNode, changes: list[Change]) -> None:
        """Fold ForgetNode."""
        known = self._members.require(command.node)
        name = known.name
        owned = self._members.owned(name) if command.leaves else len(self._members.owned_ids(name))
        if known.alive and owned:
            raise PreconditionFailed(f"member '{name}' is alive and leads {owned} queues: drain it, or stop it")
        held = list(self._index.held_by(name))
        if not known.witness and self._members.storing == 1:
            raise PreconditionFailed(f"member '{name}' is the last one that holds messages")
        # also of a queue without a whole copy: a damaged copy may be what is left
        only = [q for q in held if self._replicas.is_only_copy(q, name)]
        if only and not command.accept_loss:
            raise PreconditionFailed(
                f"member '{name}' may have the only copy of {len(only)} queues, the first is "
                f"{queue_text(only[0].vhost, only[0].name)}: start it again, or accept the loss"
            )
        if command.leaves:
            if not command.accept_fewer:
                self._check_spared(name)
            self._queues.end_transient_of(name, changes)
        self._members.retire(name)
        changes.append(events.MemberForgotten(name))
        for queue in held:
            terms = self._replicas.terms(queue)
            after = ownership.lost(queue, name)
            replicas = ownership.without(queue.replicas, name)
            if len(replicas) < terms.wanted:
                added = one_more(self._members, queue.replicas)
                replicas = ownership.ordered(replicas if added is None else (*replicas, added))
            if queue.replicas == (name,):
                # its loss was accepted: it starts empty where it goes, and no operator has to force it there
                replicas = replicas or self._anybody(name)
                after = replace(after, in_sync=replicas, gap_epoch=Epoch(queue.epoch + 1), begins_empty=True)
            after = replace(after, replicas=replicas)
            if queue.owner is None:
                after = self._replicas.elected(after, terms)
            self._replicas.replace(queue, after, terms, changes)
        assert not self._members.held(name), "a forgotten member is in no replica set"

    def _check_spared(self, name: NodeId) -> None:
        short = list(self.counting_on(name))
        if short:
            first = short[0]
            raise PreconditionFailed(
                f"{len(short)} queues count on the copy of member '{name}', the first is "
                f"{queue_text(first.queue.vhost, first.queue.name)}, which has {first.in_sync} of {first.wanted} "
                "copies in sync without it: let others catch up, or accept fewer copies"
            )

    def _anybody(self, but: NodeId) -> tuple[NodeId, ...]:
        storing = [member for member in self._members.all() if member.name != but and not member.witness]
        return (min(storing, key=lambda member: (not member.alive, member.draining, member.name)).name,)

    def set_voters(self, command: c.SetVoters, changes: list[Change]) -> None:
        """Fold SetVoters."""
        for name in command.voters:
            self._members.require(name)
        for member in self._members.all():
            self._put(replace(member, voter=member.name in command.voters), changes)

    def _put(self, member: Member, changes: list[Change]) -> None:
        if self._members.get(member.name) != member:
            self._members.put(member)
            changes.append(events.MemberChanged(member))

    def counting_on(self, name: NodeId) -> Iterator[Short]:
        """The queues with too few copies in sync without this member, in ascending queue_id."""
        members = self._members.all()
        stay = {one.name: one for one in members if not (one.witness or one.leaving or one.name == name)}
        for queue in self._index.held_by(name):
            if name not in queue.in_sync and name not in queue.eligible:
                continue
            in_sync = sum(node in stay for node in queue.in_sync)
            wanted = max(1, min(self._replicas.terms(queue).wanted, len(stay)))
            if in_sync < wanted:
                hopeful = queue.owner is not None and any(
                    member.alive and node not in queue.in_sync and (node in queue.replicas or not member.draining)
                    for node, member in stay.items()
                )
                yield Short(queue, in_sync, wanted, hopeful)
