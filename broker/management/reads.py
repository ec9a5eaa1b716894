"""What can be read: a table from path to answer, which the HTTP shell turns into routes and into the OpenAPI page.

An answer is a document, a list of documents, a Listing (which is paged) or the finding of a health check. Every row
says which right it needs; `vhost` in a path must be one that the user may enter, unless the row says otherwise.
Paths with a fixed word come before those where anything fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from clusterbroker.cluster.wiring.entities import DestinationKind

from . import accounts, connections, definitions, exchanges, memory, moves, nodes, producers, queues, settings
from .nodes import Health
from .paging import Document, Listing, answer, of_documents, reduced, wish
from .principals import ADMINISTRATOR, MANAGEMENT, MONITORING, POLICYMAKER
from .reading import Reading

Path = Mapping[str, str]
"""Parameters of the path, decoded."""
Found = Document | list[Document] | Listing[Any] | Health
Answer = Callable[[Reading, Path], Found]


class Read(msgspec.Struct, frozen=True):
    """One path."""

    path: str
    summary: str
    answer: Answer
    right: str = MANAGEMENT
    enter: bool = True
    """The vhost of the path must be open to the user."""
    filename: str = ""
    """Offered when it is stored."""

    method: ClassVar[str] = "GET"
    form: ClassVar[None] = None

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of an answer."""
        return (200, 503) if self.is_check else (200,)

    @property
    def is_check(self) -> bool:
        """A health check: 503 is an answer of it."""
        return self.path.startswith(("/api/health/", "/api/healthchecks/"))

    @property
    def listed(self) -> bool:
        """The answer is a list."""
        return not self.is_check and self.path not in _SINGLE


def run(read: Read, reading: Reading, path: Path) -> tuple[int, Document | list[Document]]:
    """(status, document). Refused as the rights and the query demand."""
    reading.principal.require(read.right)
    if read.enter and "vhost" in path:
        reading.principal.enter(path["vhost"])
    found = read.answer(reading, path)
    if isinstance(found, Health):
        return (200 if found.ok else 503), found.document
    wanted = wish(reading.query)
    if isinstance(found, Listing):
        return 200, answer(found, wanted)
    if isinstance(found, list):
        return 200, answer(of_documents(found), wanted)
    return 200, reduced(found, wanted.columns)


def _kind(letter: str) -> DestinationKind:
    return "queue" if letter == "q" else "exchange"


def _bindings_between(letter: str) -> Answer:
    return lambda r, p: exchanges.binding_listing(
        exchanges.bindings_between(r, p["vhost"], p["source"], _kind(letter), p["destination"])
    )


def _binding(letter: str) -> Answer:
    return lambda r, p: exchanges.binding_document(
        exchanges.binding_named(r, p["vhost"], p["source"], _kind(letter), p["destination"], p["properties_key"])
    )


def _check(check: Callable[[Reading, Path], Health]) -> Answer:
    """A health check; one that a node without a lease never passes."""
    return lambda r, p: nodes.without_lease(r) or check(r, p)


def _connection(r: Reading, p: Path) -> Document:
    return connections.connection_document(r, connections.connection_named(r, p["name"]))


def _connection_channels(r: Reading, p: Path) -> Listing[Any]:
    return connections.channel_listing(r, connection=connections.connection_named(r, p["name"]))


def _queue_bindings(r: Reading, p: Path) -> Listing[Any]:
    return exchanges.binding_listing(exchanges.bindings_to(r, p["vhost"], "queue", p["name"]))


