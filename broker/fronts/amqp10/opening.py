"""The open performatives of both sides: what the client asks for, and what the node says of itself (2.7.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.sign_in import enter
from clusterbroker.broker.fronts.amqp10 import sole
from clusterbroker.broker.fronts.amqp10.conditions import CONDITIONS
from clusterbroker.broker.fronts.amqp10.resuming import RECOVERY
from clusterbroker.broker.node.failover import addresses
from clusterbroker.broker.version import VERSION
from clusterbroker.broker.wire.amqp10.errors import (
    NOT_FOUND,
    RESOURCE_LIMIT,
    UNAUTHORIZED,
    ConnectionFault10,
    framing_error,
    not_allowed,
)
from clusterbroker.broker.wire.amqp10.frames import FRAME_MIN_BYTES
from clusterbroker.broker.wire.amqp10.performatives import Open
from clusterbroker.broker.wire.amqp10.types import Symbol

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.node.core import Node

LEVEL: Final = 2
"""Members below it cannot read messages of AMQP 1.0 (`cluster.wiring.levels`)."""
SESSIONS_MAX: Final = 256
IDLE_MS_MIN: Final = 1000
"""A shorter idle-time-out is refused (2.4.5)."""
VHOST: Final = "vhost:"
RABBITMQ: Final = "4.3.0"
"""The version that goes with the product RabbitMQ: whose AMQP 1.0 this node's is like."""
CAPABILITIES: Final = ("ANONYMOUS-RELAY", "SHARED-SUBS")
FAILOVER: Final = "failover-server-list"


def check(told: Open, level: int) -> None:
    """Refuses what cannot be kept. `level`: the cluster's feature level."""
    if level < LEVEL:
        raise not_allowed(
            f"the cluster is at feature level {level}, AMQP 1.0 needs {LEVEL}: when all members run this release, "
            "raise the level (clusterbroker cluster raise-level)"
        )
    if told.max_frame_size < FRAME_MIN_BYTES:
        raise framing_error(f"a max-frame-size of {told.max_frame_size}, less than {FRAME_MIN_BYTES}")
    if told.idle_time_out is not None and 0 < told.idle_time_out < IDLE_MS_MIN:
        raise not_allowed(f"an idle-time-out of {told.idle_time_out} ms, less than {IDLE_MS_MIN}")


def enter_vhost(access: Authorization, hostname: str, trusted: bool) -> None:
    """The hostname "vhost:NAME" chooses a virtual host, any other one the default."""
    name = hostname[len(VHOST) :] if hostname.startswith(VHOST) else "/"
    if name not in access.node.vhosts:
        raise ConnectionFault10(NOT_FOUND, f"there is no vhost '{name}'")
    if not access.rights.enters(name):
        raise ConnectionFault10(UNAUTHORIZED, f"access to vhost '{name}' refused for user '{access.user}'")
    try:
        enter(access, name, trusted)
    except Refusal as refusal:
        condition = RESOURCE_LIMIT if refusal.kind == "not_allowed" else CONDITIONS[refusal.kind]
        raise ConnectionFault10(condition, refusal.text) from None


def own(node: Node, told: Open | None, fault: ConnectionFault10 | None) -> Open:
    """Ours. In a cluster a client is told where else it may connect. `fault`: the connection is refused by it."""
    options = node.options
    properties: dict[Any, Any] = {
        Symbol("product"): options.amqp10_product,
        Symbol("version"): RABBITMQ if options.amqp10_product == "RabbitMQ" else VERSION,
        Symbol("platform"): "Python",
        Symbol("cluster_name"): node.cluster_name,
        Symbol("node"): options.name,
    }
    offered = (*CAPABILITIES, RECOVERY) if node.recovery.possible else CAPABILITIES
    if node.sole_connections.possible:
        offered = (*offered, sole.CAPABILITY)
        properties.update(sole.properties(told, fault))
    if node.role is not None:
        properties[Symbol(FAILOVER)] = [_server(url) for url in addresses(node.map, options.name)]
    return Open(
        container_id=node.cluster_name,
        max_frame_size=options.frame_max_bytes,
        channel_max=SESSIONS_MAX - 1,
        idle_time_out=options.heartbeat_s * 1000 or None,
        offered_capabilities=offered,
        properties=properties,
    )


def _server(url: str) -> dict[Any, Any]:
    """An entry of failover-server-list, as clients of JMS read it."""
    scheme, _, place = url.partition("://")
    host, _, port = place.rpartition(":")
    return {
        Symbol("network-host"): host.strip("[]"),
        Symbol("port"): int(port) if port.isdigit() else 0,
        Symbol("scheme"): scheme,
    }
