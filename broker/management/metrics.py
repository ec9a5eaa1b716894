"""What Prometheus is told: RabbitMQ's names where the meaning is the same, and `clusterbroker_*` for what is ours.

    aggregated(replica, now_ms)            /metrics               this node's sums
    per_object(replica, now_ms)            /metrics/per-object    the same names by queue, channel and connection
    detailed(replica, families, vhosts)    /metrics/detailed      some families by object, as `rabbitmq_detailed_*`

As at RabbitMQ each node tells of itself: of the clients that it has and of the queues that it owns. So sums over all
nodes count everything once, and boards join `rabbitmq_identity_info` by `instance`.

Totals of messages are those of the node, which outlive the channels; by object RabbitMQ counts them by channel and
queue together, which nobody does here, so by object they have names of ours: of a channel, of an exchange, of a queue.

The text comes in parts, one metric each, so that who sends it can do other things between two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

from clusterbroker.broker.stats.links import RecoverableRow, SuspendedRow
from clusterbroker.broker.stats.rows import (
    FLUSH_BOUNDS_MS,
    ChannelRow,
    ConnectionRow,
    ConsumerRow,
    ExchangeRow,
    NodeRow,
    QueueRow,
)
from clusterbroker.broker.version import VERSION
from clusterbroker.cluster.ids import LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring.entities import Queue

from . import statistics as s
from .history import Track
from .metrics_text import Named, labels, written
from .nodes import RABBITMQ_API, certificates, name_of_cluster
from .pool_metrics import pools
from .replica import Replica
from .statistics import COUNTER, GAUGE, HISTOGRAM, UNTYPED, Number, Of

R = TypeVar("R")

SHARED: Final = "rabbitmq_"
DETAILED: Final = "rabbitmq_detailed_"
CLUSTER: Final = "rabbitmq_cluster_"
OWN: Final = "clusterbroker_"
PROTOCOL: Final = {"protocol": "amqp091"}
LEVELS: Final = ("session", "node", "log")
"""What keeps a link's state (`stats.links.Level`)."""
QUEUE_TYPE: Final = {"protocol": "amqp091", "queue_type": "clusterbroker_queue"}


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


# -- what there is ---------------------------------------------------------------------------------------------


class Owned(NamedTuple):
    """A queue of this node: what was declared, and what it counts."""

    entity: Queue
    row: QueueRow


OWN_QUEUE: Final = (
    Of("queue_epoch", "Rises with each change of the leader", lambda q: q.entity.epoch),
    Of("queue_replicas", "Copies that the queue shall have", lambda q: len(q.entity.replicas)),
    Of("queue_in_sync", "Copies that have all of it", lambda q: len(q.entity.in_sync)),
)


