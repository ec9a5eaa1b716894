"""The outcomes that change a message: modified (3.4.5) and rejected with an error (3.4.3).

A modified message returns, perhaps counted as failed, not for this link, or annotated. The dead letter of a rejected
one has the error in its annotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterbroker.broker.access.receiver import give_back
from clusterbroker.broker.content.changes import change_of, rejection_of
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.queues.handle import Modification
from clusterbroker.broker.wire.amqp10.performatives import Modified, Rejected


def modify(node: Node, entries: Sequence[Any], outcome: Modified) -> None:
    """Carries the outcome out for deliveries of a session. Annotations that are too long are left out: the message
    returns all the same."""
    try:
        change = change_of(outcome.message_annotations or {})
    except ValueError:
        change = b""
    counted = outcome.delivery_failed
    by_link: dict[str, list[Any]] = {}
    for entry in entries:
        by_link.setdefault(entry[1].owner.link if outcome.undeliverable_here else "", []).append(entry)
    for link, own in by_link.items():
        modification = Modification(counted, link, change) if link or change else None
        give_back(node, own, requeue=True, counted=counted, modification=modification)


def reject(node: Node, entries: Sequence[Any], outcome: Rejected) -> None:
    """Carries the outcome out for deliveries of a session."""
    error, change = outcome.error, b""
    if error is not None:
        change = rejection_of(error.condition, error.description or "", error.info or {})
    give_back(node, entries, requeue=False, counted=False, change=change)
