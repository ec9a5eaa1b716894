"""How long a queue is, as its limits count (amqp-rules 5.6: ready messages only)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.queues.queue import Queue


def exceeds(queue: Queue, more: int, more_bytes: int) -> bool:
    """Whether the ready messages, and so many more, are above the queue's length in messages or bytes.

    In a replicated queue a message that is not committed cannot be handed out yet. If a consumer waits for it, it is
    not counted: in a queue of one node it would be gone by now.
    """
    ring, length, size = queue.ring, queue.settings.max_length, queue.settings.max_length_bytes
    ready, ready_bytes = ring.ready, ring.ready_bytes
    if queue.burial is not None and ready and ring.committed < ring.next_seq:
        credit = sum(max(0, credit.limit - credit.delivered) for credit in queue.subscriptions.credits)
        taken = min(ready, ring.next_seq - ring.committed, credit)
        ready, ready_bytes = ready - taken, ready_bytes * (ready - taken) // ready
    return (length is not None and ready + more > length) or (size is not None and ready_bytes + more_bytes > size)
