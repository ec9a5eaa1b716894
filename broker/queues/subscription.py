"""Who consumes from a queue, and who of them may get something now.

Consumers stand in the order of their priority, highest first, then of their arrival; `dispatch` goes round among
equals. With single active consumer only one is active: the first in that order, until it goes. A consumer with a
higher priority takes over once the active one holds nothing more, so that order is kept (RabbitMQ, "single active
consumer", quorum queues).
"""

from __future__ import annotations

from collections.abc import Mapping
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


class Subscription:
    """One basic.consume.

    `credit` is what `dispatch` sees of it.
    """

    __slots__ = ("arguments", "credit", "exclusive", "holder", "no_ack", "queue", "tag")

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
        raw = tag.encode()
        self.credit = Consumer(queue.ring, ledger, bytes((len(raw),)) + raw, no_ack, prefetch, priority, self)


class Subscriptions:
    """The subscriptions of one queue."""

    __slots__ = ("_active", "_members", "credits", "exclusive", "single_active")

    def __init__(self, single_active: bool) -> None:
        self.single_active = single_active
        self.exclusive = False
        self.credits: list[Consumer] = []  # what dispatch walks
        self._members: list[Subscription] = []
        self._active: Subscription | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Any:
        return iter(tuple(self._members))

    @property
    def active(self) -> Subscription | None:
        """The single active consumer; None without one, or when all are active."""
        return self._active

    def add(self, subscription: Subscription) -> None:
        place = len(self._members)
        priority = subscription.credit.priority
        while place and self._members[place - 1].credit.priority < priority:
            place -= 1
        self._members.insert(place, subscription)
        self.exclusive = self.exclusive or subscription.exclusive
        self._elect()

    def remove(self, subscription: Subscription) -> None:
        self._members.remove(subscription)
        subscription.credit.active = False
        self.exclusive = any(member.exclusive for member in self._members)
        if self._active is subscription:
            self._active = None
        self._elect()

    def settle(self) -> None:
        """The active consumer may have given back its last message: a waiting one with higher priority may start."""
        if self.single_active and self._active is not None and self._members[0] is not self._active:
            self._elect()

    def _elect(self) -> None:
        if not self.single_active:
            self.credits = [member.credit for member in self._members]
            return
        first = self._members[0] if self._members else None
        active = self._active
        if active is not None and first is not active:
            assert first is not None, "the active consumer is a member"
            higher = first.credit.priority > active.credit.priority
            if higher:
                active.credit.active = False  # it gets nothing more, and hands over when it holds nothing
            if higher and not active.credit.unacked:
                self._active = first
        elif active is None:
            self._active = first
        for member in self._members:
            member.credit.active = member is self._active and not (
                member is active and first is not None and first.credit.priority > member.credit.priority
            )
        self.credits = [self._active.credit] if self._active is not None else []
