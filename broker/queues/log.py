"""The log of one queue or stream at its owner: messages in a ring, how many of them are committed, and which publisher
may be told that its message is safe.

A log knows neither limits, consumers nor readers: a `queue.Queue` and a `broker.streams.stream.Stream` each have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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
        self._unfinished: list[Unfinished] | None = None
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
            self._unfinished = [one for one in self._unfinished if one.ended is None or not self._is_durable(one.ended)]
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
        self._unfinished = [*(self._unfinished or ()), begun]
        return begun

    def finish(self, begun: Unfinished) -> None:
        """The ring has heard of it."""
        if self.ring.needs_write:
            begun.ended = self.commits
        else:
            self._unfinished = [one for one in self._unfinished or () if one is not begun]
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

    def durable(self, mark: int) -> bool:
        """Whether all that had happened when `commits` was `mark`, and that the journal had to hear of, is committed.

        A group may have been on its way, written before: then only the next one counts, unless nothing was left.
        """
        for one in self._unfinished or ():
            if mark >= one.began and (one.ended is None or not self._is_durable(one.ended)):
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
