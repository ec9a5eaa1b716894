"""basic.consume of a stream: where it begins, and what its arguments mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import access_refused, not_implemented, precondition_failed
from clusterbroker.broker.fronts.amqp091.stream_reader import CHUNK_COUNT, Reader, gone
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.streams.messages import FIND, StreamTold
from clusterbroker.journal.values import Timestamp

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel

NAMED = ("first", "last", "next")
TIME_MS_MAX = 2**53
"""A later time is as good as this one; a timestamp of AMQP has 64 bits of seconds."""


def consume(channel: Channel, method: methods.BasicConsume, queue: QueueHandle, tag: str) -> None:
    """The channel waits until the owner has said where the stream begins and ends. Raises what the request deserves."""
    node, vhost = channel.connection.node, channel.vhost_name
    where = f"stream '{queue.name}' in vhost '{vhost}'"
    if method.no_ack:
        raise not_implemented(f"automatic acknowledgement not supported by {where}")
    if method.exclusive:
        raise access_refused(f"exclusive consumers are not supported by {where}")
    if not channel.prefetch and not channel.ledger.prefetch:
        raise precondition_failed(f"consumer prefetch count is not set for {where}")
    arguments = method.arguments
    spec = _spec(arguments.get("x-stream-offset", "next"), tag)
    reader = Reader(node.streams, queue, channel, tag, arguments)
    reader.chunks = _flag(arguments, "x-stream-chunks", tag)
    reader.exact = _flag(arguments, "x-stream-exact", tag)
    end = arguments.get("x-stream-end")
    if end is not None:
        reader.end = _offset(end, "x-stream-end", tag)

    @channel.answers
    def found(told: StreamTold, _: bytes | memoryview) -> None:
        if not channel.awaits():
            return
        first, newest = told.lowest - 1, told.next - 1
        if isinstance(spec, str):
            reader.next = {"first": first, "next": newest}.get(spec, max(first, newest - CHUNK_COUNT))
        elif isinstance(spec, Timestamp):
            reader.next = told.seq - 1
        else:
            if reader.exact and spec < first:
                channel.refuse(precondition_failed(gone(spec, queue.entity, first)), method)
                return
            reader.next = max(spec, first)
        channel.consumers[tag] = reader.subscription
        if not method.nowait:
            channel.send(methods.BasicConsumeOk(tag))
        node.streams.open(reader)
        if node.authorization_generation != generation or channel.access.rights is not rights:
            channel.review_rights()  # they changed while the owner was asked
        channel.resume()

    @channel.answers
    def missing() -> None:
        if channel.awaits():
            channel.refuse(channel.access.no_queue(queue.name), method)

    generation, rights = node.authorization_generation, channel.access.rights
    since_ms = -1
    if isinstance(spec, Timestamp):
        since_ms = min(int(spec) * 1000, TIME_MS_MAX)
    channel.ask(queue, method)
    node.streams.ask(queue, FIND, found, missing, since_ms=since_ms)


def _spec(value: Any, tag: str) -> Any:
    """ "first", "last", "next", an offset, or a Timestamp."""
    if isinstance(value, str):
        if value not in NAMED:
            raise _invalid("x-stream-offset", tag, "first, last, next, an offset or a timestamp")
        return value
    if isinstance(value, Timestamp):
        return value
    return _offset(value, "x-stream-offset", tag, "first, last, next, an offset or a timestamp")


def _offset(value: Any, name: str, tag: str, wanted: str = "an offset") -> int:
    if not isinstance(value, int) or isinstance(value, (bool, Timestamp)) or not 0 <= value < 2**61:
        raise _invalid(name, tag, wanted)
    return int(value)


def _flag(arguments: Any, name: str, tag: str) -> bool:
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(name, tag, "a boolean")
    return value


def _invalid(name: str, tag: str, wanted: str) -> Exception:
    return precondition_failed(f"invalid arg '{name}' for consumer '{tag}': expected {wanted}")
