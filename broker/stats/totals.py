"""What a thing's messages did: the one row that every node makes, also one that tells nobody (broker.stats.rows)."""

from __future__ import annotations

import msgspec


class MessageTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many messages did what, named as in RabbitMQ. All are totals."""

    publish: int = 0
    """Came in: from clients for a channel, an exchange (in) or a node; into the queue for a queue."""
    confirm: int = 0
    """Confirmed to publishers; of an exchange: for messages published to it."""
    return_unroutable: int = 0
    """Mandatory, went to no queue, and were returned."""
    drop_unroutable: int = 0
    """Not mandatory, went to no queue, and were dropped."""
    deliver: int = 0
    """Handed to consumers that acknowledge."""
    deliver_no_ack: int = 0
    """Handed to consumers that do not."""
    get: int = 0
    """Got (basic.get) and to be acknowledged."""
    get_no_ack: int = 0
    """Got without acknowledgement."""
    get_empty: int = 0
    """basic.get that found nothing."""
    redeliver: int = 0
    """Of the delivered and got ones, those with the redelivered flag."""
    ack: int = 0
    """Acknowledged by clients."""
    disk_reads: int = 0
    """Read back from the journal for a hand-out."""
    disk_writes: int = 0
    """Written to the journal."""
