"""Where a staged row goes: as a publish to its target would go now."""

from __future__ import annotations

from typing import TypeVar

from broker.amqp import properties as codec
from broker.amqp.properties import Properties
from broker.routing.carbon_copy import copy_keys
from broker.routing.router import Route, Router
from journal.layout import HAS_HEADERS
from journal.record import Message

Q = TypeVar("Q")


def looks_alone(message: Message) -> bool:
    """Whether the row's own headers matter: copies, or a producer that numbers it. May err on the careful side."""
    if not message.flags & HAS_HEADERS:
        return False
    header = message.header
    return b"CC" in header or b"x-producer" in header


def route_of(router: Router[Q], target: str, message: Message, properties: Properties | None = None) -> Route[Q]:
    """The queues of one row, by all its keys and its headers."""
    known = codec.decode(message.header) if properties is None else properties
    more = (*copy_keys(known.headers, "CC"), *copy_keys(known.headers, "BCC"))
    key = message.routing_key.decode("utf-8", "surrogateescape")
    return router.route(target, key, lambda: known.headers, more, lambda name: getattr(known, name, None))
