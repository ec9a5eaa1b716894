"""Requests with which a worker was lost, and their hand-out: alone, so that the guilty one is found.

A lost worker has held one request or many, and any of them may have ended it. All of them are *suspects* until they
leave the queue, or a worker rejects one. While a queue has suspects, a consumer is handed one request when it holds
none, whatever its prefetch is, and none is handed to a worker that has other keys as well: a worker that is lost then
was lost with one request, and that return counts. What was lost in company returns uncounted (`losses.lost`), so the
innocent never reach their delivery limit by it. A suspect that is lost in company again counts: its worker has several
consumers, or keys that nobody has given it, and no hand-out would ever tell.

The log knows suspects by an attribute, from the feature level on at which losses in company do not count: the next
owner goes on as this one would.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from clusterbroker.broker.queues.attributes import SUSPECT
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import READY, UNACKED
from clusterbroker.broker.queues.subscription import Member

TOLD_MAX: Final = 16_384
"""Of a queue; of more of them the log does not hear, and another owner hands them out as any request."""


class Suspects:
    """Of one queue."""

    __slots__ = ("_alone", "_given", "_order", "_ring", "_seqs")

    def __init__(self, ring: Ring, alone: Callable[[Member], bool] = lambda _member: True) -> None:
        """With those of the log. `alone`: whether a consumer's worker has no other key."""
        self._ring = ring
        self._alone = alone
        self._seqs = set[int]()
        self._order: list[int] = []  # a heap, with some that are none any more
        self._given: dict[Member, int] = {}  # which request a consumer was handed last; 0: one that it gave back
        for seq in logged(ring):
            self.add(seq, told=False)

    def remain(self) -> bool:
        """Whether there are any. Those that have left are forgotten."""
        while self._order and not (self._order[0] in self._seqs and _lives(self._ring, self._order[0])):
            self.clear(heapq.heappop(self._order))
        if not self._seqs:
            self._given.clear()
        return bool(self._seqs)

    def __contains__(self, seq: int) -> bool:
        return seq in self._seqs

    def add(self, seq: int, *, told: bool) -> None:
        """A worker was lost with it. `told`: the log is."""
        if seq not in self._seqs:
            self._seqs.add(seq)
            heapq.heappush(self._order, seq)
            if told and len(self._seqs) <= TOLD_MAX:
                self._ring.set_attribute(SUSPECT.name(seq), 1)

    def clear(self, seq: int) -> None:
        """It is none: a worker has rejected it, or it has left."""
        self._seqs.discard(seq)
        if self._ring.has_attributes and SUSPECT.name(seq) in self._ring.attributes:
            self._ring.set_attribute(SUSPECT.name(seq), 0)

    def holds_none(self, member: Member) -> bool:
        """Whether a consumer may have a request: it has settled the one that it was handed last. Of what it was handed
        before there were suspects its node says how much it holds at most. Nor may its worker have another key."""
        if not self._alone(member):
            return False
        given = self._given.get(member)
        if given is None:
            return not member.held_most
        return not given or not any(state == UNACKED for _, state, *_ in self._ring.living(given, given, 1))

    def given(self, member: Member, seq: int) -> None:
        """The consumer was handed this one; 0: it is not known which."""
        if seq:
            self._given[member] = seq
        else:
            self._given.pop(member, None)

    def returned(self, seq: int) -> None:
        """Who held it does not any more, whoever is handed it next."""
        for member in [member for member, given in self._given.items() if given == seq]:
            self._given[member] = 0

    def left(self, member: Member) -> None:
        """The consumer is gone."""
        self._given.pop(member, None)


def logged(ring: Ring) -> list[int]:
    """The suspects that the log knows."""
    return [seq for seq, _ in SUSPECT.of(ring.attributes)] if ring.has_attributes else []


def _lives(ring: Ring, seq: int) -> bool:
    return any(state in (READY, UNACKED) for _, state, *_ in ring.living(seq, seq, 1))
