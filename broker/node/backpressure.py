"""Why a client that publishes is not read: alarms, a journal that cannot keep up, queues elsewhere that cannot.

A client that only consumes makes room, so nothing of this holds it up.

*Alarms of other nodes.* An owner short of memory or disk accepts no messages for its queues. A node tells all others
at each change of its alarms, and each newly linked one. While an owner has one, remote queues send it no publishes:
they wait where they are, unconfirmed and not refused. A client that publishes to one of its queues gets
`connection.blocked` and is not read any more until all is clear again; clients that publish elsewhere go on. A link
that ends takes its node's alarms with it: without an owner publishes wait anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.remote.messages import Alarmed, AlarmName

if TYPE_CHECKING:
    from clusterbroker.broker.node.hub import Hub
    from clusterbroker.broker.remote.remote_queues import RemoteQueues

SHARED: Final[tuple[AlarmName, ...]] = ("memory", "disk")
"""Others do not publish to a node without a lease as it is."""
MINORITY: Final = "minority"
"""The alarm of a node without a lease."""


class Host(Protocol):
    """The node."""

    @property
    def alarms(self) -> Mapping[str, None]:
        """Resource alarms of this node."""

    @property
    def alarms_elsewhere(self) -> Mapping[str, tuple[str, ...]]:
        """Of other nodes, by node."""

    @property
    def throttled(self) -> bool:
        """Publishers wait for the journal."""


class Client(Protocol):
    """The client."""

    def alarmed(self) -> None:
        """The alarms that hold it up may have changed."""

    def review_reading(self) -> None:
        """A reason to read it, or not to, changed."""


class _Gone:
    """A client that has gone."""

    def alarmed(self) -> None:
        pass

    def review_reading(self) -> None:
        pass


_GONE: Final = _Gone()
_NOTHING: Final[dict[Any, None]] = {}
"""Of a client that has published nothing: there may be very many of those."""


class Backpressure:
    """Of one client. `publishes`: it has published; `fed`: queues that it has published to while their owner had an
    alarm."""

    __slots__ = ("_client", "_congested", "_node", "fed", "publishes")

    def __init__(self, node: Host, client: Client) -> None:
        self._node = node
        self._client: Client = client
        self._congested = _NOTHING
        self.publishes = False
        self.fed: dict[QueueHandle, None] = _NOTHING

    @property
    def alarms(self) -> list[str]:
        """Those for which this client has to wait."""
        if not self.publishes:
            return []
        elsewhere = self._node.alarms_elsewhere
        owners = dict.fromkeys(queue.entity.owner for queue in self.fed if not queue.deleted)
        return [*self._node.alarms, *(f"{name} at node {at}" for at in owners if at for name in elsewhere.get(at, ()))]

    @property
    def holds(self) -> bool:
        """The client is not read."""
        return self.publishes and (bool(self.alarms) or self._node.throttled or bool(self._congested))

    def begin(self) -> None:
        """The client publishes from now on."""
        self.publishes = True
        self._congested, self.fed = {}, {}
        self._client.alarmed()

    def leave(self) -> None:
        """The client has gone. Without this each would wait for the garbage collector, which looks seldom."""
        self._client = _GONE

    def feeds(self, queues: Iterable[QueueHandle]) -> None:
        """Published to these queues while a node has an alarm: the client waits as long as that node owns any."""
        for queue in queues:
            if queue.entity.owner in self._node.alarms_elsewhere and queue not in self.fed:
                self.fed[queue] = None
                self._client.alarmed()

    def waits_for(self, queue: QueueHandle) -> None:
        """Published to a queue that has too much uncommitted: the client is read again when it is relieved."""
        self._congested[queue] = None
        self._client.review_reading()

    def relieved(self, queue: object) -> None:
        """The queue has room again."""
        if self._congested and self._congested.pop(queue, self) is None:
            self._client.review_reading()


class AlarmedNode(Host, Protocol):
    """The node, as one among others."""

    @property
    def clients(self) -> Mapping[str, Any]:
        """`clients.ClientCore`, by id."""

    def set_alarms_elsewhere(self, node: str, names: tuple[str, ...]) -> None: ...


class AlarmsOfNodes:
    """Between this node's alarms and its peers."""

    def __init__(self, node: AlarmedNode, hub: Hub, remote_queues: RemoteQueues) -> None:
        self._node = node
        self._hub = hub
        self._remote_queues = remote_queues
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
            self._remote_queues.alarmed(peer, bool(names))
            self._node.set_alarms_elsewhere(peer, names)
