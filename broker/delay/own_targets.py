"""The header `x-delay-to` of a message in a delay queue: it waits anew for some of its queues, for others have it. The
broker alone writes it; a publisher's is left out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from clusterbroker.broker.content.delays import kept_header
from clusterbroker.broker.content.message import with_properties
from clusterbroker.broker.content.properties import properties_of, routing_headers
from clusterbroker.broker.routing.delays import TARGETS
from clusterbroker.journal.record import Message


def own_targets(message: Message) -> list[Any] | None:
    """The queues for which alone a message waits anew, for others have it; None: it is for all."""
    if kept_header(message) is not None:
        return None
    left = routing_headers(message).get(TARGETS)
    return left if isinstance(left, list) else None


def for_all(message: Message) -> Message:
    """A message that comes: no publisher says who gets it."""
    if own_targets(message) is None:
        return message
    properties = properties_of(message)
    headers = {name: value for name, value in (properties.headers or {}).items() if name != TARGETS}
    return with_properties(message, replace(properties, headers=headers or None))
