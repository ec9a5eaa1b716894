"""The metrics of each kind of thing: name, type, help and where the value is found; `metrics` makes the text.

Those of the first part have RabbitMQ's names and families, and its meaning. What RabbitMQ tells and is not here has no
meaning in this broker (Erlang's processes, its message store), or nobody counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from .exposition import COUNTER, GAUGE, UNTYPED

Number = int | float


class Of(NamedTuple):
    """One metric of a kind of thing, and where its value is found."""

    name: str
    kind: str
    help: str
    get: Callable[[Any], Number]


# -- of each thing, by RabbitMQ's families --------------------------------------------------------------------

QUEUE_COARSE: Final = (
    Of("queue_messages_ready", GAUGE, "Messages ready to be delivered to consumers", lambda r: r.ready),
    Of("queue_messages_unacked", GAUGE, "Messages delivered and not acknowledged", lambda r: r.unacknowledged),
    Of("queue_messages", GAUGE, "Ready and unacknowledged messages", lambda r: r.ready + r.unacknowledged),
)
QUEUE_CONSUMERS: Final = (Of("queue_consumers", GAUGE, "Consumers of a queue", lambda r: r.consumers),)
QUEUE_FINE: Final = (
    Of("queue_messages_ready_bytes", GAUGE, "Bytes of the bodies of ready messages", lambda r: r.ready_bytes),
    Of("queue_messages_ram", GAUGE, "Messages that are in memory", lambda r: r.in_memory),
    Of("queue_messages_ram_bytes", GAUGE, "Bytes of messages that are in memory", lambda r: r.in_memory_bytes),
    Of("queue_messages_paged_out", GAUGE, "Messages that are on disk only",
       lambda r: max(0, r.ready + r.unacknowledged - r.in_memory)),
    Of("queue_messages_persistent", GAUGE, "Messages that the journal or copies hold", lambda r: r.persistent),
    Of("queue_process_memory_bytes", GAUGE, "Memory that a queue takes, about", lambda r: r.memory_bytes),
    Of("queue_disk_reads_total", COUNTER, "Messages read back from the journal", lambda r: r.messages.disk_reads),
    Of("queue_disk_writes_total", COUNTER, "Messages written to the journal", lambda r: r.messages.disk_writes),
)  # fmt: skip
CHANNEL: Final = (
    Of("channel_consumers", GAUGE, "Consumers of a channel", lambda r: r.consumers),
    Of("channel_messages_unacked", GAUGE, "Delivered and not acknowledged", lambda r: r.unacknowledged),
    Of("channel_messages_unconfirmed", GAUGE, "Published and not confirmed", lambda r: r.unconfirmed),
    Of("channel_messages_uncommitted", GAUGE, "Published in an open transaction", lambda r: r.uncommitted),
    Of("channel_acks_uncommitted", GAUGE, "Acknowledged in an open transaction", lambda r: r.acks_uncommitted),
    Of("consumer_prefetch", GAUGE, "Limit of unacknowledged messages of each consumer", lambda r: r.prefetch_count),
    Of("channel_prefetch", GAUGE, "Limit of all consumers of a channel", lambda r: r.global_prefetch_count),
)
CONNECTION_COARSE: Final = (
    Of("connection_incoming_bytes_total", COUNTER, "Bytes received from a client", lambda r: r.received_bytes),
    Of("connection_outgoing_bytes_total", COUNTER, "Bytes sent to a client", lambda r: r.sent_bytes),
)
CONNECTION: Final = (
    Of("connection_incoming_packets_total", COUNTER, "Reads that brought something", lambda r: r.received_reads),
    Of("connection_outgoing_packets_total", COUNTER, "Writes to a client", lambda r: r.sent_writes),
    Of("connection_channels", GAUGE, "Channels of a connection", lambda r: r.channels),
)
CHURN: Final = (
    Of("connections_opened_total", COUNTER, "Connections that were opened", lambda r: r.connections_created),
    Of("connections_closed_total", COUNTER, "Connections that were closed", lambda r: r.connections_closed),
    Of("channels_opened_total", COUNTER, "Channels that were opened", lambda r: r.channels_created),
    Of("channels_closed_total", COUNTER, "Channels that were closed", lambda r: r.channels_closed),
    Of("queues_declared_total", COUNTER, "Declarations of queues that were answered", lambda r: r.queues_declared),
    Of("queues_created_total", COUNTER, "Queues that began here", lambda r: r.queues_created),
    Of("queues_deleted_total", COUNTER, "Queues that ended here", lambda r: r.queues_deleted),
)
NODE_COARSE: Final = (
    Of("process_open_fds", GAUGE, "Open file descriptors", lambda r: r.files_used),
    Of("process_open_tcp_sockets", GAUGE, "Open sockets of clients", lambda r: r.sockets_used),
    Of("process_resident_memory_bytes", GAUGE, "Memory in use", lambda r: r.memory_used_bytes),
    Of("disk_space_available_bytes", GAUGE, "Free on the disk of the data directory", lambda r: r.disk_free_bytes),
)
NODE: Final = (
    Of("process_max_fds", GAUGE, "Limit of open file descriptors", lambda r: r.files_limit),
    Of("process_max_tcp_sockets", GAUGE, "Limit of open sockets", lambda r: r.sockets_limit),
    Of("resident_memory_limit_bytes", GAUGE, "Memory at which the alarm rises", lambda r: r.memory_limit_bytes),
    Of("disk_space_available_limit_bytes", GAUGE, "Free disk at which the alarm rises",
       lambda r: r.disk_free_limit_bytes),
    Of("erlang_uptime_seconds", GAUGE, "Since the node started, under RabbitMQ's name", lambda r: r.uptime_ms / 1000),
)  # fmt: skip
NODE_DISK: Final = (
    Of("io_write_ops_total", COUNTER, "Groups written to the journal", lambda r: r.journal_flushes),
    Of("io_write_bytes_total", COUNTER, "Bytes written to the journal", lambda r: r.journal_written_bytes),
    Of("io_read_ops_total", COUNTER, "Reads from the journal", lambda r: r.journal_reads),
    Of("io_read_bytes_total", COUNTER, "Bytes read from the journal", lambda r: r.journal_read_bytes),
    Of("io_read_time_seconds_total", COUNTER, "Time that reads took", lambda r: r.journal_read_us / 1e6),
    Of("io_sync_ops_total", COUNTER, "Flushes of the journal", lambda r: r.journal_flushes),
    Of("io_sync_time_seconds_total", COUNTER, "Time that flushes took", lambda r: r.journal_flush_us / 1e6),
)
ALARMS: Final = (
    Of("alarms_free_disk_space_watermark", UNTYPED, "1: the disk alarm is in effect", lambda r: "disk" in r.alarms),
    Of("alarms_memory_used_watermark", UNTYPED, "1: the memory alarm is in effect", lambda r: "memory" in r.alarms),
    Of("alarms_file_descriptor_limit", UNTYPED, "1: no file descriptor is left",
       lambda r: r.files_used >= r.files_limit > 0),
)  # fmt: skip
MESSAGES: Final = (
    Of("messages_published_total", COUNTER, "Messages published", lambda m: m.publish),
    Of("messages_confirmed_total", COUNTER, "Messages confirmed to publishers", lambda m: m.confirm),
    Of("messages_unroutable_returned_total", COUNTER, "Mandatory messages returned", lambda m: m.return_unroutable),
    Of("messages_unroutable_dropped_total", COUNTER, "Messages without a queue, dropped", lambda m: m.drop_unroutable),
    Of("messages_delivered_total", COUNTER, "Delivered without acknowledgement", lambda m: m.deliver_no_ack),
    Of("messages_delivered_ack_total", COUNTER, "Delivered to be acknowledged", lambda m: m.deliver),
    Of("get_total", COUNTER, "Got without acknowledgement", lambda m: m.get_no_ack),
    Of("get_ack_total", COUNTER, "Got to be acknowledged", lambda m: m.get),
    Of("get_empty_total", COUNTER, "Gets that found nothing", lambda m: m.get_empty),
    Of("messages_redelivered_total", COUNTER, "Delivered or got again", lambda m: m.redeliver),
    Of("messages_acked_total", COUNTER, "Acknowledged by consumers", lambda m: m.ack),
)
GLOBAL: Final = (
    Of("messages_received_total", COUNTER, "Messages published", lambda m: m.publish),
    Of("messages_confirmed_total", COUNTER, "Messages confirmed to publishers", lambda m: m.confirm),
    Of("messages_unroutable_returned_total", COUNTER, "Mandatory messages returned", lambda m: m.return_unroutable),
    Of("messages_unroutable_dropped_total", COUNTER, "Messages without a queue, dropped", lambda m: m.drop_unroutable),
)
GLOBAL_OUT: Final = (
    Of("messages_delivered_total", COUNTER, "Delivered and got", lambda m: m.deliver + m.deliver_no_ack + m.get
       + m.get_no_ack),
    Of("messages_delivered_consume_auto_ack_total", COUNTER, "Delivered, not to be acknowledged",
       lambda m: m.deliver_no_ack),
    Of("messages_delivered_consume_manual_ack_total", COUNTER, "Delivered to be acknowledged", lambda m: m.deliver),
    Of("messages_delivered_get_auto_ack_total", COUNTER, "Got, not to be acknowledged", lambda m: m.get_no_ack),
    Of("messages_delivered_get_manual_ack_total", COUNTER, "Got to be acknowledged", lambda m: m.get),
    Of("messages_get_empty_total", COUNTER, "Gets that found nothing", lambda m: m.get_empty),
    Of("messages_redelivered_total", COUNTER, "Delivered or got again", lambda m: m.redeliver),
    Of("messages_acknowledged_total", COUNTER, "Acknowledged by consumers", lambda m: m.ack),
)  # fmt: skip

# -- ours -----------------------------------------------------------------------------------------------------

OWN_NODE: Final = (
    Of("leased", GAUGE, "1: the node holds a lease; 0: it is cut off", lambda r: r.leased),
    Of("lease_left_seconds", GAUGE, "Until the lease ends without a beat", lambda r: r.lease_left_ms / 1000),
    Of("loop_lag_seconds", GAUGE, "How late the loop was since the last sample", lambda r: r.loop_lag_ms / 1e3),
    Of("loop_held_total", COUNTER, "Events that held the loop for 100 ms or longer", lambda r: r.loop_held),
    Of("routes_refused_total", COUNTER, "Messages whose route would have cost too much", lambda r: r.routes_refused),
    Of("alerts_held", GAUGE, "Conditions that an operator must see", lambda r: r.alerts_count),
    Of("draining", GAUGE, "1: the node gives its queues away", lambda r: r.draining),
    Of("wiring_index", GAUGE, "Index of the last applied command of the wiring log", lambda r: r.wiring_index),
    Of("wiring_is_leader", GAUGE, "1: this node orders the wiring log", lambda r: r.wiring_leader == r.name),
    Of("wiring_has_leader", GAUGE, "1: the node knows who orders the wiring log", lambda r: r.wiring_leader != ""),
    Of("wiring_term", GAUGE, "Elections of the wiring log: it rises when another orders it", lambda r: r.wiring_term),
    Of("copies_sent_bytes_total", COUNTER, "Bytes of records sent to copies", lambda r: r.copies_sent_bytes),
    Of("copies_received_bytes_total", COUNTER, "Bytes of records received for copies here",
       lambda r: r.copies_received_bytes),
    Of("copies_syncing", GAUGE, "Copies here that are being brought up to date", lambda r: r.copies_syncing),
    Of("copying_bytes_total", COUNTER, "Bytes that came in for that", lambda r: r.copying_bytes),
    Of("copying_rate_bytes", GAUGE, "So much a second may; 0: as fast as it goes", lambda r: r.copying_rate_bytes),
    Of("copying_paused", GAUGE, "1: an operator has paused it", lambda r: r.copying_paused),
    Of("journal_segments", GAUGE, "Segments of the journal", lambda r: r.journal_segments),
    Of("journal_bytes", GAUGE, "Bytes of the journal on disk", lambda r: r.journal_bytes),
    Of("journal_written_bytes_total", COUNTER, "Bytes written to the journal", lambda r: r.journal_written_bytes),
    Of("journal_flushes_total", COUNTER, "Group commits", lambda r: r.journal_flushes),
    Of("journal_flush_seconds_total", COUNTER, "Time that group commits took", lambda r: r.journal_flush_us / 1e6),
    Of("journal_reads_total", COUNTER, "Reads from the journal", lambda r: r.journal_reads),
    Of("journal_read_bytes_total", COUNTER, "Bytes read from the journal", lambda r: r.journal_read_bytes),
    Of("journal_read_seconds_total", COUNTER, "Time that reads took", lambda r: r.journal_read_us / 1e6),
    Of("scrub_percent", GAUGE, "How far the pass over the journal is; 100: none is under way",
       lambda r: r.scrub_percent),
    Of("scrub_passes_total", COUNTER, "Passes over all of the journal", lambda r: r.scrub_passes),
    Of("scrub_bytes_total", COUNTER, "Bytes of the journal that passes have read and proved", lambda r: r.scrub_bytes),
    Of("scrub_found_total", COUNTER, "Damages that passes have found", lambda r: r.scrub_found),
)  # fmt: skip
LINK: Final = (
    Of("link_up", GAUGE, "1: the link to another member is up", lambda link: link.up),
    Of("link_sent_bytes_total", COUNTER, "Bytes sent to another member", lambda link: link.sent_bytes),
    Of("link_received_bytes_total", COUNTER, "Bytes received from another member", lambda link: link.received_bytes),
    Of("link_clock_ahead_seconds", GAUGE, "How far another member's clock is ahead of this one's",
       lambda link: link.clock_ahead_ms / 1000),
)  # fmt: skip
EXCHANGE: Final = (
    Of("exchange_messages_in_total", COUNTER, "Published to an exchange at this node", lambda r: r.publish_in),
    Of("exchange_messages_out_total", COUNTER, "Went from there to queues", lambda r: r.publish_out),
    Of("exchange_messages_confirmed_total", COUNTER, "Confirmed of them", lambda r: r.confirm),
    Of("exchange_messages_unroutable_total", COUNTER, "Without a queue: returned or dropped",
       lambda r: r.return_unroutable + r.drop_unroutable),
)  # fmt: skip
OF_QUEUES: Final = frozenset(metric.name for metric in MESSAGES) - {
    "messages_confirmed_total", "messages_unroutable_returned_total", "messages_unroutable_dropped_total",
}  # fmt: skip
QUEUE_PUBLISHED: Final = Of(
    "queue_messages_published_total", COUNTER, "Messages that came into the queues", lambda r: r.messages.publish
)
