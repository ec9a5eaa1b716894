"""What headers say of a delay: the specification of `broker/content/delays.pyx`, by decoding them.

Where the compiled module says None this model may say something: `agrees` in the property test allows that, and
nothing else.
"""

from __future__ import annotations

from clusterbroker.broker.content.formats import BASIC, format_of
from clusterbroker.broker.routing.delays import DELAY_MS_MAX, delay_key, due_ms, negated
from clusterbroker.broker.wire.amqp091.fields import STORED_LIMITS
from clusterbroker.journal.layout import HAS_BCC, PERSISTENT
from tests.model.record import Message


def due_of(message: Message, taken_ms: int) -> tuple[int, str] | None:
    if message.format != BASIC:
        return None
    headers = format_of(BASIC).properties(message.header, STORED_LIMITS).headers
    return due_ms(headers, taken_ms) or 0, delay_key(headers)


def fired_header(message: Message) -> bytes | None:
    if message.format != BASIC or message.flags & HAS_BCC:
        return None
    properties = format_of(BASIC).properties(message.header, STORED_LIMITS)
    if properties.headers and {"CC", "BCC", "x-delay-to"} & set(properties.headers):
        return None
    if properties.headers:
        properties.headers = negated(properties.headers)
    return format_of(BASIC).header(message.header, properties)


def waiting(message: Message, now_ms: int, due_ms: int) -> Message:
    return Message(
        message.address, message.payload, message.header_length, message.flags | PERSISTENT, 0,
        message.time_ms or now_ms, max(1, min(due_ms, now_ms + DELAY_MS_MAX)), message.format,
    )  # fmt: skip
