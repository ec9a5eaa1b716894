"""BCC headers of what is published to a stream: nobody may read them, and nothing looks at them any more."""

from __future__ import annotations

from collections.abc import Sequence

from clusterbroker.broker.content.message import with_annotations
from clusterbroker.journal.layout import HAS_BCC
from clusterbroker.journal.record import Message


def unblinded(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages without it. One that has it is published alone; rows of a segment come with others."""
    if not any(message.flags & HAS_BCC for message in messages):
        return messages
    return [with_annotations(m, {}, "BCC", m.flags & ~HAS_BCC) if m.flags & HAS_BCC else m for m in messages]
