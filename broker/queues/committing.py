"""A transaction's part in one queue: all of it happens, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.broker.queues.handle import CommitPart
from clusterbroker.broker.queues.moved import take_rows
from clusterbroker.broker.queues.ticket import Ticket

if TYPE_CHECKING:
    from clusterbroker.broker.queues.queue import Queue


def carry_out(queue: Queue, part: CommitPart, ticket: Ticket, now_ms: int) -> None:
    """Publishes and settles within one turn. What the queue refuses is refused whole, and the deliveries return.

    What is returned takes its old place before anything is published behind it: a queue with a length hands out and
    drops in the middle of this, and its oldest come first.
    """
    if part.moved is not None:
        take_rows(queue, part, ticket, now_ms)
        return
    known = queue.producers.knows
    new = [(m, named) for messages, named in part.publishes if named is None or not known(*named) for m in messages]
    if not queue.takes([message for message, _ in new], now_ms):
        ticket.rejected = True
        for _, named in new:
            if named is not None:
                queue.producers.refuse(*named)
        for seq, _ in part.settles:
            queue.requeue(seq, False)
        return
    for seq, outcome in part.settles:
        if outcome == "requeue":
            queue.requeue(seq, False)
    for messages, named in part.publishes:
        if named is None:
            queue.publish(messages, ticket, now_ms)
        else:
            queue.publish_named(*named, messages[0], ticket, now_ms)
    for seq, outcome in part.settles:
        if outcome == "ack":
            queue.ring.acked += 1
            queue.settle(seq, held=True)
        elif outcome == "reject":
            queue.reject(seq, at_once=True)
