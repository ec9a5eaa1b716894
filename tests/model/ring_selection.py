"""The hand-out of a queue with consumers that pass messages over: as `ring` explains it.

Each consumer with a selection walks the queue by itself, in the order of a hand-out: by priority, then by seq.
`cursors` says of each priority the next seq that it looks at: all that is ready before it was refused by its `judge`,
which gives the same answer for a message as long as that stays in its place. What returns may have changed, so the
cursors go back to it.

A queue that keeps only what its own selection takes is swept (`sweep`): the others leave it, unwritten if they came
since the last group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clusterbroker.broker.queues.states import (
    HEAD_EXPIRED,
    HEAD_NONE,
    HEAD_NOT_COMMITTED,
    HEAD_NOT_LOADED,
    HEAD_OK,
    LIMIT,
    NO_CREDIT,
)
from clusterbroker.journal.layout import HAS_BCC
from tests.model.record import Message
from tests.model.ring_cluster import Ring
from tests.model.ring_dispatch import waits_for_group
from tests.model.ring_taker import Taker


class Selection:
    """What a consumer takes of a queue. `judge(seq, message)`: whether it takes that; None: not in this turn."""

    __slots__ = ("cursors", "judge")

    def __init__(self, judge: Callable[[int, Message], Any]) -> None:
        self.cursors: dict[int, int] = {}
        self.judge = judge

    @property
    def cursor(self) -> int:
        """Before the least of them it has looked at everything."""
        return min(self.cursors.values(), default=0)

    def back(self, seq: int) -> None:
        """It looks at this message and those behind it again."""
        self.cursors = {priority: min(cursor, seq) for priority, cursor in self.cursors.items()}


def dispatch_selected(
    ring: Ring, consumers: Sequence[Taker], now_ms: int, look_max: int
) -> tuple[int, int, int]:  # fmt: skip
    """Hands ready messages to consumers with credit (`consumers`: highest priority first), some of which pass messages
    over. In turns among equals each gets one: the next that its selection takes, or the head.

    Returns (how many, why it stopped, the message over which a selection waits to be loaded, 0: none): HEAD_EXPIRED;
    LIMIT, for `look_max` messages were looked at; or else what `dispatch` says of the consumer that was asked last.
    """
    for taker in consumers:
        if taker.selection is not None:
            cursors = taker.selection.cursors
            for priority in range(ring.max_priority + 1):
                before = cursors.get(priority, 0)
                cursors[priority] = before if ring.returned is None else min(before, ring.returned)
    ring.returned = None
    if ring.paused or ring.replica:
        return 0, HEAD_NOT_COMMITTED if ring.ready else HEAD_NONE, 0
    count, why, absent, left = 0, HEAD_NONE, 0, [look_max]
    start = 0
    while start < len(consumers):
        level = [taker for taker in consumers if taker.priority == consumers[start].priority]
        hungry = [(ring.turn + place) % len(level) for place in range(len(level))]
        while hungry:
            again = []
            for place in hungry:
                taker = level[place]
                if not taker.has_credit:
                    why = NO_CREDIT if why == HEAD_NONE and ring.ready else why
                    continue
                told, seq = _give(ring, taker, now_ms, left)
                if told == HEAD_OK:
                    count += 1
                    ring.turn = place + 1
                    again.append(place)
                elif told == HEAD_NOT_LOADED and taker.selection is not None:
                    absent = min(absent or seq, seq)
                elif told != HEAD_NONE and why not in (HEAD_EXPIRED, LIMIT):
                    why = told
            hungry = again
        start += len(level)
    ring.handed += count
    return count, why, absent


def _give(ring: Ring, taker: Taker, now_ms: int, left: list[int]) -> tuple[int, int]:
    """HEAD_OK, or why there is nothing for it, and at which message."""
    selection = taker.selection
    if selection is None:
        told = ring.head(now_ms)
        if told == HEAD_OK or waits_for_group(taker, told):
            _deliver(ring, taker, ring.head_seq(), now_ms)
            return HEAD_OK, 0
        if told == HEAD_NOT_COMMITTED:
            ring.reserve()
        return told, 0
    cursors = selection.cursors
    while True:
        seq = 0
        for priority in range(ring.max_priority, -1, -1):
            seq = ring.next_ready(cursors[priority], priority)
            cursors[priority] = seq or ring.next_seq
            if seq:
                break
        if not seq:
            return HEAD_NONE, 0
        if left[0] <= 0:
            return LIMIT, seq
        left[0] -= 1
        told = ring.head_at(seq, now_ms)
        if told not in (HEAD_OK, HEAD_EXPIRED) and not waits_for_group(taker, told):
            if told != HEAD_NOT_LOADED and ring.logged:
                ring.reserve_ahead(seq)
            return told, seq
        if told == HEAD_EXPIRED:
            cursors[priority] = seq + 1
            continue  # it is given up when it is the head
        answer = selection.judge(seq, ring.message(seq))
        if answer is None:
            return LIMIT, seq
        cursors[priority] = seq + 1
        if answer:
            _deliver(ring, taker, seq, now_ms)
            return HEAD_OK, seq
        ring.relieve(seq)


def _deliver(ring: Ring, taker: Taker, seq: int, now_ms: int) -> None:
    _, message, redelivered, delivery_count = ring.take_at(seq)
    looked_at = ring.annotates_all or message.flags & HAS_BCC or (redelivered and ring.annotates_redelivered)
    if ring.annotate is not None and looked_at:
        try:
            message = ring.annotate(message, seq, delivery_count, taker, redelivered)
        except BaseException:
            ring.requeue(seq, False)
            raise
    if taker.hand(seq, message, redelivered, delivery_count, now_ms):
        ring.handed_no_ack += 1
        ring.settle(seq)
    taker.delivered += 1


def sweep(ring: Ring, seq: int, judge: Callable[[Message], Any], look_max: int) -> tuple[int, int, int]:
    """Settles the ready messages from `seq` on that nobody is to have: `judge(message)` is False of them.

    Returns (the seq at which it stopped, how many have left, why it stopped): HEAD_NONE, all were looked at; LIMIT, for
    `judge` said None, or `look_max` were; HEAD_NOT_LOADED; HEAD_NOT_COMMITTED, for the queue is paused.
    """
    if ring.paused or ring.replica:
        return seq, 0, HEAD_NOT_COMMITTED
    count, why = 0, HEAD_NONE
    while True:
        at = ring.next_ready(seq)
        if not at:
            seq = ring.next_seq
            break
        seq, message = at, ring.message(at)
        if message is None:
            why = HEAD_NOT_LOADED
            break
        answer = None if look_max <= 0 else judge(message)
        if answer is None:
            why = LIMIT
            break
        look_max -= 1
        if answer:
            ring.relieve(seq)
        else:
            ring.settle(seq)
            count += 1
        seq += 1
    if count:
        ring.mark()
    return seq, count, why
