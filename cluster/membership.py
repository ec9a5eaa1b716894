"""The part of the fold about members and ownership: a member's life, owners, in-sync sets, replicas.

One command about a member is one pass over its queues, in ascending queue_id: who is chosen for a queue depends on
who was chosen for the ones before it, so the order belongs to the result. What happens to a single queue is in
ownership.py; here is who may ask for it, and which queues it concerns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from . import changes as told
from . import commands as c
from . import ownership
from .changes import Change
from .entities import Member, Queue
from .errors import AlreadyExists, NotFound, PreconditionFailed, queue_text
from .ids import Epoch, Incarnation, NodeId, QueueId
from .leaving import counting_on
from .ownership import Terms
from .placement import NOWHERE, one_more, place
from .queue_rules import check_length
from .view import ClusterView

Handler = Callable[[Any, list[Change]], Any]


class Membership(ClusterView):
    """Handlers of the commands about members, and about owners and replicas of queues."""

    __slots__ = ()

    def _membership_handlers(self) -> dict[type, Handler]:
        return {
            c.AddMember: self._add_member,
            c.RegisterNode: self._register_node,
            c.FailNode: self._fail_node,
            c.DrainNode: self._drain_node,
            c.ForgetNode: self._forget_node,
            c.SetVoters: self._set_voters,
            c.ChangeInSync: self._change_in_sync,
            c.TransferOwner: self._transfer_owner,
            c.GiveUpCopy: self._give_up_copy,
            c.ForceOwner: self._force_owner,
            c.MoveReplica: self._move_replica,
        }

    # ---- the life of a member ----

    def _add_member(self, command: c.AddMember, log: list[Change]) -> Member:
        name = command.name
        if not name:
            raise PreconditionFailed("a member's name is empty")
        check_length("member", name)
        if self._members.get(name) is not None:
            raise AlreadyExists(f"member '{name}' is there already: forget it first, or choose another name")
        if not self._members and command.witness:
            raise PreconditionFailed(f"the first member, '{name}', must hold messages: it cannot be a witness")
        first = not self._members
        member = Member(
            name=name,
            address=command.address,
            # a name that comes back goes on from where it was, so that what it once sent stays of the past
            incarnation=self._members.last_incarnation(name),
            witness=command.witness,
            joined_index=self._applied,
        )
        self._put(member, log)
        if first:
            self._end_all_transient(log)
            for topology in self._vhosts.values():
                topology.predeclare_failover(log)
            for queue in tuple(self._by_id[queue_id] for queue_id in sorted(self._by_id)):
                if not queue.transient:
                    self._replace(queue, ownership.adopted(queue, name), self.terms(queue), log)
        return member

    def _register_node(self, command: c.RegisterNode, log: list[Change]) -> Member:
        known = self._known(command.node)
        self._check_disk(command)
        if command.incarnation <= known.incarnation:
            raise PreconditionFailed(
                f"member '{known.name}' has registered as incarnation {known.incarnation} before, so "
                f"{command.incarnation} is of the past: register as {known.incarnation + 1}"
            )
        held = self._held(known.name)
        empty = bool(known.disk_id) and known.disk_id != command.disk_id
        if empty:
            self._check_old_disk(known, held)
        damaged = set(command.damaged)
        if command.all_damaged and (not command.given_up_as or known.incarnation <= command.given_up_as):
            damaged = {queue.queue_id for queue in held}
        if command.spare_last:
            only = [q for q in held if q.queue_id in damaged and self.is_only_copy(q, known.name)]
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
        self._put(member, log)
        self._end_transient_of(member.name, log)
        for queue in self._held(member.name):
            terms = self.terms(queue)
            after = queue
            # what is named begins anew only where others may have all; of an only copy what can be read is all there is
            hurt = queue.queue_id in damaged and (command.all_damaged or not self.is_only_copy(queue, member.name))
            if empty or terms.memory or hurt:
                after = ownership.lost(after, member.name)
            if queue.owner == member.name or queue.owner is None:
                after = ownership.elected(after, terms, self._members.get, self._members.owned)
            after = self._replace(queue, after, terms, log)
            if hurt and not command.all_damaged:
                log.append(told.CopyLost(after, member.name))
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
        """Perhaps the disk is not lost but elsewhere: a mount is missing, or the wrong directory was named. Once the
        map had struck off its copies, nobody would wait for it any more."""
        only = [q for q in held if known.name in (*q.in_sync, *q.eligible) and self.is_only_copy(q, known.name)]
        if only:
            raise PreconditionFailed(
                f"member '{known.name}' had another disk, which may have the only copy of {len(only)} queues, the "
                f"first is {queue_text(only[0].vhost, only[0].name)}: start it with that disk, or take it out and "
                "accept the loss before it joins anew"
            )

    def _fail_node(self, command: c.FailNode, log: list[Change]) -> bool:
        known = self._known(command.node)
        if not self._members.is_life(known.name, command.incarnation):
            return False
        self._put(replace(known, alive=False), log)
        self._end_transient_of(known.name, log)
        for queue in self._held(known.name):
            terms = self.terms(queue)
            # a "memory" replica ends with its process, and who was failed registers as a new one
            after = ownership.lost(queue, known.name) if terms.memory else ownership.dropped(queue, known.name)
            if queue.owner == known.name:
                after = ownership.elected(after, terms, self._members.get, self._members.owned)
            self._replace(queue, after, terms, log)
        assert not self._members.owned(known.name), "a member that is not alive owns nothing"
        return True

    def _drain_node(self, command: c.DrainNode, log: list[Change]) -> None:
        leaving = command.draining and command.leaving
        self._put(replace(self._known(command.node), draining=command.draining, leaving=leaving), log)

    def _forget_node(self, command: c.ForgetNode, log: list[Change]) -> None:
        known = self._known(command.node)
        name = known.name
        owned = self._members.owned(name) if command.leaves else len(self._members.owned_ids(name))
        if known.alive and owned:
            raise PreconditionFailed(f"member '{name}' is alive and owns {owned} queues: drain it, or stop it")
        held = self._held(name)
        if not known.witness and self._members.storing == 1:
            raise PreconditionFailed(f"member '{name}' is the last one that holds messages")
        # also of a queue of which nobody has all: a damaged copy may be what is left
        only = [q for q in held if self.is_only_copy(q, name)]
        if only and not command.accept_loss:
            raise PreconditionFailed(
                f"member '{name}' may have the only copy of {len(only)} queues, the first is "
                f"{queue_text(only[0].vhost, only[0].name)}: start it again, or accept the loss"
            )
        if command.leaves:
            if not command.accept_fewer:
                self._check_spared(name)
            self._end_transient_of(name, log)
        self._members.retire(name)
        log.append(told.MemberForgotten(name))
        for queue in held:
            terms = self.terms(queue)
            after = ownership.lost(queue, name)
            replicas = ownership.without(queue.replicas, name)
            if len(replicas) < terms.wanted:
                added = one_more(self._members, queue.replicas)
                replicas = ownership.ordered(replicas if added is None else (*replicas, added))
            if queue.replicas == (name,):
                # whose loss was accepted: it starts empty where it goes, and no operator has to force it there
                replicas = replicas or self._anybody(name)
                after = replace(after, in_sync=replicas, gap_epoch=Epoch(queue.epoch + 1), begins_empty=True)
            after = replace(after, replicas=replicas)
            if queue.owner is None:
                after = ownership.elected(after, terms, self._members.get, self._members.owned)
            self._replace(queue, after, terms, log)
        assert not self._members.held(name), "a forgotten member is in no replica set"

    def _check_spared(self, name: NodeId) -> None:
        short = list(counting_on(self, name))
        if short:
            first = short[0]
            raise PreconditionFailed(
                f"{len(short)} queues count on the copy of member '{name}', the first is "
                f"{queue_text(first.queue.vhost, first.queue.name)}, which has {first.in_sync} of {first.wanted} "
                "copies in sync without it: let others catch up, or accept fewer copies"
            )

    def _set_voters(self, command: c.SetVoters, log: list[Change]) -> None:
        for name in command.voters:
            self._known(name)
        for member in self._members.all():
            self._put(replace(member, voter=member.name in command.voters), log)

    # ---- who owns and holds a queue ----

    def _change_in_sync(self, command: c.ChangeInSync, log: list[Change]) -> tuple[QueueId, ...]:
        if not self._members.is_life(command.node, command.incarnation):
            return ()
        changed = []
        for proposal in command.changes:
            queue = self._by_id.get(proposal.queue_id)
            if queue is not None and self._holds(command, proposal, queue):
                after = ownership.proposed(queue, proposal.in_sync)
                self._replace(queue, after, self.terms(queue), log, anew=True)
                changed.append(queue.queue_id)
        return tuple(changed)

    def _holds(self, command: c.ChangeInSync, proposal: c.InSyncProposal, queue: Queue) -> bool:
        """Whether a proposal is of the queue as it is now, and every newcomer still lives the life that caught up."""
        in_sync, incarnations = proposal.in_sync, proposal.incarnations
        return (
            (queue.owner, queue.incarnation) == (command.node, command.incarnation)
            and (queue.epoch, queue.version) == (proposal.epoch, proposal.version)
            and not queue.transient
            and command.node in in_sync
            and len(in_sync) == len(incarnations)
            and all(
                node in queue.in_sync or (node in queue.replicas and self._members.is_life(node, incarnation))
                for node, incarnation in zip(in_sync, incarnations, strict=True)
            )
        )

    def _transfer_owner(self, command: c.TransferOwner, log: list[Change]) -> Queue:
        queue = self._replicated(command.queue_id)
        where = queue_text(queue.vhost, queue.name)
        if (queue.owner, queue.incarnation) != (command.node, command.incarnation) or (
            not self._members.is_life(command.node, command.incarnation)
        ):
            raise PreconditionFailed(f"{where} is not owned by '{command.node}' incarnation {command.incarnation}")
        if (queue.epoch, queue.version) != (command.epoch, command.version):
            raise PreconditionFailed(f"{where} is at epoch {queue.epoch}, version {queue.version}: look again")
        to = self._members.get(command.to)
        if to is None or not to.alive or to.name not in queue.in_sync or to.name == queue.owner:
            raise PreconditionFailed(f"{where} cannot be handed to '{command.to}': it is not another in-sync member")
        return self._replace(queue, ownership.transferred(queue, to), self.terms(queue), log)

    def _give_up_copy(self, command: c.GiveUpCopy, log: list[Change]) -> Queue:
        queue = self._replicated(command.queue_id)
        where = queue_text(queue.vhost, queue.name)
        node = command.node
        if not self._members.is_life(node, command.incarnation) or queue.epoch != command.epoch:
            raise PreconditionFailed(f"{where} is at epoch {queue.epoch}, or '{node}' began again: look again")
        others = [
            member
            for name in (*queue.in_sync, *queue.eligible)
            if name != node and (member := self._members.get(name)) is not None and member.alive
        ]
        heir = next((member for member in others if member.name == command.heir), None)
        if heir is None and command.heir is not None:
            raise PreconditionFailed(
                f"{where} cannot go to '{command.heir}', which may lack something itself, or is away"
            )
        if not others and node in (*queue.in_sync, *queue.eligible):
            raise PreconditionFailed(f"nobody but '{node}' is here who may have all of {where}")
        terms = self.terms(queue)
        doubted = command.doubted and heir is not None
        after = ownership.given_up(queue, node, heir, terms, self._members.get, self._members.owned, doubted=doubted)
        after = self._replace(queue, after, terms, log)
        if command.damaged and node in queue.replicas:
            log.append(told.CopyLost(after, node))
        return after

    def _force_owner(self, command: c.ForceOwner, log: list[Change]) -> Queue:
        queue = self._replicated(command.queue_id)
        to = self._known(command.node)
        where = queue_text(queue.vhost, queue.name)
        if to.name not in queue.replicas:
            raise PreconditionFailed(f"{where} has no replica at '{to.name}': choose of {', '.join(queue.replicas)}")
        if not to.alive:
            raise PreconditionFailed(f"member '{to.name}' is not alive: start it, then force it to own {where}")
        return self._replace(queue, ownership.forced(queue, to), self.terms(queue), log)

    def _move_replica(self, command: c.MoveReplica, log: list[Change]) -> Queue:
        queue = self._replicated(command.queue_id)
        where = queue_text(queue.vhost, queue.name)
        for node in command.add:
            if self._known(node).witness:
                raise PreconditionFailed(f"member '{node}' is a witness: it holds no messages, so no {where}")
        after = queue
        for node in command.remove:
            if node == queue.owner:
                raise PreconditionFailed(f"{where} is owned by '{node}': hand it to another member first")
            if queue.owner is None and node in (*queue.in_sync, *queue.eligible):
                raise PreconditionFailed(f"{where} has no owner, and '{node}' may be its next one")
            after = ownership.lost(after, node)
        kept = (node for node in (*queue.replicas, *command.add) if node not in command.remove)
        after = replace(after, replicas=ownership.ordered(tuple(kept)))
        if not after.replicas:
            raise PreconditionFailed(f"{where} would have no replica")
        terms = self.terms(after)
        if after.in_sync != queue.in_sync and ownership.is_short(after, terms):
            raise PreconditionFailed(f"{where} would have too few replicas in sync, {len(after.in_sync)}")
        if queue.owner is None:
            after = ownership.elected(after, terms, self._members.get, self._members.owned)
        return self._replace(queue, after, terms, log)

    def _placed(self, queue: Queue, proposer: c.DeclareQueue | c.DeclareExchange) -> Queue:
        """A new queue at its place: as the proposer says on a single node, else as the members' load says."""
        if not self._members:
            return queue
        if queue.transient:
            self._check_home(proposer.owner, proposer.incarnation, queue_text(queue.vhost, queue.name))
            return replace(queue, replicas=(proposer.owner,), in_sync=(proposer.owner,))
        settings = self.effective(queue)
        local = proposer.owner if settings.leader_locator == "client-local" else None
        found = place(self._members, self.wanted_replicas(queue), local=local)
        placed = replace(
            queue,
            owner=found.owner.name,
            incarnation=found.owner.incarnation,
            replicas=found.replicas,
            in_sync=found.in_sync,
            volatile=settings.durability == "memory",
        )
        ownership.check(placed)
        return placed

    def _check_home(self, node: NodeId, incarnation: Incarnation, queue: str) -> None:
        """Raise 406 unless a transient queue can live in this life of a node."""
        home = self._members.get(node)
        if home is None or home.witness or not self._members.is_life(node, incarnation):
            raise PreconditionFailed(
                f"{queue} cannot live at '{node}' incarnation {incarnation}: that is no member that is alive and holds "
                "messages"
            )

    def _check_places(self) -> None:
        """Raise 406 when nobody in the cluster could hold a new queue."""
        if self._members and not any(member.alive and not member.witness for member in self._members.all()):
            raise PreconditionFailed(NOWHERE)

    # ---- what the handlers share ----

    def _known(self, name: NodeId) -> Member:
        member = self._members.get(name)
        if member is None:
            raise NotFound(f"no member '{name}'")
        return member

    def _replicated(self, queue_id: QueueId) -> Queue:
        queue = self._by_id.get(queue_id)
        if queue is None:
            raise NotFound(f"no queue with id {queue_id}")
        if queue.transient or not self._members:
            raise PreconditionFailed(f"{queue_text(queue.vhost, queue.name)} lives and dies with its node")
        return queue

    def _held(self, node: NodeId) -> list[Queue]:
        return [self._by_id[queue_id] for queue_id in self._members.held_ids(node)]

    def _anybody(self, but: NodeId) -> tuple[NodeId, ...]:
        storing = [member for member in self._members.all() if member.name != but and not member.witness]
        return (min(storing, key=lambda member: (not member.alive, member.draining, member.name)).name,)

    def _put(self, member: Member, log: list[Change]) -> None:
        if self._members.get(member.name) != member:
            self._members.put(member)
            log.append(told.MemberChanged(member))

    def _replace(self, before: Queue, after: Queue, terms: Terms, log: list[Change], *, anew: bool = False) -> Queue:
        """Put a queue in the place of its former self, if it differs, and tell of it; `anew`: see `told`."""
        after = ownership.settled(after, terms)
        if (after is before or after == before) and not anew:
            return before
        after, changes = ownership.told(before, after, anew=anew)
        assert after.owner is None or self._members.is_alive(after.owner), "an owner is alive"
        held = self._vhosts[after.vhost].adopt_queue(after)
        self._by_id[held.queue_id] = held
        self._members.replaced(before, held)
        log.extend(changes)
        return held

    def _settle_eligible(self, log: list[Change]) -> None:
        """After a change of policies: eligible sets that have become void end.

        The number of members is no reason: the minimum that it bounds stays above the in-sync set, since whoever is
        eligible is a member too.
        """
        for queue_id in sorted(self._members.short):
            queue = self._by_id[queue_id]
            self._replace(queue, queue, self.terms(queue), log)

    def _end_all_transient(self, log: list[Change]) -> None:
        """A single node has stopped: what a restart ends, ends."""
        self._end_transient(self.queues(), log)
        for topology in self._vhosts.values():
            topology.end_transient_exchanges(log)

    def _end_transient_of(self, node: NodeId, log: list[Change]) -> None:
        self._end_transient(tuple(self._by_id[queue_id] for queue_id in self._members.transient_ids(node)), log)

    def _end_transient(self, queues: tuple[Queue, ...], log: list[Change]) -> None:
        for queue in queues:
            if queue.transient:
                self._vhosts[queue.vhost].end_queue(queue, log)
