"""The node, as the queues of worker pools see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import Host
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView


class QueuesOfVhost(Protocol):
    """A virtual host."""

    @property
    def queues(self) -> Mapping[str, QueueHandle]: ...


class PoolHost(Host, Protocol):
    """The node."""

    @property
    def map(self) -> ClusterView: ...

    @property
    def vhosts(self) -> Mapping[str, QueuesOfVhost]: ...

    def propose(self, command: AnyCommand, done: Callable[[Applied], None]) -> None: ...
