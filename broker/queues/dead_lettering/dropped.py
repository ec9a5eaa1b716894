"""The reason of a message that its queue dropped. Whether it had expired its content says, which may be on the disk."""

from __future__ import annotations

from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.journal.record import Message


def is_over(ring: Ring, message: Message, at_ms: int) -> bool:
    """Whether the message had expired before `at_ms`, wall clock, as `Dispatch.expire` counts."""
    return 0 <= ring.expiry_ms(message) < at_ms


def died_of(ring: Ring, message: Message, reason: Reason, dropped_ms: int) -> Reason:
    """`expired` if the message had expired before `dropped_ms`; else `reason`, as with `dropped_ms` 0."""
    return "expired" if is_over(ring, message, dropped_ms) else reason
