"""Who takes messages of a ring: what `dispatch` and a proxy's ring want to know of a consumer, whatever it speaks."""

from __future__ import annotations

from typing import Any

from tests.model.record import Message


class Taker:
    """Of one ring. Another protocol derives its consumers from this.

    active     False while it must get nothing (cancelled, or waiting as a single active consumer)
    priority   higher ones come first
    owner      of the taker: told of what was handed out (`subscription.Member`)
    delivered  total
    """

    __slots__ = ("active", "delivered", "owner", "priority", "ring")

    def __init__(self, ring: Any, priority: int = 0, owner: Any = None) -> None:
        self.ring = ring
        self.priority = priority
        self.owner = owner
        self.active = True
        self.delivered = 0

    @property
    def has_credit(self) -> bool:
        """Whether it may be handed one more message."""
        return False

    @property
    def flows(self) -> bool:
        """Whether it may be handed anything at all, though it have no credit."""
        return False

    def hand(self, seq: int, message: Message, redelivered: bool, delivery_count: int, now_ms: int) -> bool:
        """Takes a message, which is valid for the call; whether it is settled with that."""
        raise NotImplementedError
