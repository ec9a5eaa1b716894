"""What a pool's responder says to the caller of a request that died: pure.

The answer goes to `reply_to` over the default exchange, with the request's correlation id, an empty body and type
`error`:

    x-status           why: `expired`, `maxlen`, `delivery_limit`, `rejected`, `invalid_key`, `key_refused`, ...; a byte
                       array, as OSRD's clients demand, or text by the pool's `status_type`
    x-pool, x-key      of the request
    x-detail           the same in a sentence
    x-delivery-count   how often it came back after a failure, as its last worker was told; 0: also if no worker had it
    traceparent        the request's, if it had one: the answer's delivery is in its caller's trace

Only a request whose publisher may hear it there is answered (flag ANSWERABLE, `broker.access.pool_requests`).

An answer that dies is not answered: it is of type `error`, and has x-status.

Why is what the last death says (`x-last-death-reason`): every death writes it, so no client can forge it, and a request
that was published again with the headers of an earlier death is answered as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from clusterbroker.broker.content.message import KEY_BYTES_MAX, new_message
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.loss_headers import COUNT, REASON
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.pool_entities import Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message

ERROR: Final = "error"
DIED_IN: Final = "x-last-death-queue"
STATUS: Final = "x-status"
POOL: Final = "x-pool"
KEY: Final = "x-key"
DETAIL: Final = "x-detail"
TRACE: Final = "traceparent"
TRACE_MAX: Final = 255
DETAILS: Final = {
    "expired": "nobody took the request within its time",
    "maxlen": "too many requests wait for this key",
    "delivery_limit": "workers failed at the request too often",
    "rejected": "a worker rejected the request",
    "invalid_key": "a key is UTF-8 without NUL, of 255 bytes at most",
    "key_refused": "the pool does not allow this key",
    "no_capacity": "the pool has as many keys as it may have",
    "start_failed": "no worker for this key could be started",
    "cancelled": "the request was cancelled",
    "pool_deleted": "the pool was deleted",
}


class Answer(NamedTuple):
    """What is said of a dead request."""

    reason: str
    reply_to: str
    """Empty: nobody wants an answer."""
    message: Message | None
    key: str
    """Empty: it has none that a group could have."""


def answer_to(pool: Pool, request: Message, now_ms: int, why: str = "") -> Answer | None:
    """None: it did not die, or is an answer itself. A reason of which no sentence is known here is the detail itself.
    `why`: more of a start that failed."""
    properties = properties_of(request)
    headers = properties.headers or {}
    reason = headers.get(REASON)
    if not isinstance(reason, str) or (properties.type == ERROR and STATUS in headers):
        return None
    reply_to, key = properties.reply_to or "", _key(pool, request, headers)
    group_key = key if isinstance(key, str) else ""
    if (
        not reply_to
        or not request.flags & ANSWERABLE
        or len(reply_to.encode("utf-8", "surrogateescape")) > KEY_BYTES_MAX
    ):
        return Answer(reason, "", None, group_key)
    detail = DETAILS.get(reason, reason)
    said: dict[str, Any] = {
        STATUS: reason.encode() if pool.settings.status_type == "bytes" else reason,
        POOL: pool.name,
        KEY: key,
        DETAIL: f"{detail}: {why}" if why and reason == "start_failed" else detail,
        COUNT: _count(pool, headers),
    }
    trace = headers.get(TRACE)
    if isinstance(trace, (str, bytes)) and len(trace) <= TRACE_MAX:
        said[TRACE] = trace
    about = Properties(correlation_id=properties.correlation_id, type=ERROR, headers=said, delivery_mode=2)
    message = new_message("", reply_to, about, b"", now_ms)
    return Answer(reason, reply_to, message, group_key)


def _count(pool: Pool, headers: Mapping[str, Any]) -> int:
    """As the queue of its key wrote it; of what died elsewhere the header is its publisher's."""
    count, queue, names = headers.get(COUNT), headers.get(DIED_IN), PoolNames(pool.name)
    if not isinstance(queue, str) or queue in names.queues or not names.has_queue(queue):
        return 0
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else 0


def _key(pool: Pool, request: Message, headers: Mapping[str, Any]) -> str | bytes:
    """By which it was published first: its address is the dead-letter exchange's by now, its key as it was. What was
    published to the name of a key's queue is of that key."""
    raw = request.routing_key
    try:
        key = raw.decode()
    except UnicodeDecodeError:
        return bytes(raw)
    named = PoolNames(pool.name).key_of(key) if key == headers.get(DIED_IN) else None
    return key if named is None else named
