"""The queue of a pool's requests that wait for their time, at its owner.

It is a delay queue until the pool is deleted. Its exchange is gone then, and each request is answered `pool_deleted` as
one that waits in any other queue of the pool: a numbered dead letter to the responder. What was due, and finds no queue
of a key any more, comes back and is answered likewise. A queue in which nothing is left takes nothing, and ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusterbroker.broker.content.delays import waiting
from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.delay.due_letters import Letter
from clusterbroker.broker.pools.ending import Ending
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message


class LaterQueue(DelayQueue):
    """See the module. `node` is the host."""

    __slots__ = ("_ending", "_pool_id", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, pool_id: LogIndex
    ) -> None:
        self.node = node
        self._pool_id = pool_id
        super().__init__(entity, settings, ring, node, now_ms)

    def _begin(self) -> None:
        self._ending = Ending(self, self.node, self._pool_id)
        super()._begin()

    @property
    def _pool_ends(self) -> bool:
        pool = self.node.map.pools.get(self._pool_id)
        return pool is not None and pool.deleting

    def pool_changed(self) -> None:
        """The pool is another one in the map."""
        self.ring.mark()

    # -- in -----------------------------------------------------------------------------------------------------

    @property
    def rejects(self) -> bool:
        return self._ending.ordered or super().rejects

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        return not self._ending.ordered and super().takes(messages, now_ms)

    # -- the turn -----------------------------------------------------------------------------------------------

    def _serve(self, now_ms: int) -> None:
        if self.paused or not self._pool_ends:
            super()._serve(now_ms)
            return
        for seq, _, _ in self._taken:
            self.ring.put_back(seq)
        self._taken.clear()
        if self.give_up_ready("pool_deleted") and self._ending.nothing_left:
            self._ending.order()

    def _letter_nowhere(self, letter: Letter) -> None:
        if self._pool_ends:
            for message in letter.messages:
                self.ring.append((waiting(message, self.node.now_ms, message.ttl_ms),))

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        self._ending.schedule(now_ms)
