"""Resource alarms of other nodes: an owner short of memory or disk accepts no messages for its queues.

A node tells all others at each change of its alarms, and each newly linked one. While an owner has one, proxies send
it no publishes: they wait where they are, unconfirmed and not refused. A client that publishes to one of its queues
gets `connection.blocked` and is not read any more until all is clear again; clients that publish elsewhere go on. A
link that ends takes its node's alarms with it: without an owner publishes wait anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.broker.remote.messages import Alarmed, AlarmName

if TYPE_CHECKING:
    from clusterbroker.broker.node.hub import Hub
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.remote.remote_queues import RemoteQueues

SHARED: Final[tuple[AlarmName, ...]] = ("memory", "disk")
"""Others do not publish to a node without a lease as it is."""
MINORITY: Final = "minority"
"""The alarm of a node without a lease."""


class AlarmsOfNodes:
    """Between this node's alarms and its peers."""

    def __init__(self, node: NodeCore, hub: Hub, proxies: RemoteQueues) -> None:
        self._node = node
        self._hub = hub
        self._proxies = proxies
        self._sent: tuple[AlarmName, ...] = ()

    def changed(self) -> None:
        """This node's own alarms are others than before."""
        names = tuple(name for name in SHARED if name in self._node.alarms)
        if names != self._sent:
            self._sent = names
            for peer in tuple(self._hub.linked):
                self._hub.send(peer, Alarmed(names))

    def owners_changed(self) -> None:
        """Who publishes to a queue that an alarmed node owned, or is deleted, has nothing to wait for any more."""
        for connection in tuple(self._node.clients.values()) if self._node.alarms_elsewhere else ():
            if connection.backpressure.fed:
                connection.alarmed()

    def linked(self, peer: str) -> None:
        if self._sent:
            self._hub.send(peer, Alarmed(self._sent))

    def unlinked(self, peer: str) -> None:
        self._changed(peer, ())

    def received(self, peer: str, message: Alarmed, _: memoryview) -> None:
        self._changed(peer, message.names)

    def _changed(self, peer: str, names: tuple[str, ...]) -> None:
        if names != self._node.alarms_elsewhere.get(peer, ()):
            self._proxies.alarmed(peer, bool(names))
            self._node.set_alarms_elsewhere(peer, names)
