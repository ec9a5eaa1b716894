"""What a node's proxies ask of their node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from broker.proxy.messages import ProxyMessage
from cluster.entities import Queue

Payload = bytes | bytearray | memoryview


class ProxyHost(Protocol):
    """The node, as its proxies see it."""

    @property
    def now_ms(self) -> int:
        """Time of what is being handled, wall clock."""

    @property
    def applied_index(self) -> int:
        """The wiring index that this node has applied."""

    def send(self, node: str, head: ProxyMessage, payload: Iterable[Payload] = ()) -> bool:
        """One frame to a node, perhaps this one. False: there is no link; `Proxies.linked` will tell of one."""

    def soon(self, goes_on: Callable[[], None]) -> None:
        """Call it in the node's next turn, or a later one if others there are much work already."""

    def link_stumbled(self, node: str, error: Exception) -> None:
        """Something raised over what is said to this node: the link to it is to end, and all is said anew."""

    def proxy_stumbled(self, entity: Queue, error: Exception) -> None:
        """Something raised over what this node has of the queue."""

    def flow_changed(self) -> None:
        """`Proxies.unacknowledged_bytes` has changed: publishers may have to wait, or may go on."""

    def relieved(self, queue: object) -> None:
        """A queue is congested no more: whoever waits to publish to it may go on."""
