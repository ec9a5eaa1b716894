"""What a queue without copies has given up, on its way to the dead-letter exchange.

Letters go in the order of their deaths. The content of one may have to be read from the disk first; those behind it
wait, or what was published last would overtake a backlog. Until its letter is published, in the same group commit, a
message stays in its queue, so a crash finds it in one of the two places.

What a transaction rejects waits for nobody: its letter belongs into the group of the commit, and its content was
fetched before (`QueueFace.bring`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.queues.deadletter import Reason
from journal.record import Message

if TYPE_CHECKING:
    from broker.queues.queue import Queue
    from broker.queues.ring import Location


class Dying:
    """Of one queue."""

    __slots__ = ("_line", "_loaded", "_queue")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._line: deque[tuple[int, Reason]] = deque()
        self._loaded: dict[int, Message | None] = {}  # of the line; None: on its way from the disk

    def add(self, seq: int, message: Message | None, reason: Reason, at_once: bool) -> None:
        """An UNACKED message dies."""
        if message is not None and (at_once or not self._line):
            self._publish(seq, message, reason)
            return
        self._line.append((seq, reason))
        self._loaded[seq] = message
        if message is None:
            self._queue.host.load(self._queue, [self._queue.ring.location(seq)])

    def loaded(self, locations: Sequence[Location], messages: Sequence[Message]) -> None:
        """Content came from the disk."""
        for (seq, *_), message in zip(locations, messages, strict=True):
            assert self._loaded[seq] is None, "what is dying is loaded once"
            self._loaded[seq] = message
        while self._line and (content := self._loaded[self._line[0][0]]) is not None:
            seq, reason = self._line.popleft()
            del self._loaded[seq]
            self._publish(seq, content, reason)
        self._queue.ring.mark()

    def _publish(self, seq: int, message: Message, reason: Reason) -> None:
        self._queue.host.dead_letter(self._queue, message, reason)
        self._queue.ring.settle(seq, held=True)
