"""Which client of this node holds certain messages: asked seldom, by an operator, so nothing is kept for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.pools.credentials import launch_of

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node


def holders(node: Node, queue_id: int, seqs: Iterable[int]) -> dict[int, tuple[str, int]]:
    """Of these messages of a queue that clients here hold: the launch of a pool, or else the connection, and since
    when, ms since 1970. Linear in what the clients of the node hold."""
    wanted, found = set(seqs), dict[int, tuple[str, int]]()
    for client in node.clients.values():
        for channel in client.channels.values():
            ledger: Any = getattr(channel, "ledger", None)
            for taker, seq, at_ms in ledger.listed() if ledger is not None and ledger.unacked else ():
                if seq in wanted and taker.ring.queue_id == queue_id:
                    found[seq] = launch_of(client.user) or client.id, at_ms
    return found
