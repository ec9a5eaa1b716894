"""Documents of nodes and their memory, the overview, health checks and sign-in attempts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from clusterbroker.broker.stats.rows import Certificate, LoginSourceRow, NodeRow, QueueRow
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.ids import NodeId, QueueId
from clusterbroker.cluster.wiring import exchange_rules

from .errors import bad_request, object_not_found
from .history import Track
from .principals import MONITORING
from .reading import Document, Reading, same
from .replica import Replica, Sums
from .statistics import CHURN_FIELDS, DEPTH_FIELDS, MESSAGE_FIELDS, NODE_FACTS, NODE_GAUGES, NODE_TOTALS

RABBITMQ_API: Final = "3.10.8"
"""Whose management API this one answers like; clients look for it in `rabbitmq_version`."""
PRODUCT: Final = "clusterbroker"

EXCHANGE_TYPES: Final = [
    {"description": f"AMQP {name} exchange", "enabled": True, "name": name} for name in exchange_rules.DECLARABLE
]
AUTH_MECHANISMS: Final = [
    {"description": f"SASL {name} authentication mechanism", "enabled": True, "name": name}
    for name in ("PLAIN", "AMQPLAIN", "EXTERNAL")
]
_PROTOCOL_NAMES: Final = {
    "amqp091": "amqp", "amqp0.9.1": "amqp", "amqp0-9-1": "amqp", "amqps": "amqp/ssl", "amqp/ssl": "amqp/ssl",
    "https": "https", "http": "http", "amqp": "amqp", "clustering": "clustering",
}  # fmt: skip


def name_of_cluster(replica: Replica) -> str:
    """As an administrator set it; else as the node calls it."""
    parameter = replica.map.parameter("", "", "cluster_name")
    if parameter is not None and isinstance(parameter.value, str):
        return parameter.value
    return replica.cluster


# -- nodes ----------------------------------------------------------------------------------------------------


def all_nodes(reading: Reading) -> list[Document]:
    """One document for each member."""
    return [document(reading, name) for name in sorted(reading.replica.node_names())]


def node_named(reading: Reading, name: str) -> Document:
    """Refused (404) when no member has this name."""
    _member(reading, name)
    return document(reading, name)


def document(reading: Reading, name: str) -> Document:
    """One node; of one that does not run little more than its name."""
    track = reading.replica.node_track(name)
    running = reading.replica.running(name, reading.now_ms)
    member = reading.map.member(NodeId(name))
    told = reading.replica.members.get(name)
    answer: Document = {"name": name, "running": running and track is not None, "type": "disc"}
    answer["told_ms_ago"] = max(0, reading.now_ms - told.heard_ms) if told is not None else None
    if member is not None:
        answer |= {
            **same(member, "alive", "draining", "incarnation", "voter", "witness"),
            "owned_queues": reading.map.owned(member.name),
            "held_queues": reading.map.held(member.name),
        }
    if track is None or not running:
        return answer
    row = track.row
    answer |= _facts(row)
    answer |= {field: get(row) for field, get in NODE_FACTS.items()}
    answer |= reading.counted("node_stats", (track,), NODE_GAUGES, gauge=True)
    answer |= reading.counted("node_stats", (track,), NODE_TOTALS)
    flush_ms = row.journal_flush_us / 1000 / row.journal_flushes if row.journal_flushes else 0.0
    answer["io_sync_avg_time"] = answer["io_write_avg_time"] = flush_ms
    return answer


def _facts(row: NodeRow) -> Document:
    """Alarms, alerts, version and `wiring_leader` are not at RabbitMQ's nodes."""
    return {
        "alarms": list(row.alarms),
        "alerts": [same(one, "kind", "subject", "text") | {"since": one.since_ms} for one in row.alerts],
        "applications": [{"description": "clusterbroker node", "name": PRODUCT, "version": row.version}],
        "auth_mechanisms": AUTH_MECHANISMS,
        "cluster_links": [
            {
                "name": link.peer,
                "peer_addr": "",
                "peer_port": 0,
                "stats": {"recv_bytes": link.received_bytes, "send_bytes": link.sent_bytes},
                "up": link.up,
            }
            for link in row.links
        ],
        "config_files": [row.config_file] if row.config_file else [],
        "contexts": _contexts(row),
        "db_dir": row.data_directory,
        "enabled_plugins": ["rabbitmq_management"],
        "exchange_types": EXCHANGE_TYPES,
        "log_files": [row.log_file or "<stdout>"],
        "mem_calculation_strategy": "rss",
        "os_pid": str(row.os_pid),
        "partitions": [],
        "processors": row.processors,
        "rates_mode": "basic",
        "version": row.version,
        "wiring_leader": row.wiring_leader or None,
    }


