"""Producers of transactions, as the management API tells of them: what they have committed, staged and on its way."""

from __future__ import annotations

from clusterbroker.broker.transactions.status import status_of
from clusterbroker.cluster.wiring.entities import Producer

from .errors import object_not_found
from .exchanges import open_vhosts
from .paging import Listing
from .reading import Document, Reading


def listing(reading: Reading, vhost: str | None = None) -> Listing[Producer]:
    """Those of a vhost, or of all that the user may enter."""
    found = [producer for name in open_vhosts(reading, vhost) for producer in reading.map.producers(name)]
    return Listing(
        sorted(found, key=lambda producer: (producer.vhost, producer.name)),
        name=lambda producer: producer.name,
        place=lambda producer: (producer.vhost, producer.name),
        document=lambda producer: document(reading, producer),
    )


def named(reading: Reading, vhost: str, name: str) -> Document:
    """One. Refused (404) without one of this name."""
    producer = reading.map.producer(vhost, name)
    if producer is None:
        raise object_not_found()
    return document(reading, producer)


def document(reading: Reading, producer: Producer) -> Document:
    """As its owners' last samples tell."""
    segments = reading.map.segments_of(producer.vhost, producer.name)
    rows: dict[str, tuple[int, int]] = {}
    for segment in segments:
        queue = reading.map.queue_by_id(segment.queue_id)
        track = reading.replica.queue_track(queue) if queue is not None else None
        if track is not None:
            rows[segment.name] = (track.row.ready, track.row.ready_bytes)
    return {
        "vhost": producer.vhost,
        "user": producer.user,
        "fenced_runs": list(producer.fenced_runs),
        **status_of(producer.name, producer, segments, rows),
    }
