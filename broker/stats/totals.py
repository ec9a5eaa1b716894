"""Rows that every node makes, also one that tells nobody and so never loads the others (`broker.stats.rows`)."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

SAMPLE_S: Final = 5.0
"""Between two samples of a node's numbers, unless it is told otherwise."""

Total = Annotated[int, "total"]
"""It never goes back while the thing lives."""


class MessageTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many messages did what, named as in RabbitMQ."""

    publish: Total = 0
    """Came in: from clients for a channel, an exchange (in) or a node; into the queue for a queue."""
    confirm: Total = 0
    """Confirmed to publishers; of an exchange: for messages published to it."""
    return_unroutable: Total = 0
    """Mandatory, went to no queue, and were returned."""
    drop_unroutable: Total = 0
    """Not mandatory, went to no queue, and were dropped."""
    deliver: Total = 0
    """Handed to consumers that acknowledge."""
    deliver_no_ack: Total = 0
    """Handed to consumers that do not."""
    get: Total = 0
    """Got (basic.get) and to be acknowledged."""
    get_no_ack: Total = 0
    """Got without acknowledgement."""
    get_empty: Total = 0
    """basic.get that found nothing."""
    redeliver: Total = 0
    """Of the delivered and got ones, those with the redelivered flag."""
    ack: Total = 0
    """Acknowledged by clients."""
    disk_reads: Total = 0
    """Read back from the journal for a hand-out."""
    disk_writes: Total = 0
    """Written to the journal."""


class StoredOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far a reader of a stream says that it is."""

    name: str
    offset: int
    """The next one that it reads."""
    lag: int
    """Messages from there to the stream's end."""
