"""Committed segments whose queues this node owns, and who has their rows.

Rows of one producer reach a queue in the order of its epochs, and within an epoch in the order of the commit. So its
segments stand in a line here and one of them is moved at a time; the first of an epoch waits until the map has no
committed segment of an earlier one, whoever owns that. What owners of one epoch move at the same time has no order.

    line      (vhost, producer) -> movers by epoch and place
    keepers   segment -> queues of this node that remember which of its rows they have, for as long as there is the
              segment: what comes of one that is not in the map any more has come before
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.transactions.host import MovingHost
from clusterbroker.broker.transactions.mover import ROWS_MAX, Mover
from clusterbroker.broker.transactions.pace import Pace
from clusterbroker.cluster.ids import Epoch, QueueId
from clusterbroker.cluster.wiring.commands import FinishSegments
from clusterbroker.cluster.wiring.entities import Segment
from clusterbroker.cluster.wiring.map import Applied

AGAIN_MS: Final = 1000
ACTIVE_MAX: Final = 32
"""Producers whose rows are moved at the same time: each of them has a group in memory."""
PATIENCE_MS: Final = 5000
"""So long a group may be on its way before others need not wait for it: its target may have no owner for days."""
COUNTED_MAX: Final = 1000
"""Segments whose rows are asked for at once; of others nobody is told how many they are. Who asks for more of them than
that in one millisecond waits for the next: one answer may name 10,000."""
COUNT_MS: Final = 1000
"""So long somebody waits to hear how many rows there are."""
FINISHED_AT_ONCE: Final = 1000
Key = tuple[str, str]
Counted = Callable[[dict[str, tuple[int, int]]], None]
"""Is told rows and bytes of segments by their names."""


class Counting:
    """Somebody waits for the rows of some segments."""

    def __init__(self, waits: int, then: Counted) -> None:
        self.waits = waits
        self.then: Counted | None = then
        self._rows: dict[str, tuple[int, int]] = {}

    def counted(self, name: str, rows: int, size: int) -> None:
        self.answered(name, (rows, size))

    def answered(self, name: str, rows: tuple[int, int] | None) -> None:
        self.waits -= 1
        if rows is not None:
            self._rows[name] = rows
        if not self.waits:
            self.over()

    def over(self) -> None:
        """Enough is known."""
        then, self.then = self.then, None
        if then is not None:
            then(self._rows)


class Moving:
    """Of one node.

    due     lines whose first mover is to be looked at
    pace    of what producers are told
    """

    def __init__(self, node: MovingHost) -> None:
        self.due: dict[Key, None] = {}
        self.pace = Pace(node)
        self._node = node
        self._lines: dict[Key, list[Mover]] = {}
        self._movers: dict[int, Mover] = {}  # by queue id
        self._keepers: dict[int, dict[LocalQueue, None]] = {}
        self._active: dict[Key, None] = {}  # lines with rows in hand
        self._waiting: dict[Key, None] = {}  # lines that are due and wait for others to come to an end
        self._finished: list[Mover] = []
        self._counting: deque[tuple[int, Counting]] = deque()
        self._asked: deque[tuple[str, Sequence[Segment], Counted]] = deque()  # they wait for the next millisecond
        self._told = 0, 0  # ms, and of how many segments somebody was told in it

    # -- what the node tells --------------------------------------------------------------------------------------

    def own(self, queue: LocalQueue) -> None:
        """This node owns the queue from now on."""
        for segment_id in queue.moved_segments():
            if self.moves(segment_id):
                self.keeps(queue, segment_id)
            else:
                queue.forget_moved(segment_id)
        if queue.entity.staging:
            segment = self._node.map.segment_of_queue(queue.entity.queue_id)
            if segment is not None:
                self.known(segment)

    def lose(self, queue: LocalQueue) -> None:
        """It owns it no longer."""
        for keepers in self._keepers.values():
            keepers.pop(queue, None)
        self._take_out(queue.entity.queue_id)

    def known(self, segment: Segment) -> None:
        """There is a segment: its rows are to be moved if it is committed and its queue is here."""
        queue = self._node.queues.get(segment.queue_id)
        if queue is None or segment.place is None or segment.queue_id in self._movers:
            return
        mover = Mover(queue, segment, self._node.vhosts[segment.vhost].router, self._node)
        self._movers[segment.queue_id] = mover
        key = segment.vhost, segment.producer
        insort(self._lines.setdefault(key, []), mover, key=lambda mover: (mover.segment.epoch, mover.segment.place))
        queue.sealed = lambda: self.due.setdefault(key)
        queue.ring.mark()

    def ended(self, segment: Segment) -> None:
        """It is gone: nobody asks for its rows again, and who waited for its epoch may go on."""
        for queue in self._keepers.pop(segment.queue_id, ()):
            queue.forget_moved(segment.queue_id)
        self._take_out(segment.queue_id)
        self.pace.moved((segment.vhost, segment.producer))
        line = self._lines.get((segment.vhost, segment.producer))
        if line:
            line[0].queue.ring.mark()

    def anew(self, queue: LocalQueue) -> None:
        """Its rows are looked at again from the first one; what targets have of them they know."""
        self._take_out(queue.entity.queue_id)
        segment = self._node.map.segment_of_queue(queue.entity.queue_id)
        if segment is not None:
            self.known(segment)

    def holds(self, queue_id: int) -> bool:
        """Whether rows of this queue are on their way."""
        mover = self._movers.get(queue_id)
        return mover is not None and mover.holds

    def _take_out(self, queue_id: int) -> None:
        mover = self._movers.pop(queue_id, None)
        if mover is None:
            return
        mover.ended = True
        mover.queue.sealed = None
        key = mover.segment.vhost, mover.segment.producer
        line = self._lines[key]
        if mover in line:
            line.remove(mover)
        if line:
            line[0].queue.ring.mark()
        else:
            del self._lines[key]
            self._waiting.pop(key, None)
            self.due.pop(key, None)
        self._active.pop(key, None)
        if self._waiting:  # there may be room for one of them
            self._lines[next(iter(self._waiting))][0].queue.ring.mark()

    # -- what queues ask ------------------------------------------------------------------------------------------

    def moves(self, segment_id: int) -> bool:
        """Whether the rows of this segment may be on their way."""
        segment = self._node.map.segment_of_queue(QueueId(segment_id))
        return segment is not None and segment.place is not None

    def keeps(self, queue: LocalQueue, segment_id: int) -> None:
        """The queue remembers what it has of the segment."""
        self._keepers.setdefault(segment_id, {})[queue] = None

    def count(self, vhost: str, segments: Sequence[Segment], then: Counted) -> None:
        """Calls `then` with rows and bytes of segments by their names, when all are known or COUNT_MS are over."""
        self._asked.append((vhost, segments, then))
        self._count_some(self._node.now_ms)

    def _count_some(self, now_ms: int) -> None:
        while self._asked:
            told_ms, told = self._told
            told = told if told_ms == now_ms else 0
            if told >= COUNTED_MAX:
                return
            vhost, segments, then = self._asked.popleft()
            self._told = now_ms, told + len(segments)
            self._count(vhost, segments[:COUNTED_MAX], then)

    def _count(self, vhost: str, segments: Sequence[Segment], then: Counted) -> None:
        counting = Counting(len(segments), then)
        here = self._node.vhosts.get(vhost)  # None: it was deleted while somebody waited
        faces = [(segment.name, None if here is None else here.staging.get(segment.name)) for segment in segments]
        for name, face in faces:
            if face is None or face.entity.owner is None:
                counting.answered(name, None)
            else:
                face.staged(self._node.now_ms, partial(counting.counted, name))
        if counting.waits:
            self._counting.append((self._node.now_ms + COUNT_MS, counting))
        else:
            counting.over()

    def is_late(self, now_ms: int) -> bool:
        """Whether somebody has waited for long enough."""
        if not (self._counting or self._asked or self.pace.line):
            return False  # as a rule, and asked in each turn of the node
        wake_ms = self.next_wake_ms
        return wake_ms is not None and wake_ms <= now_ms

    @property
    def next_wake_ms(self) -> int | None:
        """When that will be."""
        if not (self._counting or self._asked or self.pace.line):
            return None  # so often as `is_late`
        while self._counting and self._counting[0][1].then is None:
            self._counting.popleft()
        counted_ms = self._counting[0][0] if self._counting else None
        asked_ms = self._told[0] + 1 if self._asked else None
        wishes = (counted_ms, asked_ms, self.pace.next_wake_ms)
        return min((at_ms for at_ms in wishes if at_ms is not None), default=None)

    # -- the turn -------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> None:
        """Moves what is due."""
        while self._counting and self._counting[0][0] <= now_ms:
            self._counting.popleft()[1].over()
        self._count_some(now_ms)
        self.pace.turn(now_ms)
        due, self.due = self.due, {}
        for key in due:
            if key in self._active or len(self._active) < ACTIVE_MAX:
                self._move_some(key, now_ms)
            else:
                self._waiting[key] = None
        if self._waiting and len(self._active) >= ACTIVE_MAX:
            self._pass_over_the_stuck(now_ms)
        while self._waiting and len(self._active) < ACTIVE_MAX:
            self._move_some(next(iter(self._waiting)), now_ms)
        if self._finished:
            finished, self._finished = self._finished, []
            self._finish(finished)

    def _pass_over_the_stuck(self, now_ms: int) -> None:
        """Whose rows nobody answers for keeps them, and does not count."""
        for key in tuple(self._active):
            since_ms = max((mover.since_ms for mover in self._lines[key] if mover.holds), default=0)
            if since_ms + PATIENCE_MS <= now_ms:
                del self._active[key]
        if len(self._active) >= ACTIVE_MAX:
            self._node.wake(self._lines[next(iter(self._waiting))][0].queue, now_ms + PATIENCE_MS)

    def _move_some(self, key: Key, now_ms: int) -> None:
        self._waiting.pop(key, None)
        self._move(key, now_ms)
        if any(mover.holds for mover in self._lines.get(key, ())):
            self._active[key] = None
        else:
            self._active.pop(key, None)

    def _move(self, key: Key, now_ms: int) -> None:
        at_once = 0
        for mover in self._lines.get(key, ()):
            if mover.finished:
                continue  # and waits for the wiring to say so
            if self._node.map.moves_before(*key, mover.segment.epoch):
                return
            if self._node.alarms:
                self._node.wake(mover.queue, now_ms + AGAIN_MS)
                return
            if at_once >= ROWS_MAX:
                mover.rest(now_ms)
            try:
                ended = mover.turn(now_ms)
            except Exception as error:
                self._node.stumbled(mover.queue, error)
                return
            if not ended:
                return
            at_once += mover.at_once
            if mover.unroutable:
                self._node.log.unroutable(mover.segment, mover.unroutable)
            self._finished.append(mover)

    def _finish(self, finished: list[Mover]) -> None:
        """Orders the end of segments, those of one owner's life together."""
        for first in range(0, len(finished), FINISHED_AT_ONCE):
            some = finished[first : first + FINISHED_AT_ONCE]
            entity = some[0].queue.entity
            assert entity.owner is not None, "an owner moves"
            command = FinishSegments(
                node=entity.owner,
                incarnation=entity.incarnation,
                segments=tuple(
                    (mover.queue.entity.queue_id, Epoch(mover.queue.entity.epoch), mover.unroutable) for mover in some
                ),
            )

            def done(applied: Applied, some: list[Mover] = some) -> None:
                if applied.error is None:
                    return
                for mover in some:  # nobody could order it: it is empty all the same, and looked at again
                    if not mover.ended:
                        mover.finished = False
                        self._node.wake(mover.queue, self._node.now_ms + AGAIN_MS)

            self._node.propose(command, done)