_CHECKS: Final[tuple[Read, ...]] = (
    Read("/api/health/checks/alarms", "Whether any node has an alarm", _check(lambda r, _: nodes.alarms(r))),
    Read(
        "/api/health/checks/local-alarms",
        "Whether this node has an alarm",
        _check(lambda r, _: nodes.alarms(r, local=True)),
    ),
    Read("/api/health/checks/virtual-hosts", "Whether all vhosts run here", _check(lambda _r, _p: Health(True))),
    Read(
        "/api/health/checks/port-listener/{port}",
        "Whether this node listens on a port",
        _check(lambda r, p: nodes.port_listener(r, p["port"])),
    ),
    Read(
        "/api/health/checks/protocol-listener/{protocol}",
        "Whether this node listens for a protocol",
        _check(lambda r, p: nodes.protocol_listener(r, p["protocol"])),
    ),
    Read(
        "/api/health/checks/node-is-mirror-sync-critical",
        "Whether a queue would lose its minimum in sync without this node",
        _check(lambda r, _: nodes.quorum_critical(r)),
    ),
    Read(
        "/api/health/checks/node-is-quorum-critical",
        "Whether a queue would lose its minimum in sync without this node",
        _check(lambda r, _: nodes.quorum_critical(r)),
    ),
    Read(
        "/api/health/checks/certificate-expiration/{within}/{unit}",
        "Whether no certificate of this node ends within a time",
        _check(lambda r, p: nodes.certificate_expiration(r, p["within"], p["unit"])),
    ),
    Read("/api/healthchecks/node", "This node's alarms and lease", _check(lambda r, _: nodes.alarms(r, local=True))),
    Read(
        "/api/healthchecks/node/{name}",
        "Whether a node runs, and its alarms",
        _check(lambda r, p: nodes.health(r, p["name"])),
    ),
)

_SINGLE: Final = frozenset(
    {
        "/api/overview", "/api/cluster-name", "/api/whoami", "/api/nodes/{name}", "/api/nodes/{name}/memory",
        "/api/nodes/{name}/memory/relative", "/api/definitions",
        "/api/definitions/{vhost}", "/api/connections/{name}", "/api/channels/{name}", "/api/exchanges/{vhost}/{name}",
        "/api/queues/{vhost}/{name}", "/api/producers/{vhost}/{name}",
        "/api/bindings/{vhost}/e/{source}/q/{destination}/{properties_key}",
        "/api/bindings/{vhost}/e/{source}/e/{destination}/{properties_key}", "/api/vhosts/{vhost}",
        "/api/users/{user}", "/api/permissions/{vhost}/{user}", "/api/policies/{vhost}/{name}",
        "/api/operator-policies/{vhost}/{name}", "/api/parameters/{component}/{vhost}/{name}",
        "/api/global-parameters/{name}",
    }
)  # fmt: skip

