"""Entities of the map: frozen values, replaced and never changed, so that a snapshot may share them.

Field order is the stored order (array-like msgpack): new fields go to the end and carry a default, then older
bytes still decode. The keys of the maps that hold them: vhosts, users, by name; exchanges and queues by
(vhost, name); bindings by all their fields; permissions by (user, vhost); policies by (vhost, name); members by
name, forgotten disks by disk_id; producers and segments by (vhost, name);
recoverable links by (vhost, container, name, role).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from clusterbroker.cluster.errors import PreconditionFailed
from clusterbroker.cluster.ids import Epoch, Incarnation, LogIndex, NodeId, QueueId

_Row = TypeVar("_Row", bound=msgspec.Struct)
DestinationKind = Literal["queue", "exchange"]
ApplyTo = Literal["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"]


DELAY_PREFIX: Final = "amq.delay."
"""Queues that hold the messages of delayed exchanges have names that begin so."""
DELAYS: Final = "x-delays"
"""The argument of such a queue that names its exchange."""


KEY_BITS: Final = "x-delay-bits"
"""The argument of one whose messages have their delays in their keys (`delay_bits`): so many bits of seconds."""
DEAD_LETTERS: Final = "x-dead-letter-exchange"
"""What is due in such a queue is published there."""
DEAD_REQUESTS: Final = "-dl-xchg"
"""So ends the name of the exchange before a pool's dead requests (`pool_names`)."""
LATER_REQUESTS: Final = "-delayed"
"""And of that for its requests of later."""


HISTORY_PREFIX: Final = "amq.history."
"""Queues that keep the recent messages of exchanges of type `x-recent-history` have names that begin so."""
RECALLS: Final = "x-recalls"
"""The argument of such a queue that names its exchange."""


CACHE_PREFIX: Final = "amq.deduplication."
"""Queues of exchanges of type `x-message-deduplication`, which keep the values that those know, have names that begin
so."""
COMPARES: Final = "x-compares"
"""The argument of such a queue that names its exchange."""


class Vhost(msgspec.Struct, frozen=True, array_like=True):
    """A name space of exchanges, queues and permissions."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    default_queue_type: str | None = None
    """What an absent `x-queue-type` means here; None: "classic"."""
    tracing: bool = False
    """Whatever clients publish and get here is published to `amq.rabbitmq.trace` as well."""


class Exchange(msgspec.Struct, frozen=True, array_like=True):
    """An exchange; `arguments` keeps every argument, known or not."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = {}


class Queue(msgspec.Struct, frozen=True, array_like=True):
    """One declaration of a queue, with its leader and replicas (replication.md 1)."""

    vhost: str
    name: str
    queue_id: QueueId
    durable: bool
    auto_delete: bool
    exclusive_owner: str | None
    """Id of the connection that alone may use the queue; None: not exclusive."""
    arguments: dict[str, Any]
    owner: NodeId | None
    """The node that sequences the queue; None: offline."""
    epoch: Epoch = Epoch(1)
    incarnation: Incarnation = Incarnation(1)
    """The owner's incarnation at the time it was granted the queue."""
    replicas: tuple[NodeId, ...] = ()
    in_sync: tuple[NodeId, ...] = ()
    eligible: tuple[NodeId, ...] = ()
    """Nodes outside the in-sync set that still hold every committed record (replication.md 2)."""
    version: int = 1
    """Counts the changes of owner, in-sync set and replicas."""
    volatile: bool = False
    """Its copies are in memory only (`x-durability=memory` at its declaration in a cluster). A policy that comes later
    changes nothing of it: what copies hold must mean the same to all who count on them, from the first message on."""
    gap_epoch: Epoch = Epoch(0)
    """The newest epoch whose first owner may have lacked what was committed: it was forced, or nobody was left. A copy
    that knows of no epoch since then does not know what was handed out of it, or has left."""
    begins_empty: bool = False
    """The loss of all that was before `gap_epoch` was accepted: what such a copy holds is nothing."""
    paused: bool = False
    """An operator has paused it: its owner hands nothing out."""
    staging: bool = False
    """It holds the rows of a segment: nobody meets it by its name, which another queue may have, and no policy."""
    declared_ms: int = 0
    """When it was declared, by the wall clock of the proposer, ms since 1970; 0: by an earlier release. Brokers all
    count their queues from 1: this tells them apart."""
    paused_why: str = ""
    """What raised in its work, if it is paused for that."""

    @property
    def delays(self) -> str:
        """The delayed exchange whose waiting messages it holds; empty: it is a queue like others. No client makes a
        queue of such a name, so the argument is the map's own."""
        return str(self.arguments.get(DELAYS, "")) if self.name.startswith(DELAY_PREFIX) else ""

    @property
    def key_bits(self) -> int:
        """So many bits of the keys of its messages are the seconds that they wait; 0: it is no such queue."""
        return int(self.arguments.get(KEY_BITS, 0)) if self.delays else 0

    @property
    def delay_exchange(self) -> str:
        """Of such a queue: where its messages go when they are due."""
        return str(self.arguments[DEAD_LETTERS]) if self.key_bits else ""

    @property
    def ends_unasked(self) -> bool:
        """It ends by itself when nothing waits in it: a queue of delays in keys (`delay_bits`), and those of a pool's
        requests. Nobody has deleted it then: what comes too late, from a node that hears of the end late, is refused,
        or goes another way, and is not taken for gone with its queue. A client's delayed exchange that is named as a
        pool's is treated alike."""
        return self.key_bits > 0 or self.takes_requests or self.delays.endswith(LATER_REQUESTS)

    @property
    def takes_requests(self) -> bool:
        """As queues of pools' requests are (`pool_rules.request_arguments`): by its arguments, for a proxy has to know
        it when the map knows the pool no more. A client's queue that is declared alike is treated alike."""
        kind = self.arguments.get("x-overflow"), self.arguments.get("x-dead-letter-strategy")
        dead = self.arguments.get(DEAD_LETTERS)
        return (
            kind == ("reject-publish-dlx", "at-least-once") and isinstance(dead, str) and dead.endswith(DEAD_REQUESTS)
        )

    @property
    def recalls(self) -> str:
        """The exchange whose recent messages it keeps (`x-recent-history`); empty: none."""
        return str(self.arguments.get(RECALLS, "")) if self.name.startswith(HISTORY_PREFIX) else ""

    @property
    def compares(self) -> str:
        """The exchange whose messages it compares and passes on (`x-message-deduplication`); empty: none."""
        return str(self.arguments.get(COMPARES, "")) if self.name.startswith(CACHE_PREFIX) else ""

    @property
    def part_of(self) -> str:
        """The exchange that it is a part of, and begins and ends with; no client reaches it. Empty: it is a queue like
        others."""
        return self.delays or self.recalls or self.compares

    @property
    def transient(self) -> bool:
        """Whether a restart of its node ends it."""
        return not self.durable or self.exclusive_owner is not None


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """From a source exchange to a queue or exchange. The default exchange's bindings are implied, never stored."""

    vhost: str
    source: str
    destination: str
    destination_kind: DestinationKind
    routing_key: str
    arguments: dict[str, Any] = {}


