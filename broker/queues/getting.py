"""basic.get: the head of a queue for who asks for one message, and who waits until it is known.

The head may have to be loaded, committed or reserved first; then the asker stands in `Queue.getters`, and the queue's
turn serves him. Consumers that wait with credit come before him.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.queues.handle import Taken
from clusterbroker.broker.queues.ring import dispatch
from clusterbroker.broker.queues.states import HEAD_NONE, HEAD_NOT_COMMITTED, HEAD_NOT_RESERVED, HEAD_OK

if TYPE_CHECKING:
    from clusterbroker.broker.queues.queue import Queue

Getter = tuple[Any, Callable[[Taken | str | None], None]]
"""A RemoteConsumer or None, and who hears of it."""


def get(queue: Queue, now_ms: int, then: Callable[[Taken | str | None], None], credit: Any) -> None:
    """Calls `then` with the head, UNACKED, or None, or with why there is none for anybody; later when the head must be
    loaded first. With `credit` the head is delivered to it instead, and `then` is called with None."""
    if not queue.getters:
        answer, known = _take(queue, credit, now_ms)
        if known:
            queue.ring.mark()  # the next head may have a time to expire
            then(answer)
            return
        queue.getters = deque()
    queue.getters.append((credit, then))
    queue.ring.mark()


def serve(queue: Queue, now_ms: int) -> None:
    """Answers those who wait, in their order, as far as the head is known."""
    while queue.getters:
        credit, then = queue.getters[0]
        answer, known = _take(queue, credit, now_ms)
        if not known:
            return
        queue.getters.popleft()
        then(answer)


def _take(queue: Queue, credit: Any, now_ms: int) -> tuple[Taken | str | None, bool]:
    """The answer, and whether it is known."""
    if queue.paused:
        return None, queue.broken
    if queue.leased:
        return queue.leased, True
    queue.make_current(now_ms)
    ring = queue.ring
    head = HEAD_NONE if queue.halted else ring.head(now_ms)
    if head == HEAD_OK and credit is not None:
        turn = ring.turn
        dispatch(ring, [credit], now_ms, 1)
        ring.turn = turn
        return None, True
    if head == HEAD_OK:
        return ring.take(), True
    if head == HEAD_NONE:
        return None, True
    if head in (HEAD_NOT_RESERVED, HEAD_NOT_COMMITTED):
        ring.reserve()
    return None, False
