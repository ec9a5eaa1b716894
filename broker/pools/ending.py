"""The end of a pool's queue, as its owner orders it when nothing is left there."""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.wiring.commands import EndPoolQueue
from clusterbroker.cluster.wiring.map import Applied

AGAIN_MS: Final = 1000
"""A command that could not be ordered is ordered again after it."""


class Ending:
    """Of one queue and epoch. The queue is closed as long as nobody knows whether the command is carried out.

    again_ms  when it is ordered again; 0: it was not refused
    """

    __slots__ = ("_node", "_ordered", "_pool_id", "_queue", "again_ms")

    def __init__(self, queue: Queue, node: PoolHost, pool_id: LogIndex) -> None:
        self._queue = queue
        self._node = node
        self._pool_id = pool_id
        self.again_ms = 0
        self._ordered = queue.limits.closed = False

    @property
    def nothing_left(self) -> bool:
        """The queue is empty, and no group of the pool is left that something could come from."""
        ring = self._queue.ring
        return not ring.living(1, ring.next_seq - 1, 1) and not self._node.map.pools.groups(self._pool_id)

    def schedule(self, now_ms: int) -> None:
        """A command that was refused is ordered again in its time."""
        if self.again_ms > now_ms and not self._queue.paused:
            self._node.wake(self._queue, self.again_ms)

    def order(self) -> None:
        """The pool is deleted, and nothing is here any more."""
        if self._ordered or self._node.now_ms < self.again_ms:
            return
        self._ordered = self._queue.limits.closed = True
        entity = self._queue.entity
        command = EndPoolQueue(pool_id=self._pool_id, queue_id=entity.queue_id, epoch=entity.epoch)

        def done(applied: Applied) -> None:
            if not self._queue.deleted and self._queue.ring.owner is self._queue:
                self._ordered = False
                self._queue.limits.closed = isinstance(applied.error, Unavailable)
                self.again_ms = 0 if applied.ok and applied.result else self._node.now_ms + AGAIN_MS
                self._queue.ring.mark()

        self._node.propose(command, done)
