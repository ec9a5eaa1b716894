"""A message's properties, read by rooms that do not know the protocol of the publish.

A message's `header` is encoded as its protocol has it. `Properties` is the form that all rooms between a front and a
queue's bytes know: AMQP 0-9-1's, of which every other protocol has the counterparts. Limits of a publish were checked
when it came, and are not checked again.
"""

from __future__ import annotations

from typing import Final, Protocol

from clusterbroker.broker.amqp import properties as basic
from clusterbroker.broker.amqp.fields import STORED_LIMITS, FieldLimits, FieldTable
from clusterbroker.broker.amqp.properties import Properties

_HAS_TIMESTAMP: Final = 0x40
"""In the second byte of the property flags."""


class Content(Protocol):
    """A message, or what is known of one."""

    @property
    def header(self) -> bytes: ...


def properties_of(message: Content, limits: FieldLimits = STORED_LIMITS) -> Properties:
    """The message's properties. Raises AmqpError when a field exceeds `limits`."""
    return basic.decode(message.header, limits)


def headers_of(message: Content) -> FieldTable:
    """The message's headers; empty without."""
    return properties_of(message).headers or {}


def timestamp_of(message: Content) -> int | None:
    """The property `timestamp` (seconds since 1970); quick for the many messages that have none."""
    return properties_of(message).timestamp if message.header[1] & _HAS_TIMESTAMP else None
