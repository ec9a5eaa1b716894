"""Rows: what one node counts of its things, as it is told to a management process and to other nodes.

    connection (connection_id)      exchange (vhost, name)
      `- channel (.., number)         `- queue flow (.., queue_id)
           `- consumer (.., tag)    queue (queue_id)            node (name)
    suspended links (`links`)       login source (protocol, address, user)

A `Total` counts from when the thing began at this node, 64 bits, and never goes back while the thing lives there; so
who asks seldom, or loses a sample, loses resolution and no truth. A total that is lower than before began anew. All
other numbers are gauges: values at the moment of the sample. Names say the unit; `_at_ms` is wall clock time in ms
since 1970.

Free-form values (arguments, client properties) are plain: None, bool, int, float, str, list, dict with text keys, and
bytes or datetime where the client sent such; whoever shows them makes text of these. So nothing in a row leads back to
it, and the garbage collector is told not to look at rows (`gc=False`), of which a replica has tens of thousands.

    encoded batch    u8 version (1) | msgpack of Batch

Field order is the encoded order: new fields go to the end and carry a default. Every row has a `key`, which begins
with its kind and is unique among the rows of one node; a thing that ended is told by its key alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, get_type_hints

import msgspec

from clusterbroker.broker.stats.bridges import BridgeRow
from clusterbroker.broker.stats.links import ClientLink, RecoverableRow, SessionWindows, SuspendedRow
from clusterbroker.broker.stats.pools import PlaceRow, PoolRow
from clusterbroker.broker.stats.totals import MessageTotals as MessageTotals
from clusterbroker.broker.stats.totals import StoredOffset, Total

VERSION: Final = 2
FLUSH_BOUNDS_MS: Final = (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
"""Those of `journal.flushes`, for readers that have no journal."""

Key = tuple[str | int, ...]
"""A row's kind (its tag), then what names the thing."""


