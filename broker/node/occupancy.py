"""Numbers of connections and channels by vhost and user, for limits without a new count.

    connections    by vhost and by user, from connection.open on until the socket is gone; here and at other members
    channels       by user and in all, at this node alone, as RabbitMQ counts them

Members exchange their numbers of connections of each limited vhost and user: the changes, at most once a tick (50
ms), and all numbers over a new link. A limit of connections thus holds for the whole cluster, but not at every
moment: clients of several members within the same tick, or while members have no link, may be admitted by each of
them. Then the number exceeds the limit, and no further one is admitted until it falls. A member without a link is not
counted: after its death its clients come here, and must not be refused for their former connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from clusterbroker.broker.node.messages import Occupied

if TYPE_CHECKING:
    from clusterbroker.broker.node.hub import Hub
    from clusterbroker.cluster.wiring.view import ClusterView


class Occupancy:
    """Of one node. `moved` says that connections came or went; whoever tells it to others takes it back."""

    __slots__ = ("_connections", "_elsewhere", "channels", "channels_of_user", "moved", "users", "vhosts")

    def __init__(self) -> None:
        self.vhosts: Counter[str] = Counter()
        """Connections here."""
        self.users: Counter[str] = Counter()
        self.channels = 0
        self.channels_of_user: Counter[str] = Counter()
        self.moved = False
        self._connections: dict[str, dict[str, None]] = {}
        self._elsewhere: dict[str, tuple[Counter[str], Counter[str]]] = {}

    def entered(self, vhost: str, user: str, connection_id: str) -> None:
        """A connection was opened."""
        self.vhosts[vhost] += 1
        self.users[user] += 1
        self._connections.setdefault(user, {})[connection_id] = None
        self.moved = True

    def left(self, vhost: str, user: str, connection_id: str) -> None:
        """It is gone."""
        _less(self.vhosts, vhost)
        _less(self.users, user)
        del self._connections[user][connection_id]
        if not self._connections[user]:
            del self._connections[user]
        self.moved = True

    def channel_began(self, user: str) -> None:
        self.channels += 1
        self.channels_of_user[user] += 1

    def channel_ended(self, user: str) -> None:
        self.channels -= 1
        _less(self.channels_of_user, user)

    def connections_of(self, user: str) -> Iterable[str]:
        """Ids of a user's connections here."""
        return tuple(self._connections.get(user, ()))

    def of_vhost(self, name: str) -> int:
        """Connections, as far as this node knows."""
        return self.vhosts[name] + sum(vhosts[name] for vhosts, _ in self._elsewhere.values())

    def of_user(self, name: str) -> int:
        """Connections, as far as this node knows."""
        return self.users[name] + sum(users[name] for _, users in self._elsewhere.values())

    def received(self, peer: str, message: Occupied) -> None:
        """What another member has."""
        if message.whole or peer not in self._elsewhere:
            self._elsewhere[peer] = Counter(), Counter()
        for counted, changed in zip(self._elsewhere[peer], (message.vhosts, message.users), strict=True):
            for name, count in changed.items():
                counted[name] = count
                if not count:
                    del counted[name]

    def forgotten(self, peer: str) -> None:
        """It cannot tell any more."""
        self._elsewhere.pop(peer, None)


class OccupancyOfNodes:
    """Between this node's occupancy and its peers."""

    def __init__(self, occupancy: Occupancy, cluster_map: ClusterView, hub: Hub) -> None:
        self._occupancy = occupancy
        self._map = cluster_map
        self._hub = hub
        self._sent: tuple[dict[str, int], dict[str, int]] = {}, {}
        self._applied = 0  # up to which command limits were looked at

    def tick(self) -> None:
        """Tells all others what changed, in numbers or in whose numbers matter."""
        if not self._occupancy.moved and self._map.applied == self._applied:
            return
        self._occupancy.moved, self._applied = False, self._map.applied
        before, self._sent = self._sent, self._limited()
        vhosts, users = (_changed(old, new) for old, new in zip(before, self._sent, strict=True))
        if vhosts or users:
            for peer in tuple(self._hub.linked):
                if peer != self._hub.name:
                    try:
                        self._hub.send(peer, Occupied(vhosts, users))
                    except Exception as error:  # who is told costs the link to it: the next one begins with all
                        self._hub.failed(peer, error)

    def _limited(self) -> tuple[dict[str, int], dict[str, int]]:
        vhosts, users, view = self._occupancy.vhosts, self._occupancy.users, self._map
        limited = {name: n for name, n in vhosts.items() if (view.vhost_limits(name).connections_max or 0) > 0}
        known = ((name, count, view.user(name)) for name, count in users.items())
        return limited, {name: n for name, n, user in known if user and (user.limits.connections_max or 0) > 0}

    def linked(self, peer: str) -> None:
        if any(self._sent):
            self._hub.send(peer, Occupied(*self._sent, whole=True))

    def unlinked(self, peer: str) -> None:
        self._occupancy.forgotten(peer)

    def received(self, peer: str, message: Occupied, _: memoryview) -> None:
        self._occupancy.received(peer, message)


def _less(counted: Counter[str], name: str) -> None:
    assert counted[name] > 0, "who leaves has entered"
    counted[name] -= 1
    if not counted[name]:
        del counted[name]


def _changed(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: now.get(name, 0) for name in {**before, **now} if now.get(name, 0) != before.get(name, 0)}
