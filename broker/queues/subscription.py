"""Who consumes from a queue, and who of them may get something now.

Consumers stand in the order of their priority, highest first, then of their arrival; `dispatch` goes round among
equals. With single active consumer only one is active: the first in that order, until it goes. A consumer with a
higher priority takes over once the active one holds nothing more, so that order is kept (RabbitMQ, "single active
consumer", quorum queues).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from broker.queues.ring import Consumer, Ledger

if TYPE_CHECKING:
    from broker.queues.face import QueueFace


class Holder(Protocol):
    """The channel behind a subscription."""

    def cancelled(self, subscription: Subscription) -> None:
        """The broker ended the subscription (the queue went, or the consumer took too long)."""

    def want_send(self) -> None:
        """Deliveries wait in the channel's output buffer."""


class Member(Protocol):
    """A consumer as its queue sees it: a `Subscription` here, or one of another node (`proxy.attachment`)."""

    @property
    def credit(self) -> Any:
        """What `dispatch` walks: a Consumer or a RemoteConsumer, whose `owner` is this."""

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
    def order(self) -> tuple[int, str, int]:
        """When it was declared: wall clock ms, and what tells those of one millisecond apart."""

    def flush(self) -> None:
        """Something may wait in its output buffer."""

    def ended(self) -> None:
        """The broker ended it: the queue is deleted."""


class Subscription:
    """One basic.consume.

    `credit` is what `dispatch` sees of it.
    """

    __slots__ = ("arguments", "credit", "exclusive", "holder", "no_ack", "order", "queue", "tag")
    node = ""

    def __init__(
        self,
        holder: Holder,
        ledger: Ledger,
        queue: QueueFace,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        priority: int,
        arguments: Mapping[str, Any],
    ) -> None:
        self.holder = holder
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.order = (0, "", 0)  # the queue says when
        raw = tag.encode()
        self.credit = Consumer(queue.ring, ledger, bytes((len(raw),)) + raw, no_ack, prefetch, priority, self)

    @property
    def holds(self) -> bool:
        return self.credit.unacked > 0

    @property
    def held(self) -> int:
        return self.credit.unacked

    def flush(self) -> None:
        if self.credit.ledger.out.size:
            self.holder.want_send()

    def ended(self) -> None:
        self.holder.cancelled(self)


class Subscriptions:
    """The consumers of one queue, wherever they are.

    `waiting`: nodes whose consumers are not served before the queue is theirs (rotating ownership).
    """

    __slots__ = ("_active", "_members", "credits", "exclusive", "single_active", "waiting")

    def __init__(self, single_active: bool) -> None:
        self.single_active = single_active
        self.waiting: frozenset[str] = frozenset()
        self.exclusive = False
        self.credits: list[Any] = []  # what dispatch walks
        self._members: list[Member] = []
        self._active: Member | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(tuple(self._members))

    @property
    def active(self) -> Member | None:
        """The single active consumer; None without one, or when all are active."""
        return self._active

    def add(self, member: Member) -> None:
        """Consumers come in any order when a queue has a new owner: each knows since when it is there."""
        place = len(self._members)
        rank = _rank(member)
        while place and _rank(self._members[place - 1]) > rank:
            place -= 1
        self._members.insert(place, member)
        self.exclusive = self.exclusive or member.exclusive
        self._elect()

    def remove(self, member: Member) -> None:
        self._members.remove(member)
        member.credit.active = False
        self.exclusive = any(other.exclusive for other in self._members)
        if self._active is member:
            self._active = None
        self._elect()

    def settle(self) -> None:
        """The active consumer may have given back its last message: a waiting one with higher priority may start."""
        if self.single_active and self._active is not None and self._members[0] is not self._active:
            self._elect()

    def resume(self) -> None:
        """All consumers of a queue with a new owner are known: whoever holds messages was the active one.

        What others hold at its node, or left there when they went, says nothing of it.
        """
        if self.single_active:
            self._active = next((member for member in self._members if member.held), None)
            self._elect()

    def wait(self, nodes: frozenset[str]) -> None:
        """Consumers of these nodes wait; all others are served."""
        self.waiting = nodes
        self._elect()

    def _elect(self) -> None:
        if not self.single_active:
            served = [member for member in self._members if member.node not in self.waiting]
            self.credits = [member.credit for member in served]
            return
        first = self._members[0] if self._members else None
        active = self._active
        if active is not None and first is not active:
            assert first is not None, "the active consumer is a member"
            higher = first.credit.priority > active.credit.priority
            if higher:
                active.credit.active = False  # it gets nothing more, and hands over when it holds nothing
            if higher and not active.holds:
                self._active = first
        elif active is None:
            self._active = first
        for member in self._members:
            member.credit.active = member is self._active and not (
                member is active and first is not None and first.credit.priority > member.credit.priority
            )
        self.credits = [self._active.credit] if self._active is not None else []


def _rank(member: Member) -> tuple[int, tuple[int, str, int]]:
    return -member.credit.priority, member.order
