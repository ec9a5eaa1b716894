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
from clusterbroker.broker.pools.passing_queue import PassingPoolQueue
from clusterbroker.journal.record import Message

EXIT_MS: Final = 1000


class DeadQueue(PassingPoolQueue):
    """See the module."""

    __slots__ = ("_came_seqs", "_exits", "_waited")

    def _begin(self) -> None:
        super()._begin()
        self._came_seqs: deque[int] = deque()
        self._exits: dict[int, tuple[int, tuple[str, ...]]] = {}
        """Seq of what is poison -> (until when it waits, workers of whom the last is waited for), in order."""
        self._waited: dict[str, dict[int, None]] = {}
        """Worker -> what waits for it: a turn looks at workers, however many requests there are."""

    def _came(self, seq: int, message: Message) -> None:
        self._wait(seq, self.node.now_ms + EXIT_MS, tuple(filter(self._runs, poisoned(message) or ())))

    def _wait(self, seq: int, until_ms: int, workers: tuple[str, ...]) -> None:
        """For the next of its workers that runs, if one does."""
        while workers and not self._runs(workers[-1]):
            workers = workers[:-1]
        if workers:
            self._exits[seq] = until_ms, workers
            self._waited.setdefault(workers[-1], {})[seq] = None
        else:
            self._exits.pop(seq, None)
            self._came_seqs.append(seq)

    def _runs(self, worker: str) -> bool:
        """As far as its place has told."""
        return self.node.map.pools.launch(worker) is not None

    def _look_at_exits(self) -> None:
        for worker in [worker for worker in self._waited if not self._runs(worker)]:
            for seq in self._waited.pop(worker):
                self._wait(seq, *self._exits[seq])
        while self._exits:
            seq, (until_ms, workers) = next(iter(self._exits.items()))
            if self.node.now_ms < until_ms:
                return
            waiting = self._waited[workers[-1]]
            del self._exits[seq], waiting[seq]
            if not waiting:
                del self._waited[workers[-1]]
            self._came_seqs.append(seq)

    def _pass(self) -> None:
        self._look_at_exits()
        while self._came_seqs and self._has_room:
            if self.ring.set_aside(seq := self._came_seqs.popleft()):
                self._hold(seq, "answered")
        if self._came_seqs and self.node.effort.spent:
            self.node.later(self)
        pool = self.pool
        if pool is None or not pool.deleting or not self._is_done:
            return
        if all(self.node.map.queue_by_id(queue_id) is None for queue_id in (pool.orphans, pool.delayed)):
            self.ending.order()  # everybody is answered, and nobody else can die

    def _schedule(self, now_ms: int) -> None:
        super()._schedule(now_ms)
        if self._exits and not self.paused:
            self.node.wake(self, max(now_ms + 1, next(iter(self._exits.values()))[0]))
