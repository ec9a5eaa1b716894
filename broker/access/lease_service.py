"""amq.lease: take, settle, release and end of leases.

The bodies and answers are in docs/leases.md, the lease itself in `broker.queues.leasing`. Who may read the queue may
lease it, and who may configure it may end anybody's lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.access.services import Request, Service
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
from clusterbroker.cluster.wiring.stream_settings import STREAM

if TYPE_CHECKING:
    from clusterbroker.cluster.wiring.authorization import PermissionKind

SEQ_MAX: Final = 2**56
ROWS_DEFAULT: Final = 10_000
BYTES_DEFAULT: Final = 64 << 20
ANSWER_MS: Final = 20_000
"""So long the queue's owner may take to answer, or to be replaced; then the request may be repeated."""


def _take(request: Request) -> None:
    request.only("queue", "name", "run", "life", "from", "rows_max", "bytes_max", "ttl_ms")
    start = 0 if request.body.get("from") is None else request.integer("from", 0, SEQ_MAX)
    wanted = Acquire(
        *_who(request),
        start,
        request.integer("rows_max", 1, ROWS_MAX, ROWS_DEFAULT),
        request.integer("bytes_max", 1, BYTES_MAX, BYTES_DEFAULT),
        request.integer("ttl_ms", TTL_MS_MIN, TTL_MS_MAX, TTL_MS_DEFAULT),
    )
    _ask(request, wanted, "leased")


def _settle(request: Request) -> None:
    request.only("queue", "name", "run", "life", "upto")
    _ask(request, Settle(*_who(request), request.integer("upto", 0, SEQ_MAX)), "settled")


def _release(request: Request) -> None:
    request.only("queue", "name", "run", "life")
    _ask(request, Release(*_who(request)), "released")


def _end(request: Request) -> None:
    request.only("queue", "name")
    name = "" if request.body.get("name") is None else request.text("name", NAME_BYTES_MAX)
    _ask(request, End(name), "ended", "configure")


def _who(request: Request) -> tuple[str, str, str]:
    """Name, run and life."""
    life = "" if request.body.get("life") is None else request.text("life", GENERATION_BYTES_MAX)
    return request.text("name", NAME_BYTES_MAX), request.text("run", RUN_BYTES_MAX), life


def _ask(
    request: Request, wanted: Acquire | Settle | Release | End, outcome: str, right: PermissionKind = "read"
) -> None:
    access, queue = request.access, request.queue(right)
    now_ms = access.node.now_ms
    if queue is None:
        return
    access.check_exclusive(queue)
    access.check_managed(queue)  # a lease would keep requests from workers, and settle them without an answer
    if queue.settings.queue_type == STREAM:
        request.refuse(406, f"stream '{queue.name}' in vhost '{access.vhost.name}' is read by offsets, and not leased")
        return

    def answered(answer: LeaseAnswer, _: bytes) -> None:
        if answer.code:
            request.refuse(answer.code, answer.reason)
        else:
            request.answer({"outcome": outcome, "life": answer.generation, **_range(answer, outcome)})

    request.patient(now_ms + ANSWER_MS)
    queue.lease(wanted, answered, now_ms)


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