READS: Final[tuple[Read, ...]] = (
    Read("/api/overview", "The cluster at a glance", lambda r, _: nodes.overview(r)),
    Read("/api/cluster-name", "Name of the cluster", lambda r, _: {"name": nodes.cluster_name(r)}),
    Read("/api/nodes", "All nodes", lambda r, _: nodes.all_nodes(r), MONITORING),
    Read("/api/nodes/{name}", "One node", lambda r, p: nodes.node_named(r, p["name"]), MONITORING),
    Read(
        "/api/nodes/{name}/memory", "What a node's memory holds", lambda r, p: memory.of_node(r, p["name"]), MONITORING
    ),
    Read(
        "/api/nodes/{name}/memory/relative",
        "What a node's memory holds, in percent",
        lambda r, p: memory.shares_of_node(r, p["name"]),
        MONITORING,
    ),
    Read("/api/extensions", "Extensions of the page; none", lambda _r, _p: []),
    Read("/api/whoami", "Who signed in", lambda r, _: accounts.whoami(r)),
    Read("/api/feature-flags", "Feature flags", lambda _r, _p: settings.feature_flags(), ADMINISTRATOR),
    Read(
        "/api/auth/attempts/{name}",
        "Sign-in attempts at a node",
        lambda r, p: nodes.login_attempts(r, p["name"]),
        MONITORING,
    ),
    Read(
        "/api/auth/attempts/{name}/source",
        "Sign-in attempts at a node by address and user",
        lambda r, p: nodes.login_sources(r, p["name"]),
        MONITORING,
    ),
    Read(
        "/api/definitions",
        "All definitions",
        lambda r, _: definitions.exported(r),
        ADMINISTRATOR,
        filename="definitions.json",
    ),
    Read(
        "/api/definitions/{vhost}",
        "Definitions of one vhost",
        lambda r, p: definitions.exported_of(r, p["vhost"]),
        ADMINISTRATOR,
        filename="definitions.json",
    ),
    # connections, channels, consumers
    Read("/api/connections", "Connections", lambda r, _: connections.connection_listing(r)),
    Read(
        "/api/connections/username/{user}",
        "Connections of a user",
        lambda r, p: connections.connections_of_user(r, p["user"]),
    ),
    Read("/api/connections/{name}", "One connection", _connection),
    Read("/api/connections/{name}/channels", "Channels of a connection", _connection_channels),
    Read("/api/channels", "Channels", lambda r, _: connections.channel_listing(r)),
    Read("/api/channels/{name}", "One channel", lambda r, p: connections.channel_full(r, p["name"])),
    Read("/api/consumers", "Consumers", lambda r, _: connections.consumer_listing(r)),
    Read("/api/consumers/{vhost}", "Consumers in a vhost", lambda r, p: connections.consumer_listing(r, p["vhost"])),
    # exchanges, queues, bindings
    Read("/api/exchanges", "Exchanges", lambda r, _: exchanges.listing(r)),
    Read("/api/exchanges/{vhost}", "Exchanges of a vhost", lambda r, p: exchanges.listing(r, p["vhost"])),
    Read("/api/exchanges/{vhost}/{name}", "One exchange", lambda r, p: exchanges.full(r, p["vhost"], p["name"])),
    Read(
        "/api/exchanges/{vhost}/{name}/bindings/source",
        "Bindings from an exchange",
        lambda r, p: exchanges.binding_listing(exchanges.bindings_from(r, p["vhost"], p["name"])),
    ),
    Read(
        "/api/exchanges/{vhost}/{name}/bindings/destination",
        "Bindings to an exchange",
        lambda r, p: exchanges.binding_listing(exchanges.bindings_to(r, p["vhost"], "exchange", p["name"])),
    ),
    Read("/api/queues", "Queues", lambda r, _: queues.listing(r)),
    Read("/api/queues/{vhost}", "Queues of a vhost", lambda r, p: queues.listing(r, p["vhost"])),
    Read("/api/queues/{vhost}/{name}", "One queue", lambda r, p: queues.full(r, p["vhost"], p["name"])),
    Read("/api/queues/{vhost}/{name}/bindings", "Bindings to a queue", _queue_bindings),
    Read(
        "/api/queues/{vhost}/{name}/moves",
        "Leadership changes of a queue",
        lambda r, p: moves.of_queue(r, p["vhost"], p["name"]),
    ),
    Read("/api/moves", "Leadership changes, and events of members", lambda r, _: moves.listing(r)),
    Read("/api/producers", "Producers of transactions", lambda r, _: producers.listing(r)),
    Read(
        "/api/producers/{vhost}",
        "Producers of transactions of a vhost",
        lambda r, p: producers.listing(r, p["vhost"]),
    ),
    Read(
        "/api/producers/{vhost}/{name}",
        "One producer: its last epoch, and what is staged and on its way",
        lambda r, p: producers.named(r, p["vhost"], p["name"]),
    ),
    Read("/api/bindings", "Bindings", lambda r, _: exchanges.binding_listing(exchanges.all_bindings(r))),
    Read(
        "/api/bindings/{vhost}",
        "Bindings of a vhost",
        lambda r, p: exchanges.binding_listing(exchanges.all_bindings(r, p["vhost"])),
    ),
    Read(
        "/api/bindings/{vhost}/e/{source}/q/{destination}",
        "Bindings from an exchange to a queue",
        _bindings_between("q"),
    ),
    Read(
        "/api/bindings/{vhost}/e/{source}/e/{destination}",
        "Bindings from an exchange to an exchange",
        _bindings_between("e"),
    ),
    Read("/api/bindings/{vhost}/e/{source}/q/{destination}/{properties_key}", "One binding", _binding("q")),
    Read("/api/bindings/{vhost}/e/{source}/e/{destination}/{properties_key}", "One binding", _binding("e")),
    # vhosts, users, permissions
    Read("/api/vhosts", "Vhosts", lambda r, _: settings.vhosts(r)),
    Read(
        "/api/vhosts/{vhost}",
        "One vhost",
        lambda r, p: settings.vhost_document(r, settings.vhost_named(r, p["vhost"])),
        ADMINISTRATOR,
        enter=False,
    ),
    Read(
        "/api/vhosts/{vhost}/permissions",
        "Permissions in a vhost",
        lambda r, p: accounts.permissions(r, vhost=p["vhost"]),
        ADMINISTRATOR,
        enter=False,
    ),
    Read(
        "/api/vhosts/{vhost}/topic-permissions",
        "Topic permissions in a vhost",
        lambda r, p: accounts.topic_permissions(r, vhost=p["vhost"]),
        ADMINISTRATOR,
        enter=False,
    ),
    Read(
        "/api/vhosts/{vhost}/connections",
        "Connections in a vhost",
        lambda r, p: connections.connection_listing(r, p["vhost"]),
    ),
    Read(
        "/api/vhosts/{vhost}/channels",
        "Channels in a vhost",
        lambda r, p: connections.channel_listing(r, p["vhost"]),
    ),
    Read("/api/users", "Users", lambda r, _: accounts.users(r), ADMINISTRATOR),
    Read(
        "/api/users/without-permissions",
        "Users that may enter no vhost",
        lambda r, _: accounts.users(r, lonely=True),
        ADMINISTRATOR,
    ),
    Read(
        "/api/users/{user}",
        "One user",
        lambda r, p: accounts.user_document(accounts.user_named(r, p["user"])),
        ADMINISTRATOR,
    ),
    Read(
        "/api/users/{user}/permissions",
        "Permissions of a user",
        lambda r, p: accounts.permissions(r, user=p["user"]),
        ADMINISTRATOR,
    ),
    Read(
        "/api/users/{user}/topic-permissions",
        "Topic permissions of a user",
        lambda r, p: accounts.topic_permissions(r, user=p["user"]),
        ADMINISTRATOR,
    ),
    Read("/api/permissions", "Permissions", lambda r, _: accounts.permissions(r), ADMINISTRATOR),
    Read(
        "/api/permissions/{vhost}/{user}",
        "Permission of a user in a vhost",
        lambda r, p: accounts.permission_of(r, p["vhost"], p["user"]),
        ADMINISTRATOR,
        enter=False,
    ),
    Read("/api/topic-permissions", "Topic permissions", lambda r, _: accounts.topic_permissions(r), ADMINISTRATOR),
    Read(
        "/api/topic-permissions/{vhost}/{user}",
        "Topic permissions of a user in a vhost",
        lambda r, p: accounts.topic_permissions(r, vhost=p["vhost"], user=p["user"]),
        ADMINISTRATOR,
        enter=False,
    ),
    # policies, parameters, limits
    Read("/api/policies", "Policies", lambda r, _: settings.policies(r)),
    Read("/api/policies/{vhost}", "Policies of a vhost", lambda r, p: settings.policies(r, p["vhost"])),
    Read("/api/policies/{vhost}/{name}", "One policy", lambda r, p: settings.policy_named(r, p["vhost"], p["name"])),
    Read("/api/operator-policies", "Operator policies", lambda r, _: settings.policies(r, operator=True)),
    Read(
        "/api/operator-policies/{vhost}",
        "Operator policies of a vhost",
        lambda r, p: settings.policies(r, p["vhost"], operator=True),
    ),
    Read(
        "/api/operator-policies/{vhost}/{name}",
        "One operator policy",
        lambda r, p: settings.policy_named(r, p["vhost"], p["name"], operator=True),
    ),
    Read("/api/parameters", "Runtime parameters", lambda r, _: settings.parameters(r), POLICYMAKER),
    Read(
        "/api/parameters/{component}",
        "Parameters of a component",
        lambda r, p: settings.parameters(r, p["component"]),
        POLICYMAKER,
    ),
    Read(
        "/api/parameters/{component}/{vhost}",
        "Parameters of a component in a vhost",
        lambda r, p: settings.parameters(r, p["component"], p["vhost"]),
        POLICYMAKER,
    ),
    Read(
        "/api/parameters/{component}/{vhost}/{name}",
        "One parameter",
        lambda r, p: settings.parameter_named(r, p["component"], p["vhost"], p["name"]),
        POLICYMAKER,
    ),
    Read("/api/global-parameters", "Global parameters", lambda r, _: settings.global_parameters(r), POLICYMAKER),
    Read(
        "/api/global-parameters/{name}",
        "One global parameter",
        lambda r, p: settings.global_parameter_named(r, p["name"]),
        POLICYMAKER,
    ),
    Read("/api/vhost-limits", "Limits of vhosts", lambda r, _: settings.vhost_limits(r)),
    Read("/api/vhost-limits/{vhost}", "Limits of a vhost", lambda r, p: settings.vhost_limits(r, p["vhost"])),
    Read("/api/user-limits", "Limits of users", lambda r, _: accounts.user_limits(r)),
    Read("/api/user-limits/{user}", "Limits of a user", lambda r, p: accounts.user_limits(r, p["user"])),
    *_CHECKS,
)
