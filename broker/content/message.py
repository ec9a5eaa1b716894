"""Messages with other properties, flags or addresses, for rooms that do not know the protocol of the publish.

A message keeps its publisher's bytes: a copy shares its body, and whatever else is not changed. `content.properties`
reads what is changed here.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.amqp import properties as basic
from clusterbroker.broker.amqp.codec import make_message
from clusterbroker.broker.amqp.domains import push_shortstr
from clusterbroker.broker.amqp.properties import Properties
from clusterbroker.journal.record import Message

KEY_BYTES_MAX: Final = 255
"""Of a routing key, as of an exchange's name (AMQP 0-9-1, 4.2.5.3)."""


def with_properties(message: Message, properties: Properties, flags: int | None = None) -> Message:
    """The message with these properties in place of its own; body, address, priority and times stay, and so do its
    flags without `flags`."""
    return _with_header(message, basic.encode(properties), flags)


def without_header(message: Message, name: str, flags: int | None = None) -> Message:
    """The message without the header of this name, if there is one; the headers stay, perhaps empty."""
    return _with_header(message, basic.without_header(message.header, name), flags)


def _with_header(message: Message, header: bytes, flags: int | None) -> Message:
    return Message(
        message.address, header + message.body, len(header), message.flags if flags is None else flags,
        message.priority, message.time_ms, message.ttl_ms,
    )  # fmt: skip


def with_flags(message: Message, flags: int) -> Message:
    """The message with these flags in place of its own."""
    return Message(
        message.address, message.payload, message.header_length, flags, message.priority, message.time_ms,
        message.ttl_ms,
    )  # fmt: skip


def taken_at(message: Message, now_ms: int) -> Message:
    """The message as if it had been published now."""
    return Message(
        message.address, message.payload, message.header_length, message.flags, message.priority, now_ms,
        message.ttl_ms,
    )  # fmt: skip


def republished(message: Message, exchange: str, key: str, properties: Properties | None, now_ms: int) -> Message:
    """The message as a publish to `exchange` by `key`, now, with these properties (None: its own). Raises ValueError
    for a key beyond KEY_BYTES_MAX."""
    header = message.header if properties is None else basic.encode(properties)
    return _published(exchange, key, header, message.body, now_ms)


def new_message(exchange: str, key: str, properties: Properties, body: bytes, now_ms: int) -> Message:
    """A message that the broker itself publishes: an answer, an event, a part of what a reader asked for. Raises
    ValueError, TypeError or AmqpError for properties that do not fit their domains."""
    return _published(exchange, key, basic.encode(properties), body, now_ms)


def _published(exchange: str, key: str, header: bytes, body: bytes, now_ms: int) -> Message:
    made = make_message(push_shortstr(exchange) + push_shortstr(key), header, body, now_ms)
    assert isinstance(made, Message), "properties that were accepted, or are the broker's own, are well-formed"
    return made


def key_of(text: str) -> str:
    """The text, cut to what a routing key may have: an argument or a name behind a prefix may be longer."""
    raw = text.encode("utf-8", "surrogateescape")
    return text if len(raw) <= KEY_BYTES_MAX else raw[:KEY_BYTES_MAX].decode(errors="ignore")
