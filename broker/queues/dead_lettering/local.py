"""What a queue without copies has given up, on its way to the dead-letter exchange.

Letters go in the order of their deaths. The content of one may have to be read from the disk first; those behind it
wait, or what was published last would overtake a backlog. Until its letter is published, in the same group commit, a
message stays in its queue, so a crash finds it in one of the two places. How many are published in one turn of the node
is bounded (`effort`); the rest wait for the next one.

What a transaction rejects waits for nobody: its letter belongs into the group of the commit, and its content was
fetched before (`QueueHandle.preload`). What is refused for want of room was never in the queue: it dies without a seq.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from clusterbroker.broker.queues.dead_lettering.death import Reason
from clusterbroker.broker.queues.dead_lettering.dropped import died_of
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message


class LocalDeadLetters:
    """Of one queue."""

    __slots__ = ("_content", "_line", "_queue", "_refused", "_unweighed")

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self._line: deque[tuple[int, Reason, int]] = deque()  # seq, reason, dropped_ms
        self._content: dict[int, Message | None] = {}  # of what dies; None: on its way from the disk
        self._unweighed: set[int] = set()  # too many, and their sizes are not known before they are here
        self._refused = 0  # so many were never in the queue: they count down from -1 in the place of seqs

    def add(
        self, seq: int, message: Message | None, reason: Reason, at_once: bool = False, dropped_ms: int = 0
    ) -> None:
        """An UNACKED message dies. See `DeadLettering.give_up`."""
        if message is not None and at_once:
            self._content[seq] = message
            try:
                self._publish(seq, message, reason)
            finally:
                del self._content[seq]
            return
        self._line.append((seq, reason, dropped_ms))
        self._content[seq] = message
        if message is None:
            if reason == "maxlen":
                self._unweighed.add(seq)
            self._queue.host.load(self._queue, [self._queue.ring.location(seq)], self._loaded)
        else:
            if reason == "maxlen":
                self._queue.host.effort.owed += message.size
            self.go_on()

    @property
    def is_over(self) -> bool:
        """Nothing is on its way out."""
        return not self._content

    def has(self, seq: int) -> bool:
        """Whether this message is on its way out."""
        return seq in self._content

    def refuse(self, message: Message) -> None:
        """There is no room for the message, and it dies before it was ready."""
        self._refused += 1
        self.add(-self._refused, message, "maxlen")

    def _loaded(self, locations: Sequence[Location], messages: Sequence[Message], asked: Sequence[Location]) -> None:
        if self._queue.deleted:
            return
        for where in asked:
            if where not in locations:
                self._unread(where[0])
        for (seq, *_), message in zip(locations, messages, strict=True):
            assert self._content[seq] is None, "what is dying is loaded once"
            self._content[seq] = message
            if seq in self._unweighed:
                self._unweighed.remove(seq)
                self._queue.host.effort.owed += message.size
        self.go_on()
        self._queue.ring.mark()

    def go_on(self) -> None:
        """Publishes what stands in front, is here, and finds room in this turn."""
        queue, host = self._queue, self._queue.host
        while self._line and not queue.broken:
            seq, reason, dropped_ms = self._line[0]
            message = self._content[seq]
            if message is None:
                return
            if host.effort.spent:
                host.later(queue)
                return
            if host.dead_lettering:  # it was a letter that found no room: chains of queues must not nest
                queue.ring.mark()
                return
            try:
                self._publish(seq, message, died_of(queue.ring, message, reason, dropped_ms))
            except Exception as error:
                host.stumbled(queue, error, max(seq, 0))
                return
            self._line.popleft()
            del self._content[seq]
            if reason == "maxlen":
                host.effort.owed -= message.size

    def drop(self) -> None:
        """The queue is deleted."""
        for seq, reason, _ in self._line:
            if reason == "maxlen" and (message := self._content[seq]) is not None:
                self._queue.host.effort.owed -= message.size
        self._line.clear()
        self._content.clear()
        self._unweighed.clear()

    def _unread(self, seq: int) -> None:
        """Its content cannot be read: it stays in its queue, and is nobody's."""
        if seq in self._content:
            del self._content[seq]
            self._line = deque(entry for entry in self._line if entry[0] != seq)

    def _publish(self, seq: int, message: Message, reason: Reason) -> None:
        self._queue.host.dead_letter(self._queue, self._queue.letter(seq, message), reason)
        if seq > 0:
            self._queue.ring.settle(seq, held=True)
