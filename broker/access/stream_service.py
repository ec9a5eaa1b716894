"""amq.stream: where a stream begins and ends, and stored offsets of its readers, for displays of their lag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clusterbroker.broker.access.services import Request, Service
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.lease import GENERATION_BYTES_MAX
from clusterbroker.broker.stats.inspection import life_of
from clusterbroker.broker.streams.messages import FIND, STORE, STORED, StreamTold
from clusterbroker.cluster.wiring.stream_settings import STREAM

NAME_BYTES_MAX: Final = 200


def _asked_for(request: Request) -> QueueHandle | None:
    """The stream, which may be read; None: the request is refused."""
    queue = request.queue()
    if queue is not None and queue.settings.queue_type != STREAM:
        request.refuse(406, f"queue '{queue.name}' in vhost '{request.access.vhost.name}' is no stream")
        return None
    return queue


def _late(request: Request, queue: QueueHandle) -> Callable[[], None]:
    """Refuses the request; for when there is no answer."""

    def refuse() -> None:
        if queue.deleted:
            request.refuse(404, request.access.no_queue(queue.name).text)
        else:
            request.refuse(503, "unavailable, may be repeated")

    return request.answers(refuse)


def offsets(request: Request) -> None:
    """{"queue", "timestamp_ms"} -> {"outcome": "offsets", "life", "first", "next", "first_timestamp_ms", "bytes",
    "at"}; read permission on the queue."""
    request.only("queue", "timestamp_ms")
    since_ms = request.integer("timestamp_ms", 0, 2**53, 0) if "timestamp_ms" in request.body else -1
    queue = _asked_for(request)
    if queue is None:
        return
    life = life_of(queue.entity)

    def answered(found: StreamTold, _: bytes | memoryview) -> None:
        request.answer(
            {
                "outcome": "offsets",
                "life": life_of(queue.entity) if not queue.deleted else life,
                "first": found.lowest - 1,
                "next": found.next - 1,
                "first_timestamp_ms": None if found.first_ms < 0 else found.first_ms,
                "bytes": found.bytes,
                "at": None if since_ms < 0 else found.seq - 1,
            }
        )

    request.access.node.streams.ask(queue, FIND, answered, _late(request, queue), since_ms=since_ms)


def store(request: Request) -> None:
    """{"queue", "name", "offset": the next one that the reader reads, or null to forget it, "life"} ->
    {"outcome": "stored", "life", "offset"}, when it is committed; read permission on the queue."""
    request.only("queue", "name", "offset", "life")
    name = request.text("name", NAME_BYTES_MAX)
    life = request.text("life", GENERATION_BYTES_MAX) if request.body.get("life") is not None else None
    forgets = "offset" in request.body and request.body["offset"] is None
    offset = None if forgets else request.integer("offset", 0, 2**61)
    queue = _asked_for(request)
    if queue is None:
        return
    now = life_of(queue.entity)
    if life not in (None, now):
        where = f"queue '{queue.name}' in vhost '{request.access.vhost.name}'"
        request.refuse(410, f"{where} is not the one that the offset is of")
        return

    def answered(found: StreamTold, _: bytes | memoryview) -> None:
        if found.refused:
            request.refuse(406, found.refused)
        else:
            request.answer({"outcome": "stored", "life": now, "offset": offset})

    streams, place = request.access.node.streams, 0 if offset is None else offset + 1
    streams.ask(queue, STORE, answered, _late(request, queue), name=name, place=place)


def stored(request: Request) -> None:
    """{"queue"} -> {"outcome": "stored", "life", "next", "readers": [{"name", "offset", "lag"}]}, by name; read
    permission on the queue."""
    request.only("queue")
    queue = _asked_for(request)
    if queue is None:
        return
    life = life_of(queue.entity)

    def answered(found: StreamTold, _: bytes | memoryview) -> None:
        readers = [{"name": name, "offset": seq - 1, "lag": found.next - seq} for name, seq in sorted(found.readers)]
        request.answer({"outcome": "stored", "life": life, "next": found.next - 1, "readers": readers})

    request.access.node.streams.ask(queue, STORED, answered, _late(request, queue))


AMQ_STREAM: Final = Service(needs_write=False, handlers={"offsets": offsets, "store": store, "stored": stored})
