"""What the movers of a node ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.routing.router import Router
from clusterbroker.broker.transactions.mover import Host
from clusterbroker.broker.transactions.pace import Host as Paced
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.entities import Segment
from clusterbroker.cluster.wiring.map import Applied


class VirtualHost(Protocol):
    """One, at this node."""

    @property
    def router(self) -> Router[QueueHandle]:
        """Of its exchanges and queues."""

    @property
    def staging(self) -> Mapping[str, QueueHandle]:
        """The queues that keep rows, by the names of their segments."""


class Log(Protocol):
    """The node's."""

    def unroutable(self, segment: Segment, rows: int) -> None:
        """So many rows of a segment found no queue."""


class MovingHost(Host, Paced, Protocol):
    """The node."""

    @property
    def queues(self) -> Mapping[int, LocalQueue]:
        """Those that live here, by id."""

    @property
    def vhosts(self) -> Mapping[str, VirtualHost]:
        """By name."""

    @property
    def alarms(self) -> Mapping[str, None]:
        """While there is one, nothing is moved."""

    @property
    def log(self) -> Log:
        """For the operator."""

    def stumbled(self, queue: LocalQueue, error: Exception) -> None:
        """Something raised in the queue's work: set it aside."""

    def propose(self, command: AnyCommand, done: Callable[[Applied], None]) -> None:
        """Orders a change of the wiring; `done` hears what came of it."""
