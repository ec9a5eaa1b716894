"""A message's properties, read by rooms that do not know the protocol of the publish."""

from __future__ import annotations

from typing import Any, Protocol

from clusterbroker.broker.content.formats import format_of
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS, FieldLimits, FieldTable
from clusterbroker.broker.wire.amqp091.properties import Properties


class Content(Protocol):
    """A message, or what is known of one."""

    @property
    def header(self) -> bytes: ...

    @property
    def format(self) -> int: ...


def properties_of(message: Content, limits: FieldLimits = STORED_LIMITS) -> Properties:
    """The message's properties. Raises AmqpError when a field exceeds `limits`, and UnknownFormatError."""
    return format_of(message.format).properties(message.header, limits)


class KnownProperties:
    """A message's properties, decoded once, when somebody asks for one of them."""

    __slots__ = ("_message", "_properties")

    def __init__(self, message: Content) -> None:
        self._message = message
        self._properties: Properties | None = None

    def all(self) -> Properties:
        """Raises as `properties_of`."""
        if self._properties is None:
            self._properties = properties_of(self._message)
        return self._properties

    def headers(self) -> FieldTable:
        """Empty without."""
        return self.all().headers or {}

    def named(self, name: str) -> Any:
        """None: it has none."""
        return getattr(self.all(), name, None)


def property_of(message: Content, name: str) -> Any:
    """One property by its name in `Properties`; None: it has none. Raises UnknownFormatError."""
    if name == "timestamp":
        return format_of(message.format).timestamp(message.header)
    return getattr(properties_of(message), name, None)


def routing_headers(message: Content) -> FieldTable:
    """The headers that bindings match; empty without. Raises UnknownFormatError."""
    return properties_of(message).headers or {}
