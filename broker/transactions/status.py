"""The status of a producer, over AMQP and HTTP alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterbroker.cluster.wiring.entities import Producer, Segment


def status_of(
    name: str, producer: Producer | None, segments: Sequence[Segment], rows: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """One producer, and what is staged and on its way. `rows` and bytes of segments by their names, of those that are
    known; what is not known is null."""
    committed = producer is not None and producer.epoch is not None
    moving = [segment.name for segment in segments if segment.place is not None and not segment.discards]
    return {
        "producer": name,
        "epoch": producer.epoch if producer is not None else None,
        "run": producer.run if producer is not None else None,
        "rows": producer.rows if producer is not None and committed else None,
        "committed_at_ms": producer.at_ms if producer is not None and committed else None,
        "expires_at_ms": producer.at_ms + producer.ttl_ms if producer is not None else None,
        "open": [
            {
                "transaction": segment.name,
                "epoch": segment.epoch,
                "run": segment.run,
                "partition": segment.partition,
                "attempt": segment.attempt,
                "rows": rows[segment.name][0] if segment.name in rows else None,
                "bytes": rows[segment.name][1] if segment.name in rows else None,
            }
            for segment in segments
            if segment.place is None and not segment.discards
        ],
        "moving": sum(rows[name][0] for name in moving) if all(name in rows for name in moving) else None,
        "unroutable": producer.unroutable if producer is not None else 0,
    }
