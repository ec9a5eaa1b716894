"""How long a queue may be (amqp-rules 5.6: ready messages only), and what becomes of what exceeds that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.queues.dead_lettering.dead_lettering import DeadLettering
from clusterbroker.broker.queues.dispatch import Dispatch
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import HEAD_NOT_LOADED
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message

TRIMMED_AT_ONCE: Final = 10_000


class Limits:
    """Of one queue.

    any      there is a limit
    rejects  beyond it publishes are refused; otherwise the oldest messages go
    closed   there is no room for anything
    """

    __slots__ = ("_dead_letters", "_dispatch", "_queue", "any", "closed", "rejects")

    def __init__(self, queue: LocalQueue, dispatch: Dispatch, dead_letters: DeadLettering) -> None:
        self._queue = queue
        self._dispatch = dispatch
        self._dead_letters = dead_letters
        self.closed = False
        self.adopt(queue.settings)

    def adopt(self, settings: QueueSettings) -> None:
        """New settings."""
        self.any = settings.max_length is not None or settings.max_length_bytes is not None
        self.rejects = self.any and settings.overflow != "drop-head"

    def _exceeds(self, more: int, more_bytes: int) -> bool:
        """Whether the ready messages, and so many more, are above the limit in messages or bytes.

        What a replicated queue cannot hand out yet, though a consumer waits for it, is not counted: in a queue of one
        node it would be gone by now.
        """
        queue = self._queue
        if queue.sealed is not None or self.closed:
            return True
        ring, length, size = queue.ring, queue.settings.max_length, queue.settings.max_length_bytes
        ready, ready_bytes = ring.ready, ring.ready_bytes
        if queue.replicated and ready and not queue.halted and (delayed := self._delayed):
            credit = sum(max(0, credit.limit - credit.delivered) for credit in queue.subscriptions.credits)
            taken = min(ready, delayed, credit)
            ready, ready_bytes = ready - taken, ready_bytes * (ready - taken) // ready
        return (length is not None and ready + more > length) or (size is not None and ready_bytes + more_bytes > size)

    @property
    def _delayed(self) -> int:
        """How many of the ready messages cannot be handed out yet: those that are not committed, and all of them while
        the first one is on its way from the disk (after a failover the content of what clients hold is there alone)."""
        ring = self._queue.ring
        return ring.ready if ring.head(0) == HEAD_NOT_LOADED else ring.next_seq - ring.committed

    def has_room(self, now_ms: int, more: int = 1, more_bytes: int = 1) -> bool:
        """Whether there is room for so much more."""
        if self._exceeds(more, more_bytes):
            self._make_room(now_ms)
        return not self._exceeds(more, more_bytes)

    def takes(self, messages: Sequence[Message], now_ms: int) -> bool:
        """See `LocalQueue.takes`."""
        if not (self.closed or self.rejects):
            return True
        return self.has_room_for(len(messages), sum([message.body_length for message in messages[:-1]]), now_ms)

    def has_room_for(self, count: int, bodies_but_last: int, now_ms: int) -> bool:
        """See `LocalQueue.has_room_for`."""
        return not count or self.has_room(now_ms, count, bodies_but_last + 1)

    def _make_room(self, now_ms: int) -> None:
        """What has expired is gone, and consumers with credit have what is ready."""
        self._dispatch.expire(now_ms)
        self._dispatch.hand_out(now_ms)

    def trim(self, now_ms: int, brought: int = 0) -> None:
        """drop-head: consumers with credit come first, then the oldest ready messages go. As many as were `brought` go
        at once; when a new limit or a transaction makes very many too many, some wait for the next turn. What has
        expired by now dies of that, also if only its content on the disk says so."""
        queue = self._queue
        if not self._exceeds(0, 0) or self.rejects or queue.paused:
            return
        self._make_room(now_ms)
        dropped = 0
        sweeping = self._dispatch.sweeping
        while self._exceeds(0, 0):
            if sweeping is not None and sweeping.waits:  # what the queue does not keep drives nothing out
                queue.host.later(queue)
                return
            if dropped >= min(brought, TRIMMED_AT_ONCE) and queue.host.effort.spent:
                queue.host.later(queue)
                return
            seq, message, _ = queue.ring.pop_head()
            self._dead_letters.give_up(seq, message, "maxlen", dropped_ms=now_ms)
            queue.host.effort.popped()
            dropped += 1
