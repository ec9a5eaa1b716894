"""Events of worker pools on their way into the pools' streams (`broker.pools.events`).

They are told within turns of queues, and published between turns, together. While nobody answers for a stream they are
dropped and counted: what happens does not wait for its history.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clusterbroker.broker.pools.events import Event, message_of
from clusterbroker.cluster.ids import LogIndex

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore


class PoolEvents:
    """Of one node.

    lost   pool -> events that no stream took
    """

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self._told: dict[LogIndex, list[Event]] = {}
        self.lost: Counter[LogIndex] = Counter()

    def tell(self, pool_id: int, event: Event) -> None:
        """If the pool tells its events."""
        of = LogIndex(pool_id)
        if not self._node.map.pools.tells_events(of):
            return
        if not self._told:
            self._node.soon(self._publish)
        self._told.setdefault(of, []).append(event)

    def _publish(self) -> None:
        told, self._told = self._told, {}
        node = self._node
        for pool_id, events in told.items():
            pool = node.map.pools.get(pool_id)
            vhost = None if pool is None else node.vhosts.get(pool.vhost)
            if pool is None or vhost is None:
                continue
            stream = vhost.queues.get(node.map.pools.names(pool_id).events)
            if stream is None or stream.deleted or stream.away:
                self.lost[pool_id] += len(events)
                continue
            messages = [message_of(pool, node.options.name, event) for event in events]
            stream.publish(messages, None, node.now_ms)

    def pool_ended(self, pool_id: LogIndex) -> None:
        """Nobody asks for its numbers any more."""
        self._told.pop(pool_id, None)
        self.lost.pop(pool_id, None)