class Present:
    """What this node has at the moment: its rows by kind."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        member = replica.members.get(replica.node)
        tracks: dict[type[Any], list[Track[Any]]] = {}
        for track in () if member is None else member.rows.values():
            tracks.setdefault(type(track.row), []).append(track)

        def rows(kind: type[R]) -> list[R]:
            return [track.row for track in tracks.get(kind, ())]

        self.node = next(iter(rows(NodeRow)), None)
        self.connections = rows(ConnectionRow)
        self.channels = rows(ChannelRow)
        self.sessions = [row for row in self.channels if row.windows is not None]
        self.consumers = rows(ConsumerRow)
        self.exchanges = rows(ExchangeRow)
        self.suspended = rows(SuspendedRow)
        self.recoverable = rows(RecoverableRow)
        self.queues: list[Owned] = []
        for track in tracks.get(QueueRow, ()):
            if track.row.owned:
                entity = replica.map.queue_by_id(QueueId(track.row.queue_id))
                if entity is not None and not entity.staging and replica.queue_track(entity) is track:
                    self.queues.append(Owned(entity, track.row))
        self._names = {row.connection_id: row.name for row in self.connections}

    def name(self, row: ChannelRow) -> str:
        """As RabbitMQ names channels."""
        return f"{self._names.get(row.connection_id, row.connection_id)} ({row.number})"


# -- the three answers ----------------------------------------------------------------------------------------


def aggregated(replica: Replica, now_ms: int) -> Iterator[str]:
    """`/metrics`: sums of what this node has."""
    present = Present(replica)
    yield from _whole(present, now_ms)
    rows = [owned.row for owned in present.queues]
    for metrics, some in (
        ((*s.QUEUE_COARSE, *s.QUEUE_CONSUMERS, *s.QUEUE_FINE, *s.QUEUE_DISK), rows),
        (s.CHANNEL, present.channels),
        ((*s.CONNECTION_COARSE, *s.CONNECTION), present.connections),
    ):
        yield from _summed(SHARED, metrics, some)
    yield from _summed(SHARED, (s.QUEUE_PUBLISHED,), rows)
    yield from _summed(OWN, (OWN_QUEUE[1], OWN_QUEUE[2]), present.queues)


def per_object(replica: Replica, now_ms: int) -> Iterator[str]:
    """`/metrics/per-object`: as `aggregated`, by queue, channel and connection."""
    present = Present(replica)
    yield from _whole(present, now_ms)
    yield from _of_queues(SHARED, (*s.QUEUE_COARSE, *s.QUEUE_CONSUMERS, *s.QUEUE_FINE, *s.QUEUE_DISK), present.queues)
    yield from _of_channels(SHARED, s.CHANNEL, present)
    yield from _of_connections(SHARED, (*s.CONNECTION_COARSE, *s.CONNECTION), present)
    for family in (_own_queues, _own_channels, _own_exchanges):
        yield from family(present)


def detailed(replica: Replica, families: Collection[str], vhosts: Collection[str] = ()) -> Iterator[str]:
    """`/metrics/detailed`: some families; of queues and of the wiring those of some vhosts, if any is named."""
    present = Present(replica)
    yield from _infos(present)
    if vhosts:
        present.queues = [owned for owned in present.queues if owned.entity.vhost in vhosts]
        present.exchanges = [row for row in present.exchanges if row.vhost in vhosts]
    for name, family in FAMILIES.items():
        if name in families:
            yield from family(present)
    for name, of_cluster in CLUSTER_FAMILIES.items():
        if name in families:
            yield from of_cluster(replica, vhosts)


def _number(value: Number) -> Number:
    return int(value) if isinstance(value, bool) else value


def _summed(prefix: str, metrics: Sequence[Of], rows: Sequence[Any]) -> Iterator[str]:
    for metric in metrics:
        named = Named(prefix + metric.name, metric.kind, metric.help)
        yield written(named, (("", _number(sum(map(metric.value, rows)))),))


def _each(prefix: str, metrics: Sequence[Of], things: Sequence[tuple[str, Any]]) -> Iterator[str]:
    for metric in metrics:
        value = metric.value
        yield written(
            Named(prefix + metric.name, metric.kind, metric.help),
            ((which, _number(value(thing))) for which, thing in things),
        )


def _of_queues(prefix: str, metrics: Sequence[Of], queues: Sequence[Owned]) -> Iterator[str]:
    return _each(prefix, metrics, [(_queue_labels(owned.entity), owned.row) for owned in queues])


def _queue_labels(queue: Queue, **more: str) -> str:
    return labels({"vhost": queue.vhost, "queue": queue.name, **more})


def _of_pool(present: Present, queue: Queue) -> dict[str, str]:
    """Which pool's queue it is, and of a request queue the key; none: a queue of no pool."""
    pools = present.replica.map.pools
    part = pools.queue(queue.queue_id)
    pool = None if part is None else pools.get(part.pool_id)
    if part is None or pool is None:
        return {}
    return {"pool": pool.name, **({"key": part.key} if part.part == "requests" else {})}


def _detailed_queues(metrics: Sequence[Of]) -> Callable[[Present], Iterator[str]]:
    return lambda present: _each(
        DETAILED,
        metrics,
        [(_queue_labels(owned.entity, **_of_pool(present, owned.entity)), owned.row) for owned in present.queues],
    )


def _of_channels(prefix: str, metrics: Sequence[Of], present: Present) -> Iterator[str]:
    return _each(prefix, metrics, [(labels({"channel": present.name(row)}), row) for row in present.channels])


def _of_connections(prefix: str, metrics: Sequence[Of], present: Present) -> Iterator[str]:
    # the label of a connection is `channel` at RabbitMQ too
    return _each(prefix, metrics, [(labels({"channel": row.name}), row) for row in present.connections])


def _of_node(metrics: Sequence[Of], prefix: str = DETAILED) -> Callable[[Present], Iterator[str]]:
    def family(present: Present) -> Iterator[str]:
        if present.node is not None:
            yield from _summed(prefix, metrics, (present.node,))

    return family


