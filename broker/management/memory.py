"""What a node's memory holds, as far as that is known here: its queues, and the rest.

RabbitMQ tells twenty parts of its virtual machine, of which there is none here. Queues are told by their owners, about;
the total is what the operating system counts as the process's own.
"""

from __future__ import annotations

from typing import Final

from clusterbroker.broker.stats.rows import QueueRow
from clusterbroker.cluster.ids import QueueId

from .errors import object_not_found
from .reading import Document, Reading

_PARTS: Final = {"classic": "queue_procs", "quorum": "quorum_queue_procs", "stream": "stream_queue_procs"}


def of_node(reading: Reading, name: str) -> Document:
    """Bytes by part. Refused (404) when no member has this name."""
    parts = _parts(reading, name)
    if parts is None:
        return {"memory": "not_available"}
    total = sum(parts.values())
    return {
        "memory": {**parts, "total": {"allocated": total, "erlang": total, "rss": total}, "strategy": "rss"},
    }


def shares_of_node(reading: Reading, name: str) -> Document:
    """Parts in percent; what is there at all has one at least. Refused (404) when no member has this name."""
    parts = _parts(reading, name)
    if parts is None:
        return {"memory": "not_available"}
    total = sum(parts.values())
    return {"memory": {"total": 100, **{part: _percent(count, total) for part, count in parts.items()}}}


def _percent(count: int, total: int) -> int:
    return max(1, round(100 * count / total)) if count else 0


def _parts(reading: Reading, name: str) -> dict[str, int] | None:
    """None: the node does not run."""
    if name not in reading.replica.node_names():
        raise object_not_found()
    track, told = reading.replica.node_track(name), reading.replica.members.get(name)
    if track is None or told is None or not reading.replica.running(name, reading.now_ms):
        return None
    parts = dict.fromkeys(_PARTS.values(), 0)
    for row in (each.row for each in told.rows.values()):
        if isinstance(row, QueueRow):
            queue = reading.map.queue_by_id(QueueId(row.queue_id))
            kind = "classic" if queue is None else queue.arguments.get("x-queue-type", "classic")
            parts[_PARTS.get(kind, "queue_procs")] += row.memory_bytes
    parts["other_system"] = max(0, track.row.memory_used_bytes - sum(parts.values()))
    return parts
