"""The outcome modified (3.4.5): a message returns, perhaps counted as failed, not for this link, or annotated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clusterbroker.broker.access.receiver import give_back
from clusterbroker.broker.content.changes import change_of
from clusterbroker.broker.node.core import Node
from clusterbroker.broker.queues.handle import Modification
from clusterbroker.broker.wire.amqp10.performatives import Modified


def modify(node: Node, entries: Sequence[Any], outcome: Modified) -> None:
    """Carries the outcome out for deliveries of one link. Annotations that are too long are left out: the message
    returns all the same."""
    try:
        change = change_of(outcome.message_annotations or {})
    except ValueError:
        change = b""
    counted, modification = outcome.delivery_failed, None
    if entries and (outcome.undeliverable_here or change):
        link = entries[0][1].owner.link if outcome.undeliverable_here else ""
        modification = Modification(counted, link, change)
    give_back(node, entries, requeue=True, counted=counted, modification=modification)
