"""Messages with other properties, annotations, flags or addresses, for rooms that do not know the protocol of the
publish.

A message keeps its publisher's bytes: a copy shares its body, and whatever else is not changed. `content.properties`
reads what is changed here. Each function raises UnknownFormatError for a message that this release cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from clusterbroker.broker.content import headers
from clusterbroker.broker.content.formats import BASIC, format_of
from clusterbroker.broker.wire.amqp091.domains import push_shortstr
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message

KEY_BYTES_MAX: Final = 255
"""Of a routing key, as of an exchange's name (AMQP 0-9-1, 4.2.5.3)."""


def with_properties(message: Message, properties: Properties, flags: int | None = None) -> Message:
    """The message with these properties in place of its own; body, address, priority and times stay, and so do its
    flags without `flags`."""
    return _with_header(message, format_of(message.format).header(message.header, properties), flags)


def reply_to_of(message: Message) -> str | None:
    """Its property reply-to, of which nothing else is decoded where the format lets it be seen; None: it has none."""
    if message.format != BASIC:
        return format_of(message.format).properties(message.header, STORED_LIMITS).reply_to
    address = headers.reply_to(message)
    return None if address is None else address.decode("utf-8", "surrogateescape")


def with_reply_to(message: Message, address: str) -> Message:
    """The message with this address in place of its property reply-to, which it has."""
    if message.format == BASIC:
        return headers.with_reply_to(message, address.encode())
    properties = format_of(message.format).properties(message.header, STORED_LIMITS)
    properties.reply_to = address
    return with_properties(message, properties)


def with_annotations(
    message: Message, added: Mapping[str, Any], removed: str = "BCC", flags: int | None = None
) -> Message:
    """The message with these headers of the broker's more, and without the one named `removed`."""
    return _with_header(message, format_of(message.format).annotated(message.header, added, removed), flags)


def _with_header(message: Message, header: bytes, flags: int | None) -> Message:
    return Message(
        message.address, header + message.body, len(header), message.flags if flags is None else flags,
        message.priority, message.time_ms, message.ttl_ms, message.format,
    )  # fmt: skip


def without_own(message: Message) -> Message:
    """The message without annotations that a delivery of AMQP 1.0 has from the broker: another one gave them, or a
    publisher."""
    from clusterbroker.broker.content.sections import Sections  # most nodes have no such message

    return _with_header(message, Sections().unnamed(message.header), None)


def with_flags(message: Message, flags: int) -> Message:
    """The message with these flags in place of its own."""
    return Message(
        message.address, message.payload, message.header_length, flags, message.priority, message.time_ms,
        message.ttl_ms, message.format,
    )  # fmt: skip


def to_address(message: Message, address: bytes) -> Message:
    """The message with this address (exchange and key as short strings) in place of its own."""
    return Message(
        address, message.payload, message.header_length, message.flags, message.priority, message.time_ms,
        message.ttl_ms, message.format,
    )  # fmt: skip


def taken_at(message: Message, now_ms: int) -> Message:
    """The message as if it had been published now."""
    return Message(
        message.address, message.payload, message.header_length, message.flags, message.priority, now_ms,
        message.ttl_ms, message.format,
    )  # fmt: skip


def republished(message: Message, exchange: str, key: str, properties: Properties | None, now_ms: int) -> Message:
    """The message as a publish to `exchange` by `key`, now, with these properties (None: its own). Raises ValueError
    for a key beyond KEY_BYTES_MAX."""
    header = message.header
    if properties is not None:
        header = format_of(message.format).header(header, properties)
    made = _published(message.format, exchange, key, header, message.body, now_ms)
    return with_flags(made, made.flags | ANSWERABLE) if message.flags & ANSWERABLE else made


def died(message: Message, exchange: str, key: str, history: Properties, now_ms: int) -> Message:
    """The message as the dead letter that is published to `exchange` by `key`; `history`: its properties with what they
    say of its deaths (`queues.dead_lettering.death`). A key that is too long is cut."""
    return republished(message, exchange, key_of(key), history, now_ms)


def new_message(exchange: str, key: str, properties: Properties, body: bytes, now_ms: int) -> Message:
    """A message that the broker itself publishes: an answer, an event, a part of what a reader asked for. Raises
    ValueError, TypeError or AmqpError for properties that do not fit their domains."""
    return _published(BASIC, exchange, key, format_of(BASIC).header(b"", properties), body, now_ms)


def _published(message_format: int, exchange: str, key: str, header: bytes, body: bytes, now_ms: int) -> Message:
    address = push_shortstr(exchange) + push_shortstr(key)
    made = format_of(message_format).accept(address, header, body, now_ms)
    assert isinstance(made, Message), "properties that were accepted, or are the broker's own, are well-formed"
    return made


def key_of(text: str) -> str:
    """The text, cut to what a routing key may have: an argument or a name behind a prefix may be longer."""
    raw = text.encode("utf-8", "surrogateescape")
    return text if len(raw) <= KEY_BYTES_MAX else raw[:KEY_BYTES_MAX].decode(errors="ignore")
