"""The numbers and names by which nodes, log entries and queues are told apart.

Names of queues come back: a queue may be deleted and declared again, and a message for the first must never
reach the second. So everything below the client's view speaks of a `QueueId`, which is the index in the
wiring log of the command that declared the queue. The log never gives an index twice, therefore no two
declarations share an id. (The design pages call it *quid*.)
"""

from __future__ import annotations

from typing import Final, NewType

NodeId = NewType("NodeId", str)
"""Name of a node, unique in the cluster and never given to another machine once it has left."""

LogIndex = NewType("LogIndex", int)
"""Place of a command in the wiring log, from 1; grows strictly, may have gaps after a restart."""

QueueId = NewType("QueueId", int)
"""LogIndex of the command that declared the queue: one declaration, one id."""

Epoch = NewType("Epoch", int)
"""Ownership term of a queue, from 1; a lower one is refused wherever it arrives."""

Incarnation = NewType("Incarnation", int)
"""One life of a node process, from 1; a lower one is refused wherever it arrives."""

LOCAL_NODE: Final = NodeId("local")
"""The name a node has as long as nobody gave it one."""
