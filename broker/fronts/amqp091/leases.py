"""Consumers that read by a lease on a queue (x-lease): the arguments are in docs/leases.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterbroker.broker.access.lease_service import SEQ_MAX
from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import AmqpError, access_refused, not_found, not_implemented, precondition_failed
from clusterbroker.broker.fronts.amqp091.lease_reader import LeaseReader
from clusterbroker.broker.queues.lease import NAME_BYTES_MAX, LeaseAnswer

if TYPE_CHECKING:
    from clusterbroker.broker.fronts.amqp091.channel import Channel
    from clusterbroker.broker.queues.handle import QueueHandle


def reader(channel: Channel, method: methods.BasicConsume, tag: str, queue: QueueHandle) -> LeaseReader:
    """What a consumer with x-lease consumes from."""
    name = method.arguments["x-lease"]
    if (
        not isinstance(name, str)
        or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX
        or not _is_text(name)
    ):
        raise _invalid("x-lease", tag, f"expected a text of 1 to {NAME_BYTES_MAX} bytes")
    first, end = (_seq(method, tag, argument) for argument in ("x-stream-offset", "x-stream-end"))
    if method.no_ack:
        raise not_implemented(f"no_ack of a lease on queue '{queue.name}' in vhost '{channel.vhost_name}'")
    if not channel.prefetch:
        raise precondition_failed(
            f"consumer prefetch count is not set for the lease on queue '{queue.name}' in vhost '{channel.vhost_name}'"
        )
    if method.exclusive:
        raise access_refused(f"a lease on queue '{queue.name}' in vhost '{channel.vhost_name}' is exclusive by itself")

    @channel.answers
    def failed(answer: LeaseAnswer) -> None:
        error = _error(answer)
        if made.accepted:
            channel.fail(error.at(method.CLASS_ID, method.METHOD_ID))
        elif channel.awaits():
            channel.refuse(error, method)

    made = LeaseReader(queue, name, first, end, channel.connection.node.agenda, failed)
    made.chunks = boolean(method, tag, "x-stream-chunks")
    channel.deadlines.append(made.overdue)
    return made


def _is_text(name: str) -> bool:
    """Whether it was UTF-8 on the wire."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _seq(method: methods.BasicConsume, tag: str, name: str) -> int:
    value = method.arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= SEQ_MAX:
        raise _invalid(name, tag, "expected an integer, a seq")
    return int(value)


def boolean(method: methods.BasicConsume, tag: str, name: str) -> bool:
    """An argument of a consumer that is true, or not there."""
    value = method.arguments.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(name, tag, "expected a boolean")
    return value


def _invalid(name: str, tag: str, why: str) -> AmqpError:
    return precondition_failed(f"invalid arg '{name}' for consumer '{tag}': {why}")


def _error(answer: LeaseAnswer) -> AmqpError:
    return (not_found if answer.code in (404, 503) else precondition_failed)(answer.reason)