class Listener(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One socket that accepts."""

    protocol: str
    """"amqp", "amqps", "clustering", "http", "https"."""
    ip_address: str
    port: int


class LinkRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The links to one other member."""

    peer: str
    up: bool
    sent_bytes: Total = 0
    received_bytes: Total = 0
    clock_ahead_ms: int = 0
    """How far its clock is ahead of this node's, by its last beat; 0 as well when none came lately."""


class LoginTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Attempts to sign in over one protocol. All are totals."""

    protocol: str
    """"amqp" or "http"."""
    succeeded: Total = 0
    failed: Total = 0


class Certificate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a TLS listener shows to clients."""

    protocol: str
    """"amqps" or "https"."""
    ip_address: str
    port: int
    file: str
    serial: str = ""
    """Hexadecimal."""
    expires_ms: int = 0
    """When the first certificate of its chain ends, ms since 1970."""
    authorities_file: str = ""
    """Of those who sign client certificates; empty: clients show none."""
    authorities_expire_ms: int = 0


class AlertRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A condition that an operator must see (`broker.node.alerts`)."""

    kind: str
    subject: str
    text: str
    since_ms: int
    """ms since 1970."""


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="node"):
    """What a member says of itself."""

    name: str
    incarnation: int = 0
    """Of the process in the wiring log; 0 for a single node."""
    version: str = ""
    """Of clusterbroker."""
    os_pid: int = 0
    started_at_ms: int = 0
    uptime_ms: int = 0
    processors: int = 0
    data_directory: str = ""
    config_file: str = ""
    """Empty: none."""
    log_file: str = ""
    """Empty: the standard output."""

    memory_used_bytes: int = 0
    """Resident."""
    memory_limit_bytes: int = 0
    """At which the alarm rises; 0: never."""
    disk_free_bytes: int = 0
    """On the disk of the data directory."""
    disk_free_limit_bytes: int = 0
    """Below which the alarm rises; 0: never."""
    files_used: int = 0
    """Open file descriptors, sockets among them."""
    files_limit: int = 0
    sockets_used: int = 0
    sockets_limit: int = 0
    alarms: tuple[str, ...] = ()
    """"memory", "disk", "minority": those in force at this node itself."""
    draining: bool = False
    listeners: tuple[Listener, ...] = ()

    loop_lag_ms: float = 0.0
    """The longest that the loop was late since the last sample."""
    leased: bool = True
    """It holds a lease, or is a single node."""
    lease_left_ms: int = 0
    """Until the lease ends if no beat comes; 0: none, or a single node."""
    wiring_index: int = 0
    """Of the last applied command."""
    wiring_leader: str = ""
    """Who orders the wiring, as this node knows; empty: nobody."""

    journal_segments: int = 0
    journal_bytes: int = 0
    """On disk now."""
    journal_written_bytes: Total = 0
    journal_flushes: Total = 0
    """Group commits that were made durable."""
    journal_flush_us: Total = 0
    """The microseconds that they took."""
    links: tuple[LinkRow, ...] = ()

    connections_created: Total = 0
    connections_closed: Total = 0
    channels_created: Total = 0
    channels_closed: Total = 0
    queues_declared: Total = 0
    """Queue.declare that were answered, whether the queue was new or not."""
    queues_created: Total = 0
    """Queues that began and that this node was the first owner of."""
    queues_deleted: Total = 0
    """Queues that ended while this node owned them."""
    logins: tuple[LoginTotals, ...] = ()
    messages: MessageTotals = MessageTotals()
    """Of all channels that ever were at this node: what outlives a channel."""
    certificates: tuple[Certificate, ...] = ()
    """Of the listeners for AMQP: the management process has its own."""
    journal_reads: Total = 0
    """Reads from the journal, each of many messages."""
    journal_read_bytes: Total = 0
    journal_read_us: Total = 0
    """The microseconds that they took."""
    wiring_term: int = 0
    """Of the wiring log's elections: it rises when another member is to order it; 0: a single node."""
    copies_sent_bytes: Total = 0
    """Records sent to copies of queues that are owned here."""
    copies_received_bytes: Total = 0
    """Records received for copies that this node keeps."""
    alerts: tuple[AlertRow, ...] = ()
    """The oldest ALERTS_SHOWN_MAX of them."""
    alerts_count: int = 0
    """All of them."""
    loop_held: Total = 0
    """Events that held the loop for 100 ms or longer."""
    routes_refused: Total = 0
    """Publishes and other messages whose route would have cost too much."""
    scrub_percent: int = 100
    """Of the pass over old segments that is under way; 100: none is."""
    scrub_passes: Total = 0
    scrub_bytes: Total = 0
    """Bytes that were read and proved."""
    scrub_found: Total = 0
    """Messages that it could not read."""
    journal_flush_counts: tuple[int, ...] = ()
    """Of group commits by how long they took: up to each of FLUSH_BOUNDS_MS, and longer."""
    copies_syncing: int = 0
    """Copies here that are being brought up to date."""
    copying_bytes: Total = 0
    """What came in for that."""
    copying_rate_bytes: int = 0
    """So much a second may come in for copies that no publisher waits for; 0: as fast as it goes."""
    copying_paused: bool = False
    """By an operator."""
    feature_level: int = 1
    """Of the cluster, by the node's map."""
    supported_feature_level: int = 1
    """The highest that its release knows; releases before there were levels do not say it."""
    bridges: tuple[BridgeRow, ...] = ()
    """Those that it runs."""
    pools: tuple[PoolRow, ...] = ()
    """What its responders did."""
    clock_jumps: Total = 0
    """Steps of the wall clock of a second or more."""
    place: PlaceRow | None = None
    """None: it starts no workers."""

    @property
    def key(self) -> Key:
        return ("node", self.name)


class TlsFacts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was negotiated, and who the client is."""

    protocol: str = ""
    """For example "tlsv1.3"."""
    cipher: str = ""
    key_exchange: str = ""
    digest: str = ""
    peer_subject: str = ""
    """Of the client's certificate; empty: it has none."""
    peer_issuer: str = ""
    peer_validity: str = ""


class ConnectionRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="connection"):
    """A client's connection."""

    connection_id: str
    """Unique in the cluster, for ever."""
    user: str = ""
    vhost: str = ""
    peer_host: str = ""
    peer_port: int = 0
    host: str = ""
    """Address of this node's end."""
    port: int = 0
    protocol: str = "AMQP 0-9-1"
    auth_mechanism: str = ""
    tls: TlsFacts | None = None
    client_properties: dict[str, Any] = {}
    frame_max_bytes: int = 0
    channel_max: int = 0
    heartbeat_s: int = 0
    connected_at_ms: int = 0

    state: str = "running"
    """"running"; "blocked": it publishes, and an alarm holds it up; "closing"; "flow": else its socket is not read
    (`review_reading` of its front), or a sender of AMQP 1.0 gets no credit. Its publishes wait for the journal or for
    a queue, its output buffer is full, or what it sent before is not carried out yet: consumers have it too."""
    channels: int = 0
    received_bytes: Total = 0
    received_reads: Total = 0
    """Reads that brought something."""
    sent_bytes: Total = 0
    sent_writes: Total = 0
    pending_send_bytes: int = 0
    """Waiting for the socket."""
    by_token: bool = False
    """It signed in with a token: `user` is the authority's, and no account of that name."""

    @property
    def key(self) -> Key:
        return ("connection", self.connection_id)

    @property
    def name(self) -> str:
        """As RabbitMQ names connections: `client host:port -> node's host:port`."""
        return f"{self.peer_host}:{self.peer_port} -> {self.host}:{self.port}"


class ChannelRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="channel"):
    """A channel, or a session of AMQP 1.0; user and vhost are its connection's."""

    connection_id: str
    number: int
    confirm: bool = False
    transactional: bool = False
    prefetch_count: int = 0
    """Per consumer; 0: unlimited."""
    global_prefetch_count: int = 0
    """Of the whole channel; 0: unlimited."""
    state: str = "running"
    """"running", "closing"."""
    consumers: int = 0
    unacknowledged: int = 0
    """Messages delivered and not settled."""
    unconfirmed: int = 0
    """Messages published and not confirmed."""
    uncommitted: int = 0
    """Messages published in the transaction that is open."""
    acks_uncommitted: int = 0
    """Settlements in the transaction that is open."""
    messages: MessageTotals = MessageTotals()
    publishes: tuple[tuple[str, int], ...] = ()
    """(exchange, total of messages that were published to it), counted only while somebody asks for rows."""
    windows: SessionWindows | None = None
    """None: it is a channel, and no session."""
    links: tuple[ClientLink, ...] = ()
    """Of a session, in the order of their handles: the first of them, if there are very many."""
    link_count: int = 0
    receiver_count: int = 0
    """Of these links, by which the client receives."""

    @property
    def key(self) -> Key:
        return ("channel", self.connection_id, self.number)


class ConsumerRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="consumer"):
    """A consumer; told by the node that its connection is at, wherever the queue is."""

    connection_id: str
    channel: int
    tag: str
    queue_id: int
    ack_required: bool = True
    exclusive: bool = False
    priority: int = 0
    prefetch_count: int = 0
    """0: unlimited."""
    active: bool = True
    """False: another one is the single active consumer."""
    arguments: dict[str, Any] = {}
    delivered: Total = 0
    """Messages that it was handed."""

    @property
    def key(self) -> Key:
        return ("consumer", self.connection_id, self.channel, self.tag)