def _own_queues(present: Present) -> Iterator[str]:
    named = [(_queue_labels(owned.entity), owned) for owned in present.queues]
    yield from _each(OWN, OWN_QUEUE, named)
    yield from _each(f"{OWN}queue_", s.OF_QUEUES, [(which, owned.row.messages) for which, owned in named])
    copies = [(_queue_labels(one.entity, node=copy.node), copy) for one in present.queues for copy in one.row.copies]
    yield from _each(OWN, s.COPY, copies)
    readers = [
        (_queue_labels(one.entity, reader=each.name), each) for one in present.queues for each in one.row.readers
    ]
    yield from _each(OWN, s.READER, readers)


def _own_channels(present: Present) -> Iterator[str]:
    named = [(labels({"channel": present.name(row)}), row.messages) for row in present.channels]
    return _each(f"{OWN}channel_", s.MESSAGES, named)


def _own_exchanges(present: Present) -> Iterator[str]:
    named = [(labels({"vhost": row.vhost, "exchange": row.name}), row) for row in present.exchanges]
    return _each(OWN, s.EXCHANGE, named)


# -- of the node and its cluster as a whole -------------------------------------------------------------------

_ALERTS: Final = Named(f"{OWN}alerts", GAUGE, "Conditions that an operator must see, by kind, of the oldest hundred")
_EXPIRES: Final = Named(
    f"{OWN}certificate_expires_seconds", GAUGE, "When the certificate of a TLS listener ends, s since 1970"
)


def _infos(present: Present) -> Iterator[str]:
    row, replica = present.node, present.replica
    identity = {
        "rabbitmq_node": replica.node,
        "rabbitmq_cluster": name_of_cluster(replica),
        "rabbitmq_cluster_permanent_id": replica.cluster,
    }
    builds = {
        "rabbitmq_version": RABBITMQ_API, "prometheus_plugin_version": VERSION, "prometheus_client_version": "",
        "erlang_version": "",
    }  # fmt: skip
    version = {"version": row.version if row is not None else VERSION}
    for metric, about in (
        (Named(f"{SHARED}identity_info", UNTYPED, "Which node and cluster this is"), identity),
        (Named(f"{SHARED}build_info", UNTYPED, "Whose management API this one answers like"), builds),
        (Named(f"{OWN}build_info", GAUGE, "The version of this node"), version),
    ):
        yield written(metric, ((labels(about), 1),))


def _kept_links(present: Present) -> Iterator[str]:
    """Of recoverable links that are suspended the node that leads tells how many there are, and owners of queues what
    they hold: a sum over all nodes counts each once."""
    links, held = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for link in (link for session in present.sessions for link in session.links):
        links[link.level, "attached"] += 1
        held[link.level, "attached"] += link.unsettled
    for row in present.suspended:
        links[row.level, "suspended"] += 1
        held[row.level, "suspended"] += row.unsettled
    for one in present.recoverable:
        found = present.replica.map.link(LogIndex(one.link))
        if found is not None and found.suspended:
            links["log", "suspended"] += not one.queue_id
            held["log", "suspended"] += one.unsettled
    for name, text, counts in (
        ("links_kept", "Links of AMQP 1.0 whose state outlives a detach, by what keeps it", links),
        ("link_unsettled", "Unsettled deliveries of links whose state outlives a detach, by what keeps it", held),
    ):
        yield written(Named(f"{OWN}{name}", GAUGE, text), [
            (labels({"level": level, "state": state}), counts[level, state])
            for level in LEVELS for state in ("attached", "suspended")
        ])  # fmt: skip


def _whole(present: Present, now_ms: int) -> Iterator[str]:
    row = present.node
    yield from _infos(present)
    for name, help_text, number in (
        (f"{SHARED}connections", "Connections of clients", len(present.connections)),
        (f"{SHARED}channels", "Channels", len(present.channels)),
        (f"{SHARED}consumers", "Consumers", len(present.consumers)),
        (f"{SHARED}queues", "Queues that this node leads", len(present.queues)),
        (f"{OWN}sessions", "Sessions of AMQP 1.0", len(present.sessions)),
    ):
        yield written(Named(name, GAUGE, help_text), (("", number),))
    links, receivers = (sum(getattr(row, of) for row in present.sessions) for of in ("link_count", "receiver_count"))
    yield written(Named(f"{OWN}links", GAUGE, "Links of AMQP 1.0, by the client's role"), [
        (labels({"role": role}), count) for role, count in (("sender", links - receivers), ("receiver", receivers))
    ])  # fmt: skip
    yield from _kept_links(present)
    if row is not None:
        yield from _node(row)
    yield written(_EXPIRES, [
        (labels({"protocol": one.protocol, "port": str(one.port)}), one.expires_ms / 1000)
        for one in certificates(present.replica)
    ])  # fmt: skip
    yield from _cluster(present, now_ms)
    yield from pools(present.replica, row, {one.row.queue_id: one.row for one in present.queues}, now_ms)
    yield written(Named(f"{SHARED}global_consumers", GAUGE, "Consumers"), ((labels(PROTOCOL), len(present.consumers)),))
    yield written(
        Named(f"{SHARED}global_messages_routed_total", COUNTER, "Messages that went to queues, once for each"),
        ((labels(PROTOCOL), sum(exchange.publish_out for exchange in present.exchanges)),),
    )


