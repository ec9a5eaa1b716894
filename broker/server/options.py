"""Options of a running node, composed by `broker.config` (the command line) or `broker.embedded` (tests)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.oauth2.options import OAuth2Options
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.listener import Address
from clusterbroker.broker.server.tls import TlsOptions
from clusterbroker.broker.stats.totals import SAMPLE_S
from clusterbroker.journal.options import JournalOptions

if TYPE_CHECKING:
    from clusterbroker.broker.server.span_options import SpanOptions

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
"""Names of nodes."""


class Definitions(Protocol):
    """Definitions to import at a start (`broker.boot_definitions`)."""

    async def bring_in(self, shell: Any) -> None:
        """Returns when all are imported, or refused. Raises the error that ends the node meanwhile."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A node's place among others."""

    listen: Address
    """Address for other nodes, TCP and UDP."""
    peers: tuple[tuple[str, str, bool], ...]
    """(name, HOST:PORT, is a witness) of the founding members by name, this node included."""
    secret_file: Path | None = None
    """The join secret; None: the user's own file."""
    dial: Mapping[str, str] = field(default_factory=dict)
    """Where to dial a member instead of at its address."""
    advertised_amqp: tuple[str, ...] = ()
    """This node's AMQP addresses for clients; empty: the listeners' own."""
    cut_off_s: float = 10.0
    """How long clients are kept without a lease."""
    founds: bool = True
    """Whether an empty data directory becomes that of a founding member, as `peers` says; else it is refused."""
    joins: tuple[str, ...] = ()
    """Cluster addresses of members to ask to take a node with an empty data directory, which is then not refused. A
    node that `founds` asks once, and founds when none takes it."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """A node as a process sees it; the limits of its core are in `node`."""

    data_dir: Path | None = None
    """Directory of metadata and messages; None: in memory only."""
    amqp: tuple[Address, ...] = (Address("127.0.0.1", 5672),)
    """Addresses of plain AMQP."""
    amqps: tuple[Address, ...] = ()
    """Addresses of AMQP inside TLS; needs `tls`."""
    tls: TlsOptions | None = None
    """Certificates for `amqps`."""
    node: NodeOptions = field(default_factory=NodeOptions)
    """Limits and times of the core. Its incarnation is replaced at start by the stored count of starts."""
    journal: JournalOptions = field(default_factory=JournalOptions)
    """Sizes and times of the journal."""
    alarms: AlarmOptions = field(default_factory=AlarmOptions)
    """When publishers have to wait."""
    receive_buffer_bytes: int = 512 << 10
    """Size of the one buffer that all sockets are read into; raised to twice the frame size if it is less."""
    turn_bytes_max: int = 1 << 20
    """Bytes that may be read before the node works on them, whatever else is ready to be read."""
    stop_grace_s: float = 3.0
    """How long clients may take to answer connection.close when the node stops."""
    default_user: str = "guest"
    """Made for a broker that never had a user, with all permissions in `default_vhost`. Empty: none is made."""
    default_vhost: str = "/"
    """Made with the default user, if it is another one than "/"."""

    # the field's known default, and only valid from loopback
    default_password: str = field(default="guest", repr=False)
    """Of the default user."""
    password_cost: int = 14
    """Base-2 logarithm of scrypt's n for passwords hashed by this node."""
    cluster: ClusterOptions | None = None
    """None: a node that is alone."""
    drain_ends_at_start: bool = False
    """A drained member takes queues and clients again when its process starts."""
    http: tuple[Address, ...] = ()
    """Addresses of the management API, taken by `broker.server.management`; the node only reports them."""
    https: tuple[Address, ...] = ()
    """Its addresses inside TLS; needs `tls`."""
    http_client_certificate: Literal["none", "required"] = "none"
    """Whether clients of `https` must show a certificate that `tls` trusts."""
    http_proxies: tuple[str, ...] | None = None
    """Addresses of proxies that are believed about their clients; None: as `management.PROXIES`."""
    http_sample_s: float = SAMPLE_S
    """As `broker.server.management.Settings.sample_s`."""

    oauth2: OAuth2Options | None = None
    """The authority whose tokens are accepted, over AMQP and HTTP; None: none."""

    audit: AuditOptions = field(default_factory=AuditOptions)
    """Log of administrative operations."""
    spans: SpanOptions | None = None
    """Receiver of spans of sampled messages; None: there are none."""
    advertised_amqp: tuple[str, ...] = ()
    """URLs that workers of a node that is alone are told beside its listeners; of a member its cluster's options are
    told to all."""
    worker_authorities: Path | None = None
    """PEM file with the authorities by which workers trust the nodes' certificates; None: those of their systems."""
    definitions: Definitions | None = None
    """Imported at the start."""
    pools_file: Path | None = None
    """The config file with templates of worker pools, for a foreman beside the node; None: there are none."""
    control: bool = True
    """Whether the node serves `control.sock`, for commands and for its management process."""
    control_dir: Path | None = None
    """Where; None: in the data directory, if there is one."""
    management: bool = False
    """Whether a management process stands beside the node."""

    @property
    def control_directory(self) -> Path | None:
        """Of `control.sock`; None: it is not served."""
        return (self.control_dir or self.data_dir) if self.control else None

    @property
    def https_tls(self) -> TlsOptions | None:
        """Certificates for `https`; None: it is not served."""
        if self.tls is None or not self.https:
            return None
        asks = self.http_client_certificate == "required"
        return replace(
            self.tls,
            client_certificate=self.http_client_certificate,
            authorities=self.tls.authorities if asks else None,
        )
