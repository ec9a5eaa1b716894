"""Single messages of a queue: look at them, delete them, move them, publish them again. Requests to the queue's owner.

RabbitMQ has none of this. What it takes are the permissions that AMQP asks for: to read the queue (as basic.get), and
for what is published to write to the exchange, the default one being `amq.default`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET

from clusterbroker.broker.content.formats import UnknownFormatError
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.stats.inspection import LOOKS, TREATED_MAX, Request, Result, Shown, What, life_of
from clusterbroker.broker.stats.message_filter import BadFilter, parse
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.exchange_rules import routing_type
from clusterbroker.cluster.wiring.pool_table import closed

from .amqp_operations import payload_document, properties_document
from .bodies import ENCODINGS, Browse, Deleted, Elsewhere, Which
from .errors import bad_request, not_authorised, object_not_found
from .exchanges import DEFAULT_NAME
from .forms import Form, Said
from .principals import ADMINISTRATOR, MANAGEMENT
from .reading import Document, Reading, same
from .reads import Path

COUNTED: Final[dict[What, str]] = {
    "delete": "deleted", "move": "moved", "replay": "replayed", "send_now": "sent", "reschedule": "rescheduled",
}  # fmt: skip


class Question(msgspec.Struct, frozen=True):
    """One method of one path. `what` is asked of the queue's owner."""

    method: str
    path: str
    summary: str
    what: What
    form: type[Form] | None = None
    """Of its body."""
    statuses: tuple[int, ...] = (200,)
    asks: Callable[[Question, Reading, Path, Said], Request] | None = None
    """Makes the request; None: `run`."""


def run(question: Question, reading: Reading, path: Path, said: Said) -> Request:
    """What the owner is asked. Refused as rights, query and body demand."""
    vhost, name = path["vhost"], path["name"]
    reading.principal.require(MANAGEMENT)
    reading.principal.enter(vhost)
    staged = question.what == "delete" and said.get("staged", False) is True
    queue = staged_in(reading, vhost, name) if staged else reading.map.queue(vhost, name)
    if queue is None:
        raise object_not_found()
    reading.principal.check(vhost, "read", "queue", name)
    if question.what in ("delete", "move"):
        if queue.part_of:
            place = f": use /api/exchanges/VHOST/{queue.delays}/delayed" if queue.delays else ""
            raise bad_request(f"queue '{name}' holds the messages of exchange '{queue.part_of}'{place}")
        require_unlocked(queue)
    else:
        require_own_if_exclusive(reading, queue)
    try:
        if question.what == "browse":
            return _browse(queue, Browse.of(reading.query))
        body = (Deleted if question.what == "delete" else Elsewhere).of(said)
        return _treat(question.what, reading, queue, body)
    except BadFilter as error:
        raise bad_request(str(error)) from None


def staged_in(reading: Reading, vhost: str, name: str) -> Queue | None:
    """What holds the rows that were staged in the exchange of this name. Nobody but an administrator takes any out."""
    reading.principal.require(ADMINISTRATOR)
    return next((queue for queue in reading.map.staging_queues(vhost) if queue.name == name), None)


def require_unlocked(queue: Queue) -> None:
    """Refused when the queue is exclusive: only its connection takes what is in it, as over AMQP."""
    if queue.exclusive_owner is not None:
        where = f"locked queue '{queue.name}' in vhost '{queue.vhost}'"
        raise bad_request(f"cannot obtain exclusive access to {where}: it is exclusive to another connection")


def require_own_if_exclusive(reading: Reading, queue: Queue) -> None:
    """Refused when the queue is exclusive to a connection of somebody else: over AMQP nobody else gets its messages. An
    administrator may look."""
    if queue.exclusive_owner is None or reading.principal.has(ADMINISTRATOR):
        return
    track = reading.replica.connections.get(queue.exclusive_owner)
    if track is None or not reading.principal.is_own(track.row):
        require_unlocked(queue)


def _browse(queue: Queue, query: Browse) -> Request:
    if query.encoding not in ENCODINGS:
        raise bad_request("encoding is 'auto' or 'base64'")
    parse(query.filter)
    _check_life(queue, query.life)
    return Request(
        what="browse",
        queue_id=queue.queue_id,
        **same(query, "first", "last", "count", "filter", "truncate", "life"),
    )


def _treat(what: What, reading: Reading, queue: Queue, body: Which) -> Request:
    exchange, routing_key = _destination(reading, queue.vhost, body) if isinstance(body, Elsewhere) else (None, None)
    _check_life(queue, body.life)
    common: dict[str, Any] = {
        "what": what, "queue_id": queue.queue_id, "life": body.life, "exchange": exchange, "routing_key": routing_key,
    }  # fmt: skip
    if (body.seqs is UNSET) == (body.filter is UNSET):
        raise bad_request("say which messages: 'seqs' or 'filter' (an empty one means all)")
    if queue.staging and body.seqs is UNSET:
        raise bad_request(
            "of staged rows only single ones are deleted, by 'seqs', if they cannot be read or the rows are set aside"
        )
    if body.filter is UNSET:
        assert body.seqs is not UNSET, "one of both is said"
        return Request(seqs=tuple(body.seqs), count=TREATED_MAX, **common)
    parse(body.filter)
    return Request(first=body.first, last=body.last, count=body.count, filter=body.filter, **common)


