"""What a consumer sees of a message besides what its publisher wrote: how often it came before, and never BCC."""

from __future__ import annotations

from typing import Final

from broker.amqp import properties as codec
from broker.queues.ring import Ring
from journal.record import Message

ACQUIRED_MAX: Final = 4096
"""So many messages of a queue have their x-acquired-count remembered, the latest ones."""


class Annotation:
    """Of one queue's messages."""

    __slots__ = ("_acquired", "_ring")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._acquired: dict[int, int] | None = None  # seq -> how often it was handed out in vain

    def count(self, seq: int) -> None:
        """The message has returned."""
        if self._acquired is None:
            self._acquired = {}
        self._acquired[seq] = self._acquired.pop(seq, 0) + 1
        if len(self._acquired) > ACQUIRED_MAX:
            del self._acquired[next(iter(self._acquired))]

    def annotate(self, message: Message, seq: int, delivery_count: int) -> Message:
        """What a consumer sees: x-delivery-count and x-acquired-count on a redelivery, never BCC."""
        properties = codec.decode(message.header)
        headers = dict(properties.headers or {})
        headers.pop("BCC", None)
        if self._ring.annotates_redelivered:
            if delivery_count:
                headers["x-delivery-count"] = delivery_count
            acquired = self._acquired.get(seq) if self._acquired is not None else None
            if acquired is not None:
                headers["x-acquired-count"] = acquired
        properties.headers = headers or (None if properties.headers is None else {})
        header = codec.encode(properties)
        return Message(
            message.address, header + message.body, len(header), message.flags, message.priority, message.time_ms,
            message.ttl_ms,
        )  # fmt: skip
