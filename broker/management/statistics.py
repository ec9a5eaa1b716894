"""Each number of the rows, stated once: its source in the row, its field in JSON documents, its metric.

Groups are RabbitMQ's families of metrics; `fields` gives a group to the documents. A new number is a field of a row
(`broker.stats.rows`), its counting (`broker.server.counting`), and a line here. What is made of several rows or of the
cluster's map is in `metrics`, and for documents in `nodes`; the buckets of a histogram are in `metrics`.

Metrics of the first part have RabbitMQ's names and families, and its meaning. What RabbitMQ tells and is not here has
no meaning in this broker (Erlang's processes, its message store), or nobody counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from .history import Get

Number = int | float
GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"
"""Its samples are `_bucket{le="..."}`, `_sum` and `_count`."""
UNTYPED: Final = "untyped"


class Of:
    """One number of a kind of thing."""

    __slots__ = ("field", "get", "help", "kind", "name", "source", "value")

    def __init__(
        self,
        name: str,
        text: str,
        source: str | Callable[[Any], Number],
        field: str = "",
        per: int = 1,
        kind: str = "",
    ) -> None:
        """`name`: of the metric; empty: there is none. `source`: attribute of the row, or made of it. `field`: of the
        documents; empty: none has it. `per`: so many units of the row are one of the metric. `kind`: if the name does
        not say it: that of a counter ends with `_total`, others are gauges."""
        self.name, self.help, self.field, self.source = name, text, field, source
        self.kind = kind or (COUNTER if name.endswith("_total") else GAUGE)
        get: Get = attrgetter(source) if isinstance(source, str) else source
        self.get = get
        self.value: Get = get if per == 1 else lambda row: get(row) / per


def _shown(field: str, source: str | Callable[[Any], Number]) -> Of:
    """A number of documents only."""
    return Of("", "", source, field)


def fields(*groups: tuple[Of, ...]) -> dict[str, Get]:
    """Numbers by their fields in documents."""
    return {one.field: one.get for one in sorted((one for group in groups for one in group), key=lambda one: one.field)
            if one.field}  # fmt: skip


# -- of each thing, by RabbitMQ's families --------------------------------------------------------------------

QUEUE_COARSE: Final = (
    Of("queue_messages_ready", "Messages ready to be delivered to consumers", "ready", "messages_ready"),
    Of("queue_messages_unacked", "Messages delivered and not acknowledged",
       "unacknowledged", "messages_unacknowledged"),
    Of("queue_messages", "Ready and unacknowledged messages", lambda r: r.ready + r.unacknowledged, "messages"),
)  # fmt: skip
QUEUE_CONSUMERS: Final = (Of("queue_consumers", "Consumers of a queue", "consumers", "consumers"),)
QUEUE_FINE: Final = (
    Of("queue_messages_ready_bytes", "Bytes of the bodies of ready messages", "ready_bytes", "message_bytes_ready"),
    Of("queue_messages_ram", "Messages that are in memory", "in_memory", "messages_ram"),
    Of("queue_messages_ram_bytes", "Bytes of messages that are in memory", "in_memory_bytes", "message_bytes_ram"),
    Of("queue_messages_paged_out", "Messages that are on disk only",
       lambda r: max(0, r.ready + r.unacknowledged - r.in_memory), "messages_paged_out"),
    Of("queue_messages_persistent", "Messages that the journal or copies hold", "persistent", "messages_persistent"),
    Of("queue_process_memory_bytes", "Memory that a queue takes, about", "memory_bytes", "memory"),
)  # fmt: skip
QUEUE_DISK: Final = (
    Of("queue_disk_reads_total", "Messages read back from the journal", "messages.disk_reads", "disk_reads"),
    Of("queue_disk_writes_total", "Messages written to the journal", "messages.disk_writes", "disk_writes"),
)
QUEUE_SHOWN: Final = (
    _shown("consumer_capacity", "consumer_capacity"),
    _shown("consumer_utilisation", "consumer_capacity"),
    _shown("message_bytes", lambda r: r.ready_bytes + r.unacknowledged_bytes),
    _shown("message_bytes_paged_out", lambda r: max(0, r.ready_bytes + r.unacknowledged_bytes - r.in_memory_bytes)),
    _shown("message_bytes_persistent", "persistent_bytes"),
    _shown("message_bytes_unacknowledged", "unacknowledged_bytes"),
)
CHANNEL: Final = (
    Of("channel_consumers", "Consumers of a channel", "consumers", "consumer_count"),
    Of("channel_messages_unacked", "Delivered and not acknowledged", "unacknowledged", "messages_unacknowledged"),
    Of("channel_messages_unconfirmed", "Published and not confirmed", "unconfirmed", "messages_unconfirmed"),
    Of("channel_messages_uncommitted", "Published in an open transaction", "uncommitted", "messages_uncommitted"),
    Of("channel_acks_uncommitted", "Acknowledged in an open transaction", "acks_uncommitted", "acks_uncommitted"),
    Of("consumer_prefetch", "Limit of unacknowledged messages of each consumer", "prefetch_count", "prefetch_count"),
    Of("channel_prefetch", "Limit of all consumers of a channel", "global_prefetch_count", "global_prefetch_count"),
)  # fmt: skip
CONNECTION_COARSE: Final = (
    Of("connection_incoming_bytes_total", "Bytes received from a client", "received_bytes", "recv_oct"),
    Of("connection_outgoing_bytes_total", "Bytes sent to a client", "sent_bytes", "send_oct"),
)
CONNECTION: Final = (
    Of("connection_incoming_packets_total", "Reads that brought something", "received_reads", "recv_cnt"),
    Of("connection_outgoing_packets_total", "Writes to a client", "sent_writes", "send_cnt"),
    Of("connection_channels", "Channels of a connection", "channels", "channels"),
)
CHURN: Final = (
    Of("connections_opened_total", "Connections that were opened", "connections_created", "connection_created"),
    Of("connections_closed_total", "Connections that were closed", "connections_closed", "connection_closed"),
    Of("channels_opened_total", "Channels that were opened", "channels_created", "channel_created"),
    Of("channels_closed_total", "Channels that were closed", "channels_closed", "channel_closed"),
    Of("queues_declared_total", "Declarations of queues that were answered", "queues_declared", "queue_declared"),
    Of("queues_created_total", "Queues that began here", "queues_created", "queue_created"),
    Of("queues_deleted_total", "Queues that ended here", "queues_deleted", "queue_deleted"),
)  # fmt: skip
NODE_COARSE: Final = (
    Of("process_open_fds", "Open file descriptors", "files_used", "fd_used"),
    Of("process_open_tcp_sockets", "Open sockets of clients", "sockets_used", "sockets_used"),
    Of("process_resident_memory_bytes", "Memory in use", "memory_used_bytes", "mem_used"),
    Of("disk_space_available_bytes", "Free on the disk of the data directory", "disk_free_bytes", "disk_free"),
)
NODE: Final = (
    Of("process_max_fds", "Limit of open file descriptors", "files_limit", "fd_total"),
    Of("process_max_tcp_sockets", "Limit of open sockets", "sockets_limit", "sockets_total"),
    Of("resident_memory_limit_bytes", "Memory at which the alarm rises", "memory_limit_bytes", "mem_limit"),
    Of("disk_space_available_limit_bytes", "Free disk at which the alarm rises",
       "disk_free_limit_bytes", "disk_free_limit"),
    Of("erlang_uptime_seconds", "Since the node started, under RabbitMQ's name", "uptime_ms", "uptime", 1000),
)  # fmt: skip
NODE_DISK: Final = (
    Of("io_write_ops_total", "Groups written to the journal", "journal_flushes", "io_write_count"),
    Of("io_write_bytes_total", "Bytes written to the journal", "journal_written_bytes", "io_write_bytes"),
    Of("io_read_ops_total", "Reads from the journal", "journal_reads"),
    Of("io_read_bytes_total", "Bytes read from the journal", "journal_read_bytes"),
    Of("io_read_time_seconds_total", "Time that reads took", "journal_read_us", per=1_000_000),
    Of("io_sync_ops_total", "Flushes of the journal", "journal_flushes", "io_sync_count"),
    Of("io_sync_time_seconds_total", "Time that flushes took", "journal_flush_us", per=1_000_000),
)
ALARMS: Final = (
    Of("alarms_free_disk_space_watermark", "1: the disk alarm is in effect",
       lambda r: "disk" in r.alarms, "disk_free_alarm", kind=UNTYPED),
    Of("alarms_memory_used_watermark", "1: the memory alarm is in effect",
       lambda r: "memory" in r.alarms, "mem_alarm", kind=UNTYPED),
    Of("alarms_file_descriptor_limit", "1: no file descriptor is left",
       lambda r: r.files_used >= r.files_limit > 0, kind=UNTYPED),
)  # fmt: skip


def _delivered(m: Any) -> int:
    total: int = m.deliver + m.deliver_no_ack + m.get + m.get_no_ack
    return total


_MESSAGES: Final = (
    ("publish", "Messages published", "messages_published_total", "messages_received_total"),
    ("confirm", "Messages confirmed to publishers", "messages_confirmed_total", "messages_confirmed_total"),
    ("return_unroutable", "Mandatory messages returned", "messages_unroutable_returned_total",
     "messages_unroutable_returned_total"),
    ("drop_unroutable", "Messages without a queue, dropped", "messages_unroutable_dropped_total",
     "messages_unroutable_dropped_total"),
    ("deliver_no_ack", "Delivered without acknowledgement", "messages_delivered_total",
     "messages_delivered_consume_auto_ack_total"),
    ("deliver", "Delivered to be acknowledged", "messages_delivered_ack_total",
     "messages_delivered_consume_manual_ack_total"),
    ("get_no_ack", "Got without acknowledgement", "get_total", "messages_delivered_get_auto_ack_total"),
    ("get", "Got to be acknowledged", "get_ack_total", "messages_delivered_get_manual_ack_total"),
    ("get_empty", "Gets that found nothing", "get_empty_total", "messages_get_empty_total"),
    ("redeliver", "Delivered or got again", "messages_redelivered_total", "messages_redelivered_total"),
    ("ack", "Acknowledged by consumers", "messages_acked_total", "messages_acknowledged_total"),
)  # fmt: skip
"""Totals of messages: field and source, help, metric of a channel, and of the node as `global_*`."""
_OF_PUBLISHERS: Final = ("confirm", "return_unroutable", "drop_unroutable")
_GLOBAL: Final = tuple(Of(name, text, field) for field, text, _, name in _MESSAGES)
MESSAGES: Final = tuple(Of(name, text, field, field) for field, text, name, _ in _MESSAGES)
GLOBAL: Final = _GLOBAL[:4]
GLOBAL_OUT: Final = (Of("messages_delivered_total", "Delivered and got", _delivered), *_GLOBAL[4:])
OF_QUEUES: Final = tuple(one for one in MESSAGES if one.field not in _OF_PUBLISHERS)
QUEUE_PUBLISHED: Final = Of("queue_messages_published_total", "Messages that came into the queues", "messages.publish")
EXCHANGE: Final = (
    Of("exchange_messages_in_total", "Published to an exchange at this node", "publish_in", "publish_in"),
    Of("exchange_messages_out_total", "Went from there to queues", "publish_out", "publish_out"),
    Of("exchange_messages_confirmed_total", "Confirmed of them", "confirm", "confirm"),
    Of("exchange_messages_unroutable_total", "Without a queue: returned or dropped",
       lambda r: r.return_unroutable + r.drop_unroutable),
    Of("exchange_messages_repeated_total", "Dropped, for the exchange knew their values", "drop_repeated",
       "drop_repeated"),
)  # fmt: skip
EXCHANGE_SHOWN: Final = (
    _shown("drop_unroutable", "drop_unroutable"),
    _shown("return_unroutable", "return_unroutable"),
)

# -- ours -----------------------------------------------------------------------------------------------------

OWN_NODE: Final = (
    Of("leased", "1: the node holds a lease; 0: it is cut off", "leased", "leased"),
    Of("lease_left_seconds", "Until the lease ends without a beat", "lease_left_ms", "lease_left_ms", 1000),
    Of("loop_lag_seconds", "How late the loop was since the last sample", "loop_lag_ms", "loop_lag_ms", 1000),
    Of("loop_held_total", "Events that held the loop for 100 ms or longer", "loop_held"),
    Of("clock_jumps_total", "Steps of the wall clock of a second or more, forward or back", "clock_jumps"),
    Of("routes_refused_total", "Messages whose route would have cost too much", "routes_refused"),
    Of("alerts_held", "Conditions that an operator must see", "alerts_count", "alerts_count"),
    Of("draining", "1: the node gives its queues away", "draining"),
    Of("wiring_index", "Index of the last applied command of the metadata log", "wiring_index", "wiring_index"),
    Of("wiring_is_leader", "1: this node leads the metadata log", lambda r: r.wiring_leader == r.name),
    Of("wiring_has_leader", "1: the node knows the metadata leader", lambda r: r.wiring_leader != ""),
    Of("wiring_term", "Raft term of the metadata log", "wiring_term"),
    Of("feature_level", "Feature level of the cluster", "feature_level", "feature_level"),
    Of("supported_feature_level", "Highest feature level that the node's release knows",
       "supported_feature_level", "supported_feature_level"),
    Of("copies_sent_bytes_total", "Bytes of records sent to copies", "copies_sent_bytes"),
    Of("copies_received_bytes_total", "Bytes of records received for copies here", "copies_received_bytes"),
    Of("copies_syncing", "Copies here that are being brought up to date", "copies_syncing"),
    Of("copying_bytes_total", "Bytes that came in for that", "copying_bytes"),
    Of("copying_rate_bytes", "So much a second may; 0: as fast as it goes", "copying_rate_bytes"),
    Of("copying_paused", "1: an operator has paused it", "copying_paused"),
    Of("journal_segments", "Segments of the journal", "journal_segments", "journal_segments"),
    Of("journal_bytes", "Bytes of the journal on disk", "journal_bytes", "journal_bytes"),
    Of("journal_written_bytes_total", "Bytes written to the journal", "journal_written_bytes"),
    Of("journal_flushes_total", "Group commits", "journal_flushes"),
    Of("journal_flush_seconds_total", "Time that group commits took", "journal_flush_us", per=1_000_000),
    Of("journal_reads_total", "Reads from the journal", "journal_reads"),
    Of("journal_read_bytes_total", "Bytes read from the journal", "journal_read_bytes"),
    Of("journal_read_seconds_total", "Time that reads took", "journal_read_us", per=1_000_000),
    Of("scrub_percent", "How far the pass over the journal is; 100: none is under way",
       "scrub_percent", "scrub_percent"),
    Of("scrub_passes_total", "Passes over all of the journal", "scrub_passes", "scrub_passes"),
    Of("scrub_bytes_total", "Bytes of the journal that passes have read and proved", "scrub_bytes"),
    Of("scrub_found_total", "Damages that passes have found", "scrub_found", "scrub_found"),
)  # fmt: skip
COPY: Final = (
    Of("queue_copy_messages_behind", "Messages that a copy may lack at most, by the node that has it",
       "records_behind"),
)  # fmt: skip
READER: Final = (
    Of("queue_reader_lag", "Messages between where a stream's reader says that it goes on and the end", "lag"),
)
LINK: Final = (
    Of("link_up", "1: the link to another member is up", "up"),
    Of("link_sent_bytes_total", "Bytes sent to another member", "sent_bytes"),
    Of("link_received_bytes_total", "Bytes received from another member", "received_bytes"),
    Of("link_clock_ahead_seconds", "How far another member's clock is ahead of this one's", "clock_ahead_ms", per=1000),
)  # fmt: skip
BRIDGE: Final = (
    Of("bridge_messages_moved_total", "Messages that the destination of a bridge confirmed", "moved"),
    Of("bridge_messages_recognised_total", "Those that came again and were recognised: not doubled", "again"),
    Of("bridge_messages_doubtful_total", "Those that came again and were not known: they may be doubled", "doubtful"),
    Of("bridge_interruptions_total", "How often a bridge lost an end, or failed", "lost"),
    Of("bridge_messages_held", "Messages that came from the source and are not confirmed", "held"),
    Of("bridge_lag_seconds", "Since the destination confirmed something, while messages are held", "lag_ms", per=1000),
)
LOGINS: Final = (
    Of("auth_attempts_total", "Attempts to sign in", lambda one: one.succeeded + one.failed),
    Of("auth_attempts_succeeded_total", "Those that succeeded", "succeeded"),
    Of("auth_attempts_failed_total", "Those that failed", "failed"),
)
STARTED: Final = (Of("process_start_time_seconds", "When the node started, s since 1970", "started_at_ms", per=1000),)

# -- for documents --------------------------------------------------------------------------------------------

_IN_MESSAGES: Final = tuple(_shown(field, f"messages.{field}") for field, *_ in _MESSAGES)
_DELIVERED: Final = (_shown("deliver_get", lambda row: _delivered(row.messages)),)
MESSAGE_FIELDS: Final = fields(_IN_MESSAGES, _DELIVERED, QUEUE_DISK)
"""Of `message_stats`; of a channel and of a queue not all of them."""
CHANNEL_FIELDS: Final = fields(_IN_MESSAGES, _DELIVERED)
QUEUE_FIELDS: Final = {name: get for name, get in CHANNEL_FIELDS.items() if name not in _OF_PUBLISHERS}
DEPTH_FIELDS: Final = fields(QUEUE_COARSE)
QUEUE_GAUGES: Final = fields(QUEUE_CONSUMERS, QUEUE_FINE, QUEUE_SHOWN)
CHANNEL_GAUGES: Final = fields(CHANNEL)
CONNECTION_BYTES: Final = fields(CONNECTION_COARSE)
CONNECTION_COUNTS: Final = fields(CONNECTION)
CHURN_FIELDS: Final = fields(CHURN)
NODE_GAUGES: Final = fields(NODE_COARSE)
NODE_TOTALS: Final = fields(CHURN, NODE_DISK)
NODE_FACTS: Final = fields(NODE, ALARMS, OWN_NODE)
EXCHANGE_FIELDS: Final = fields(EXCHANGE, EXCHANGE_SHOWN)
