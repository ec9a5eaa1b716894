"""Reading the cluster map: every question of the other floors, without a scan.

Reading is free at any time on the loop's thread. What is read is frozen and may be kept; whether it still
holds is told by the changes of later commands.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain
from typing import Final

from . import commands as c
from .arguments import CANONICAL
from .authorization import Accounts, PermissionKind, TopicPermissionKind
from .cascade import is_much, piece
from .entities import (
    Binding,
    Deserted,
    DestinationKind,
    Exchange,
    LogTime,
    Member,
    OperatorPolicy,
    Parameter,
    Permission,
    Policy,
    Producer,
    Queue,
    Segment,
    TopicPermission,
    User,
    Vhost,
    VhostLimits,
)
from .ids import LogIndex, NodeId, QueueId
from .imports import Import
from .members import Members
from .ownership import REPLICAS_DEFAULT, Terms
from .policies import ExchangeSettings
from .queue_settings import QueueSettings
from .snapshot import Snapshot, StagedImport
from .topology import Topology

DELETED_KEPT: Final = 1 << 16
"""So many deleted queues are remembered, for journals that have not heard of it."""

QUEUES_AT_ONCE: Final = 1000
"""So many queues of a connection end with one command: the loops of all nodes would stand still for all that a single
client may have, some 30 us for each."""


class ClusterView:
    """The state of the cluster map and all questions about it; only its subclass ClusterMap changes it.

    Invariant: `_by_id` holds exactly the queues of all vhosts, `_exclusive` those of them that a connection
    owns, and `_members` lists each of them under the members that it names.
    """

    __slots__ = (
        "_accounts", "_applied", "_by_id", "_deleted", "_exclusive", "_import", "_members", "_parameters", "_time",
        "_vhosts",
    )  # fmt: skip

    def __init__(self) -> None:
        """Nothing at all, not even a vhost."""
        self._applied = LogIndex(0)
        self._vhosts: dict[str, Topology] = {}
        self._by_id: dict[QueueId, Queue] = {}
        self._deleted: dict[QueueId, None] = {}  # oldest first
        self._exclusive: dict[str, dict[QueueId, Queue]] = {}
        self._members = Members()
        self._accounts = Accounts()
        self._parameters: dict[tuple[str, str, str], Parameter] = {}
        self._import: Import | None = None
        self._time = LogTime()

    @property
    def applied(self) -> LogIndex:
        """Index of the last applied command."""
        return self._applied

    @property
    def time(self) -> LogTime:
        """How old the log is, and its calendar."""
        return self._time

    @property
    def entities(self) -> int:
        """About how many entities there are: what a snapshot costs."""
        wiring = sum(
            len(t.exchanges) + len(t.queues) + len(t.bindings) + 2 * len(t.ledger.segments) + len(t.ledger.producers)
            for t in self._vhosts.values()
        )
        staged = len(self._import.commands) if self._import is not None else 0
        return wiring + len(self._parameters) + len(self._members.all()) + staged

    def digest(self) -> str:
        """Hash of the whole state, order included: equal logs give equal digests on every node."""
        whole = hashlib.blake2b(digest_size=32)
        for kind, entities in self.snapshot().sections():
            whole.update(b"%s %d\n" % (kind.encode(), len(entities)))
            for entity in entities:
                whole.update(CANONICAL.encode(entity))
        return whole.hexdigest()

    def snapshot(self) -> Snapshot:
        """The state at this moment: cheap, since entities are frozen and shared; any thread may encode it."""
        vhosts = self._vhosts.values()
        held = self._import
        return Snapshot(
            index=self._applied,
            vhosts=[t.vhost for t in vhosts],
            limits=[t.limits for t in vhosts if t.limits is not None],
            exchanges=[x for t in vhosts for x in t.exchanges.values()],
            queues=[q for t in vhosts for q in (*t.queues.values(), *t.staged.values())],
            bindings=[b for t in vhosts for b in t.bindings],
            policies=[p for t in vhosts for p in t.policies.policies()],
            operator_policies=[p for t in vhosts for p in t.policies.operator_policies()],
            users=list(self._accounts.users()),
            permissions=list(self._accounts.permissions()),
            topic_permissions=list(self._accounts.topic_permissions()),
            parameters=list(self._parameters.values()),
            members=list(self._members.all()),
            forgotten_disks=list(self._members.forgotten_disks()),
            imports=[] if held is None else [StagedImport(held.import_id, held.parts, held.accepted, held.done)],
            import_commands=[] if held is None else list(held.commands),
            producers=[p for t in vhosts for p in t.ledger.producers.values()],
            segments=[s for t in vhosts for s in t.ledger.segments.values()],
            times=[self._time] if self._time.lived_ms else [],
            deleted_queues=list(self._deleted),
            deserted=[Deserted()] if self._accounts.had_users and not self._accounts.users() else [],
        )

    @property
    def importing(self) -> Import | None:
        """The import of definitions that is under way; to be read only."""
        return self._import

    # ---- questions: wiring ----

    def vhost(self, name: str) -> Vhost | None:
        """The vhost of this name."""
        topology = self._vhosts.get(name)
        return topology.vhost if topology else None

    def vhosts(self) -> tuple[Vhost, ...]:
        """All vhosts, oldest first."""
        return tuple(topology.vhost for topology in self._vhosts.values())

    def vhost_limits(self, name: str) -> VhostLimits:
        """The limits of a vhost; an empty one when it has none."""
        topology = self._vhosts.get(name)
        return (topology.limits if topology else None) or VhostLimits(name)

    def exchange(self, vhost: str, name: str) -> Exchange | None:
        """The exchange of this name; the default exchange is not stored (None)."""
        topology = self._vhosts.get(vhost)
        return topology.exchanges.get(name) if topology else None

    def exchanges(self, vhost: str) -> tuple[Exchange, ...]:
        """All exchanges of a vhost, oldest first."""
        topology = self._vhosts.get(vhost)
        return tuple(topology.exchanges.values()) if topology else ()

    def queue(self, vhost: str, name: str) -> Queue | None:
        """The queue of this name."""
        topology = self._vhosts.get(vhost)
        return topology.queues.get(name) if topology else None

    def queue_by_id(self, queue_id: QueueId) -> Queue | None:
        """The living queue of this declaration."""
        return self._by_id.get(queue_id)

    def queues(self, vhost: str | None = None) -> tuple[Queue, ...]:
        """All queues of a vhost, or of all vhosts."""
        if vhost is None:
            return tuple(queue for topology in self._vhosts.values() for queue in topology.queues.values())
        topology = self._vhosts.get(vhost)
        return tuple(topology.queues.values()) if topology else ()

    def was_deleted(self, queue_id: QueueId) -> bool:
        """Whether a queue that was not transient had this id and was deleted, of the last DELETED_KEPT of them. Of an
        id that was neither deleted nor is in use nothing is known: a journal that has messages of it keeps them."""
        return queue_id in self._deleted

    def lasting_queues(self) -> tuple[Queue, ...]:
        """All queues that a restart does not end, those that hold staged rows with them, by queue_id."""
        lasting = (queue for queue in self._by_id.values() if not queue.transient)
        return tuple(sorted(lasting, key=lambda queue: queue.queue_id))

    def staging_queues(self, vhost: str) -> tuple[Queue, ...]:
        """The queues of a vhost that hold staged rows, oldest first."""
        topology = self._vhosts.get(vhost)
        return tuple(topology.staged.values()) if topology else ()

    def exclusive_queues(self, connection: str) -> tuple[Queue, ...]:
        """The queues that are exclusive to a connection, oldest first."""
        owned = self._exclusive.get(connection, {})
        return tuple(owned[queue_id] for queue_id in sorted(owned))

    def bindings(self, vhost: str) -> tuple[Binding, ...]:
        """All stored bindings of a vhost, oldest first; those of the default exchange are implied by the queues."""
        topology = self._vhosts.get(vhost)
        return tuple(topology.bindings) if topology else ()

    def bindings_from(self, vhost: str, source: str, routing_key: str | None = None) -> tuple[Binding, ...]:
        """Bindings that leave an exchange, oldest first; all or those with exactly this key."""
        topology = self._vhosts.get(vhost)
        return topology.bindings.from_source(source, routing_key) if topology else ()

    def bindings_to(self, vhost: str, destination_kind: DestinationKind, name: str) -> tuple[Binding, ...]:
        """Bindings that end at a queue or exchange, oldest first."""
        topology = self._vhosts.get(vhost)
        return topology.bindings.to_destination(destination_kind, name) if topology else ()

    def is_durable_binding(self, binding: Binding) -> bool:
        """Whether the binding survives a restart: both its ends do."""
        topology = self._vhosts.get(binding.vhost)
        return topology is not None and topology.is_durable(binding)

    def find_binding(self, binding: Binding) -> Binding | None:
        """The stored binding that is the same as this one."""
        topology = self._vhosts.get(binding.vhost)
        return topology.bindings.find(binding) if topology else None

    def in_pieces(self, command: c.Ending) -> bool:
        """Whether what ends with it is too much for one command: then `Loosen` comes before it."""
        if isinstance(command, c.DeleteVhost):
            whole = self._vhosts.get(command.name)
            return whole is not None and is_much(whole)
        return any(len(order) > len(piece(order)) for _, order in self._cascades(command))

    def _cascades(self, command: c.Ending) -> Iterator[tuple[Topology, list[Binding]]]:
        """What would end with the command, by vhost; nothing of one that changes nothing."""
        match command:
            case c.RemoveConnection():
                for vhost, queues in self._exclusive_queues_by_vhost(command.connection).items():
                    topology = self._vhosts[vhost]
                    direct = [topology.bindings.to_destination("queue", queue.name) for queue in queues]
                    yield topology, topology.cascade(chain.from_iterable(direct))
            case c.DeleteQueue():
                queue = self._by_id.get(command.queue_id)
                if queue is not None and not queue.staging and command.epoch in (0, queue.epoch):
                    topology = self._vhosts[queue.vhost]
                    yield topology, topology.cascade(topology.bindings.to_destination("queue", queue.name))
            case c.DeleteExchange() | c.Unbind():
                found = self._vhosts.get(command.vhost)
                if found is not None:
                    yield found, found.would_end(command)

    def _exclusive_queues_by_vhost(self, connection: str) -> dict[str, list[Queue]]:
        """Those that `RemoveConnection` ends."""
        found: dict[str, list[Queue]] = {}
        for queue in self.exclusive_queues(connection)[:QUEUES_AT_ONCE]:
            found.setdefault(queue.vhost, []).append(queue)
        return found

    # ---- questions: transactions ----

    def producer(self, vhost: str, name: str) -> Producer | None:
        """The producer of this name."""
        topology = self._vhosts.get(vhost)
        return topology.ledger.producers.get(name) if topology else None

    def producers(self, vhost: str) -> tuple[Producer, ...]:
        """All producers of a vhost, oldest first."""
        topology = self._vhosts.get(vhost)
        return tuple(topology.ledger.producers.values()) if topology else ()

    def segment(self, vhost: str, name: str) -> Segment | None:
        """The segment of a staging exchange."""
        topology = self._vhosts.get(vhost)
        return topology.ledger.segments.get(name) if topology else None

    def segments(self, vhost: str) -> tuple[Segment, ...]:
        """All segments of a vhost, oldest first."""
        topology = self._vhosts.get(vhost)
        return tuple(topology.ledger.segments.values()) if topology else ()

    def segments_of(self, vhost: str, producer: str) -> tuple[Segment, ...]:
        """The segments of a producer, oldest first."""
        topology = self._vhosts.get(vhost)
        return topology.ledger.of(producer) if topology else ()

    def moves_before(self, vhost: str, producer: str, epoch: int) -> bool:
        """Whether rows of an earlier epoch of this producer are still to be moved."""
        holds = self._vhosts.get(vhost)
        return holds is not None and holds.ledger.moves_before(producer, epoch)

    def segment_of_queue(self, queue_id: QueueId) -> Segment | None:
        """The segment whose rows a queue holds."""
        queue = self._by_id.get(queue_id)
        return self.segment(queue.vhost, queue.name) if queue is not None and queue.staging else None

    # ---- questions: members and what they own and hold ----

    @property
    def is_cluster(self) -> bool:
        """Whether there are members; without any, this is the map of a single node."""
        return bool(self._members)

    def member(self, name: NodeId) -> Member | None:
        """The member of this name."""
        return self._members.get(name)

    def members(self) -> tuple[Member, ...]:
        """All members, oldest first."""
        return self._members.all()

    def forgotten_members(self) -> frozenset[NodeId]:
        """The names of those who were members once, and were taken out."""
        return frozenset(disk.name for disk in self._members.forgotten_disks())

    def data_members(self) -> tuple[Member, ...]:
        """All members but witnesses, oldest first: those that may hold messages."""
        return tuple(member for member in self._members.all() if not member.witness)

    def alive_members(self) -> tuple[Member, ...]:
        """All members that are alive, oldest first."""
        return tuple(member for member in self._members.all() if member.alive)

    def owned(self, node: NodeId) -> int:
        """How many queues a node owns, the transient ones not counted: what placement compares."""
        return self._members.owned(node)

    def held(self, node: NodeId) -> int:
        """How many queues a node is a replica of, the transient ones not counted: what placement compares."""
        return self._members.held(node)

    def queues_of(self, node: NodeId) -> Iterator[Queue]:
        """All queues that a node owns, transient ones too, in ascending queue_id; it may change meanwhile."""
        return self._living(self._members.owned_ids(node))

    def replicas_of(self, node: NodeId) -> Iterator[Queue]:
        """All queues that a node is a replica of (transient ones have none), ascending; it may change meanwhile."""
        return self._living(self._members.held_ids(node))

    def is_only_copy(self, queue: Queue, node: NodeId) -> bool:
        """Whether nobody but this node may have all of a queue, which it would be if it was damaged there as well."""
        others = {*queue.in_sync, *queue.eligible} - {node}
        return node in queue.replicas and not others and not self.terms(queue).memory

    def is_critical(self, queue: Queue, node: NodeId) -> bool:
        """Whether nothing could be committed in the queue if this node went away now."""
        return node in queue.in_sync and len(queue.in_sync) - 1 < self.min_in_sync(queue)

    def wanted_replicas(self, queue: Queue) -> int:
        """How many replicas a queue shall have: as its settings say, or 3, but no more than there are members."""
        return self.terms(queue).wanted

    def min_in_sync(self, queue: Queue) -> int:
        """How many must be in sync for anything to be committed."""
        return self.terms(queue).least(len(queue.replicas))

    def terms(self, queue: Queue) -> Terms:
        """What a queue's effective settings say about its copies."""
        settings = self.effective(queue)
        wanted = 1 if queue.transient else max(1, min(settings.replicas or REPLICAS_DEFAULT, self._members.storing))
        return Terms(wanted, settings.min_in_sync, queue.volatile)

    def _living(self, ids: list[QueueId]) -> Iterator[Queue]:
        for queue_id in ids:
            queue = self._by_id.get(queue_id)
            if queue is not None:
                yield queue

    # ---- questions: policies ----

    def effective(self, queue: Queue) -> QueueSettings:
        """The settings that hold for a queue now: arguments and policies merged (`.explain()` says how)."""
        return self._vhosts[queue.vhost].policies.queue_settings(queue)

    def exchange_settings(self, exchange: Exchange) -> ExchangeSettings:
        """The settings that hold for an exchange now."""
        return self._vhosts[exchange.vhost].policies.exchange_settings(exchange)

    def policies(self, vhost: str) -> tuple[Policy, ...]:
        """Policies of a vhost, in the order in which they are asked."""
        topology = self._vhosts.get(vhost)
        return topology.policies.policies() if topology else ()

    def operator_policies(self, vhost: str) -> tuple[OperatorPolicy, ...]:
        """Operator policies of a vhost, in the order in which they are asked."""
        topology = self._vhosts.get(vhost)
        return topology.policies.operator_policies() if topology else ()

    def parameter(self, vhost: str, component: str, name: str) -> Parameter | None:
        """A runtime parameter; vhost "" for a global one."""
        return self._parameters.get((vhost, component, name))

    def parameters(self) -> tuple[Parameter, ...]:
        """All runtime parameters, oldest first."""
        return tuple(self._parameters.values())

    # ---- questions: users ----

    def user(self, name: str) -> User | None:
        """The user of this name."""
        return self._accounts.user(name)

    def users(self) -> tuple[User, ...]:
        """All users, oldest first."""
        return self._accounts.users()

    @property
    def had_users(self) -> bool:
        """Whether there is a user, or was one."""
        return self._accounts.had_users

    def permission(self, user: str, vhost: str) -> Permission | None:
        """The user's permission in a vhost; None: it may not open the vhost."""
        return self._accounts.permission(user, vhost)

    def permissions(self) -> tuple[Permission, ...]:
        """All permissions."""
        return self._accounts.permissions()

    def topic_permissions(self) -> tuple[TopicPermission, ...]:
        """All topic permissions."""
        return self._accounts.topic_permissions()

    def allowed(self, user: str, vhost: str, kind: PermissionKind, resource: str) -> bool:
        """Whether the user may `configure`, `write` or `read` the exchange or queue of this name."""
        return self._accounts.allowed(user, vhost, kind, resource)

    def topic_allowed(
        self,
        user: str,
        vhost: str,
        kind: TopicPermissionKind,
        exchange: str,
        routing_key: str,
        *,
        client_id: str | None = None,
    ) -> bool:
        """Whether the user may use the routing key on a topic exchange: `write` to publish, `read` to bind."""
        return self._accounts.topic_allowed(user, vhost, kind, exchange, routing_key, client_id=client_id)