def _contexts(row: NodeRow, *, named: bool = False) -> list[Document]:
    return [
        {
            "description": "clusterbroker management",
            "ip": listener.ip_address,
            "path": "/",
            "port": str(listener.port),
            "ssl": listener.protocol == "https",
            **({"node": row.name} if named else {}),
        }
        for listener in row.listeners
        if listener.protocol in ("http", "https")
    ]


def _listeners(row: NodeRow) -> list[Document]:
    return [
        {
            "ip_address": listener.ip_address,
            "node": row.name,
            "port": listener.port,
            "protocol": _PROTOCOL_NAMES.get(listener.protocol, listener.protocol),
        }
        for listener in row.listeners
    ]


# -- memory ---------------------------------------------------------------------------------------------------

_MEMORY: Final = {"classic": "queue_procs", "quorum": "quorum_queue_procs", "stream": "stream_queue_procs"}


def memory(reading: Reading, name: str) -> Document:
    """Bytes by part: queues as their owners tell, about, and the rest of what the operating system counts. RabbitMQ's
    virtual machine has other parts, of which none is here. Refused (404) when no member has this name."""
    parts = _memory_parts(reading, name)
    if parts is None:
        return {"memory": "not_available"}
    total = sum(parts.values())
    return {"memory": {**parts, "total": {"allocated": total, "erlang": total, "rss": total}, "strategy": "rss"}}


def memory_shares(reading: Reading, name: str) -> Document:
    """Parts in percent; what is there at all has one at least. Refused (404) when no member has this name."""
    parts = _memory_parts(reading, name)
    if parts is None:
        return {"memory": "not_available"}
    total = sum(parts.values())
    shares = {part: max(1, round(100 * count / total)) if count else 0 for part, count in parts.items()}
    return {"memory": {"total": 100, **shares}}


def _memory_parts(reading: Reading, name: str) -> dict[str, int] | None:
    """None: the node does not run."""
    _member(reading, name)
    track, told = reading.replica.node_track(name), reading.replica.members.get(name)
    if track is None or told is None or not reading.replica.running(name, reading.now_ms):
        return None
    parts = dict.fromkeys(_MEMORY.values(), 0)
    for row in (each.row for each in told.rows.values()):
        if isinstance(row, QueueRow):
            queue = reading.map.queue_by_id(QueueId(row.queue_id))
            kind = "classic" if queue is None else queue.arguments.get("x-queue-type", "classic")
            parts[_MEMORY.get(kind, "queue_procs")] += row.memory_bytes
    parts["other_system"] = max(0, track.row.memory_used_bytes - sum(parts.values()))
    return parts


# -- overview -------------------------------------------------------------------------------------------------


def overview(reading: Reading) -> Document:
    """The cluster at a glance; to those who do not monitor, what happens in the vhosts that they may enter."""
    replica, principal = reading.replica, reading.principal
    rows = sorted(replica.node_rows(), key=lambda row: row.name)
    nodes = [track for row in rows if (track := replica.node_track(row.name)) is not None]
    monitors = principal.has(MONITORING)
    sums: Sequence[Track[Sums]] = (replica.sums,)
    if not monitors:
        sums = [replica.vhost_sums[name] for name in principal.open_vhosts() if name in replica.vhost_sums]
    return {
        "churn_rates": reading.counted("msg_rates", nodes, CHURN_FIELDS),
        "cluster_name": name_of_cluster(replica),
        "contexts": [context for row in rows for context in _contexts(row, named=True)] if monitors else [],
        "disable_stats": False,
        "enable_queue_totals": False,
        "feature_level": reading.map.level,
        "exchange_types": EXCHANGE_TYPES,
        "listeners": [listener for row in rows for listener in _listeners(row)] if monitors else [],
        "management_version": RABBITMQ_API,
        "message_stats": reading.counted("msg_rates", sums, MESSAGE_FIELDS),
        "node": replica.node,
        "object_totals": _object_totals(reading, monitors),
        "product_name": PRODUCT,
        "product_version": VERSION,
        "queue_totals": reading.counted("lengths", sums, DEPTH_FIELDS, gauge=True),
        "rabbitmq_version": RABBITMQ_API,
        "rates_mode": "basic",
        "sample_retention_policies": {
            "basic": [60, 3600], "detailed": [60], "global": [600, 3600, 28800, 86400],
        },
        "statistics_db_event_queue": 0,
    }  # fmt: skip


