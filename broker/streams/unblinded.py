"""BCC headers of what is published to a stream: nobody may read them, and nothing looks at them any more."""

from __future__ import annotations

from collections.abc import Sequence

from broker.amqp.properties import without_header
from journal.layout import HAS_BCC
from journal.record import Message


def unblinded(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without it. One that has it comes alone (`broker.session.publishing`)."""
    if len(messages) != 1 or not messages[0].flags & HAS_BCC:
        return messages
    (m,) = messages
    header = without_header(m.header, "BCC")
    flags = m.flags & ~HAS_BCC
    return (Message(m.address, header + m.body, len(header), flags, m.priority, m.time_ms, m.ttl_ms),)