def _check_life(queue: Queue, life: str) -> None:
    if life and life != life_of(queue):
        raise bad_request("the queue was declared anew, or has lost messages, since these were looked at: look again")


def _destination(reading: Reading, vhost: str, body: Elsewhere) -> tuple[str | None, str | None]:
    """Exchange and routing key; no exchange: the queue in which a message died first."""
    if sum((body.to_origin, body.to_queue is not UNSET, body.exchange is not UNSET)) != 1:
        raise bad_request("say where to: 'to_queue', 'exchange' or 'to_origin'")
    if body.exchange is UNSET:
        reading.principal.check(vhost, "write", "exchange", "")
        if body.to_queue is UNSET:
            return None, None
        if reading.map.queue(vhost, body.to_queue) is None:
            raise bad_request(f"there is no queue '{body.to_queue[:255]}' in vhost '{vhost}'")
        return "", body.to_queue
    name = "" if body.exchange == DEFAULT_NAME else body.exchange
    key = None if body.routing_key is UNSET else body.routing_key
    reading.principal.check(vhost, "write", "exchange", name)
    if name:
        exchange = reading.map.exchange(vhost, name)
        if exchange is None:
            raise bad_request(f"there is no exchange '{name[:255]}' in vhost '{vhost}'")
        if (pool := reading.map.pools.dead_letters_of(vhost, name)) is not None:
            raise not_authorised(f"exchange '{name}' in vhost '{vhost}' {closed(pool)}")
        if exchange.internal:
            raise not_authorised(f"cannot publish to internal exchange '{name}' in vhost '{vhost}'")
        if routing_type(exchange) == "topic" and not reading.principal.may_route(vhost, name, key):
            reason = "say a 'routing_key' that you may use" if key is None else f"'{key}' refused"
            raise not_authorised(f"routing keys of exchange '{name}' in vhost '{vhost}': {reason}")
    if key is not None and len(key.encode()) > 255:
        raise bad_request("a routing key has 255 bytes at most")
    return name, key


# -- answers --------------------------------------------------------------------------------------------------


def told(request: Request, result: Result | None) -> Document:
    """What an audit is told of an operation: which messages, where to, and what came of it; None: that is not known."""
    facts: Document = {"which": "filter" if request.seqs is None else f"{len(request.seqs)} numbers"}
    if request.delay_key:
        facts["which"] = "key"
    if request.due_ms:
        facts["due_ms"] = request.due_ms
    if request.what in ("move", "replay"):
        facts["to"] = "origin" if request.exchange is None else {"exchange": request.exchange or DEFAULT_NAME}
        if request.exchange is not None and request.routing_key is not None:
            facts["to"]["queue" if not request.exchange else "routing_key"] = request.routing_key
    if result is not None:
        facts[COUNTED[request.what]] = result.done
        facts["skipped"] = {why: len(seqs) for why, seqs in result.skipped.items()}
    return facts


def document(reading: Reading, request: Request, result: Result) -> Document:
    """What is answered."""
    answer: Document = {
        **same(result, "queue_id", "life", "owner", "looked_at", "last"),
        "next": result.next or None,
    }
    if request.what in LOOKS:
        as_base64 = reading.query.get("encoding") == "base64"
        answer["items"] = [_shown(shown, as_base64) for shown in result.shown]
    else:
        answer[COUNTED[request.what]] = result.done
        answer["skipped"] = result.skipped
    return answer


def _properties(shown: Shown) -> Document:
    try:
        return properties_document(properties_of(shown))
    except UnknownFormatError:
        return {"undecodable": shown.header.hex()}  # as the journal's commands say it


def _shown(shown: Shown, as_base64: bool) -> Document:
    due: Document = {"due_ms": shown.due_ms} if shown.due_ms else {}
    return {
        **due,
        **same(shown, "seq", "state", "redelivered", "delivery_count", "payload_bytes"),
        "node": shown.node or None,
        "exchange": shown.exchange.decode(errors="replace"),
        "routing_key": shown.routing_key.decode(errors="replace"),
        "properties": _properties(shown),
        **payload_document(shown.payload, as_base64, cut=len(shown.payload) < shown.payload_bytes),
        "truncated": len(shown.payload) < shown.payload_bytes,
        "timestamp_ms": shown.time_ms,
    }


_PATH: Final = "/api/queues/{vhost}/{name}/messages"
QUESTIONS: Final[tuple[Question, ...]] = (
    Question("GET", _PATH, "Look at the messages of a queue, without disturbing it", "browse"),
    Question("POST", _PATH + "/delete", "Delete some messages of a queue", "delete", Deleted),
    Question("POST", _PATH + "/move", "Move some messages of a queue elsewhere", "move", Elsewhere),
    Question("POST", _PATH + "/replay", "Publish some messages of a queue once more", "replay", Elsewhere),
)
