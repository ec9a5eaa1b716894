"""What is seen of properties without decoding: the specification of `broker/content/headers.pyx`, by decoding them."""

from __future__ import annotations

from clusterbroker.broker.wire.amqp091 import properties
from clusterbroker.journal.layout import HAS_HEADERS
from tests.model.record import Message


def may_have_header(message: Message, name: bytes) -> bool:
    """Whether a header of this name may be there. Errs on the careful side: a value with the same bytes is taken for
    it, and of a format but AMQP 0-9-1's nothing is known here."""
    return bool(message.format or (message.flags & HAS_HEADERS and name in message.header))


def reply_to(message: Message) -> bytes | None:
    """The property reply-to of a message in AMQP 0-9-1's format; None: it has none, or another format."""
    if message.format:
        return None
    address = properties.decode(message.header).reply_to
    return None if address is None else address.encode("utf-8", "surrogateescape")


def with_reply_to(message: Message, address: bytes) -> Message:
    """The message with this address in place of its reply-to."""
    decoded = properties.decode(message.header)
    if message.format or decoded.reply_to is None or len(address) > 255:
        raise ValueError("no address to replace, or one that does not fit")
    decoded.reply_to = address.decode("utf-8", "surrogateescape")
    header = properties.encode(decoded)
    return Message(
        message.address, header + message.body, len(header), message.flags, message.priority, message.time_ms,
        message.ttl_ms, message.format,
    )  # fmt: skip
