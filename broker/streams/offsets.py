"""amq.stream: where a stream begins and ends, for readers that keep their place themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.census.inspection import life_of
from broker.streams.messages import FIND, StreamTold
from cluster.stream_settings import STREAM

if TYPE_CHECKING:
    from broker.session.services import Request


def offsets(request: Request) -> None:
    """{"queue", "timestamp_ms"} -> {"outcome": "offsets", "life", "first", "next", "first_timestamp_ms", "bytes",
    "at"}; read permission on the queue."""
    request.only("queue", "timestamp_ms")
    name = request.text("queue")
    since_ms = request.integer("timestamp_ms", 0, 2**53, 0) if "timestamp_ms" in request.body else -1
    channel = request.channel
    channel.check("read", "queue", name)
    node, vhost = channel.connection.node, channel.connection.vhost
    assert vhost is not None, "a channel is opened after its connection"
    queue = vhost.queues.get(name)
    if queue is None:
        request.refuse(404, f"no queue '{name}' in vhost '{vhost.name}'")
        return
    if queue.settings.queue_type != STREAM:
        request.refuse(406, f"queue '{name}' in vhost '{vhost.name}' is no stream")
        return
    life = life_of(queue.entity)

    def told(found: StreamTold, _: bytes | memoryview) -> None:
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

    def late() -> None:
        if queue.deleted:
            request.refuse(404, f"no queue '{name}' in vhost '{vhost.name}'")
        else:
            request.refuse(503, "unavailable, may be repeated")

    node.streams.ask(queue, FIND, told, late, since_ms=since_ms)
