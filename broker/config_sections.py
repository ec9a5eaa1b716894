"""The sections of a node's configuration: names, defaults, bounds and what they mean. `broker.config` reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field

from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.oauth2.options import ALGORITHMS
from clusterbroker.broker.server.alarms import AlarmOptions
from clusterbroker.broker.server.audit import AuditOptions
from clusterbroker.broker.server.listener import Address, address
from clusterbroker.journal.options import JournalOptions

_NODE = NodeOptions()
_JOURNAL = JournalOptions()
_ALARMS = AlarmOptions()
_AUDIT = AuditOptions()


def _addresses(value: Any) -> Any:
    """ "HOST:PORT,HOST:PORT" or a list of such."""
    texts = [text for text in value.split(",") if text.strip()] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)):
        raise ValueError("write it as HOST:PORT, several separated by commas")
    return tuple(text if isinstance(text, Address) else address(str(text)) for text in texts)


def words(value: Any) -> Any:
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(words)]
Addresses = Annotated[tuple[Address, ...], BeforeValidator(_addresses)]
Bytes = ByteSize
"""A number of bytes: 1048576, "1MiB", "64 MB"."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class LimitSettings(Section):
    """What keeps a node bounded whatever its clients do."""

    channel_max: int = Field(default=_NODE.channel_max, ge=0, le=65535)
    """Channels of one connection, offered in connection.tune; 0 offers no limit."""
    frame_max_bytes: Bytes = Field(default=ByteSize(_NODE.frame_max_bytes), ge=8192, le=16 << 20)
    """Largest frame, offered in connection.tune."""
    heartbeat_s: int = Field(default=_NODE.heartbeat_s, ge=0, le=65535)
    """Heartbeat interval offered in connection.tune; 0 offers none."""
    handshake_timeout_s: float = Field(default=_NODE.handshake_timeout_s, gt=0)
    """A client that has not opened its connection by then is cut."""
    close_timeout_s: float = Field(default=_NODE.close_timeout_s, gt=0)
    """How long the answer to connection.close is waited for."""
    stalled_write_s: float = Field(default=_NODE.stalled_write_s, gt=0)
    """A connection whose socket takes nothing for so long is cut."""
    message_bytes_max: Bytes = Field(default=ByteSize(_NODE.message_bytes_max), ge=1, le=512 << 20)
    """Larger message bodies are refused (406)."""
    connections_max: int = Field(default=_NODE.connections_max, ge=1)
    """Connections of the node; more are closed at once."""
    channels_max: int = Field(default=_NODE.channels_max, ge=1)
    """Channels of the node, of all connections; more are refused (530)."""
    consumers_per_channel_max: int = Field(default=_NODE.consumers_per_channel_max, ge=1)
    """Consumers of one channel (530)."""
    queues_max: int = Field(default=_NODE.queues_max, ge=1)
    """Queues of the node."""
    exchanges_max: int = Field(default=_NODE.exchanges_max, ge=1)
    """Exchanges of the cluster."""
    partial_bytes_max: Bytes = Field(default=ByteSize(_NODE.partial_bytes_max), ge=32 << 20)
    """Contents that clients have not sent to their end, of all connections; beyond it the connection that has the most
    of them is ended (506). One alone may have 32 MiB, or two messages of message_bytes_max."""
    unwritten_bytes_max: Bytes = Field(default=ByteSize(_NODE.unwritten_bytes_max), ge=1 << 20)
    """Publishers wait while more than this is on its way to the journal."""
    copy_rate_bytes: Bytes = Field(default=ByteSize(_NODE.copy_rate_bytes), ge=0)
    """So much a second is taken in for copies that no publisher waits for: of a node that joined or comes back; 0: as
    fast as it goes."""
    consumer_timeout_ms: int = Field(default=_NODE.consumer_timeout_ms, ge=0)
    """A delivery that is unacknowledged for longer ends its channel; 0: never."""
    anonymous_user: str = _NODE.anonymous_user
    """Clients of AMQP 1.0 that name no user are this one (SASL ANONYMOUS); empty: they are refused."""
    loopback_users: Words = _NODE.loopback_users
    """Users who may connect from this machine only, separated by commas."""


class Amqp10Settings(Section):
    """AMQP 1.0."""

    product: Literal["clusterbroker", "RabbitMQ"] = "clusterbroker"
    """What the node calls itself to clients of AMQP 1.0. "RabbitMQ", with a version of RabbitMQ 4, is for client
    libraries that refuse to work with anything else."""