def _node(row: NodeRow) -> Iterator[str]:
    yield from _summed("", s.STARTED, (row,))
    yield from _summed(SHARED, (*s.ALARMS, *s.NODE_COARSE, *s.NODE, *s.NODE_DISK, *s.CHURN), (row,))
    yield from _logins(SHARED, row)
    yield from _summed(f"{SHARED}channel_", s.MESSAGES, (row.messages,))
    yield from _each(f"{SHARED}global_", s.GLOBAL, ((labels(PROTOCOL), row.messages),))
    yield from _each(f"{SHARED}global_", s.GLOBAL_OUT, ((labels(QUEUE_TYPE), row.messages),))
    yield from _summed(OWN, s.OWN_NODE, (row,))
    yield from _flushes(row)
    kinds = Counter(alert.kind for alert in row.alerts)
    yield written(_ALERTS, [(labels({"kind": kind}), count) for kind, count in sorted(kinds.items())])
    yield from _each(OWN, s.LINK, [(labels({"peer": link.peer}), link) for link in row.links])
    yield from _each(OWN, s.BRIDGE, [(labels({"vhost": one.vhost, "bridge": one.name}), one) for one in row.bridges])
    yield written(Named(f"{OWN}bridge_state", GAUGE, "1: a bridge is in this state"), [
        (labels({"vhost": one.vhost, "bridge": one.name, "state": one.state}), 1) for one in row.bridges
    ])  # fmt: skip


def _flushes(row: NodeRow) -> Iterator[str]:
    """How long group commits took, as a histogram: its buckets are cumulative."""
    name = f"{OWN}journal_commit_seconds"
    bounds = [*(f"{bound / 1000:g}" for bound in FLUSH_BOUNDS_MS), "+Inf"]
    totals = accumulate(row.journal_flush_counts or (0,) * len(bounds))
    samples: list[tuple[str, float]] = [
        (f"_bucket{labels({'le': bound})}", total) for bound, total in zip(bounds, totals, strict=True)
    ]
    samples += [("_sum", row.journal_flush_us / 1e6), ("_count", row.journal_flushes)]
    yield written(Named(name, HISTOGRAM, "Time that a group commit took"), samples)


def _logins(prefix: str, row: NodeRow) -> Iterator[str]:
    named = [(labels({"protocol": "amqp091" if one.protocol == "amqp" else one.protocol}), one) for one in row.logins]
    yield from _each(prefix, s.LOGINS, named)


def _cluster(present: Present, now_ms: int) -> Iterator[str]:
    replica = present.replica
    view, node = replica.map, NodeId(replica.node)
    owned = [one.entity for one in present.queues]
    members = list(view.members())
    lags = [copy for one in present.queues for copy in one.row.copies]
    stale_s = replica.stale_s(now_ms)
    segments = [segment for vhost in view.vhosts() for segment in view.segments(vhost.name)]
    for name, help_text, number in (
        ("stale_seconds", "For how long the node has been cut off; 0: it is not", stale_s or 0),
        ("members", "Members of the cluster", len(members) or 1),
        ("members_alive", "Those that the cluster takes for alive", sum(one.alive for one in members) or 1),
        ("cluster_queues", "Queues of all nodes", len(replica.queue_names)),
        ("queues_held", "Queues that this node keeps a copy of", view.held(node)),
        ("queues_without_owner", "Queues without a leader: they wait for a node",
         sum(queue.owner is None for queue in view.lasting_queues())),
        ("queues_under_replicated", "Queues led here with fewer replicas in sync than configured",
         sum(len(queue.in_sync) < len(queue.replicas) for queue in owned)),
        ("queues_below_minimum", "Queues led here that accept no publish: too few replicas in sync",
         sum(0 < len(queue.in_sync) < view.min_in_sync(queue) for queue in owned)),
        ("copies_behind", "Replicas of queues led here that are not in sync", sum(not copy.in_sync for copy in lags)),
        ("copy_messages_behind", "Messages that these copies may lack at most",
         sum(copy.records_behind for copy in lags)),
        ("transactions_open", "Segments that are staged and not committed",
         sum(segment.place is None and not segment.discards for segment in segments)),
        ("transactions_moving", "Committed segments whose rows are on their way to their queues",
         sum(segment.place is not None for segment in segments)),
        ("transaction_producers", "Producers that the ledger knows",
         sum(len(view.producers(vhost.name)) for vhost in view.vhosts())),
        ("queue_epochs", "Sum of the epochs of all queues: rises with each change of a leader",
         sum(queue.epoch for queue in view.queues())),
    ):  # fmt: skip
        yield written(Named(OWN + name, GAUGE, help_text), (("", number),))


