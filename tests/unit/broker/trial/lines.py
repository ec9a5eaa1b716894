"""Lines as nodes log them."""

from __future__ import annotations

from clusterbroker.broker.trial.event_log import Line


def began(node: str, epoch: int, incarnation: int = 1, queue: int = 7) -> Line:
    """A node began to own queue "q"."""
    facts = {"queue": "q", "queue_id": queue, "epoch": epoch, "node": node, "incarnation": incarnation}
    return Line(float(epoch), "owner.began", facts)
