"""How long a queue is, as its limits count (amqp-rules 5.6: ready messages only), and what may become of a message that
is refused for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.broker.queues.states import HEAD_EXPIRED, HEAD_NOT_COMMITTED, HEAD_NOT_LOADED, HOLDER_MAX
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.queues.queue import Queue


TRIMMED_AT_ONCE: Final = 10_000


def exceeds(queue: Queue, more: int, more_bytes: int) -> bool:
    """Whether the ready messages, and so many more, are above the queue's length in messages or bytes.

    What a replicated queue cannot hand out yet, though a consumer waits for it, is not counted: in a queue of one node
    it would be gone by now.
    """
    if queue.sealed is not None:
        return True
    ring, length, size = queue.ring, queue.settings.max_length, queue.settings.max_length_bytes
    ready, ready_bytes = ring.ready, ring.ready_bytes
    if queue.burial is not None and ready and not queue.halted and (delayed := _delayed(queue)):
        credit = sum(max(0, credit.limit - credit.delivered) for credit in queue.subscriptions.credits)
        taken = min(ready, delayed, credit)
        ready, ready_bytes = ready - taken, ready_bytes * (ready - taken) // ready
    return (length is not None and ready + more > length) or (size is not None and ready_bytes + more_bytes > size)


def expire(queue: Queue, now_ms: int) -> bool:
    """Gives up what has expired at the head; whether there was anything. Of very many some wait for the next turn."""
    expired = False
    if queue.paused or queue.entity.staging:
        return False
    # a message with TTL 0 may still be handed out in the ms that brought it (amqp-rules 5.6): hence "- 1"
    while queue.ring.head(now_ms - 1) == HEAD_EXPIRED and not awaits_commit(queue):
        if queue.host.effort.spent:
            queue.host.later(queue)
            return False
        seq, message, _ = queue.ring.pop_head()
        queue.give_up(seq, message, "expired")
        queue.host.effort.popped()
        expired = True
    return expired


def trim(queue: Queue, now_ms: int, brought: int = 0) -> None:
    """drop-head: consumers with credit come first, then the oldest ready messages go. As many as were `brought` go at
    once; when a new limit or a transaction makes very many too many, some wait for the next turn."""
    if not exceeds(queue, 0, 0) or queue.rejects or queue.paused:
        return
    queue.make_room(now_ms)
    dropped = 0
    while exceeds(queue, 0, 0):
        if dropped >= min(brought, TRIMMED_AT_ONCE) and queue.host.effort.spent:
            queue.host.later(queue)
            return
        seq, message, _ = queue.ring.pop_head()
        queue.give_up(seq, message, "maxlen")
        queue.host.effort.popped()
        dropped += 1


def _delayed(queue: Queue) -> int:
    """How many of the ready messages cannot be handed out yet: those that are not committed, and all of them while the
    first one is on its way from the disk (after a failover the content of what clients hold is there alone)."""
    ring = queue.ring
    return ring.ready if ring.head(0) == HEAD_NOT_LOADED else ring.next_seq - ring.committed


def awaits_commit(queue: Queue) -> bool:
    """Whether the head has joined a replicated queue in this epoch, and nothing but its commit keeps it from a consumer
    who waits for it: in a queue of one node it would be gone by now, so it does not expire. All that was committed
    before has left then, but for a queue with priorities, where this is never said."""
    ring = queue.ring
    if queue.burial is None or queue.paused or queue.halted or ring.max_priority or not ring.ready:
        return False
    return (
        ring.head(0) == HEAD_NOT_COMMITTED
        and ring.committed >= ring.epochs[-1][1]
        and any(credit.has_credit for credit in queue.subscriptions.credits)
    )


def kills(queue: Queue) -> bool:
    """reject-publish-dlx: what is refused for want of room is a dead letter."""
    return queue.settings.overflow == "reject-publish-dlx" and queue.settings.dead_letter_exchange is not None


def refuse(queue: Queue, message: Message, named: tuple[bytes, int] | None) -> None:
    """There is no room for the message. If its producer numbers it, the log has to know that it is not here."""
    if kills(queue):
        kill(queue, message)
    if named is not None:
        queue.producers.refuse(*named)


def kill(queue: Queue, message: Message) -> None:
    """A message dies before it was ready. In a replicated queue it joins the log to do so, for the next owner too must
    know of it."""
    if queue.burial is None:
        queue.dying.refuse(message)
        return
    seq = queue.ring.next_seq
    queue.ring.append((message,))
    queue.ring.adopt(seq, seq, HOLDER_MAX)  # only a message that was taken out may die
    queue.ring.take_held(seq, seq, HOLDER_MAX)
    queue.burial.hold(seq, "maxlen")
