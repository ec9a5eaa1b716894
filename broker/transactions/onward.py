"""Where a staged row goes: as a publish to its target would go now."""

from __future__ import annotations

from typing import TypeVar

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.choosing import EVERY
from clusterbroker.broker.routing.router import Route, Router
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.record import Message

Q = TypeVar("Q")


def route_of(
    router: Router[Q], target: str, message: Message, properties: Properties | None = None,
    committed: bytes | None = None,
) -> Route[Q]:  # fmt: skip
    """The queues of one row, by all its keys and its headers. Raises TooCostly, unless the row is `committed` (and this
    is its number): then it was accepted, and a route that costs too much by now leads nowhere, as one that is gone."""
    known = properties_of(message) if properties is None else properties
    more = (*copy_keys(known.headers, "CC"), *copy_keys(known.headers, "BCC"))
    key = message.routing_key.decode("utf-8", "surrogateescape")
    find, number = (router.route, EVERY) if committed is None else (router.reach, committed)
    return find(target, key, lambda: known.headers, more, lambda name: getattr(known, name, None), number)
