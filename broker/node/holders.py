"""Which client of this node holds certain messages, and how far its work is: asked seldom, by an operator, so nothing
is kept for it but workers' last reports of progress (`broker.pools.progress`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from clusterbroker.broker.pools.credentials import launch_of

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.stats.inspection import Request


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


def progress(node: Node, asked: Request, found: dict[int, tuple[str, int]]) -> dict[int, tuple[float, int]]:
    """seq -> what the holder has reported of the message since it got it. `found`: the holders."""
    known: dict[int, tuple[float, int]] = {}
    for seq, request in zip(asked.seqs or (), asked.correlation_ids, strict=False):
        if seq in found and request and (part := node.pools.progress.since(found[seq][0], request, found[seq][1])):
            known[seq] = part
    return known