class CopyLag(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one copy is behind its owner, at most, as the owner knows: of one that is not synced, all there is."""

    node: str
    records_behind: int = 0
    """Messages that the owner has and the copy has not acknowledged."""
    bytes_behind: int = 0
    in_sync: bool = True
    """What the owner would propose now; the wiring says what was agreed."""


class StreamRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a stream holds."""

    first: int
    """Offset of the first message that there is; `next` when there is none."""
    next: int
    """One past the last committed one."""
    files: int
    file_bytes: int
    oldest_ms: int | None = None
    """Wall clock: when the first message of its files was taken; None: it has no files."""


class LeaseRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who reads a queue by a lease."""

    name: str
    run: str
    """Empty: nothing was said to this owner yet."""
    start: int
    end: int
    """Seqs: what lives of start to end - 1 is leased."""
    rows: int
    """Messages."""
    until_ms: int
    """Wall clock: then it ends, if nothing is heard."""


class QueueRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="queue"):
    """A queue: told by its owner, and with gauges only by who holds a copy of a queue without an owner."""

    queue_id: int
    owned: bool = True
    """By the node that tells; False: a copy."""
    epoch: int = 0
    """In which it is told: of two rows of two nodes, the one with the higher epoch counts."""
    state: str = "running"
    """"running", "flow" (publishers wait for the journal), "paused", "opening" (the owner takes it over), "down"."""
    ready: int = 0
    """Messages."""
    unacknowledged: int = 0
    """Messages."""
    ready_bytes: int = 0
    """Of bodies, as all bytes of messages here."""
    unacknowledged_bytes: int = 0
    persistent: int = 0
    """Messages that the journal or copies hold, or will: of a queue with copies all of them."""
    persistent_bytes: int = 0
    """Of those that are ready, if all of the queue's are persistent; else 0."""
    in_memory: int = 0
    """Messages whose bodies are in memory; the rest is paged out to the journal."""
    in_memory_bytes: int = 0
    memory_bytes: int = 0
    """Of the queue with all its messages, about."""
    consumers: int = 0
    consumer_capacity: float = 0.0
    """0 to 1: the part of the time since the last sample in which some consumer could have taken a message."""
    head_timestamp_s: int | None = None
    """Property `timestamp` of the head, s since 1970; None: it has none, or there is no head."""
    exclusive_consumer_tag: str | None = None
    single_active_consumer_tag: str | None = None
    messages: MessageTotals = MessageTotals()
    """Since this node owns it. `publish`: what came in, by whatever way."""
    copies: tuple[CopyLag, ...] = ()
    """Of the other replicas."""
    lease: LeaseRow | None = None
    """None: nobody leases it."""
    stream: StreamRow | None = None
    """None: it is no stream."""
    readers: tuple[StoredOffset, ...] = ()
    """Of a stream: those that have told, by name."""
    held_back: tuple[int, ...] = ()
    """Seqs of messages that cannot be read from the disk: no consumer gets them."""
    head_ms: int | None = None
    """Since when the head is here, ms since 1970; None: there is none, or it is on the disk alone."""

    @property
    def key(self) -> Key:
        return ("queue", self.queue_id)


class ExchangeRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="exchange"):
    """What went through an exchange (empty: the default one) at this node; the sum over the members is its own."""

    vhost: str
    name: str
    publish_in: Total = 0
    """Messages that clients published to it; what other exchanges hand on is counted at the first one."""
    publish_out: Total = 0
    """Messages that went to queues from there, once for each queue."""
    confirm: Total = 0
    return_unroutable: Total = 0
    drop_unroutable: Total = 0
    drop_repeated: Total = 0

    @property
    def key(self) -> Key:
        return ("exchange", self.vhost, self.name)


class QueueFlowRow(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True, tag="flow"):
    """Publishes from an exchange into a queue at this node; counted only while somebody asks for rows."""

    vhost: str
    exchange: str
    queue_id: int
    publish: Total = 0
    """Since the counting began."""

    @property
    def key(self) -> Key:
        return ("flow", self.vhost, self.exchange, self.queue_id)


