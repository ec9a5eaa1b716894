"""Numbers and names that identify nodes, log entries and queues.

Names of queues come back: a queue may be deleted and declared again, and a message for the first must never reach the
second. Everything below the client's view therefore uses a `QueueId`, the index in the wiring log of the command that
declared the queue. The log never gives an index twice, so no two declarations share an id. A command with many others
inside (an import) gives the queue of the n-th of them, from 0, the id `index | n << 40`: 40 bits are a thousand
commands a second for 35 years, and with n below 500 an id is still an integer that every reader of JSON keeps.
"""

from __future__ import annotations

from typing import Final, NewType

NodeId = NewType("NodeId", str)
"""Name of a node, unique in the cluster and never given to another machine once it has left."""

LogIndex = NewType("LogIndex", int)
"""Place of a command in the wiring log, from 1; grows strictly, may have gaps after a restart."""

QueueId = NewType("QueueId", int)
"""LogIndex of the command that declared the queue, and its place among those of an import: one declaration, one id."""

NTH_BITS: Final = 40
"""Where the place begins."""

Epoch = NewType("Epoch", int)
"""Ownership term of a queue, from 1; a lower one is refused wherever it arrives."""

Incarnation = NewType("Incarnation", int)
"""One process of a node, from 1; a lower one is refused wherever it arrives."""

LOCAL_NODE: Final = NodeId("local")
"""The name a node has as long as nobody gave it one."""


def index_of(queue_id: int) -> LogIndex:
    """Of the command that declared the queue."""
    return LogIndex(queue_id & ((1 << NTH_BITS) - 1))
