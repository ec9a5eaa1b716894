"""Limits of one node: bounds under any load of its clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """Limits and times of the node's core; `broker.config` fills them in."""

    name: str = "node"
    """Name of this node; part of generated names."""
    incarnation: int = 1
    """Unique per process start; part of connection ids."""
    channel_max: int = 2047
    """Offered in connection.tune; 0 is not offered."""
    frame_max_bytes: int = 131072
    """Offered in connection.tune."""
    heartbeat_s: int = 60
    """Offered in connection.tune; the lower of the two sides counts."""
    handshake_timeout_s: float = 10.0
    """From the accepted socket to connection.open; a slower peer is cut."""
    close_timeout_s: float = 10.0
    """How long connection.close-ok is waited for."""
    stalled_write_s: float = 60.0
    """A connection whose socket takes nothing for so long is cut."""
    message_bytes_max: int = 16 << 20
    """Larger bodies are refused with 406."""
    connections_max: int = 65536
    """Connections of this node; more are closed at once."""
    channels_max: int = 262_144
    """Channels of this node, of all connections."""
    consumers_per_channel_max: int = 4096
    """Consumers of one channel."""
    queues_max: int = 200_000
    """Queues of this node."""
    exchanges_max: int = 100_000
    """Exchanges of the cluster."""
    partial_bytes_max: int = 512 << 20
    """Contents that clients have not sent to their end, of all connections: beyond it the connection that has the most
    is ended (506)."""
    unwritten_bytes_max: int = 64 << 20
    """Publishers wait while more than this is on its way to the journal."""
    group_bytes_max: int = 8 << 20
    """A group commit is full with it; the next one goes on (`journal.group_bytes_max`)."""
    copy_rate_bytes: int = 0
    """So much a second is taken in for copies that no publisher waits for; 0: as fast as it goes."""
    consumer_timeout_ms: int = 30 * 60 * 1000
    """A delivery unacknowledged for longer ends its consumer; 0 = never."""
    loopback_users: tuple[str, ...] = ("guest",)
    """Users that may only connect from a loopback address."""
    anonymous_user: str = ""
    """Clients of AMQP 1.0 that name no user are this one (SASL ANONYMOUS); empty: they are refused."""
    amqp10_product: str = "clusterbroker"
    """What the node calls itself to clients of AMQP 1.0 (`amqp10.product`)."""
