"""Replicas of launches that stand for several workers, as far as they are connected to this node (pure).

A replica is known by the client property REPLICA of its connections. It is busy, or idle, when two looks in a row found
that so: what comes and goes between costs the API server no write. A foreman tells it with `pod-deletion-cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.pools.credentials import user_of
from clusterbroker.cluster.wiring.pool_entities import SCALED_OUTSIDE

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import ClientCore
    from clusterbroker.broker.node.pools import PoolNode

REPLICA: Final = "worker-replica"
LOOK_MS: Final = 5_000


class Replicas:
    """Of one life of a node."""

    def __init__(self) -> None:
        self._looked_ms: int | None = None
        self._found: dict[str, bool] = {}
        self._busy: dict[str, bool] = {}

    def look(self, node: PoolNode, now_ms: int) -> dict[str, bool] | None:
        """Replica -> whether it holds a request; None: nothing new since."""
        if self._looked_ms is not None and now_ms < self._looked_ms + LOOK_MS:
            return None
        self._looked_ms = now_ms
        found: dict[str, bool] = {}
        for client in _clients(node):
            name, holds = _replica(client)
            if name:
                found[name] = found.get(name, False) or holds
        before, self._found = self._found, found
        told = self._busy
        self._busy = {
            name: holds if before.get(name) is holds else told.get(name, False) for name, holds in found.items()
        }
        return None if self._busy == told else dict(self._busy)


def _clients(node: PoolNode) -> Iterator[ClientCore]:
    """Of launches that something else scales."""
    pools = node.map.pools
    for pool in pools.all():
        if pool.settings.scaling in SCALED_OUTSIDE:
            for launch in pools.launches(pool.pool_id):
                ids: Iterable[str] = node.occupancy.connections_of(user_of(launch.launch_id))
                yield from filter(None, map(node.clients.get, ids))


def _replica(client: ClientCore) -> tuple[str, bool]:
    """Its name, empty if it has told none, and whether it holds a request."""
    from clusterbroker.broker.stats.rows import ChannelRow, ConnectionRow  # a node has few of these

    name, held = "", 0
    for row in client.rows(ConnectionRow(connection_id=client.id)):
        if isinstance(row, ConnectionRow):
            told = row.client_properties.get(REPLICA)
            name = told if isinstance(told, str) else ""
        elif isinstance(row, ChannelRow):
            held += row.unacknowledged
    return name, held > 0