class UserLimits(msgspec.Struct, frozen=True, array_like=True):
    """Counts that the broker enforces at each node; None or negative: unlimited."""

    connections_max: int | None = None
    channels_max: int | None = None


class User(msgspec.Struct, frozen=True, array_like=True):
    """An account; `password_hash` is in the form of `hash_algorithm` (passwords.py), empty: no password login."""

    name: str
    password_hash: str
    hash_algorithm: str
    tags: tuple[str, ...] = ()
    limits: UserLimits = UserLimits()

    def __repr__(self) -> str:
        """Without the hash: it must never reach a log."""
        return f"User(name={self.name!r}, hash_algorithm={self.hash_algorithm!r}, tags={self.tags!r})"


class Permission(msgspec.Struct, frozen=True, array_like=True):
    """Three regular expressions over resource names; an empty one matches no name."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


class TopicPermission(msgspec.Struct, frozen=True, array_like=True):
    """Two regular expressions over routing keys of one topic exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """Settings for all queues or exchanges whose name matches."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any]
    apply_to: ApplyTo = "all"
    priority: int = 0


class OperatorPolicy(msgspec.Struct, frozen=True, array_like=True):
    """An administrator's policy over queues; it is stronger than arguments."""

    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any]
    apply_to: ApplyTo = "queues"
    priority: int = 0


class Parameter(msgspec.Struct, frozen=True, array_like=True):
    """A free-form runtime parameter; `vhost` is empty for a global one."""

    vhost: str
    component: str
    name: str
    value: Any


class VhostLimits(msgspec.Struct, frozen=True, array_like=True):
    """Limits of one vhost; None or negative: unlimited."""

    vhost: str
    queues_max: int | None = None
    connections_max: int | None = None
    bindings_max: int | None = None
    """None: BINDINGS_MAX, for each binding is in the memory of all members, and costs each publish there."""
    exchange_bindings_max: int | None = None
    """Of each exchange; None: only the vhost's."""
    policies_max: int | None = None
    """Policies and operator policies; None: POLICIES_MAX, for all members compare each with the name of each queue."""
    parameters_max: int | None = None
    """None: PARAMETERS_MAX, for each is in the memory of all members."""


VhostLimit = Literal[
    "max-queues", "max-connections", "max-bindings", "max-bindings-per-exchange", "max-policies", "max-parameters"
]
"""A limit of a vhost under the name that users know."""
VHOST_LIMITS: Final[Mapping[str, str]] = {
    "max-connections": "connections_max", "max-queues": "queues_max", "max-bindings": "bindings_max",
    "max-bindings-per-exchange": "exchange_bindings_max", "max-policies": "policies_max",
    "max-parameters": "parameters_max",
}  # fmt: skip
"""The field of each, in the order in which documents have them."""