def _object_totals(reading: Reading, monitors: bool) -> Document:
    replica, vhosts = reading.replica, reading.principal.open_vhosts()
    if monitors:
        vhosts = [vhost.name for vhost in reading.map.vhosts()]
        queues, connections = len(replica.queue_names), len(replica.connections)
        channels = sum(map(len, replica.channels.values()))
        consumers = sum(map(len, replica.consumers.values()))
    else:
        own = [track.row for track in replica.connections.values() if reading.principal.is_own(track.row)]
        queues, connections = sum(len(reading.map.queues(vhost)) for vhost in vhosts), len(own)
        channels = sum(len(replica.channels.get(row.connection_id, ())) for row in own)
        consumers = sum(
            len(replica.consumers_of_channel.get((row.connection_id, number), ()))
            for row in own
            for number in replica.channels.get(row.connection_id, ())
        )
    return {
        "channels": channels,
        "connections": connections,
        "consumers": consumers,
        "exchanges": sum(1 + len(reading.map.exchanges(vhost)) for vhost in vhosts),
        "queues": queues,
    }


# -- health and sign-in attempts ------------------------------------------------------------------------------


class Health(msgspec.Struct, frozen=True):
    """What a check found."""

    ok: bool
    facts: dict[str, Any] = {}

    @property
    def document(self) -> Document:
        """`{"status": "ok"}`, or why not."""
        return {"status": "ok" if self.ok else "failed", **self.facts}


def without_lease(reading: Reading) -> Health | None:
    """A node that is cut off passes no check."""
    stale_s = reading.replica.stale_s(reading.now_ms)
    if stale_s is None:
        return None
    return Health(False, {"reason": f"node '{reading.replica.node}' has been without a lease for {stale_s} s"})


def alarms(reading: Reading, *, local: bool = False) -> Health:
    """Whether any node, or this one, has a resource alarm."""
    if local:
        return _alarms_of((reading.replica.node,), reading, "on this node")
    return _alarms_of(reading.replica.node_names(), reading, "in the cluster")


def health(reading: Reading, name: str) -> Health:
    """Whether a node runs and has no resource alarm. Refused (404) when no member has this name."""
    _member(reading, name)
    if not reading.replica.running(name, reading.now_ms):
        return Health(False, {"reason": f"node {name} does not run"})
    return _alarms_of((name,), reading, f"on node {name}")


def _alarms_of(names: Collection[str], reading: Reading, where: str) -> Health:
    found = [
        {"node": row.name, "resource": alarm}
        for row in sorted(reading.replica.node_rows(), key=lambda row: row.name)
        if row.name in names
        for alarm in row.alarms
    ]
    if not found:
        return Health(True)
    return Health(False, {"alarms": found, "reason": f"There are alarms in effect {where}"})


def port_listener(reading: Reading, port: str) -> Health:
    """Whether this node listens on a port."""
    if not (port.isascii() and port.isdigit() and len(port) < 6):
        raise bad_request(f"Invalid port: {port}")
    track = reading.replica.node_track(reading.replica.node)
    ports = sorted(listener.port for listener in track.row.listeners) if track is not None else []
    if int(port) in ports:
        return Health(True, {"port": int(port)})
    return Health(False, {"missing": int(port), "ports": ports, "reason": "No active listener"})


def protocol_listener(reading: Reading, protocol: str) -> Health:
    """Whether this node listens for a protocol."""
    track = reading.replica.node_track(reading.replica.node)
    protocols = sorted({listener["protocol"] for listener in _listeners(track.row)}) if track is not None else []
    wanted = _PROTOCOL_NAMES.get(protocol.lower(), protocol)
    if wanted in protocols:
        return Health(True, {"protocol": wanted})
    return Health(False, {"missing": wanted, "protocols": protocols, "reason": "No active listener"})


DAYS_OF: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
DAY_MS: Final = 86_400_000


def certificates(replica: Replica) -> list[Certificate]:
    """What this node's TLS listeners show: those for AMQP, and those of this process."""
    track = replica.node_track(replica.node)
    return [*(track.row.certificates if track is not None else ()), *replica.certificates()]


