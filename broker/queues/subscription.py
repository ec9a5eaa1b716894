"""Who consumes from a queue, and who of them may get something now.

Consumers stand in the order of their priority, highest first, then of their arrival; `dispatch` goes round among
equals. With single active consumer only one is active: the first in that order, until it goes. A consumer with a
higher priority takes over once the active one holds nothing more, so that order is kept (RabbitMQ, "single active
consumer", quorum queues).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from typing import Any, Final, Protocol

from clusterbroker.broker.content.selector.filters import Filter
from clusterbroker.broker.queues.link_held import NO_LINK, LinkAttach
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.watch import Watch
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message


def hold_limit_ms(settings: QueueSettings, default_ms: int) -> int:
    """So long a consumer may hold a message; 0: for ever. `default_ms`: the node's."""
    limit = settings.consumer_timeout_ms
    return default_ms if limit is None else limit


def attach_of(taker: Any) -> LinkAttach:
    """To which a delivery of this taker was handed out (`LocalConsumer.attach`); a single message has no consumer."""
    consumer: LocalConsumer | None = taker.owner
    return NO_LINK if consumer is None else consumer.attach


class Source(Protocol):
    """What a consumer reads: a queue, or a reader of leases or streams that stands in its place."""

    __slots__ = ()

    @property
    def entity(self) -> QueueEntity:
        """What was declared, and who owns it."""

    @property
    def settings(self) -> QueueSettings:
        """Arguments and policies together."""

    @property
    def name(self) -> str: ...

    @property
    def ring(self) -> Ring:
        """What consumers and ledgers hold on to; `ring.owner` is this, `ring.mark()` gives it a turn."""

    @property
    def deleted(self) -> bool: ...

    def unsubscribe(self, subscription: LocalConsumer, now_ms: int) -> None:
        """The consumer is gone; what it holds stays with its channel."""

    def limits_changed(self, subscription: LocalConsumer) -> None:
        """basic.qos: it may hold more or fewer messages from now on."""


class Member(Protocol):
    """A consumer as its queue sees it: a `LocalConsumer`, or one of another node (`remote.attachment`)."""

    @property
    def credit(self) -> Any:
        """What `dispatch` walks: a `ring.Taker`, whose `owner` is this."""

    @property
    def exclusive(self) -> bool: ...

    @property
    def holds(self) -> bool:
        """Whether it may have unacknowledged messages."""

    @property
    def held(self) -> int:
        """How many it has itself, as it said last."""

    @property
    def node(self) -> str:
        """Where it is; "" for a consumer that has its queue on its own node."""

    @property
    def worker(self) -> str:
        """The launch of a pool that it belongs to; empty: none."""

    @property
    def held_most(self) -> int:
        """It has no more than so many now."""

    @property
    def link(self) -> str:
        """What its client knows it by, also when it comes again; empty: it is another one then."""

    @property
    def filter(self) -> Filter | None:
        """Which messages it takes; None: all."""

    @property
    def order(self) -> tuple[int, str, int]:
        """When it was declared: wall clock ms, and what tells those of one millisecond apart."""

    def flush(self) -> None:
        """Something may wait in its output buffer."""

    def activated(self, active: bool) -> None:
        """The queue has a single active consumer: this one is, or waits."""

    def ended(self) -> None:
        """The broker ended it: the queue is deleted."""


class LocalConsumer(Member, Protocol):
    """A consumer whose client is at this node."""

    order: tuple[int, str, int]
    """The queue says when."""

    @property
    def attach(self) -> LinkAttach:
        """Of the recoverable link that it serves, also when that is suspended; NO_LINK: it serves none."""

    @property
    def tag(self) -> str:
        """What its client calls it."""

    @property
    def no_ack(self) -> bool:
        """What it is handed is settled at once."""

    @property
    def limit(self) -> int:
        """Unacknowledged deliveries that it may hold; 0: as many as its session."""

    def show(self, watch: Watch, message: Message, redelivered: bool, handed: bool) -> None:
        """Somebody looks at its deliveries: at the one that was `handed` last, or at the next one."""


ENDED_AT_ONCE: Final = 5_000
NOBODY: Final[frozenset[Member]] = frozenset()
NO_NODES: Final[frozenset[str]] = frozenset()
NOTHING: Final[list[Any]] = []
"""Of every queue that has no consumers: such a queue is small. It stays empty."""


