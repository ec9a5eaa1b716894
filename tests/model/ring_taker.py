"""Who takes messages of a ring: what `dispatch` and a proxy's ring want to know of a consumer, whatever it speaks."""

from __future__ import annotations

from typing import Any

from tests.model.record import Message

NO_LIMIT = 2**64 - 1
ROOM_MAX = 2**63 - 1


class Taker:
    """Of one ring. Another protocol derives its consumers from this.

    active     False while it must get nothing (cancelled, or waiting as a single active consumer)
    priority   higher ones come first
    owner      of the taker: told of what was handed out (`subscription.Member`)
    delivered  total
    limit      link credit: `delivered` may rise to it, and the taker may raise it (AMQP 1.0, 2.6.7: delivery-count plus
               link-credit, without its wrap); NO_LIMIT where another bound is all there is
    selection  what it takes of the queue (`ring_selection`); None: all, in order
    """

    __slots__ = ("active", "delivered", "limit", "owner", "priority", "ring", "selection")

    def __init__(self, ring: Any, priority: int = 0, owner: Any = None) -> None:
        self.ring = ring
        self.priority = priority
        self.owner = owner
        self.active = True
        self.delivered = 0
        self.limit = NO_LIMIT
        self.selection: Any = None

    @property
    def has_credit(self) -> bool:
        """Whether it may be handed one more message."""
        return False

    @property
    def room(self) -> int:
        """How many more it may be handed, whatever its socket takes."""
        return min(max(0, self.limit - self.delivered), ROOM_MAX)

    @property
    def writable(self) -> bool:
        """Whether what it is handed may go now: its client takes deliveries, and its socket takes output."""
        return self.flows

    @property
    def shared(self) -> bool:
        """Whether its `room` may shrink otherwise than by what it is handed: as other takers have it, too."""
        return False

    @property
    def flows(self) -> bool:
        """Whether it may be handed anything at all, though it have no credit."""
        return False

    def hand(self, seq: int, message: Message, redelivered: bool, delivery_count: int, now_ms: int) -> bool:
        """Takes a message, which is valid for the call; whether it is settled with that."""
        raise NotImplementedError
