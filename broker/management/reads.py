"""What can be read: a table from path to answer, which the HTTP shell turns into routes and into the OpenAPI page.

An answer is a document, a list of documents, a Listing (which is paged) or the finding of a health check. A row names
the right that the answer needs; `vhost` in a path must be one that the user may enter, unless the row says otherwise.
Paths with a fixed word come before those where anything fits. An answer gets the parameters of its path by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from clusterbroker.cluster.wiring.entities import DestinationKind

from . import (
    accounts,
    connections,
    definitions,
    exchanges,
    links,
    moves,
    nodes,
    pool_groups,
    pool_places,
    pools,
    producers,
    queues,
    settings,
)
from .nodes import Health
from .paging import Document, Listing, answer, of_documents, reduced, wish
from .principals import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from .reading import Reading

Path = Mapping[str, str]
"""Parameters of the path, decoded."""
Found = Document | list[Document] | Listing[Any] | Health
Answer = Callable[..., Found]
"""Of the Reading, and by name of the path's parameters."""


class Read(msgspec.Struct, frozen=True):
    """One path."""

    path: str
    summary: str
    answer: Answer
    right: str = MANAGEMENT
    enter: bool = True
    """The vhost of the path must be open to the user."""
    listed: bool = True
    """The answer is a list."""
    filename: str = ""
    """Offered when it is stored."""

    method: ClassVar[str] = "GET"
    form: ClassVar[None] = None

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of an answer: 503 is one of a health check."""
        return (200, 503) if self.path.startswith(("/api/health/", "/api/healthchecks/")) else (200,)


def run(read: Read, reading: Reading, path: Path) -> tuple[int, Document | list[Document]]:
    """(status, document). Refused as the rights and the query demand."""
    reading.principal.require(read.right)
    if read.enter and "vhost" in path:
        reading.principal.enter(path["vhost"])
    found = read.answer(reading, **path)
    if isinstance(found, Health):
        return (200 if found.ok else 503), found.document
    wanted = wish(reading.query)
    if isinstance(found, Listing):
        return 200, answer(found, wanted)
    if isinstance(found, list):
        return 200, answer(of_documents(found), wanted)
    return 200, reduced(found, wanted.columns)


def _one(
    path: str, summary: str, answer: Answer, right: str = MANAGEMENT, enter: bool = True, filename: str = ""
) -> Read:
    """A path whose answer is one document."""
    return Read(path, summary, answer, right, enter, listed=False, filename=filename)


def _check(path: str, summary: str, check: Callable[..., Health]) -> Read:
    """A health check; one that a node without a lease never passes."""
    return _one(path, summary, lambda r, **path: nodes.without_lease(r) or check(r, **path))


def _between(kind: DestinationKind) -> Answer:
    return lambda r, vhost, source, destination: exchanges.binding_listing(
        exchanges.bindings_between(r, vhost, source, kind, destination)
    )


def _binding(kind: DestinationKind) -> Answer:
    return lambda r, vhost, source, destination, properties_key: exchanges.binding_document(
        exchanges.binding_named(r, vhost, source, kind, destination, properties_key)
    )


def _binding_listing(kind: DestinationKind) -> Answer:
    return lambda r, vhost, name: exchanges.binding_listing(exchanges.bindings_to(r, vhost, kind, name))


def _connection(r: Reading, name: str) -> Document:
    return connections.connection_document(r, connections.connection_named(r, name))


def _connection_channels(r: Reading, name: str) -> Listing[Any]:
    return connections.channel_listing(r, connection=connections.connection_named(r, name))


def _sessions(r: Reading, name: str) -> list[Document]:
    return links.sessions(r, connections.connection_named(r, name))


_EXCHANGE: Final = "/api/exchanges/{vhost}/{name}"
_QUEUE: Final = "/api/queues/{vhost}/{name}"
_POOL: Final = "/api/pools/{vhost}/{name}"
_BINDINGS: Final = "/api/bindings/{vhost}/e/{source}"
_LOCAL: Final = partial(nodes.alarms, local=True)
_operator_policies: Final = partial(settings.policies, operator=True)
READS: Final[tuple[Read, ...]] = (
    _one("/api/overview", "The cluster at a glance", nodes.overview),
    _one("/api/cluster-name", "Name of the cluster", lambda r: {"name": nodes.name_of_cluster(r.replica)}),
    Read("/api/nodes", "All nodes", nodes.all_nodes, MONITORING),
    _one("/api/nodes/{name}", "One node", nodes.node_named, MONITORING),
    _one("/api/nodes/{name}/memory", "What a node's memory holds", nodes.memory, MONITORING),
    _one("/api/nodes/{name}/memory/relative", "What a node's memory holds, in percent", nodes.memory_shares,
         MONITORING),
    Read("/api/extensions", "Extensions of the page; none", lambda _r: []),
    _one("/api/whoami", "Who signed in", accounts.whoami),
    Read("/api/deprecated-features", "Features that a release will drop: none", lambda _r: [], ADMINISTRATOR),
    Read("/api/deprecated-features/used", "Those that are in use", lambda _r: [], ADMINISTRATOR),
    Read("/api/feature-flags", "Feature flags", lambda _r: settings.feature_flags(), ADMINISTRATOR),
    Read("/api/auth/attempts/{name}", "Sign-in attempts at a node", nodes.login_attempts, MONITORING),
    Read("/api/auth/attempts/{name}/source", "Sign-in attempts at a node by address and user", nodes.login_sources,
         MONITORING),
    _one("/api/definitions", "All definitions", definitions.exported, ADMINISTRATOR, filename="definitions.json"),
    _one("/api/definitions/{vhost}", "Definitions of one vhost", definitions.exported_of, ADMINISTRATOR,
         filename="definitions.json"),
    # connections, channels, consumers
    Read("/api/connections", "Connections", connections.connection_listing),
    Read("/api/connections/username/{user}", "Connections of a user", connections.connections_of_user),
    _one("/api/connections/{name}", "One connection", _connection),
    Read("/api/connections/{name}/channels", "Channels of a connection", _connection_channels),
    Read("/api/connections/{name}/sessions", "Sessions of a connection of AMQP 1.0, with their links", _sessions),
    Read("/api/channels", "Channels", connections.channel_listing),
    _one("/api/channels/{name}", "One channel", connections.channel_full),
    Read("/api/consumers", "Consumers", connections.consumer_listing),
    Read("/api/consumers/{vhost}", "Consumers in a vhost", connections.consumer_listing),
    Read("/api/links", "Links of clients of AMQP 1.0", links.listing),
    Read("/api/links/{vhost}", "Links in a vhost", links.listing),
    Read("/api/links/{container}/{name}", "Links of a container by their name", links.named, enter=False),
    Read("/api/links/{vhost}/{container}/{name}", "Links of a container in a vhost by their name", links.named_in),
    # exchanges, queues, bindings
    Read("/api/exchanges", "Exchanges", exchanges.listing),
    Read("/api/exchanges/{vhost}", "Exchanges of a vhost", exchanges.listing),
    _one(_EXCHANGE, "One exchange", exchanges.full),
    Read(_EXCHANGE + "/bindings/source", "Bindings from an exchange",
         lambda r, vhost, name: exchanges.binding_listing(exchanges.bindings_from(r, vhost, name))),
    Read(_EXCHANGE + "/bindings/destination", "Bindings to an exchange", _binding_listing("exchange")),
    Read("/api/queues", "Queues", queues.listing),
    Read("/api/queues/{vhost}", "Queues of a vhost", queues.listing),
    _one(_QUEUE, "One queue", queues.full),
    Read(_QUEUE + "/bindings", "Bindings to a queue", _binding_listing("queue")),
    Read(_QUEUE + "/moves", "Leadership changes of a queue", moves.of_queue),
    Read("/api/moves", "Leadership changes, and events of members", moves.listing),
    Read("/api/producers", "Producers of transactions", producers.listing),
    Read("/api/producers/{vhost}", "Producers of transactions of a vhost", producers.listing),
    _one("/api/producers/{vhost}/{name}", "One producer: its last epoch, and what is staged and on its way",
         producers.named),
    Read("/api/pools", "Worker pools", pools.listing),
    Read("/api/pools/{vhost}", "Worker pools of a vhost", pools.listing),
    _one(_POOL, "One worker pool, its settings, and what waits", pools.named),
    Read(_POOL + "/groups", "Groups of a worker pool", pool_groups.groups),
    _one(_POOL + "/groups/{key}", "One group of a worker pool", pool_groups.group),
    _one(_POOL + "/keys", "Keys of a worker pool: the largest one by one, the others in sum", pool_groups.glance),
    Read(_POOL + "/workers", "Workers of a pool that were started for it", pools.workers),
    _one(_POOL + "/workers/{id}", "One worker of a pool", pools.worker),
    Read(_POOL + "/places", "Places where a pool's workers are started, and their room", pool_places.places,
         MONITORING),
    Read("/api/bindings", "Bindings", lambda r: exchanges.binding_listing(exchanges.all_bindings(r))),
    Read("/api/bindings/{vhost}", "Bindings of a vhost",
         lambda r, vhost: exchanges.binding_listing(exchanges.all_bindings(r, vhost))),
    Read(_BINDINGS + "/q/{destination}", "Bindings from an exchange to a queue", _between("queue")),
    Read(_BINDINGS + "/e/{destination}", "Bindings from an exchange to an exchange", _between("exchange")),
    _one(_BINDINGS + "/q/{destination}/{properties_key}", "One binding", _binding("queue")),
    _one(_BINDINGS + "/e/{destination}/{properties_key}", "One binding", _binding("exchange")),
    # vhosts, users, permissions
    Read("/api/vhosts", "Vhosts", settings.vhosts),
    _one("/api/vhosts/{vhost}", "One vhost",
         lambda r, vhost: settings.vhost_document(r, settings.vhost_named(r, vhost)), ADMINISTRATOR, False),
    Read("/api/vhosts/{vhost}/permissions", "Permissions in a vhost", accounts.permissions, ADMINISTRATOR, False),
    Read("/api/vhosts/{vhost}/topic-permissions", "Topic permissions in a vhost", accounts.topic_permissions,
         ADMINISTRATOR, False),
    Read("/api/vhosts/{vhost}/connections", "Connections in a vhost", connections.connection_listing),
    Read("/api/vhosts/{vhost}/channels", "Channels in a vhost", connections.channel_listing),
    Read("/api/users", "Users", accounts.users, ADMINISTRATOR),
    Read("/api/users/without-permissions", "Users that may enter no vhost", partial(accounts.users, lonely=True),
         ADMINISTRATOR),
    _one("/api/users/{user}", "One user", lambda r, user: accounts.user_document(accounts.user_named(r, user)),
         ADMINISTRATOR),
    Read("/api/users/{user}/permissions", "Permissions of a user", accounts.permissions, ADMINISTRATOR),
    Read("/api/users/{user}/topic-permissions", "Topic permissions of a user", accounts.topic_permissions,
         ADMINISTRATOR),
    Read("/api/permissions", "Permissions", accounts.permissions, ADMINISTRATOR),
    _one("/api/permissions/{vhost}/{user}", "Permission of a user in a vhost", accounts.permission_of, ADMINISTRATOR,
         False),
    Read("/api/topic-permissions", "Topic permissions", accounts.topic_permissions, ADMINISTRATOR),
    Read("/api/topic-permissions/{vhost}/{user}", "Topic permissions of a user in a vhost", accounts.topic_permissions,
         ADMINISTRATOR, False),
    # policies, parameters, limits
    Read("/api/policies", "Policies", settings.policies),
    Read("/api/policies/{vhost}", "Policies of a vhost", settings.policies),
    _one("/api/policies/{vhost}/{name}", "One policy", settings.policy_named),
    Read("/api/operator-policies", "Operator policies", _operator_policies),
    Read("/api/operator-policies/{vhost}", "Operator policies of a vhost", _operator_policies),
    _one("/api/operator-policies/{vhost}/{name}", "One operator policy", partial(settings.policy_named, operator=True)),
    Read("/api/parameters", "Runtime parameters", settings.parameters, POLICYMAKER),
    Read("/api/parameters/{component}", "Parameters of a component", settings.parameters, POLICYMAKER),
    Read("/api/parameters/{component}/{vhost}", "Parameters of a component in a vhost", settings.parameters,
         POLICYMAKER),
    _one("/api/parameters/{component}/{vhost}/{name}", "One parameter", settings.parameter_named, POLICYMAKER),
    Read("/api/global-parameters", "Global parameters", settings.global_parameters, POLICYMAKER),
    _one("/api/global-parameters/{name}", "One global parameter", settings.global_parameter_named, POLICYMAKER),
    Read("/api/vhost-limits", "Limits of vhosts", settings.vhost_limits),
    Read("/api/vhost-limits/{vhost}", "Limits of a vhost", settings.vhost_limits),
    Read("/api/user-limits", "Limits of users", accounts.user_limits),
    Read("/api/user-limits/{user}", "Limits of a user", accounts.user_limits),
    # health
    _check("/api/health/checks/alarms", "Whether any node has an alarm", nodes.alarms),
    _check("/api/health/checks/local-alarms", "Whether this node has an alarm", _LOCAL),
    _check("/api/health/checks/virtual-hosts", "Whether all vhosts run here", lambda _r: Health(True)),
    _check("/api/health/checks/port-listener/{port}", "Whether this node listens on a port", nodes.port_listener),
    _check("/api/health/checks/protocol-listener/{protocol}", "Whether this node listens for a protocol",
           nodes.protocol_listener),
    _check("/api/health/checks/node-is-mirror-sync-critical",
           "Whether a queue would lose its minimum in sync without this node", nodes.quorum_critical),
    _check("/api/health/checks/node-is-quorum-critical",
           "Whether a queue would lose its minimum in sync without this node", nodes.quorum_critical),
    _check("/api/health/checks/is-in-service", "Whether this node is not drained", nodes.in_service),
    _check("/api/health/checks/below-node-connection-limit", "Whether this node takes one more connection",
           nodes.below_connection_limit),
    _check("/api/health/checks/ready-to-serve-clients", "Whether this node serves a client that connects",
           nodes.ready_to_serve),
    _check("/api/health/checks/certificate-expiration/{within}/{unit}",
           "Whether no certificate of this node ends within a time", nodes.certificate_expiration),
    _check("/api/healthchecks/node", "This node's alarms and lease", _LOCAL),
    _check("/api/healthchecks/node/{name}", "Whether a node runs, and its alarms", nodes.health),
)  # fmt: skip
