"""amq.lease: take, settle, release and end of leases, and consumers that read by one (x-lease).

The bodies and answers are in docs/leases.md, the lease itself in `broker.queues.leasing`. Who may read the queue may
lease it, and who may configure it may end anybody's lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.amqp import methods
from clusterbroker.broker.amqp.errors import AmqpError, access_refused, not_found, not_implemented, precondition_failed
from clusterbroker.broker.queues.lease import (
    BYTES_MAX,
    GENERATION_BYTES_MAX,
    NAME_BYTES_MAX,
    ROWS_MAX,
    RUN_BYTES_MAX,
    TTL_MS_DEFAULT,
    TTL_MS_MAX,
    TTL_MS_MIN,
    Acquire,
    End,
    LeaseAnswer,
    Release,
    Settle,
)
from clusterbroker.broker.session.lease_reader import LeaseReader
from clusterbroker.broker.session.services import Request, Service
from clusterbroker.cluster.stream_settings import STREAM

if TYPE_CHECKING:
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.broker.session.channel import Channel
    from clusterbroker.cluster.authorization import PermissionKind

SEQ_MAX: Final = 2**56
ROWS_DEFAULT: Final = 10_000
BYTES_DEFAULT: Final = 64 << 20
ANSWER_MS: Final = 20_000
"""So long the queue's owner may take to answer, or to be replaced; then the word may be repeated."""


def _take(request: Request) -> None:
    request.only("queue", "name", "run", "life", "from", "rows_max", "bytes_max", "ttl_ms")
    start = 0 if request.body.get("from") is None else request.integer("from", 0, SEQ_MAX)
    word = Acquire(
        *_who(request),
        start,
        request.integer("rows_max", 1, ROWS_MAX, ROWS_DEFAULT),
        request.integer("bytes_max", 1, BYTES_MAX, BYTES_DEFAULT),
        request.integer("ttl_ms", TTL_MS_MIN, TTL_MS_MAX, TTL_MS_DEFAULT),
    )
    _say(request, word, "leased")


def _settle(request: Request) -> None:
    request.only("queue", "name", "run", "life", "upto")
    _say(request, Settle(*_who(request), request.integer("upto", 0, SEQ_MAX)), "settled")


def _release(request: Request) -> None:
    request.only("queue", "name", "run", "life")
    _say(request, Release(*_who(request)), "released")


def _end(request: Request) -> None:
    request.only("queue", "name")
    name = "" if request.body.get("name") is None else request.text("name", NAME_BYTES_MAX)
    _say(request, End(name), "ended", "configure")


def _who(request: Request) -> tuple[str, str, str]:
    """Name, run and life."""
    life = "" if request.body.get("life") is None else request.text("life", GENERATION_BYTES_MAX)
    return request.text("name", NAME_BYTES_MAX), request.text("run", RUN_BYTES_MAX), life


def _say(
    request: Request, word: Acquire | Settle | Release | End, outcome: str, right: PermissionKind = "read"
) -> None:
    channel, name = request.channel, request.text("queue")
    vhost, now_ms = channel.connection.vhost, channel.connection.node.now_ms
    assert vhost is not None, "a channel is opened after its connection"
    channel.check(right, "queue", name)
    queue = vhost.queues.get(name)
    if queue is None:
        request.refuse(404, f"no queue '{name}' in vhost '{vhost.name}'")
        return
    channel.check_exclusive(queue)
    if queue.settings.queue_type == STREAM:
        request.refuse(406, f"stream '{name}' in vhost '{vhost.name}' is read by offsets, and not leased")
        return

    def told(answer: LeaseAnswer, _: bytes) -> None:
        if answer.code:
            request.refuse(answer.code, answer.reason)
        else:
            request.answer({"outcome": outcome, "life": answer.generation, **_range(answer, outcome)})

    request.patient(now_ms + ANSWER_MS)
    queue.lease(word, told, now_ms)


def _range(answer: LeaseAnswer, outcome: str) -> dict[str, Any]:
    if outcome in ("released", "ended"):
        return {}
    found = {"acknowledged": answer.start}
    if outcome == "leased":
        found.update(start=answer.start, end=answer.end, rows=answer.rows, next=answer.next)
    return found


AMQ_LEASE: Final = Service(
    needs_write=False, handlers={"take": _take, "settle": _settle, "release": _release, "end": _end}
)


# -- consumers --------------------------------------------------------------------------------------------------


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
