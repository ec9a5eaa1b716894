"""Reading the cluster map: every question of the other floors, without a scan.

Reading is free at any time on the loop's thread. Answers are frozen and may be kept; the changes of later commands say
whether they still hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from clusterbroker.cluster.ids import LogIndex, NodeId, QueueId

from . import commands as c
from .arguments import CANONICAL
from .authorization import PermissionKind, TopicPermissionKind
from .entities import (
    Binding,
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
from .importing import Imports
from .imports import Import
from .membership import Short
from .ownership import Terms
from .parts import MapParts
from .policies import ExchangeSettings
from .queue_settings import QueueSettings
from .snapshot import Snapshot
from .transactions import Due
from .vhosts import NOWHERE


class ClusterView:
    """All questions about the cluster map; only its subclass ClusterMap changes it."""

    __slots__ = ("_accounts", "_imports", "_index", "_members", "_parts", "_replicas", "_vhosts")

    def __init__(self) -> None:
        """A map without anything in it, not even a vhost."""
        self._parts = MapParts()
        self._imports = Imports(self._parts)
        # one hop for the questions that are asked most
        self._vhosts = self._parts.vhosts.by_name
        self._index = self._parts.index
        self._members = self._parts.members
        self._replicas = self._parts.replicas
        self._accounts = self._parts.accounts

    @property
    def applied(self) -> LogIndex:
        """Index of the last applied command."""
        return self._parts.clock.applied

    @property
    def time(self) -> LogTime:
        """Age and calendar of the log."""
        return self._parts.clock.time

    @property
    def entities(self) -> int:
        """About how many entities there are: the cost of a snapshot."""
        wiring = sum(
            len(t.exchanges) + len(t.queues) + len(t.bindings) + 2 * len(t.ledger.segments) + len(t.ledger.producers)
            for t in self._vhosts.values()
        )
        staged = len(self._imports.current.commands) if self._imports.current is not None else 0
        return wiring + len(self._parts.parameters) + len(self._members.all()) + staged

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
        taken = Snapshot(self.applied)
        self._parts.save(taken)
        self._imports.save(taken)
        return taken

    # ---- imports ----

    @property
    def importing(self) -> Import | None:
        """The import of definitions that is under way; to be read only."""
        return self._imports.current

    def tried(self, commands: Iterable[c.Defining]) -> list[c.Defining]:
        """Those of the commands that would change something if they were imported now; nothing happens. Raises the
        WiringError with which they would be refused."""
        return self._imports.tried(commands)

    def next_slice(self, commands: Sequence[c.Defining], start: int) -> int:
        """How many commands of an import, from `start` on, may be carried out at once: at least one."""
        return self._imports.next_slice(commands, start)

    # ---- vhosts, exchanges, queues ----

    def vhost(self, name: str) -> Vhost | None:
        """The vhost of this name."""
        topology = self._vhosts.get(name)
        return topology.vhost if topology else None

    def vhosts(self) -> tuple[Vhost, ...]:
        """All vhosts, oldest first."""
        return tuple(topology.vhost for topology in self._vhosts.values())

    def vhost_limits(self, name: str) -> VhostLimits:
        """The limits of a vhost; an empty one when it has none."""
        return self._vhosts.get(name, NOWHERE).limits or VhostLimits(name)

    def exchange(self, vhost: str, name: str) -> Exchange | None:
        """The exchange of this name; the default exchange is not stored (None)."""
        return self._vhosts.get(vhost, NOWHERE).exchanges.get(name)

    def exchanges(self, vhost: str) -> tuple[Exchange, ...]:
        """All exchanges of a vhost, oldest first."""
        return tuple(self._vhosts.get(vhost, NOWHERE).exchanges.values())

    def queue(self, vhost: str, name: str) -> Queue | None:
        """The queue of this name."""
        return self._vhosts.get(vhost, NOWHERE).queues.get(name)

    def queue_by_id(self, queue_id: QueueId) -> Queue | None:
        """The living queue of this declaration."""
        return self._index.by_id.get(queue_id)

    def queues(self, vhost: str | None = None) -> tuple[Queue, ...]:
        """All queues of a vhost, or of all vhosts."""
        if vhost is None:
            return tuple(queue for topology in self._vhosts.values() for queue in topology.queues.values())
        return tuple(self._vhosts.get(vhost, NOWHERE).queues.values())

    def was_deleted(self, queue_id: QueueId) -> bool:
        """Whether a queue that was not transient had this id and was deleted, of the last DELETED_KEPT of them. Of an
        id that was neither deleted nor is in use nothing is known: a journal that has messages of it keeps them."""
        return self._index.was_deleted(queue_id)

    def lasting_queues(self) -> tuple[Queue, ...]:
        """All queues that a restart does not end, those that hold staged rows with them, by queue_id."""
        return self._index.lasting()

    def staging_queues(self, vhost: str) -> tuple[Queue, ...]:
        """The queues of a vhost that hold staged rows, oldest first."""
        return tuple(self._vhosts.get(vhost, NOWHERE).staged.values())

    def exclusive_queues(self, connection: str) -> tuple[Queue, ...]:
        """The queues that are exclusive to a connection, oldest first."""
        return self._index.exclusive_to(connection)

    # ---- bindings ----

    def bindings(self, vhost: str) -> tuple[Binding, ...]:
        """All stored bindings of a vhost, oldest first; those of the default exchange are implied by the queues."""
        return tuple(self._vhosts.get(vhost, NOWHERE).bindings)

    def bindings_from(self, vhost: str, source: str, routing_key: str | None = None) -> tuple[Binding, ...]:
        """Bindings that leave an exchange, oldest first; all or those with exactly this key."""
        return self._vhosts.get(vhost, NOWHERE).bindings.from_source(source, routing_key)

    def bindings_to(self, vhost: str, destination_kind: DestinationKind, name: str) -> tuple[Binding, ...]:
        """Bindings that end at a queue or exchange, oldest first."""
        return self._vhosts.get(vhost, NOWHERE).bindings.to_destination(destination_kind, name)

    def is_durable_binding(self, binding: Binding | c.Bind | c.Unbind) -> bool:
        """Whether the binding survives a restart: both its ends do."""
        return self._vhosts.get(binding.vhost, NOWHERE).is_durable(binding)

    def find_binding(self, binding: Binding | c.Bind | c.Unbind) -> Binding | None:
        """The stored binding that is the same as this one, or that a command names."""
        return self._vhosts.get(binding.vhost, NOWHERE).bindings.find(binding)

    def in_pieces(self, command: c.Ending) -> bool:
        """Whether what ends with it is too much for one command: then `Loosen` comes before it."""
        return self._parts.cascades.in_pieces(command)

    # ---- transactions ----

    def producer(self, vhost: str, name: str) -> Producer | None:
        """The producer of this name."""
        return self._vhosts.get(vhost, NOWHERE).ledger.producers.get(name)

    def producers(self, vhost: str) -> tuple[Producer, ...]:
        """All producers of a vhost, oldest first."""
        return tuple(self._vhosts.get(vhost, NOWHERE).ledger.producers.values())

    def segment(self, vhost: str, name: str) -> Segment | None:
        """The segment of a staging exchange."""
        return self._vhosts.get(vhost, NOWHERE).ledger.segments.get(name)

    def segments(self, vhost: str) -> tuple[Segment, ...]:
        """All segments of a vhost, oldest first."""
        return tuple(self._vhosts.get(vhost, NOWHERE).ledger.segments.values())

    def segments_of(self, vhost: str, producer: str) -> tuple[Segment, ...]:
        """The segments of a producer, oldest first."""
        return self._vhosts.get(vhost, NOWHERE).ledger.of(producer)

    def moves_before(self, vhost: str, producer: str, epoch: int) -> bool:
        """Whether rows of an earlier epoch of this producer are still to be moved."""
        return self._vhosts.get(vhost, NOWHERE).ledger.moves_before(producer, epoch)

    def segment_of_queue(self, queue_id: QueueId) -> Segment | None:
        """The segment whose rows a queue holds."""
        queue = self._index.by_id.get(queue_id)
        return self.segment(queue.vhost, queue.name) if queue is not None and queue.staging else None

    def due(self, lived_ms: int) -> Iterator[Due]:
        """Expired segments and forgettable producers of a log of this age, by vhost."""
        return self._parts.transactions.due(lived_ms)

    # ---- members, and the queues that they own and hold ----

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
        """The names of former members that were taken out."""
        return frozenset(disk.name for disk in self._members.forgotten_disks())

    def data_members(self) -> tuple[Member, ...]:
        """All members but witnesses, oldest first: those that may hold messages."""
        return tuple(member for member in self._members.all() if not member.witness)

    def alive_members(self) -> tuple[Member, ...]:
        """All members that are alive, oldest first."""
        return tuple(member for member in self._members.all() if member.alive)

    def counting_on(self, name: NodeId) -> Iterator[Short]:
        """The queues with too few copies in sync without this member, in ascending queue_id."""
        return self._parts.membership.counting_on(name)

    def owned(self, node: NodeId) -> int:
        """How many queues a node owns, the transient ones not counted: what placement compares."""
        return self._members.owned(node)

    def held(self, node: NodeId) -> int:
        """How many queues a node is a replica of, the transient ones not counted: what placement compares."""
        return self._members.held(node)

    def queues_of(self, node: NodeId) -> Iterator[Queue]:
        """All queues that a node owns, transient ones too, in ascending queue_id; the map may change meanwhile."""
        return self._index.owned_by(node)

    def replicas_of(self, node: NodeId) -> Iterator[Queue]:
        """All queues that a node is a replica of (transient ones have none), as `queues_of`."""
        return self._index.held_by(node)

    def is_only_copy(self, queue: Queue, node: NodeId) -> bool:
        """Whether no other node may have all of a queue; a damaged copy counts as one."""
        return self._replicas.is_only_copy(queue, node)

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
        return self._replicas.terms(queue)

    # ---- policies and parameters ----

    def effective(self, queue: Queue) -> QueueSettings:
        """The settings that hold for a queue now: arguments and policies merged (`.explain()` says how)."""
        return self._vhosts[queue.vhost].policies.queue_settings(queue)

    def exchange_settings(self, exchange: Exchange) -> ExchangeSettings:
        """The settings that hold for an exchange now."""
        return self._vhosts[exchange.vhost].policies.exchange_settings(exchange)

    def policies(self, vhost: str) -> tuple[Policy, ...]:
        """Policies of a vhost, in the order in which they are asked."""
        return self._vhosts.get(vhost, NOWHERE).policies.policies()

    def operator_policies(self, vhost: str) -> tuple[OperatorPolicy, ...]:
        """Operator policies of a vhost, in the order in which they are asked."""
        return self._vhosts.get(vhost, NOWHERE).policies.operator_policies()

    def parameter(self, vhost: str, component: str, name: str) -> Parameter | None:
        """A runtime parameter; vhost "" for a global one."""
        return self._parts.parameters.get(vhost, component, name)

    def parameters(self) -> tuple[Parameter, ...]:
        """All runtime parameters, oldest first."""
        return self._parts.parameters.all()

    # ---- users ----

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
