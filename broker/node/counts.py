"""Totals of a channel's and an exchange's messages, for operators: counted once per batch, without effect.

What goes out to consumers is not counted here: the channel's delivery tags count it (`Ledger.next_tag`), and the ledger
which of them needed no acknowledgement or were redelivered. So a channel's `totals` take both together.
"""

from __future__ import annotations

from typing import Protocol


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
