"""Those who look through a queue, at its owner.

A browser sees what is ready and committed when it comes by, each message once: its place only goes on. What others
hold by then it does not see, though that may return. Messages on disk are read for it alone, and stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clusterbroker.broker.content.selector.filters import BadFilter, Filter, filter_on_wire
from clusterbroker.broker.content.selector.subject import Subject
from clusterbroker.broker.queues.browse import BYTES_MAX, Browse, Browsed
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.states import READY
from clusterbroker.journal.layout import Location
from clusterbroker.journal.record import Message, RecordBuffer

LOOK_MAX: Final = 256
"""Messages looked at for one question at a time."""
WORK_MAX: Final = 5_000
"""What judging for one answer may take (`Filter.work`), about in us."""
LOOKED_AT_ONCE: Final = 1024
"""In one turn of a queue, of all questions."""
LOAD_BYTES: Final = 1 << 20
"""About so much is read from the disk for one question at a time."""
PATIENCE_MS: Final = 20_000
"""A question with nothing to show is answered by then; its browser asks again."""


@dataclass(slots=True, eq=False)
class Asked:
    """A question that waits."""

    seq: int
    browse: Browse
    wanted: Filter | None
    then: Browsed
    due_ms: int


class Browsing:
    """Of one queue."""

    __slots__ = ("_asked", "_fetching", "_queue")

    def __init__(self, queue: LocalQueue) -> None:
        self._queue = queue
        self._asked: list[Asked] = []
        self._fetching: dict[Asked, None] = {}

    def ask(self, browse: Browse, then: Browsed, now_ms: int) -> None:
        """`then` is called in a turn; never, when the epoch ends."""
        try:
            wanted = filter_on_wire(browse.filter)
        except BadFilter:
            wanted = Filter((lambda _: False,), b"")
        due_ms = now_ms + PATIENCE_MS if browse.waits else 0
        self._asked.append(Asked(browse.seq, browse, wanted, then, due_ms))
        self._queue.ring.mark()

    @property
    def waits(self) -> bool:
        """Somebody wants what comes next."""
        return bool(self._asked)

    @property
    def due_ms(self) -> int:
        """When a question is to be answered, 0: none is."""
        return min((asked.due_ms for asked in self._asked if asked.due_ms), default=0)

    def turn(self, now_ms: int) -> None:
        """Answers what can be answered."""
        waiting, self._asked, looked = self._asked, [], 0
        for place, asked in enumerate(waiting):
            if looked >= LOOKED_AT_ONCE:
                self._asked += waiting[place:]
                self._queue.host.later(self._queue)
                return
            looked += self._look(asked, now_ms)

    def _look(self, asked: Asked, now_ms: int) -> int:
        """How many messages were looked at."""
        queue, ring = self._queue, self._queue.ring
        end = ring.committed if ring.replicated else ring.next_seq
        living = [] if queue.halted or asked.seq >= end else ring.living(asked.seq, end - 1, LOOK_MAX)
        ready = [(seq, redelivered, count) for seq, state, redelivered, count, _ in living if state == READY]
        upto = living[-1][0] + 1 if len(living) >= LOOK_MAX else max(asked.seq, end)
        if not ready:
            if not queue.halted:
                asked.seq = upto
            if len(living) >= LOOK_MAX:
                self._asked.append(asked)
                queue.host.later(queue)
            elif now_ms >= asked.due_ms:
                asked.then(asked.seq, b"")
            else:
                self._asked.append(asked)
            return len(living)
        absent: list[Location] = []
        for seq, _, _ in ready:
            if ring.message(seq) is None:
                absent.append(ring.location(seq))
                if sum(length for *_, length in absent) >= LOAD_BYTES:
                    upto = seq + 1
                    break
        if not absent:
            self._show(asked, ready, {}, upto)
            return len(living)

        def fetched(messages: Sequence[Message]) -> None:
            if asked in self._fetching:
                del self._fetching[asked]
                found = {location[0]: message for location, message in zip(absent, messages, strict=True)}
                self._show(asked, ready, found, upto)

        self._fetching[asked] = None
        queue.host.fetch(queue, absent, fetched, lambda: self._pass_over(asked, upto))
        return len(living)

    def _pass_over(self, asked: Asked, upto: int) -> None:
        """Some of these cannot be read, and are held back."""
        if asked in self._fetching:
            del self._fetching[asked]
            asked.then(upto, b"")

    def _show(self, asked: Asked, ready: Sequence[tuple[int, bool, int]], found: dict[int, Message], upto: int) -> None:
        queue, buffer, shown, work = self._queue, RecordBuffer(), 0, 0
        for seq, redelivered, count in ready:
            if seq >= upto:
                break
            if shown >= asked.browse.count_max or buffer.size >= BYTES_MAX or work > WORK_MAX:
                upto = seq
                break
            if not any(state == READY for _, state, *_ in queue.ring.living(seq, seq, 1)):
                continue  # somebody took it meanwhile
            message = found.get(seq) or queue.ring.message(seq)
            if message is None:  # it left memory meanwhile
                upto = seq
                break
            takes: bool | None = True
            if asked.wanted is not None:
                work += asked.wanted.work(message)
                takes = asked.wanted.takes(Subject(message))
            if takes is None:  # no memory to judge by: it is asked for again
                upto = seq
                break
            if takes:
                buffer.enqueue(
                    queue.entity.queue_id, queue.ring.epoch, seq, queue.shown(seq, message, redelivered, count), count,
                    redelivered,
                )  # fmt: skip
                shown += 1
        asked.then(upto, buffer.take())

    def end(self) -> None:
        """The epoch is over: who asked asks the next owner."""
        self._asked, self._fetching = [], {}

    def drop(self) -> None:
        """The queue is deleted."""
        waiting = [*self._asked, *self._fetching]
        self.end()
        for asked in waiting:
            asked.then(0, b"")
