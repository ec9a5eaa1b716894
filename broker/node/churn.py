"""Totals of opened and closed things since a node's start, for operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from clusterbroker.broker.stats.attempts import Attempts
from clusterbroker.broker.stats.totals import MessageTotals

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import ChannelCore


class Churn:
    """Counted where it happens; nobody decides anything by it."""

    __slots__ = ("_left", "channels", "logins", "queues_created", "queues_declared", "queues_deleted")

    def __init__(self) -> None:
        self._left = MessageTotals()  # of the channels that are gone
        self.channels = 0
        """Opened."""
        self.logins = Attempts("amqp")
        """Of clients; not of whoever opened the node's own socket."""
        self.queues_declared = 0
        """queue.declare that were answered, whether the queue was new or not."""
        self.queues_created = 0
        """That began, and that this node was the first owner of."""
        self.queues_deleted = 0
        """That ended while this node owned them."""

    def left(self, channel: ChannelCore) -> None:
        """The channel is gone; what its messages did counts on."""
        self._left = _sum((self._left, channel.totals))

    def messages(self, channels: Iterable[ChannelCore]) -> MessageTotals:
        """Of all channels that ever were here; `channels`: those that are."""
        return _sum((self._left, *(one.totals for one in channels)))


def _sum(some: tuple[MessageTotals, ...]) -> MessageTotals:
    return MessageTotals(*(sum(getattr(one, field) for one in some) for field in MessageTotals.__struct_fields__))
