"""Counts for operators, without effect: of channels and exchanges, of a node since its start, and flows on request.

What goes out to consumers is not counted here: the channel's delivery tags count it (`Ledger.next_tag`), and the ledger
which of them needed no acknowledgement or were redelivered. So a channel's `totals` take both together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
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


_NONE: Final[dict[bytes, int]] = {}
"""Of each channel of which nobody has asked. It stays empty."""


@dataclass(slots=True, eq=False)
class ChannelCounts:
    """Of one channel. `got`: what basic.get found, to be acknowledged; `redelivered`: of what it found; other names as
    in `MessageTotals`."""

    publish: int = 0
    publishes: dict[bytes, int] = field(default_factory=lambda: _NONE)
    """By exchange, counted while somebody asks (`Flows`)."""
    confirm: int = 0
    return_unroutable: int = 0
    drop_unroutable: int = 0
    got: int = 0
    get_no_ack: int = 0
    get_empty: int = 0
    redelivered: int = 0
    ack: int = 0


@dataclass(slots=True, eq=False)
class ExchangeCounts:
    """Of one exchange at this node; see `broker.stats.rows.ExchangeRow`."""

    publish_in: int = 0
    publish_out: int = 0
    confirm: int = 0
    return_unroutable: int = 0
    drop_unroutable: int = 0
    drop_repeated: int = 0


@dataclass(slots=True, eq=False)
class Churn:
    """Counted where it happens; nobody decides anything by it."""

    channels: int = 0
    """Opened."""
    logins: Attempts = field(default_factory=lambda: Attempts("amqp"))
    """Of clients; not of whoever opened the node's own socket."""
    queues_declared: int = 0
    """queue.declare that were answered, whether the queue was new or not."""
    queues_created: int = 0
    """That began, and that this node was the first owner of."""
    queues_deleted: int = 0
    """That ended while this node owned them."""
    _left: MessageTotals = field(default_factory=MessageTotals)
    """Of the channels that are gone."""

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
        if not channel.publishes:
            channel.publishes = {}
        publishes = channel.publishes
        if exchange in publishes or len(publishes) < EXCHANGES_MAX:
            publishes[exchange] = publishes.get(exchange, 0) + count
        totals = self.totals
        for queue in targets:
            flow = vhost, exchange, queue.entity.queue_id
            if flow in totals or len(totals) < FLOWS_MAX:
                totals[flow] = totals.get(flow, 0) + count
