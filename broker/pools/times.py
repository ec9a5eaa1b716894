"""How long requests of a pool wait and are worked on, and how long workers take to start: counts by duration; and how
many requests came, starts failed, and groups made room (pure).

Nothing is kept per request. Of each key one request is followed at a time: the newest of a turn in which none is. When
it has left, the next one is chosen, whatever that one took. So slow requests are neither more nor less likely to be
counted than others, and a turn of a group costs the same, however many requests it has.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

from clusterbroker.broker.pools.time_bounds import BOUNDS_MS
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import READY, UNACKED

REQUESTS: Final = "requests"


class Times:
    """Durations, counted up to each of BOUNDS_MS, and above."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0

    def note(self, took_ms: int) -> None:
        """One. Clocks of nodes differ: none is below 0."""
        took_ms = max(0, took_ms)
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        self.sum_ms += took_ms


class PoolTimes:
    """Of one pool at one node."""

    __slots__ = ("counts", "service", "start", "wait")

    def __init__(self) -> None:
        self.wait = Times()
        """From the publish to the first hand-out."""
        self.service = Times()
        """From there until it was settled."""
        self.start = Times()
        """Of workers, from their order to readiness."""
        self.counts: Counter[str] = Counter()
        """REQUESTS, and what the policy counts."""


class Arrivals:
    """Of a queue that is owned here: requests that are new in their pool."""

    __slots__ = ("_moved", "_ring", "_seen")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._seen = ring.published
        """What was there before was counted by who owned the queue then."""
        self._moved = 0

    def move(self, before: int) -> None:
        """All that came since `published` stood there was moved: its pool has counted it before."""
        self._moved += self._ring.published - before

    def look(self, times: Callable[[int], PoolTimes], pool_id: int) -> None:
        """In each turn. `times` of the pool are asked for when there are some to count."""
        new = self._ring.published - self._seen - self._moved
        if new:
            times(pool_id).counts[REQUESTS] += new
        self._seen, self._moved = self._ring.published, 0


class Followed:
    """The request of a queue that is followed."""

    __slots__ = ("_began_ms", "_handed_ms", "_known", "_ring", "_seq")

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._seq = 0
        """0: none is."""
        self._known = ring.next_seq
        """Those before it came earlier: when, their turn knew."""
        self._began_ms = 0
        self._handed_ms: int | None = None

    def look(self, times: Callable[[int], PoolTimes], pool_id: int, now_ms: int) -> None:
        """In each turn, behind the hand-out. `times` of the pool are asked for when there is one to note."""
        if not self._seq:
            self._choose(now_ms)
        self._known = self._ring.next_seq
        if not self._seq:
            return
        found = self._ring.living(self._seq, self._seq, 1)
        state = found[0][1] if found else None
        if state == UNACKED:
            if self._handed_ms is None:
                self._handed_ms = now_ms
                times(pool_id).wait.note(now_ms - self._began_ms)
        elif state != READY or self._handed_ms is not None:  # it has left, or its worker was lost
            if state is None and self._handed_ms is not None:
                times(pool_id).service.note(now_ms - self._handed_ms)
            self._seq = 0

    def _choose(self, now_ms: int) -> None:
        if self._ring.next_seq == self._known:
            return
        self._seq = self._ring.next_seq - 1
        message = self._ring.message(self._seq) if self._ring.living(self._seq, self._seq, 1) else None
        self._began_ms = min(now_ms, message.time_ms or now_ms) if message is not None else now_ms
        self._handed_ms = None
