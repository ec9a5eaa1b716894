"""What waits in a delayed exchange: look at it by due time, cancel it, send it now, give it another time.

Requests to the owner of the exchange's delay queue. Rights: to look, read the exchange; else write to it as well, as of
whoever publishes there.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from msgspec import UNSET, Meta, UnsetType

from clusterbroker.broker.stats.inspection import (
    SHOWN_MAX,
    TIME_MAX,
    TREATED_MAX,
    TRUNCATE_DEFAULT,
    TRUNCATE_MAX,
    Request,
    Time,
)
from clusterbroker.broker.stats.message_filter import LENGTH_MAX, BadFilter, parse
from clusterbroker.cluster.wiring.delays import DELAY_MS_MAX, delay_queue
from clusterbroker.cluster.wiring.entities import Exchange, Queue
from clusterbroker.cluster.wiring.exchange_rules import routing_type

from .bodies import ENCODINGS, Which
from .errors import bad_request, not_authorised, object_not_found
from .forms import Form, Said
from .json_schema import Schema
from .messages import Question
from .principals import MANAGEMENT
from .reading import Reading, same
from .reads import Path

DAY_MS: Final = 86_400_000
_Key = Annotated[str, Meta(min_length=1, max_length=255, description="Header x-delay-key")]
_WHICH: Final[list[Schema]] = [{"required": ["seqs"]}, {"required": ["filter"]}, {"required": ["key"]}]


class Waiting(Form):
    """Of a query: which waiting messages are shown, by due time, and how much of each."""

    due_from: Annotated[Time, Meta(description="ms since 1970")] = 0
    due_to: Annotated[Time, Meta(description="ms since 1970")] = TIME_MAX
    filter: Annotated[str, Meta(max_length=LENGTH_MAX)] = ""
    key: _Key | UnsetType = UNSET
    count: Annotated[int, Meta(ge=1, le=SHOWN_MAX)] = 50
    truncate: Annotated[int, Meta(ge=0, le=TRUNCATE_MAX)] = TRUNCATE_DEFAULT
    encoding: Annotated[str, Meta(extra_json_schema={"enum": list(ENCODINGS)})] = "auto"


class WhichWaiting(Which):
    """Waiting messages: by number, by a filter, or the one of a key."""

    MORE: ClassVar[Schema] = {"oneOf": _WHICH}
    key: _Key | UnsetType = UNSET


class Rescheduled(WhichWaiting, kw_only=True):
    """Waiting messages that get another time."""

    MORE: ClassVar[Schema] = {"required": ["deliver_at"], "oneOf": _WHICH}
    deliver_at: Annotated[int, Meta(ge=1, le=TIME_MAX, description="ms since 1970")]


def run(question: Question, reading: Reading, path: Path, said: Said) -> Request:
    """What the owner is asked. Refused as rights, query and body demand."""
    vhost, name = path["vhost"], path["name"]
    reading.principal.require(MANAGEMENT)
    reading.principal.enter(vhost)
    exchange, queue = _found(reading, vhost, name)
    reading.principal.check(vhost, "read", "exchange", name)
    if routing_type(exchange) == "topic" and not reading.principal.may_route(vhost, name, None):
        # which of the waiting messages it may read depends on their keys
        raise not_authorised(
            f"exchange '{name}' in vhost '{vhost}': topic permissions or scopes limit user '{reading.principal.name}' "
            "to some routing keys, and what waits may have any"
        )
    if question.form is None:
        return _look(queue, Waiting.of(reading.query))
    reading.principal.check(vhost, "write", "exchange", name)
    body = question.form.of(said)
    assert isinstance(body, WhichWaiting), "all say which messages"
    return _treat(question, queue, body, reading.now_ms)


def _found(reading: Reading, vhost: str, name: str) -> tuple[Exchange, Queue]:
    exchange = reading.map.exchange(vhost, name)
    queue = reading.map.queue(vhost, delay_queue(name))
    if exchange is None or queue is None or queue.delays != name:
        raise object_not_found()
    return exchange, queue


def _look(queue: Queue, query: Waiting) -> Request:
    if query.encoding not in ENCODINGS:
        raise bad_request("encoding is 'auto' or 'base64'")
    _parse(query.filter)
    key = "" if query.key is UNSET else query.key
    return Request(
        what="delayed", queue_id=queue.queue_id, due_from_ms=query.due_from, due_to_ms=query.due_to, delay_key=key,
        **same(query, "filter", "count", "truncate"),
    )  # fmt: skip


def _treat(question: Question, queue: Queue, body: WhichWaiting, now_ms: int) -> Request:
    said = [one for one in (body.seqs, body.filter, body.key) if one is not UNSET]
    if len(said) != 1:
        raise bad_request("say which messages: 'key', 'seqs' or 'filter' (an empty one means all)")
    common: dict[str, Any] = {"what": question.what, "queue_id": queue.queue_id, "life": body.life}
    if isinstance(body, Rescheduled):
        if body.deliver_at - now_ms > DELAY_MS_MAX:
            raise bad_request(f"'deliver_at' is {DELAY_MS_MAX // DAY_MS} days from now at most")
        common["due_ms"] = body.deliver_at
    if body.key is not UNSET:
        return Request(delay_key=body.key, **common)
    if body.seqs is not UNSET:
        return Request(seqs=tuple(body.seqs), count=TREATED_MAX, **common)
    assert body.filter is not UNSET, "one of the three is said"
    _parse(body.filter)
    return Request(filter=body.filter, **same(body, "first", "last", "count"), **common)


def _parse(filter_: str) -> None:
    try:
        parse(filter_)
    except BadFilter as error:
        raise bad_request(str(error)) from None


_PATH: Final = "/api/exchanges/{vhost}/{name}/delayed"
QUESTIONS: Final[tuple[Question, ...]] = (
    Question("GET", _PATH, "Look at the messages that wait in a delayed exchange, by due time", "delayed", asks=run),
    Question("POST", _PATH + "/delete", "Cancel waiting messages", "delete", WhichWaiting, asks=run),
    Question("POST", _PATH + "/send-now", "Send waiting messages now", "send_now", WhichWaiting, asks=run),
    Question("POST", _PATH + "/reschedule", "Give waiting messages another time", "reschedule", Rescheduled, asks=run),
)