class LoginSourceRow(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="login_source"):
    """Attempts to sign in from one address as one user. All are totals; they begin anew when an operator says so."""

    protocol: str
    """"amqp" or "http"."""
    address: str
    user: str
    """Empty: none that there is."""
    succeeded: Total = 0
    failed: Total = 0

    @property
    def key(self) -> Key:
        return ("login_source", self.protocol, self.address, self.user)


AnyRow = (
    NodeRow
    | ConnectionRow
    | ChannelRow
    | ConsumerRow
    | QueueRow
    | ExchangeRow
    | QueueFlowRow
    | LoginSourceRow
    | SuspendedRow
    | RecoverableRow
)


def emptied(row: AnyRow) -> AnyRow:
    """The row of the same thing before anything happened: what a new thing's rate is counted from."""
    return msgspec.structs.replace(row, **_empty(type(row)))


@cache
def _empty(kind: type[AnyRow]) -> dict[str, Any]:
    """Totals, and the depths of a queue."""
    depths = ("ready", "unacknowledged") if kind is QueueRow else ()
    hints = get_type_hints(kind, include_extras=True)
    totals = [name for name, hint in hints.items() if hint == Total or name in ("messages", "publishes", *depths)]
    return {field.name: field.default for field in msgspec.structs.fields(kind) if field.name in totals}


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """What one member tells an asker who has its rows up to a number: what changed since, and what is gone.

    The asker keeps `(life, number)` and asks with it again. A member that does not know that pair (it started anew, or
    the number is too old) tells everything and says `whole`: then what is not in `rows` is gone.
    """

    node: str
    life: int
    """Of the process that counts, different for each start: numbers of two lives do not compare."""
    number: int
    """Of the last row told; ask with it for what comes after."""
    sampled_at_ms: int
    """Wall clock of that node at its sample: rates are made of its differences only."""
    leased: bool = True
    whole: bool = False
    rows: tuple[AnyRow, ...] = ()
    gone: tuple[Key, ...] = ()


FREE_BYTES_MAX: Final = 16 << 10
"""Longer arguments and properties are not told: a batch has to fit into a frame whatever clients say."""
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=str)
_DECODER: Final = msgspec.msgpack.Decoder(Batch)


def free(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a client made up, if it can be told at all: names may be no UTF-8, and numbers of any size."""
    if not table:
        return {}
    try:
        size = len(_ENCODER.encode(table))
    except (ValueError, OverflowError, TypeError, RecursionError):
        return {}
    return dict(table) if size <= FREE_BYTES_MAX else {}


def encode(batch: Batch) -> bytes:
    """The batch as bytes, whatever clients have sent: a value that msgpack cannot say travels as a text like it."""
    version = bytes((VERSION,))
    try:
        return version + _ENCODER.encode(batch)
    except (UnicodeEncodeError, OverflowError):
        return version + _ENCODER.encode(_sayable(batch))


def _sayable(value: Any) -> Any:
    """The same without texts that are no Unicode (AMQP carries such bytes through) and integers beyond 64 bits."""
    match value:
        case str():
            return value.encode("utf-8", "surrogateescape" if _escaped(value) else "replace").decode("utf-8", "replace")
        case int() if not -(2**63) <= value < 2**64:
            return str(value)
        case dict():
            return {_sayable(name): _sayable(inner) for name, inner in value.items()}
        case list() | tuple():
            return type(value)(_sayable(inner) for inner in value)
        case msgspec.Struct():
            fields = {name: _sayable(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        case _:
            return value


def _escaped(text: str) -> bool:
    """Whether what is no Unicode in it are escaped bytes."""
    return all(not 0xD800 <= ord(char) <= 0xDFFF or 0xDC80 <= ord(char) <= 0xDCFF for char in text)


def decode(stored: bytes | memoryview) -> Batch:
    """The batch behind bytes; ValueError when they are none of this version."""
    if len(stored) < 2 or stored[0] != VERSION:
        raise ValueError(f"rows of version {stored[0] if len(stored) else 'missing'}, not {VERSION}")
    try:
        return _DECODER.decode(stored[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a batch of rows: {error}") from error
