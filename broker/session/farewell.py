"""A client that shall go elsewhere is told what became of what it has said, before it is told to go (pure).

    dismiss    nothing more is read from it: what it still says is not taken, so to say it again is no repetition
    owes       whether something that was taken has no answer yet: publishes without confirm, a declare, a commit

A connection that ends while it is owed something leaves its client to say all of that again, and have it twice.
"""

from __future__ import annotations

from clusterbroker.broker.session.connection import Connection


def dismiss(connection: Connection) -> None:
    """Its client is not listened to any more. It still hears what the node has for it."""
    connection.dismissed = True
    connection.review_reading()


def owes(connection: Connection) -> bool:
    """Whether an answer is on its way that the client can still be given."""
    return any(
        channel.asked is not None or (channel.confirms is not None and channel.confirms.unsaid > 0)
        for channel in connection.channels.values()
        if not channel.closing
    )
