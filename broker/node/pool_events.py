"""Events of worker pools on their way into the pools' streams (`broker.pools.events`).

They are told within turns of queues, and published between turns, AT_ONCE at most. What happens does not wait for its
history: where a stream does not take them as they come, while the node has an alarm, and beyond WAITING_MAX they are
dropped and counted. Nor can a history that is wrong cost more than itself.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from clusterbroker.broker.pools.events import Event, message_of
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.cluster.ids import LogIndex

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore


AT_ONCE: Final = 500
"""Events that one turn publishes."""
WAITING_MAX: Final = 50_000


class PoolEvents:
    """Of one node.

    lost   pool -> events that no stream took
    """

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self._told: deque[tuple[LogIndex, Event]] = deque()
        self.lost: Counter[LogIndex] = Counter()

    def tell(self, pool_id: int, event: Event) -> None:
        """If the pool tells its events."""
        of = LogIndex(pool_id)
        if not self._node.map.pools.tells_events(of):
            return
        if len(self._told) >= WAITING_MAX:
            self.lost[of] += 1
            return
        if not self._told:
            self._node.soon(self._publish)
        self._told.append((of, event))

    def _publish(self) -> None:
        by_pool: dict[LogIndex, list[Event]] = {}
        for _ in range(min(AT_ONCE, len(self._told))):
            pool_id, event = self._told.popleft()
            by_pool.setdefault(pool_id, []).append(event)
        if self._told:
            self._node.soon(self._publish)
        for pool_id, events in by_pool.items():
            try:
                self._give(pool_id, events)
            except Exception as error:
                self.lost[pool_id] += len(events)
                self._node.log.crashed(f"events of pool {pool_id}", error)

    def _give(self, pool_id: LogIndex, events: list[Event]) -> None:
        node = self._node
        pool = node.map.pools.get(pool_id)
        vhost = None if pool is None else node.vhosts.get(pool.vhost)
        if pool is None or vhost is None:
            return
        stream = vhost.queues.get(node.map.pools.names(pool_id).events)
        if stream is None or node.alarms or not _takes(stream) or stream in node.congested:
            self.lost[pool_id] += len(events)
            return
        messages = [message_of(pool, node.options.name, event) for event in events]
        stream.publish(messages, None, node.now_ms)
        if stream.ring.journaled:
            node.unwritten_bytes += sum(message.size for message in messages)

    def pool_ended(self, pool_id: LogIndex) -> None:
        """Nobody asks for its numbers any more."""
        self._told = deque(one for one in self._told if one[0] != pool_id)
        self.lost.pop(pool_id, None)


def _takes(stream: QueueHandle) -> bool:
    """Whether somebody answers for it, and what it took before is committed, or about to be."""
    return not (stream.deleted or stream.away or (isinstance(stream, LocalQueue) and stream.paused))
