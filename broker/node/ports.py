"""The node as its parts see it that need little of it; `core.Node` says what its attributes mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from clusterbroker.broker.node.clients import ClientCore
from clusterbroker.broker.node.effects import Load, StreamLoad
from clusterbroker.broker.node.log import Log
from clusterbroker.broker.node.options import NodeOptions
from clusterbroker.broker.node.vhost import VirtualHost
from clusterbroker.broker.queues.effort import Effort
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.cluster.commands import AnyCommand
from clusterbroker.cluster.state import Applied
from clusterbroker.cluster.view import ClusterView


class NodeCore(Protocol):
    """One node."""

    alarms: dict[str, None]
    alarms_elsewhere: dict[str, tuple[str, ...]]
    clients: dict[str, ClientCore]
    congested: Mapping[Any, None]
    effort: Effort
    loads: list[Load | StreamLoad]
    log: Log
    map: ClusterView
    now_ms: int
    options: NodeOptions
    proposals: list[tuple[AnyCommand, Callable[[Applied], None]]]
    queues: dict[int, Queue]
    unwritten_bytes: int
    vhosts: dict[str, VirtualHost]

    def set_alarms_elsewhere(self, node: str, names: tuple[str, ...]) -> None:
        """Another node has these alarms, and no others."""
