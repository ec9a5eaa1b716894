"""A queue of a pool whose messages pass (`broker.queues.passing`)."""

from __future__ import annotations

from clusterbroker.broker.pools.ending import Ending
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.passing import PassingQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_table import PoolQueue
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message


class PassingPoolQueue(PassingQueue):
    """See the module. `node` is the host."""

    __slots__ = ("_part", "ending", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, part: PoolQueue
    ) -> None:
        self.node = node
        self._part = part
        super().__init__(entity, settings, ring, node, now_ms)

    @property
    def pool(self) -> Pool | None:
        """None: it ends just now."""
        return self.node.map.pools.get(self._part.pool_id)

    @property
    def passes(self) -> bool:
        """An operator's pause does not outlive the pool: its callers are answered."""
        pool = self.pool
        return pool is not None and (pool.deleting or not self.halted)

    def _begin(self) -> None:
        self.ending = Ending(self, self.node, self._part.pool_id)
        super()._begin()

    # -- the end of a pool --------------------------------------------------------------------------------------

    def accepts(self, message: Message, now_ms: int, named: tuple[bytes, int] | None = None) -> bool:
        """What comes behind the end is refused, and not killed: nobody would answer it."""
        if self.limits.closed:
            return named is not None and self.log.producers.knows(*named)
        return super().accepts(message, now_ms, named)

    @property
    def _is_done(self) -> bool:
        """All that came was looked at, and has left."""
        return self._next >= self.ring.next_seq and self.ending.nothing_left

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        self.ending.schedule(now_ms)

    def pool_changed(self) -> None:
        """The pool is another one in the map."""
        self.ring.mark()
