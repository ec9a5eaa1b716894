"""The queue of requests that died, at its owner: the shell of the pool's responder.

Each is held as a dead letter of reason `answered`, and what is published of it is its answer: numbered, so a reply
queue gets it once, over failovers; a direct reply-to address at most once per owner.

A worker's connection ends before its place has told how it ended. So what is poison waits for that, EXIT_MS at most,
and others pass it by.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from clusterbroker.broker.pools.losses import poisoned
from clusterbroker.broker.pools.passing_queue import AGAIN_MS, PassingQueue
from clusterbroker.cluster.wiring.commands import EndPoolQueue
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.journal.record import Message

EXIT_MS: Final = 1000


class DeadQueue(PassingQueue):
    """See the module."""

    __slots__ = ("_again_ms", "_came_seqs", "_ending", "_exits")

    def _begin(self) -> None:
        super()._begin()
        self._came_seqs: deque[int] = deque()
        self._exits: dict[int, tuple[int, tuple[str, ...]]] = {}
        """Seq of what is poison -> (until when it waits, workers), in order."""
        self._again_ms = 0
        self._ending = False

    def _came(self, seq: int, message: Message) -> None:
        workers = tuple(filter(self._runs, poisoned(message) or ()))
        if workers:
            self._exits[seq] = self.node.now_ms + EXIT_MS, workers
        else:
            self._came_seqs.append(seq)

    def _runs(self, worker: str) -> bool:
        """As far as its place has told."""
        return self.node.map.pools.launch(worker) is not None

    def _pass(self) -> None:
        for seq, (until_ms, workers) in tuple(self._exits.items()):
            if self.node.now_ms >= until_ms or not any(map(self._runs, workers)):
                del self._exits[seq]
                self._came_seqs.append(seq)
        while self._came_seqs and self._has_room:
            if self.ring.set_aside(seq := self._came_seqs.popleft()):
                self._hold(seq, "answered")
        if self._came_seqs and self.node.effort.spent:
            self.node.later(self)
        pool = self.pool
        if pool is not None and pool.deleting and not self._ending and self.node.now_ms >= self._again_ms:
            self._end_of(pool.pool_id, pool.orphans)

    def _end_of(self, pool_id: int, orphans: int) -> None:
        """Of a pool that is deleted: everybody is answered, and nobody else can die."""
        if self.node.map.queue_by_id(orphans) is not None or self.node.map.pools.groups(pool_id):  # type: ignore[arg-type]
            return
        if self._next < self.ring.next_seq or self.ring.living(1, self.ring.next_seq - 1, 1):
            return
        self._ending = True
        command = EndPoolQueue(pool_id=pool_id, queue_id=self.entity.queue_id, epoch=self.entity.epoch)  # type: ignore[arg-type]

        def done(applied: Applied) -> None:
            if not self.deleted and self.ring.owner is self:
                self._ending = False
                self._again_ms = 0 if applied.ok and applied.result else self.node.now_ms + AGAIN_MS
                self.ring.mark()

        self.node.propose(command, done)

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        if self._again_ms > now_ms and not self.paused:
            self.node.wake(self, self._again_ms)
        if self._exits and not self.paused:
            self.node.wake(self, max(now_ms + 1, next(iter(self._exits.values()))[0]))