class Subscriptions:
    """The consumers of one queue, wherever they are. There may be very many, and all of them may come or go at once (a
    new owner hears of them in one frame, a client that has all of them is lost), so none of them costs a look at all
    the others: who goes is struck out when half of the line has gone, or the line is walked anyway.

    waiting     nodes whose consumers are not served before the queue is theirs (rotating ownership)
    retired     workers of a pool that are given nothing more
    """

    __slots__ = (
        "_absent", "_active", "_credits", "_exclusives", "_first", "_full_ms", "_full_since_ms", "_gone", "_looked",
        "_members", "_told", "in_order", "retired", "selects", "single_active", "waiting",
    )  # fmt: skip

    def __init__(self, single_active: bool) -> None:
        self.single_active = single_active
        self.waiting = NO_NODES
        self.retired: frozenset[str] = NO_NODES
        self._credits: list[Any] | None = NOTHING  # None: to be listed anew
        self.selects = False
        """One of those in `credits` passes messages over."""
        self.in_order = False
        """One of them does not."""
        self._exclusives = 0
        self._members: list[Member] = NOTHING  # in order of their ranks, with some that have gone
        self._gone: Set[Member] = NOBODY
        self._first = 0  # all before it in the line have gone
        self._active: Member | None = None
        self._told: Member | None = None  # which one has heard that it is active
        self._absent = 0
        self._full_ms = 0  # so long no consumer had room for what was ready, over all
        self._full_since_ms = 0  # 0: it is not so now
        self._looked = (0, 0)  # when `capacity` was asked last, and what `_full_ms` was then

    def __len__(self) -> int:
        return len(self._members) - len(self._gone)

    def __iter__(self) -> Iterator[Member]:
        self._strike_out()
        return iter(tuple(self._members))

    @property
    def exclusive(self) -> bool:
        """One of them has the queue for itself."""
        return self._exclusives > 0

    @property
    def credits(self) -> list[Any]:
        """What dispatch walks."""
        if self._credits is None:
            self._strike_out()
            serves = [one for one in self._members if one.node not in self.waiting]
            if self.retired:
                serves = [one for one in serves if one.worker not in self.retired]
            self._list([one.credit for one in serves])
        assert self._credits is not None, "they were listed"
        return self._credits

    def _list(self, credits: list[Any]) -> None:
        self._credits = credits or NOTHING
        self.selects = any(credit.selection is not None for credit in credits)
        self.in_order = any(credit.selection is None for credit in credits)

    def relist(self) -> None:
        """A consumer passes other messages over than before, or none."""
        self._elect()

    @property
    def active(self) -> Member | None:
        """The single active consumer; None without one, or when all are active."""
        return self._active

    def add(self, member: Member) -> None:
        """Consumers come in any order when a queue has a new owner: each knows since when it is there."""
        assert member not in self._gone, "who has gone comes again as another"
        place = bisect_right(self._members, _rank(member), key=_rank)
        if self._members:
            self._members.insert(place, member)
        else:
            self._members = [member]
        self._first = min(self._first, place)
        self._exclusives += member.exclusive
        if self.single_active:
            member.credit.active = False
            member.activated(False)
        self._elect()

    def remove(self, member: Member) -> None:
        self.leave((member,))

    def suspend(self, member: Member, link: int) -> None:
        """It is gone, and its link may come again: a single active consumer stays active meanwhile."""
        if self.single_active and self._active is member:
            self._absent = link
        self.leave((member,))

    def resumes(self, member: Member, link: int) -> None:
        """It came as this link, which is perhaps the single active consumer that was suspended."""
        if link and link == self._absent:
            self._absent, self._active = 0, member
            self._elect()

    def keep(self, links: Collection[int]) -> None:
        """Of a queue with a new owner, whose consumers are known: a link that holds messages, and none of them is it,
        was the active one."""
        if self.single_active and links and (self._active is None or not self._active.held):
            if self._active is not None:
                self._active.credit.active = False
            self._active, self._absent = None, min(links)
            self._elect()

    @property
    def absent(self) -> int:
        """The recoverable link that is the single active consumer, while it is suspended; 0: none."""
        return self._absent

    def forget(self, link: int) -> None:
        """The link has ended."""
        if link == self._absent:
            self._absent = 0
            self._elect()

    def leave(self, members: Collection[Member]) -> None:
        """All of these are gone."""
        gone = self._gone if isinstance(self._gone, set) else set()
        for member in members:
            assert member not in gone, "nobody goes twice"
            gone.add(member)
            member.credit.active = False
            self._exclusives -= member.exclusive
            if self._active is member:
                self._active = None
        self._gone = gone or NOBODY
        if 2 * len(gone) > len(self._members):
            self._strike_out()
        self._elect()

    def _strike_out(self) -> None:
        if self._gone:
            self._members = [member for member in self._members if member not in self._gone]
            self._gone = NOBODY
            self._first = 0

    def _head(self) -> Member | None:
        """The first in the line."""
        while self._first < len(self._members) and self._members[self._first] in self._gone:
            self._first += 1
        return self._members[self._first] if self._first < len(self._members) else None

    def served(self, full: bool, now_ms: int) -> None:
        """A hand-out ended; `full`: because no consumer has room for more."""
        if full:
            self._full_since_ms = self._full_since_ms or now_ms
        elif self._full_since_ms:
            self._full_ms += max(0, now_ms - self._full_since_ms)
            self._full_since_ms = 0

    def capacity(self, now_ms: int) -> float:
        """The part of the time since this was asked last in which a consumer had room; 0 without one."""
        full_ms = self._full_ms + (now_ms - self._full_since_ms if self._full_since_ms else 0)
        (since_ms, full_before_ms), self._looked = self._looked, (now_ms if self else 0, full_ms)
        if not self:
            return 0.0
        if not since_ms or now_ms <= since_ms:
            return 0.0 if self._full_since_ms else 1.0
        return max(0.0, min(1.0, 1 - (full_ms - full_before_ms) / (now_ms - since_ms)))

    def settle(self) -> None:
        """The active consumer may have given back its last message: a waiting one with higher priority may start."""
        if self.single_active and self._active is not None and self._head() is not self._active:
            self._elect()

    def resume(self) -> None:
        """All consumers of a queue with a new owner are known: whoever holds messages was the active one.

        What others hold at its node, or left there when they went, says nothing of it.
        """
        if self.single_active:
            if self._active is not None:
                self._active.credit.active = False
            self._active = next((member for member in self if member.held), None)
            self._elect()

    def wait(self, nodes: frozenset[str]) -> None:
        """Consumers of these nodes wait; all others are served."""
        self.waiting = nodes
        self._elect()

    def retire(self, workers: frozenset[str]) -> None:
        """These workers are given nothing more; all others are served."""
        if workers != self.retired:
            self.retired = workers
            self._elect()

    def _elect(self) -> None:
        if not self.single_active:
            self._credits = None
            return
        if self._absent:
            self._list([])
            self._tell()
            return
        first = self._head()
        active = self._active
        if active is None:
            self._active = first
        elif first is not active:
            assert first is not None, "the active consumer is a member"
            if first.credit.priority > active.credit.priority:
                active.credit.active = False  # it gets nothing more, and hands over when it holds nothing
                if active.holds:
                    first = None
                else:
                    self._active = first
            else:
                first = active
        if first is not None:
            first.credit.active = True
        self._list([self._active.credit] if self._active is not None else [])
        self._tell()

    def _tell(self) -> None:
        """Who became the single active consumer, or is that no more, hears of it."""
        if self._active is not self._told:
            told, self._told = self._told, self._active
            if told is not None:
                told.activated(False)
            if self._told is not None:
                self._told.activated(True)


class Patient(Protocol):
    """Who does later what is too much for now."""

    def soon(self, goes_on: Callable[[], None]) -> None:
        """Call it in a later turn."""


class Ending(Protocol):
    """A consumer, or the line to one."""

    def ended(self) -> None:
        """It hears that it has ended."""


def tell_ended(host: Patient, members: Sequence[Ending]) -> None:
    """Their queue is deleted; of very many some hear of it in later turns."""
    for member in members[:ENDED_AT_ONCE]:
        member.ended()
    if rest := members[ENDED_AT_ONCE:]:
        host.soon(lambda: tell_ended(host, rest))


def _rank(member: Member) -> tuple[int, tuple[int, str, int]]:
    return -member.credit.priority, member.order
