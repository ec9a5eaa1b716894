"""The log of one queue or stream at its owner: messages in a ring, how many of them are committed, and which publisher
may be told that its message is safe.

A log knows neither limits, consumers nor readers: a `queue.Queue` and a `broker.streams.stream.Stream` each have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from clusterbroker.broker.queues.link_deliveries import LinkDeliveries
from clusterbroker.broker.queues.producers import Producers
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket

SAFE: Final = -2
"""A mark that is always durable."""


class Unfinished:
    """Something that has happened, and of which the ring hears later: a message is read from the disk first, or a
    commit comes before. `began`, `ended`: `MessageLog.commits` then; None: the ring has not heard."""

    __slots__ = ("began", "ended")

    def __init__(self, began: int) -> None:
        self.began = began
        self.ended: int | None = None


class _Open:
    """The unfinished ones of a log: how early the earliest of them began is known without a look at the others."""

    __slots__ = ("_began", "_ended", "_known", "_number")

    def __init__(self) -> None:
        self._known: dict[Unfinished, None] = {}
        self._began: list[tuple[int, int, Unfinished]] = []  # a heap; those that are over are taken off at its top
        self._ended: deque[Unfinished] = deque()
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, one: Unfinished) -> None:
        self._known[one] = None
        self._number += 1
        heappush(self._began, (one.began, self._number, one))

    def end(self, one: Unfinished, at: int) -> None:
        """The ring has heard of it, at this count of commits; those come in order."""
        if one in self._known:
            one.ended = at
            self._ended.append(one)

    def remove(self, one: Unfinished) -> None:
        self._known.pop(one, None)
        while self._began and self._began[0][2] not in self._known:
            heappop(self._began)

    def group_ended(self, is_durable: Callable[[int], bool]) -> None:
        while self._ended and (at := self._ended[0].ended) is not None and is_durable(at):
            self.remove(self._ended.popleft())

    def holds(self, mark: int) -> bool:
        """One of them began by then, and is not over."""
        return bool(self._began) and self._began[0][0] <= mark


class MessageLog:
    """Of one queue.

    commits  group commits that are durable
    since    what begins now is a part of what has begun at this count of commits; None: of nothing
    synced   what this node had when its epoch began is committed, or is known to be by the ring
    waiting  (seq, ticket) of publishes that wait for the commit of all before the seq; None or empty: none does
    """

    __slots__ = (
        "_afterwards", "_clean", "_deliveries", "_producers", "_unfinished", "commits", "ring", "since", "synced",
        "waiting",
    )  # fmt: skip

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self.commits = self._clean = 0  # the second: the last group after which nothing was left to write
        self.synced = True
        self.waiting: deque[tuple[int, Ticket]] | None = None
        self._afterwards: deque[tuple[int, Callable[[], None]]] | None = None
        self._unfinished: _Open | None = None
        self.since: int | None = None
        self._producers: Producers | None = None
        self._deliveries: LinkDeliveries | None = None

    @property
    def producers(self) -> Producers:
        self._producers = self._producers or Producers(self.ring)
        return self._producers

    @property
    def deliveries(self) -> LinkDeliveries:
        """Of recoverable links."""
        if self._deliveries is None:
            self._deliveries = LinkDeliveries(self.ring)
        return self._deliveries

    def promise(self, ticket: Ticket) -> None:
        """Holds the ticket until all that has been published is committed."""
        upto = self.ring.next_seq
        if not self.synced or (self.ring.journaled and self.ring.advance() < upto):
            ticket.hold()
            if self.waiting is None:
                self.waiting = deque()
            self.waiting.append((upto, ticket))

    def group_ended(self) -> None:
        """A group commit is durable, and the ring knows how far it went."""
        self.synced = True
        self.commits += 1
        if not self.ring.needs_write:
            self._clean = self.commits
        if self.waiting:
            self.answer()
        if self._unfinished:
            self._unfinished.group_ended(self._is_durable)
        self._answer_afterwards()

    def _answer_afterwards(self) -> None:
        while self._afterwards and self.durable(self._afterwards[0][0]):
            self._afterwards.popleft()[1]()

    # -- what the ring hears of later

    @property
    def unfinished(self) -> bool:
        return bool(self._unfinished)

    def begin(self) -> Unfinished:
        """Until `finish`, and the commit of what the ring hears then, no mark from now on is durable."""
        begun = Unfinished(self.commits if self.since is None else self.since)
        if self._unfinished is None:
            self._unfinished = _Open()
        self._unfinished.add(begun)
        return begun

    def finish(self, begun: Unfinished) -> None:
        """The ring has heard of it."""
        if self._unfinished is None:
            return  # another epoch, or deleted
        if self.ring.needs_write:
            self._unfinished.end(begun, self.commits)
            return
        self._unfinished.remove(begun)
        if not self._unfinished and self.ring.groups_committed == self.ring.groups:
            # nothing is left to write, and no group is on its way which would say so: it is as if an empty one had been
            self.commits += 1
            self._clean = self.commits
        self._answer_afterwards()

    def when_durable(self, then: Callable[[], None]) -> None:
        """`then()` when what has just happened is committed; never, if another node owns the log by then."""
        if not self.ring.needs_write and not self._unfinished:
            then()
            return
        if self._afterwards is None:
            self._afterwards = deque()
        self._afterwards.append((self.commits, then))

    def answer(self) -> None:
        """Passes the tickets whose messages are committed."""
        waiting, committed = self.waiting, self.ring.committed
        while waiting and self.synced and waiting[0][0] <= committed:
            waiting.popleft()[1].pass_()
        if not waiting:
            self.waiting = None

    def durable(self, mark: int) -> bool:
        """Whether all that had happened when `commits` was `mark`, and that the journal had to hear of, is committed.

        A group may have been on its way, written before: then only the next one counts, unless nothing was left.
        """
        if self._unfinished is not None and self._unfinished.holds(mark):
            return False
        return self._is_durable(mark)

    def _is_durable(self, mark: int) -> bool:
        return self._clean > mark or self.commits >= mark + 2

    def end_epoch(self) -> None:
        """This node does not own the log any more: publishers ask the next owner, and so none is answered."""
        self._producers = self._deliveries = self.waiting = self._afterwards = self._unfinished = None

    def release(self) -> None:
        """The queue is deleted: whoever waits is answered."""
        for _, ticket in self.waiting or ():
            ticket.pass_()
        afterwards = self._afterwards or ()
        self.waiting = self._afterwards = self._unfinished = None
        for _, then in afterwards:
            then()