def certificate_expiration(reading: Reading, within: str, unit: str) -> Health:
    """Whether no certificate of this node ends within so many days, weeks, months or years."""
    days = DAYS_OF.get(unit.lower())
    if days is None:
        raise bad_request("Time unit not recognised. Use: days, weeks, months, years.")
    if not (within.isascii() and within.isdigit() and len(within) < 6):
        raise bad_request("Invalid expiration value.")
    until_ms = reading.now_ms + int(within) * days * DAY_MS
    ending = [
        {
            "cacertfile": shown.authorities_file,
            "cacertfile_expires_on": [_ends(shown.authorities_expire_ms)] if shown.authorities_file else [],
            "certfile": shown.file,
            "certfile_expires_on": [_ends(shown.expires_ms)],
            "interface": shown.ip_address,
            "node": reading.replica.node,
            "port": shown.port,
            "protocol": _PROTOCOL_NAMES.get(shown.protocol, shown.protocol),
        }
        for shown in certificates(reading.replica)
        if shown.expires_ms < until_ms or 0 < shown.authorities_expire_ms < until_ms
    ]
    return Health(False, {"reason": "Certificates expiring", "expired": ending}) if ending else Health(True)


def _ends(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def quorum_critical(reading: Reading) -> Health:
    """Whether some queue here would lose its minimum in sync if this node went down."""
    name = NodeId(reading.replica.node)
    if len(reading.replica.node_names()) < 2:
        return Health(True, {"reason": "single node cluster"})
    critical = [
        {"name": queue.name, "virtual_host": queue.vhost, "type": queue.arguments.get("x-queue-type", "classic")}
        for queue in reading.map.replicas_of(name)
        if reading.map.is_critical(queue, name)
    ]
    if not critical:
        return Health(True)
    return Health(
        False,
        {
            "queues": sorted(critical, key=lambda entry: (entry["virtual_host"], entry["name"])),
            "reason": "There are queues that would lose their minimum in sync if this node went down",
        },
    )


def in_service(reading: Reading) -> Health:
    """Whether this node is not drained: RabbitMQ's maintenance mode."""
    name = reading.replica.node
    member = reading.map.member(NodeId(name))
    if member is not None and member.draining:
        return Health(False, {"reason": f"node '{name}' is drained: clusterbroker drain --undo ends that"})
    return Health(True)


def below_connection_limit(reading: Reading) -> Health:
    """Whether this node takes one more connection."""
    track = reading.replica.node_track(reading.replica.node)
    used, limit = (0, 0) if track is None else (track.row.sockets_used, track.row.sockets_limit)
    facts: dict[str, Any] = {"current": used, "limit": limit}
    if used < limit or not limit:
        return Health(True, facts)
    return Health(False, {**facts, "reason": f"{used} connections, and the limit is {limit}"})


def ready_to_serve(reading: Reading) -> Health:
    """Whether a client that connects to this node is served: it is in service and takes one more connection. Its lease
    is looked at before each check."""
    service = in_service(reading)
    return service if not service.ok else below_connection_limit(reading)


def login_attempts(reading: Reading, name: str) -> list[Document]:
    """By protocol, since the node started. Refused (404) when no member has this name."""
    _member(reading, name)
    track, here = reading.replica.node_track(name), name == reading.replica.node
    told = track.row.logins if track is not None else ()
    counted: list[_Counted] = [one for one in told if not here or one.protocol != "http"]
    if here:  # what is known of it here is newer
        counted.append(reading.replica.attempts)
    return [_attempts(logins) for logins in counted]


class _Counted(Protocol):
    @property
    def protocol(self) -> str: ...
    @property
    def succeeded(self) -> int: ...
    @property
    def failed(self) -> int: ...


def _attempts(counted: _Counted) -> Document:
    return {
        "auth_attempts": counted.succeeded + counted.failed,
        "auth_attempts_failed": counted.failed,
        "auth_attempts_succeeded": counted.succeeded,
        "protocol": "amqp091" if counted.protocol == "amqp" else counted.protocol,
    }


def login_sources(reading: Reading, name: str) -> list[Document]:
    """Attempts by address and user, the last one of each protocol first. Refused (404) when no member has this name."""
    _member(reading, name)
    rows = [track.row for track in reading.replica.login_sources.get(name, {}).values()]
    if name == reading.replica.node:  # what is known of it here is newer
        http = (LoginSourceRow("http", *source) for source in reading.replica.attempts.sources())
        rows = [*(row for row in rows if row.protocol != "http"), *http]
    return [{"remote_address": row.address, "username": row.user, **_attempts(row)} for row in reversed(rows)]


def forget_login_sources(reading: Reading, name: str) -> None:
    """Those at the management API are counted anew; those over AMQP are the node's to forget. Refused: 404 when no
    member has this name, 400 when it is another one."""
    _member(reading, name)
    if name != reading.replica.node:
        raise bad_request(f"node '{name}' counts its own: ask its own management API")
    reading.replica.attempts.reset()


def _member(reading: Reading, name: str) -> None:
    if name not in reading.replica.node_names():
        raise object_not_found()
