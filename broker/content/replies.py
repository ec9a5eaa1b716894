"""Direct replies: messages that go from a responder to a requester, perhaps of another protocol, and to no queue."""

from __future__ import annotations

from clusterbroker.broker.content.formats import translate
from clusterbroker.journal.record import Message


def reply_as(message: Message, reads: int) -> Message | None:
    """The reply in the format that the requester understands; None: it has none, and is dropped, as replies may be.
    What raises here is the responder's doing, and must cost neither the requester nor a link between nodes."""
    try:
        return translate(message, reads)
    except Exception:
        return None
