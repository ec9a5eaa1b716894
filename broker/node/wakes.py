"""Wake-ups of idle queues: one time per queue, the earliest counts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from clusterbroker.broker.queues.local_queue import LocalQueue


class Wakes:
    """Of one node. A queue's wish is in its `wake_ms`; what else is in the heap is void."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, LocalQueue]] = []
        self._count = 0

    def wish(self, queue: LocalQueue, at_ms: int) -> None:
        """A turn at this time, or before. A queue that is woken too early asks again."""
        if not queue.wake_ms or at_ms < queue.wake_ms:
            queue.wake_ms = at_ms
            self._count += 1
            heapq.heappush(self._heap, (at_ms, self._count, queue))

    def mark(self, now_ms: int) -> None:
        """Marks those whose time has come."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, _, queue = heapq.heappop(self._heap)
            if queue.wake_ms == at_ms and not queue.deleted and queue.ring.owner is queue:  # else it is a replica's
                queue.wake_ms = 0
                queue.ring.mark()

    @property
    def next_ms(self) -> int | None:
        """The earliest wish; None: there is none."""
        while self._heap and (self._heap[0][2].wake_ms != self._heap[0][0] or self._heap[0][2].deleted):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


def earliest(times: Iterable[int | None]) -> int | None:
    """The earliest of some times in ms; None among them: none there. Asked several times a turn, so no list is made."""
    first = None
    for at_ms in times:
        if at_ms is not None and (first is None or at_ms < first):
            first = at_ms
    return first
