"""Messages as the journal stores them, for tests of those who read them."""

from __future__ import annotations

from typing import Any

from clusterbroker.broker.wire.amqp091 import properties
from clusterbroker.journal.layout import GROUP_HEADER_BYTES
from clusterbroker.journal.record import GroupWriter, Message


def message(body: bytes = b"b", key: bytes = b"k", time_ms: int = 1_700_000_000_000, **said: Any) -> Message:
    """`said` are its properties."""
    header = properties.encode(properties.Properties(**said))
    return Message(b"\x02ex" + bytes((len(key),)) + key, header + body, len(header), time_ms=time_ms)


def stored(*messages: Message, first: int = 1) -> bytes:
    """As the records of a queue, numbered from `first` on."""
    writer = GroupWriter(1, 0)
    for seq, one in enumerate(messages, first):
        writer.enqueue(7, 1, seq, one, 0)
    return bytes(writer.finish(1, 0))[GROUP_HEADER_BYTES:]
