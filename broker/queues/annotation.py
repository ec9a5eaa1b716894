"""What a consumer sees of a message besides what its publisher wrote: how often it came before, and never BCC; and who
else sees it (`watch`), or hears of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from clusterbroker.broker.content.message import with_annotations
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.stumble import Stumble
from clusterbroker.broker.queues.subscription import Member
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.journal.layout import HAS_BCC
from clusterbroker.journal.record import Message

Handed = Callable[[int, Message, int, Member | None], None]
"""A message with its number and delivery count goes to a consumer; None: to who asked for one."""
ACQUIRED_MAX: Final = 4096
"""So many messages of a queue have their x-acquired-count remembered, the latest ones."""


class Annotation:
    """Of one queue's messages."""

    __slots__ = ("_acquired", "_ring", "_watch", "handed")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._acquired: dict[int, int] | None = None  # seq -> how often it was handed out in vain
        self._watch: Watch | None = None
        self.handed: Handed | None = None

    def watched(self, watch: Watch | None) -> None:
        """Who looks at what is handed to consumers of this node."""
        self._watch = watch
        self._look_at_all()

    def tell(self, handed: Handed | None) -> None:
        """Who hears of each message as it is handed out, wherever its consumer is; None: nobody."""
        self.handed = handed
        self._look_at_all()

    def _look_at_all(self) -> None:
        everything = self._watch is not None and self._watch.everything
        self._ring.annotates_all = everything or self.handed is not None

    def count(self, seq: int) -> None:
        """The message has returned."""
        if self._acquired is None:
            self._acquired = {}
        self._acquired[seq] = self._acquired.pop(seq, 0) + 1
        if len(self._acquired) > ACQUIRED_MAX:
            del self._acquired[next(iter(self._acquired))]

    def annotate(
        self, message: Message, seq: int, delivery_count: int, taker: Any = None, redelivered: bool = False
    ) -> Message:
        """What a consumer sees: x-delivery-count and x-acquired-count on a redelivery, never BCC. Raises Stumble.

        `taker`: who will have it next; None for a basic.get.
        """
        try:
            return self._annotated(message, seq, delivery_count, taker, redelivered)
        except Exception as error:
            raise Stumble(seq) from error

    def _annotated(self, message: Message, seq: int, delivery_count: int, taker: Any, redelivered: bool) -> Message:
        acquired = self._acquired.get(seq) if self._acquired is not None else None
        if message.flags & HAS_BCC or delivery_count or acquired is not None:
            message = self._changed(message, delivery_count, acquired)
        consumer = None if taker is None else taker.owner
        if self._watch is not None and consumer is not None and not consumer.node:
            consumer.show(self._watch, message, redelivered, handed=False)
        if self.handed is not None and taker is not None:
            self.handed(seq, message, delivery_count, consumer)
        return message

    def _changed(self, message: Message, delivery_count: int, acquired: int | None) -> Message:
        added: dict[str, int] = {}
        if self._ring.annotates_redelivered:
            if delivery_count:
                added["x-delivery-count"] = delivery_count
            if acquired is not None:
                added["x-acquired-count"] = acquired
        return with_annotations(message, added)