# -- families of /metrics/detailed ----------------------------------------------------------------------------

FAMILIES: Final[Mapping[str, Callable[[Present], Iterator[str]]]] = {
    "queue_coarse_metrics": _detailed_queues(s.QUEUE_COARSE),
    "queue_consumer_count": _detailed_queues(s.QUEUE_CONSUMERS),
    "queue_metrics": _detailed_queues((*s.QUEUE_CONSUMERS, *s.QUEUE_FINE, *s.QUEUE_DISK)),
    "channel_metrics": lambda present: _of_channels(DETAILED, s.CHANNEL, present),
    "connection_coarse_metrics": lambda present: _of_connections(DETAILED, s.CONNECTION_COARSE, present),
    "connection_metrics": lambda present: _of_connections(DETAILED, s.CONNECTION, present),
    "connection_churn_metrics": _of_node(s.CHURN),
    "node_coarse_metrics": _of_node(s.NODE_COARSE),
    "node_metrics": _of_node(s.NODE),
    "node_persister_metrics": _of_node(s.NODE_DISK),
    "auth_attempt_metrics": lambda present: _logins(DETAILED, present.node) if present.node is not None else iter(()),
    "clusterbroker_node": _of_node(s.OWN_NODE, OWN),
    "clusterbroker_queues": _own_queues,
    "clusterbroker_channels": _own_channels,
    "clusterbroker_exchanges": _own_exchanges,
}
"""By what `family` may name: RabbitMQ's, and ours. What is not known is passed over, as there."""


def _exchanges(
    name: str, text: str, value: Callable[[Replica, str, str], int]
) -> Callable[[Replica, Collection[str]], Iterator[str]]:
    def family(replica: Replica, vhosts: Collection[str]) -> Iterator[str]:
        found = [
            (vhost, exchange, kind)
            for vhost in _vhosts(replica, vhosts)
            for exchange, kind in (
                ("", "direct"), *sorted((one.name, one.type) for one in replica.map.exchanges(vhost))
            )
        ]  # fmt: skip
        yield written(
            Named(CLUSTER + name, GAUGE, text),
            ((labels({"vhost": vhost, "exchange": exchange, "type": kind}), value(replica, vhost, exchange))
             for vhost, exchange, kind in found),
        )  # fmt: skip

    return family


def _vhosts(replica: Replica, vhosts: Collection[str]) -> list[str]:
    return sorted(vhost.name for vhost in replica.map.vhosts() if not vhosts or vhost.name in vhosts)


def _bindings_of(replica: Replica, vhost: str, exchange: str) -> int:
    return len(replica.map.bindings_from(vhost, exchange) if exchange else replica.map.queues(vhost))


def _vhost_status(replica: Replica, vhosts: Collection[str]) -> Iterator[str]:
    metric = Named(f"{CLUSTER}vhost_status", GAUGE, "Whether a given vhost is running")
    yield written(metric, ((labels({"vhost": name}), 1) for name in _vhosts(replica, vhosts)))


CLUSTER_FAMILIES: Final[Mapping[str, Callable[[Replica, Collection[str]], Iterator[str]]]] = {
    "exchange_bindings": _exchanges("exchange_bindings", "Number of bindings for an exchange", _bindings_of),
    "exchange_names": _exchanges("exchange_name", "Enumerates exchanges", lambda _replica, _vhost, _exchange: 1),
    "vhost_status": _vhost_status,
}
