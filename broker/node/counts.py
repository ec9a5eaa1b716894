"""Counts for operators, without effect: of channels and exchanges, of a node since its start, and flows on request.

What goes out to consumers is not counted here: the channel's delivery tags count it (`Ledger.next_tag`), and the ledger
which of them needed no acknowledgement or were redelivered. So a channel's `totals` take both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.stats.attempts import Attempts
from clusterbroker.broker.stats.totals import MessageTotals

if TYPE_CHECKING:
    pass


class Ledger(Protocol):
    """A channel's (`broker.fronts.amqp091.delivery`)."""

    @property
    def next_tag(self) -> int: ...

    @property
    def skipped(self) -> int: ...

    @property
    def redelivered(self) -> int: ...


class ChannelCounts:
    """Of one channel. `got`: what basic.get found, to be acknowledged; other names as in `MessageTotals`."""

    __slots__ = (
        "ack", "confirm", "drop_unroutable", "get_empty", "get_no_ack", "got", "publish", "publishes", "redelivered",
        "return_unroutable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.publish = 0
        self.publishes: dict[bytes, int] = {}
        """By exchange, counted while somebody asks (`broker.node.flows`)."""
        self.confirm = 0
        self.return_unroutable = 0
        self.drop_unroutable = 0
        self.got = 0
        self.get_no_ack = 0
        self.get_empty = 0
        self.redelivered = 0
        """Of what basic.get found."""
        self.ack = 0


class ExchangeCounts:
    """Of one exchange at this node; see `broker.stats.rows.ExchangeRow`."""

    __slots__ = ("confirm", "drop_unroutable", "publish_in", "publish_out", "return_unroutable")

    def __init__(self) -> None:
        self.publish_in = 0
        self.publish_out = 0
        self.confirm = 0
        self.return_unroutable = 0
        self.drop_unroutable = 0


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

    def left(self, totals: MessageTotals) -> None:
        """The channel is gone; what its messages did counts on."""
        self._left = _sum((self._left, totals))

    def messages(self, channels: Iterable[MessageTotals]) -> MessageTotals:
        """Of all channels that ever were here; `channels`: those that are."""
        return _sum((self._left, *channels))


def _sum(some: tuple[MessageTotals, ...]) -> MessageTotals:
    return MessageTotals(*(sum(getattr(one, field) for one in some) for field in MessageTotals.__struct_fields__))


WANTED_MS: Final = 60_000
FLOWS_MAX: Final = 20_000
"""So many pairs of exchange and queue are told apart; what flows between others is not counted."""
EXCHANGES_MAX: Final = 100
"""Of a channel."""

Flow = tuple[str, bytes, int]
"""Vhost, exchange, queue id."""


class Flows:
    """Of one node."""

    __slots__ = ("_wanted_until_ms", "counting", "totals")

    def __init__(self) -> None:
        self.totals: dict[Flow, int] = {}
        """Messages since the counting began."""
        self.counting = False
        self._wanted_until_ms = 0

    def asked(self, now_ms: int) -> None:
        """Somebody wants to know."""
        self.counting = True
        self._wanted_until_ms = now_ms + WANTED_MS

    def published(
        self, channel: ChannelCounts, vhost: str, exchange: bytes, targets: Sequence[QueueHandle], count: int,
        now_ms: int,
    ) -> None:  # fmt: skip
        """So many messages go from a channel to an exchange, and to these queues. To be called while it is `counting`.
        What a channel published before is counted on when somebody asks again."""
        if now_ms >= self._wanted_until_ms:
            self.counting = False
            self.totals.clear()
            return
        publishes = channel.publishes
        if exchange in publishes or len(publishes) < EXCHANGES_MAX:
            publishes[exchange] = publishes.get(exchange, 0) + count
        totals = self.totals
        for queue in targets:
            flow = vhost, exchange, queue.entity.queue_id
            if flow in totals or len(totals) < FLOWS_MAX:
                totals[flow] = totals.get(flow, 0) + count
