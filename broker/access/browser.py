"""A queue that is looked through and not taken from (AMQP 1.0, 3.5.6: distribution-mode copy)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.readers import DELIVERED_COUNT, OFFSET_MAX, RangeReader, ReadingConsumer
from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.queues.browse import Browse
from clusterbroker.broker.queues.handle import UNANSWERED_MS, QueueHandle

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization


class BrowseReader(RangeReader):
    """What is ready in a queue, from its head on, each message once. The owner is asked for what comes next, one
    question at a time; a question without an answer is asked again."""

    __slots__ = ("_asked_ms", "_asking", "_dry", "_wanted")

    def __init__(self, access: Authorization, queue: QueueHandle, wanted: Filter | None) -> None:
        super().__init__(access, queue, 0, OFFSET_MAX, chunks=False)
        self._wanted = b"" if wanted is None else wanted.wire
        self._asking = 0
        """The question that is open, 0: none is. An answer to another one is nobody's."""
        self._asked_ms = 0
        self._dry: Callable[[], None] | None = None

    def check(self, consumer: ReadingConsumer) -> None:
        """Anybody who may read may look."""

    def subscribe(self, consumer: ReadingConsumer, now_ms: int, then: Callable[[str | Refusal], None]) -> None:
        self.consumer, self._asked_ms = consumer, now_ms
        self.ring.mark()
        then("")

    def overdue(self, now_ms: int) -> bool:
        if self.consumer is not None and self._asking and now_ms - self._asked_ms > UNANSWERED_MS:
            self._asking = 0  # no owner was there to be asked
            self.ring.mark()
        return self.consumer is None

    def drain(self, dry: Callable[[], None]) -> None:
        """`dry` is called once when there is nothing more to show now, or no credit for it."""
        self._dry, self._asking = dry, 0
        self.pump(self._node.now_ms)

    def pump(self, now_ms: int) -> None:
        consumer = self.consumer
        if consumer is None or self._asking:
            return
        if self._queue.deleted:
            self._finish()
            return
        room = min(consumer.room, DELIVERED_COUNT)
        if room <= 0:
            if self._dry is not None and consumer.credit.room <= 0:
                self._is_dry()
            return
        self._asked_ms = now_ms
        number = self._asking = self._node.streams.next_reader()
        browse = Browse(self.next, room, self._dry is None, self._wanted)
        self._queue.browse(browse, lambda seq, records: self._came(number, seq, records), now_ms)

    def _is_dry(self) -> None:
        dry, self._dry = self._dry, None
        if dry is not None:
            dry()

    def _came(self, number: int, seq: int, records: bytes) -> None:
        if number != self._asking or self.consumer is None:
            return
        self._asking = 0
        passed, self.next = seq > self.next, max(seq, self.next)
        if records:
            self._deliver(self.next, 0, records, self._node.now_ms)
        elif self._dry is not None and not passed and not self._queue.deleted:
            self._is_dry()
        self.ring.mark()