BINDINGS_MAX: Final = 100_000
POLICIES_MAX: Final = 500
PARAMETERS_MAX: Final = 1000
"""Of a vhost that says nothing else; parameters also of all vhosts together, the global ones."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A node of the cluster. A map without members is that of a single node."""

    name: NodeId
    address: str
    """Where its links listen, "host:port"."""
    amqp: tuple[str, ...] = ()
    """Where its clients connect, each "amqp://host:port" or "amqps://host:port"."""
    incarnation: Incarnation = Incarnation(0)
    """The one that it registered last; 0: it never registered."""
    disk_id: str = ""
    """Made when its data directory was formatted; empty: it never registered."""
    alive: bool = False
    """Registered, and not failed since: what the log says, whatever anybody suspects."""
    voter: bool = False
    """Votes in the wiring log; the others follow it."""
    witness: bool = False
    """Votes and keeps the wiring, but holds no queue of any kind."""
    draining: bool = False
    """No new queue goes there; its owner moves what it has."""
    joined_index: LogIndex = LogIndex(0)
    """Index of the AddMember."""
    leaving: bool = False
    """It drains for good: its copies count for as long as they are there, and others are made in their place."""
    log_id: str = ""
    """Of its wiring log, by which Raft knows it; empty: its disk id."""


class ForgottenDisk(msgspec.Struct, frozen=True, array_like=True):
    """The data directory of a member that was forgotten: it never returns, for what it holds is of the past."""

    disk_id: str
    name: NodeId
    """The member that had it."""
    incarnation: Incarnation
    """Its last one: should the name come back, its incarnations go on from here."""


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """A client that commits epochs, one after another: an entry of the ledger."""

    vhost: str
    name: str
    user: str
    """The first user of the name; no other may use it."""
    epoch: int | None = None
    """The last one that was committed; None: none was."""
    run: str = ""
    """The one that may commit now."""
    fenced_runs: tuple[str, ...] = ()
    """Those that were replaced, the oldest first."""
    rows: int = 0
    """Of the last commit, as its client said."""
    at_ms: int = 0
    """Of the last commit; before the first one of the last declaration."""
    ttl_ms: int = 30 * 24 * 3_600_000
    unroutable: int = 0
    """Rows that found no queue when they were moved, of all its epochs."""
    lived_ms: int = 0
    """The log's age then (`LogTime`): what `ttl_ms` counts from."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """What one attempt stages, under the name of its exchange."""

    vhost: str
    name: str
    queue_id: QueueId
    """Where its rows are; 0: nowhere, for its epoch had been committed when it was declared."""
    producer: str
    epoch: int
    run: str
    partition: int | None
    attempt: int | None
    target: str
    """The exchange that its rows are for; empty: the default exchange."""
    user: str
    opened_at_ms: int
    expires_ms: int
    bytes_max: int
    place: int | None = None
    """In the order of its commit, from 0; None: it is not committed."""
    lived_ms: int = 0
    """The log's age when it was opened (`LogTime`): what `expires_ms` counts from."""

    @property
    def discards(self) -> bool:
        """Whether what is published to it goes nowhere: it is a replay."""
        return self.queue_id == 0


class RecoverableLink(msgspec.Struct, frozen=True, array_like=True):
    """A link that outlives its connection and its node (links.py). Vhost, container, name and role are its identity."""

    vhost: str
    container: str
    """The client's container-id."""
    name: str
    role: Literal["sender", "receiver"]
    """The client's."""
    link: LogIndex
    """Index of the command that made it: its number, for ever."""
    attach: int
    """How often it was attached: what an older attach says does not count."""
    terminus: str
    user: str
    """The first one of the identity; no other may use it."""
    node: NodeId
    """Where it is attached, or was last."""
    incarnation: Incarnation
    timeout_ms: int | None
    """So long it outlives its last attach; None: for ever."""
    suspended: bool = False
    """It is attached nowhere."""
    since: int = 1
    """The last attach that did not resume it: what was sent before it is over."""


class SoleConnection(msgspec.Struct, frozen=True, array_like=True):
    """A client's connection that is the only one of its container (containers.py). Vhost, container and user are the
    container's identity."""

    vhost: str
    container: str
    user: str
    connection: str
    """Its id."""
    node: NodeId
    gives_way: bool
    """The next connection that asks ends this one; else that one is refused."""


class Deserted(msgspec.Struct, frozen=True, array_like=True):
    """There were users, and all of them were deleted: a first user is made of a new broker only."""


class LogTime(msgspec.Struct, frozen=True, array_like=True):
    """Time as the wiring log knows it (passing.py)."""

    lived_ms: int = 0
    """Its age: for so long somebody has ordered it. It only grows."""
    wall_ms: int = 0
    """Its calendar, ms since 1970; 0: not known yet."""


def in_part(present: _Row, wanted: _Row, only: tuple[str, ...]) -> _Row:
    """The present row with the named fields of the wanted one; `only` empty: the wanted row. Raises 406."""
    if not only:
        return wanted
    unknown = [name for name in only if name not in present.__struct_fields__]
    if unknown:
        raise PreconditionFailed(f"no such field: '{unknown[0]}'")
    return replace(present, **{name: getattr(wanted, name) for name in only})
