"""Counts of publishes by exchange and by queue at this node, kept only on request.

A batch adds one number to its channel, and one for each of its queues. Counting begins with a request for the node's
census (`asked`); WANTED_MS after the last one counting ends and flows are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.handle import QueueHandle

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
        self,
        channel: ChannelCounts,
        vhost: str,
        exchange: bytes,
        targets: Sequence[QueueHandle],
        count: int,
        now_ms: int,
    ) -> None:
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
