"""Owners and copies of queues: where a new queue goes, and every later change of owner, in-sync set and replicas.

What happens to a single queue is in ownership.py; here is which proposals count, and how a changed queue takes the
place of its former self.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from clusterbroker.cluster.errors import NotFound, PreconditionFailed, queue_text
from clusterbroker.cluster.ids import Incarnation, NodeId, QueueId

from . import commands as c
from . import ownership
from .changes import Change, CopyLost
from .entities import Queue
from .members import Members
from .ownership import REPLICAS_DEFAULT, Terms
from .placement import NOWHERE, place
from .queue_index import QueueIndex
from .queue_settings import QueueSettings
from .vhosts import Vhosts


@dataclass(slots=True, eq=False)
class Replicas:
    """Decisions about owners and copies. The queues are the topologies' and the index', the members `Members`'."""

    _members: Members
    """The candidates."""
    _vhosts: Vhosts
    """Settings, and the place of each queue."""
    _index: QueueIndex

    # ---- questions ----

    def effective(self, queue: Queue) -> QueueSettings:
        """The settings of a queue: arguments and policies merged."""
        return self._vhosts.by_name[queue.vhost].policies.queue_settings(queue)

    def terms(self, queue: Queue) -> Terms:
        """What a queue's effective settings say about its copies."""
        settings = self.effective(queue)
        wanted = 1 if queue.transient else max(1, min(settings.replicas or REPLICAS_DEFAULT, self._members.storing))
        return Terms(wanted, settings.min_in_sync, queue.volatile)

    def is_only_copy(self, queue: Queue, node: NodeId) -> bool:
        """Whether no other node may have all of a queue; a damaged copy counts as one."""
        others = {*queue.in_sync, *queue.eligible} - {node}
        return node in queue.replicas and not others and not self.terms(queue).memory

    # ---- new queues ----

    def placed(self, queue: Queue, proposer: c.DeclareQueue | c.ExchangeDeclaration | c.KeepDelays) -> Queue:
        """A new queue at its place: as the proposer says on a single node, else as the members' load says."""
        if not self._members:
            return queue
        if queue.transient:
            self.check_home(proposer.owner, proposer.incarnation, queue_text(queue.vhost, queue.name))
            return replace(queue, replicas=(proposer.owner,), in_sync=(proposer.owner,))
        settings = self.effective(queue)
        local = proposer.owner if settings.leader_locator == "client-local" else None
        found = place(self._members, self.terms(queue).wanted, local=local)
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

    def check_home(self, node: NodeId, incarnation: Incarnation, queue: str) -> None:
        """Raise 406 unless a transient queue can live in this incarnation of a node."""
        home = self._members.get(node)
        if home is None or home.witness or not self._members.is_current(node, incarnation):
            raise PreconditionFailed(
                f"{queue} cannot live at '{node}' incarnation {incarnation}: that is no member that is alive and holds "
                "messages"
            )

    def check_places(self) -> None:
        """Raise 406 when no member of the cluster could hold a new queue."""
        if self._members and not any(member.alive and not member.witness for member in self._members.all()):
            raise PreconditionFailed(NOWHERE)

    # ---- commands ----

    def change_in_sync(self, command: c.ChangeInSync, changes: list[Change]) -> tuple[QueueId, ...]:
        """Fold ChangeInSync."""
        if not self._members.is_current(command.node, command.incarnation):
            return ()
        changed = []
        for proposal in command.changes:
            queue = self._index.by_id.get(proposal.queue_id)
            if queue is not None and self._is_current(command, proposal, queue):
                after = ownership.proposed(queue, proposal.in_sync)
                self.replace(queue, after, self.terms(queue), changes, anew=True)
                changed.append(queue.queue_id)
        return tuple(changed)

    def _is_current(self, command: c.ChangeInSync, proposal: c.InSyncProposal, queue: Queue) -> bool:
        """Whether a proposal is of the queue as it is now, and each newcomer is in the incarnation that caught up."""
        in_sync, incarnations = proposal.in_sync, proposal.incarnations
        return (
            (queue.owner, queue.incarnation) == (command.node, command.incarnation)
            and (queue.epoch, queue.version) == (proposal.epoch, proposal.version)
            and not queue.transient
            and command.node in in_sync
            and len(in_sync) == len(incarnations)
            and all(
                node in queue.in_sync or (node in queue.replicas and self._members.is_current(node, incarnation))
                for node, incarnation in zip(in_sync, incarnations, strict=True)
            )
        )

    def transfer_owner(self, command: c.TransferOwner, changes: list[Change]) -> Queue:
        """Fold TransferOwner."""
        queue = self._replicated(command.queue_id)
        where = queue_text(queue.vhost, queue.name)
        if (queue.owner, queue.incarnation) != (command.node, command.incarnation) or (
            not self._members.is_current(command.node, command.incarnation)
        ):
            raise PreconditionFailed(f"{where} is not led by '{command.node}' incarnation {command.incarnation}")
        if (queue.epoch, queue.version) != (command.epoch, command.version):
            raise PreconditionFailed(f"{where} is at epoch {queue.epoch}, version {queue.version}: look again")
        to = self._members.get(command.to)
        if to is None or not to.alive or to.name not in queue.in_sync or to.name == queue.owner:
            raise PreconditionFailed(f"{where} cannot be handed to '{command.to}': it is not another in-sync replica")
        return self.replace(queue, ownership.transferred(queue, to), self.terms(queue), changes)

    def give_up_copy(self, command: c.GiveUpCopy, changes: list[Change]) -> Queue:
        """Fold GiveUpCopy."""
        queue = self._replicated(command.queue_id)
        where = queue_text(queue.vhost, queue.name)
        node = command.node
        if not self._members.is_current(node, command.incarnation) or queue.epoch != command.epoch:
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
            raise PreconditionFailed(f"no replica that is alive, but '{node}', may have all of {where}")
        terms = self.terms(queue)
        doubted = command.doubted and heir is not None
        after = ownership.given_up(queue, node, heir, terms, self._members.get, self._members.owned, doubted=doubted)
        after = self.replace(queue, after, terms, changes)
        if command.damaged and node in queue.replicas:
            changes.append(CopyLost(after, node))
        return after

    def force_owner(self, command: c.ForceOwner, changes: list[Change]) -> Queue:
        """Fold ForceOwner."""
        queue = self._replicated(command.queue_id)
        to = self._members.require(command.node)
        where = queue_text(queue.vhost, queue.name)
        if to.name not in queue.replicas:
            raise PreconditionFailed(f"{where} has no replica at '{to.name}': choose of {', '.join(queue.replicas)}")
        if not to.alive:
            raise PreconditionFailed(f"member '{to.name}' is not alive: start it, then force it to lead {where}")
        return self.replace(queue, ownership.forced(queue, to), self.terms(queue), changes)

    def move_replica(self, command: c.MoveReplica, changes: list[Change]) -> Queue:
        """Fold MoveReplica."""
        queue = self._replicated(command.queue_id)
        where = queue_text(queue.vhost, queue.name)
        for node in command.add:
            if self._members.require(node).witness:
                raise PreconditionFailed(f"member '{node}' is a witness: it holds no messages, so no {where}")
        after = queue
        for node in command.remove:
            if node == queue.owner:
                raise PreconditionFailed(f"{where} is led by '{node}': hand it to another member first")
            if queue.owner is None and node in (*queue.in_sync, *queue.eligible):
                raise PreconditionFailed(f"{where} has no leader, and '{node}' may be its next one")
            after = ownership.lost(after, node)
        kept = (node for node in (*queue.replicas, *command.add) if node not in command.remove)
        after = replace(after, replicas=ownership.ordered(tuple(kept)))
        if not after.replicas:
            raise PreconditionFailed(f"{where} would have no replica")
        terms = self.terms(after)
        if after.in_sync != queue.in_sync and ownership.is_short(after, terms):
            raise PreconditionFailed(f"{where} would have too few replicas in sync, {len(after.in_sync)}")
        if queue.owner is None:
            after = self.elected(after, terms)
        return self.replace(queue, after, terms, changes)

    def _replicated(self, queue_id: QueueId) -> Queue:
        queue = self._index.by_id.get(queue_id)
        if queue is None:
            raise NotFound(f"no queue with id {queue_id}")
        if queue.transient or not self._members:
            raise PreconditionFailed(f"{queue_text(queue.vhost, queue.name)} lives and dies with its node")
        return queue

    # ---- changes of one queue ----

    def elected(self, queue: Queue, terms: Terms) -> Queue:
        """The queue under the owner that an election chooses now."""
        return ownership.elected(queue, terms, self._members.get, self._members.owned)

    def replace(self, before: Queue, after: Queue, terms: Terms, changes: list[Change], *, anew: bool = False) -> Queue:
        """Put a queue in the place of its former self, if it differs; `anew`: its version rises in any case."""
        after = ownership.settled(after, terms)
        if (after is before or after == before) and not anew:
            return before
        after, emitted = ownership.versioned(before, after, anew=anew)
        assert after.owner is None or self._members.is_alive(after.owner), "an owner is alive"
        held = self._vhosts.by_name[after.vhost].adopt_queue(after)
        changes.extend(emitted)
        return held

    def settle_eligible(self, changes: list[Change]) -> None:
        """After a change of policies: eligible sets that have become void end.

        The number of members is no reason. The minimum that it bounds stays above the in-sync set, since each eligible
        node is a member too.
        """
        for queue_id in sorted(self._members.short):
            queue = self._index.by_id[queue_id]
            self.replace(queue, queue, self.terms(queue), changes)