class JournalSettings(Section):
    """How messages are kept on disk."""

    segment_bytes: Bytes = Field(default=ByteSize(_JOURNAL.segment_bytes), ge=1 << 20, le=1 << 30)
    """Size of a segment file; two are allocated from the start."""
    group_bytes_max: Bytes = Field(default=ByteSize(_JOURNAL.group_bytes_max), ge=1 << 16, le=1 << 30)
    """Size at which a group commit is full: what other queues have to write comes with the next one."""
    flush_interval_s: float = Field(default=_JOURNAL.flush_interval_s, gt=0, le=60)
    """Longest time that a message of durability "disk" waits for its flush."""
    checkpoint_bytes: Bytes = Field(default=ByteSize(_JOURNAL.checkpoint_bytes), ge=1 << 20)
    """A checkpoint is due when so much was written since the last one: bounds what a restart replays."""
    checkpoint_interval_s: float = Field(default=_JOURNAL.checkpoint_interval_s, gt=0)
    """A checkpoint is due so long after the first write since the last one."""
    sparse_percent: int = Field(default=_JOURNAL.sparse_percent, ge=0, le=90)
    """Messages of a segment with a lower share of live bytes move on, so that its file can go."""
    full_retry_s: float = Field(default=_JOURNAL.full_retry_s, gt=0, le=60)
    """How often a write that found no space is tried again."""
    reserve_bytes: Bytes = Field(default=ByteSize(_JOURNAL.reserve_bytes), ge=0)
    """Space kept in reserve, so that a full disk can still be tidied up; 0: none."""
    scrub_rate_bytes: Bytes = Field(default=ByteSize(_JOURNAL.scrub_rate_bytes), ge=0)
    """So much of old segments is read and proved in a second, so that damage is found in time; 0: nothing."""
    map_bytes: Bytes = Field(default=ByteSize(_JOURNAL.map_bytes), ge=1 << 30, le=1 << 46)
    """Address space of the index; costs neither memory nor disk."""


class TlsSettings(Section):
    """Certificates of the `amqps` and `https` listeners. Files that change are read anew while the node runs."""

    certificate: Path | None = None
    """PEM file with the node's certificate and its chain."""
    key: Path | None = None
    """PEM file with the private key, when it is not in the certificate's file."""
    authorities: Path | None = None
    """PEM file with the authorities that sign client certificates."""
    client_certificate: Literal["none", "wanted", "required"] = "none"
    """Whether clients are asked for a certificate ("wanted": who shows one may use EXTERNAL), or refused without one
    ("required")."""
    identity: Literal["distinguished_name", "common_name"] = "distinguished_name"
    """What of a client certificate's subject is the user name for EXTERNAL."""
    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """The oldest TLS that is spoken."""
    ciphers: str = ""
    """Ciphers of TLS 1.2 as OpenSSL writes lists of them, "ECDHE+AESGCM"; empty: Python's choice."""


class OAuth2Settings(Section):
    """Tokens (JWT) of an authority, taken over AMQP and HTTP in the place of a password. Needs the extra `oauth2`."""

    resource_server_id: str = ""
    """Who this broker is for the authority: tokens must have it as their audience. Empty: no token is taken."""
    keys_file: Path | None = None
    """File with the authority's public keys, a JSON Web Key Set."""
    keys_url: str = ""
    """Where the authority publishes its keys (https), in the place of keys_file."""
    keys_authorities: Path | None = None
    """PEM file with the authorities that sign the certificate of keys_url; empty: those of the system."""
    issuer: str = ""
    """Must be the issuer (iss) of every token; empty: whoever has one of the keys."""
    algorithms: Words = ALGORITHMS
    """Signatures that are accepted, separated by commas; those with a shared secret (HS256) never are."""
    scope_prefix: str = ""
    """What the scopes begin with that count; empty: the resource server's id and a dot."""
    scope_claims: Words = ("scope",)
    """Claims with scopes, separated by commas; a dot leads into an object ("realm_access.roles")."""
    username_claims: Words = ("sub", "client_id")
    """The first of these claims that a token has is its user's name."""
    leeway_s: int = Field(default=5, ge=0, le=120)
    """How far the authority's clock and this node's may differ."""


class AuditSettings(Section):
    """Lines about administrative operations: who, from where, what, on what, with what outcome."""

    file: Path | None = None
    """File for these lines, as JSON; empty: they are lines of the node's log, whatever its level."""
    file_bytes_max: Bytes = Field(default=ByteSize(_AUDIT.file_bytes_max), ge=4096)
    """A file of this size becomes FILE.1, and a new one begins."""
    files_max: int = Field(default=_AUDIT.files_max, ge=1, le=1000)
    """How many files are kept, the one that grows included."""


class AlarmSettings(Section):
    """When publishers have to wait because the node runs low."""

    memory_fraction: float = Field(default=_ALARMS.memory_fraction, ge=0, le=1)
    """Share of the machine's or container's memory at which the memory alarm is raised; 0: never."""
    memory_bytes: Bytes = Field(default=ByteSize(_ALARMS.memory_bytes), ge=0)
    """The same as a number of bytes; 0: by share."""
    disk_free_bytes: Bytes = Field(default=ByteSize(_ALARMS.disk_free_bytes), ge=0)
    """Free space below which the disk alarm is raised; 0: never."""
    interval_s: float = Field(default=_ALARMS.interval_s, gt=0, le=60)
    """How often memory and disk are looked at."""


class LogSettings(Section):
    """What the node says on its standard error."""

    level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """Lines below this level are not written."""
    format: Literal["console", "json"] = "console"
    """Lines for people, or one JSON object a line."""
