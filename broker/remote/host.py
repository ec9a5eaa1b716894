"""Ports of both sides of a queue elsewhere to their nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.stumble import Stumble
from clusterbroker.broker.remote.messages import ProxyMessage
from clusterbroker.cluster.wiring.entities import Queue

Payload = bytes | bytearray | memoryview


class ProxyHost(Protocol):
    """The node, as its remote queues see it."""

    @property
    def name(self) -> str: ...

    @property
    def now_ms(self) -> int:
        """Time of what is being handled, wall clock."""

    @property
    def applied_index(self) -> int:
        """The wiring index that this node has applied."""

    def send(self, node: str, head: ProxyMessage, payload: Iterable[Payload] = ()) -> bool:
        """One frame to a node, perhaps this one. False: there is no link; `RemoteQueues.linked` will tell of one."""

    def soon(self, goes_on: Callable[[], None]) -> None:
        """Call it in the node's next turn, or a later one if others there are much work already."""

    def link_stumbled(self, node: str, error: Exception) -> None:
        """Something raised over what is said to this node: the link to it is to end, and all is said anew."""

    def proxy_stumbled(self, entity: Queue, error: Exception) -> None:
        """Something raised over what this node has of the queue."""

    def delivery_stumbled(self, queue: QueueHandle, error: Stumble) -> None:
        """A message of a queue elsewhere cannot be read here: the queue is set aside, then the message returns."""

    def flow_changed(self) -> None:
        """`RemoteQueues.unacknowledged_bytes` has changed: publishers may have to wait, or may go on."""

    def relieved(self, queue: object) -> None:
        """A queue is congested no more: whoever waits to publish to it may go on."""


class OwnedQueueHost(Protocol):
    """The node, as the queues that it owns see it."""

    @property
    def name(self) -> str: ...

    @property
    def now_ms(self) -> int:
        """Time of what is being handled, wall clock."""

    def send(self, node: str, head: ProxyMessage, payload: Iterable[Payload] = ()) -> bool:
        """One frame to a node, or to this one itself. False: there is no link, and `unlinked` was or will be said."""

    def room(self, node: str) -> int:
        """How many bytes of deliveries the way to a node takes now; when it was 0 and is not, `OwnedQueues.drained`."""

    def published(self, size: int) -> None:
        """So many bytes were taken."""

    def in_sync(self, queue_id: int) -> Sequence[str]:
        """Who may own the queue: the members of its in-sync set that are alive and do not drain."""

    def transfer(self, queue_id: int, to: str) -> None:
        """The queue should be handed over. May be said again while it is under way."""

    def hurry(self, queue_id: int) -> None:
        """Somebody has something to do with the queue: its first sync comes before those of others."""

    def stumbled(self, queue: LocalQueue, error: Exception) -> None:
        """Something raised in the queue's work: set it aside."""
