"""Reading the cluster map: every question of the other floors, without a scan.

Reading is free at any time on the loop's thread. Answers are frozen and may be kept; the changes of later commands say
whether they still hold.
"""

from __future__ import annotations

import hashlib
from typing import Final

from clusterbroker.cluster.ids import LogIndex, NodeId, QueueId

from . import commands as c
from .arguments import CANONICAL
from .entities import (
    Binding,
    DestinationKind,
    Exchange,
    LogTime,
    Member,
    OperatorPolicy,
    Policy,
    Producer,
    Queue,
    Segment,
    Vhost,
    VhostLimits,
)
from .importing import Imports
from .imports import Import
from .parts import MapParts
from .policies import ExchangeSettings
from .pool_rules import of_pool
from .queue_rules import BRIDGE_PREFIX, of_ledger
from .queue_settings import QueueSettings
from .snapshot import Snapshot
from .vhosts import NOWHERE


class ClusterView:
    """All questions about the cluster map; only its subclass ClusterMap changes it."""

    __slots__ = (
        "_accounts", "_imports", "_index", "_members", "_parts", "_vhosts", "allowed", "counting_on", "due",
        "exclusive_queues", "held", "in_pieces", "is_only_copy", "lasting_queues", "link", "link_named",
        "link_since", "links", "member", "members", "next_slice", "owned", "parameter", "parameters", "permission",
        "permissions", "pools", "queues_of", "replicas_of", "terms", "topic_allowed", "topic_limited",
        "topic_permissions", "tried", "tried_pool", "user", "users", "was_deleted",
    )  # fmt: skip

    def __init__(self) -> None:
        """A map without anything in it, not even a vhost. What one part answers alone is that part's method."""
        self._parts = parts = MapParts()
        self._imports = imports = Imports(parts)
        self._vhosts = parts.vhosts.by_name
        self._index = index = parts.index
        self._members = members = parts.members
        self._accounts = accounts = parts.accounts
        self.tried: Final = imports.tried
        self.tried_pool: Final = parts.pools.tried
        self.next_slice: Final = imports.next_slice
        self.in_pieces: Final = parts.cascades.in_pieces
        self.due: Final = parts.transactions.due
        self.was_deleted: Final = index.was_deleted
        self.lasting_queues: Final = index.lasting
        self.exclusive_queues: Final = index.exclusive_to
        self.queues_of: Final = index.owned_by
        self.replicas_of: Final = index.held_by
        self.member: Final = members.get
        self.members: Final = members.all
        self.owned: Final = members.owned
        self.held: Final = members.held
        self.counting_on: Final = parts.membership.counting_on
        self.link: Final = parts.links.get
        self.link_named: Final = parts.links.find
        self.links: Final = parts.links.all
        self.link_since: Final = parts.links.since
        self.pools: Final = parts.pools.table
        self.is_only_copy: Final = parts.replicas.is_only_copy
        self.terms: Final = parts.replicas.terms
        self.parameter: Final = parts.parameters.get
        self.parameters: Final = parts.parameters.all
        self.user: Final = accounts.user
        self.users: Final = accounts.users
        self.permission: Final = accounts.permission
        self.permissions: Final = accounts.permissions
        self.topic_permissions: Final = accounts.topic_permissions
        self.allowed: Final = accounts.allowed
        self.topic_allowed: Final = accounts.topic_allowed
        self.topic_limited: Final = accounts.topic_limited

    @property
    def applied(self) -> LogIndex:
        """Index of the last applied command."""
        return self._parts.clock.applied

    @property
    def level(self) -> int:
        """The feature level: whoever writes what an older release cannot read asks this first (levels.py)."""
        return self._parts.levels.level

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
        return (
            wiring
            + len(self._parts.parameters)
            + len(self._members.all())
            + staged
            + len(self.links())
            + len(self.pools)
        )

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

    def staging_queues(self, vhost: str) -> tuple[Queue, ...]:
        """The queues of a vhost that hold staged rows, oldest first."""
        return tuple(self._vhosts.get(vhost, NOWHERE).staged.values())

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

    # ---- members, and the queues that they own and hold ----

    @property
    def is_cluster(self) -> bool:
        """Whether there are members; without any, this is the map of a single node."""
        return bool(self._members)

    def forgotten_members(self) -> frozenset[NodeId]:
        """The names of former members that were taken out."""
        return frozenset(disk.name for disk in self._members.forgotten_disks())

    def data_members(self) -> tuple[Member, ...]:
        """All members but witnesses, oldest first: those that may hold messages."""
        return tuple(member for member in self._members.all() if not member.witness)

    def alive_members(self) -> tuple[Member, ...]:
        """All members that are alive, oldest first."""
        return tuple(member for member in self._members.all() if member.alive)

    def is_critical(self, queue: Queue, node: NodeId) -> bool:
        """Whether nothing could be committed in the queue if this node went away now."""
        return node in queue.in_sync and len(queue.in_sync) - 1 < self.min_in_sync(queue)

    def wanted_replicas(self, queue: Queue) -> int:
        """How many replicas a queue shall have: as its settings say, or 3, but no more than there are members."""
        return self.terms(queue).wanted

    def min_in_sync(self, queue: Queue) -> int:
        """How many must be in sync for anything to be committed."""
        return self.terms(queue).least(len(queue.replicas))

    # ---- policies and parameters ----

    def effective(self, queue: Queue) -> QueueSettings:
        """The settings that hold for a queue now: arguments and policies merged (`.explain()` says how)."""
        settings = self._vhosts[queue.vhost].policies.queue_settings(queue)
        if not (settings.policy or settings.operator_policy):
            return settings
        part = self.pools.queues.get(queue.queue_id)
        if part is not None:
            return of_pool(settings, part.part)
        return of_ledger(queue, settings) if queue.name.startswith(BRIDGE_PREFIX) else settings

    def exchange_settings(self, exchange: Exchange) -> ExchangeSettings:
        """The settings that hold for an exchange now."""
        return self._vhosts[exchange.vhost].policies.exchange_settings(exchange)

    def wants_delays(self, queue: Queue) -> bool:
        """Whether messages with delays in their keys shall wait in this queue (`delay_bits`)."""
        return self._vhosts.get(queue.vhost, NOWHERE).wants_delays(queue)

    def lacking_delays(self, vhost: str, exchange: str | None = None) -> tuple[str, ...]:
        """The exchanges of a vhost, or this one of them, whose policies want such a queue while there is none, and room
        for it."""
        topology = self._vhosts.get(vhost, NOWHERE)
        if not topology.policies.says_bits or not topology.has_room_for_queues():
            return ()
        asked = topology.exchanges.values() if exchange is None else [topology.exchanges.get(exchange)]
        return tuple(one.name for one in asked if one is not None and topology.lacks_delays(one))

    def policies(self, vhost: str) -> tuple[Policy, ...]:
        """Policies of a vhost, in the order in which they are asked."""
        return self._vhosts.get(vhost, NOWHERE).policies.policies()

    def operator_policies(self, vhost: str) -> tuple[OperatorPolicy, ...]:
        """Operator policies of a vhost, in the order in which they are asked."""
        return self._vhosts.get(vhost, NOWHERE).policies.operator_policies()

    # ---- users ----

    @property
    def had_users(self) -> bool:
        """Whether there is a user, or was one."""
        return self._accounts.had_users
