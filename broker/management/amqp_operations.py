"""What is done by AMQP, as the user who asks: declare, bind, delete, purge, publish, get.

A plan is the method to send, and what comes of the answer; the node carries it out as a client of the user
(`broker.server.control.as_user`). So permissions, argument checks, if-unused, exclusive queues and all else are those
of any client, by construction. Publish waits for its confirm and for a return; get takes messages one by one and
settles them in the end as the request says; a question to the broker itself (`amq.lease`) is a message, and its answer
another one. The aliveness test is a declare, a publish and a get.

AMQP's errors become HTTP's: 404 not_found, 403 not_authorised, all others bad_request, with the text that AMQP gave,
without its name in front.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

import msgspec

from clusterbroker.broker.amqp import methods as m
from clusterbroker.broker.amqp.errors import ReplyCode
from clusterbroker.broker.amqp.properties import Properties, decode, encode
from clusterbroker.broker.stats.as_user import AckMode, AnyRequest, Ask, Got, Method, Outcome, Publish
from clusterbroker.broker.stats.as_user import Get as GetRequest
from clusterbroker.cluster.wiring.view import ClusterView

from . import connections, exchanges
from .bodies import Body
from .errors import Refused, bad_request, not_authorised, object_not_found
from .naming import check_new_name
from .principals import ADMINISTRATOR, MANAGEMENT
from .reading import Document, Reading, plain
from .reads import Path

MESSAGES_MAX: Final = 10_000
"""Of one get: all are held until the last one came."""
PAYLOAD_BYTES_MAX: Final = 64 << 20
UNAVAILABLE: Final = 503
"""Of an answer to a question: it may be repeated."""

ACK_MODES: Final = get_args(AckMode)
TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id", "cluster_id",
)  # fmt: skip
NUMBERS: Final = {"delivery_mode": 255, "priority": 255, "timestamp": 2**64 - 1}


class Call(msgspec.Struct, frozen=True):
    """One method, and what is answered when it is done."""

    method: m.Method
    status: int = 204
    location: str = ""
    folded: Callable[[ClusterView], bool] = lambda _map: True
    """True once the map shows what was done: then it is answered, so that who reads next finds it."""


class Get(msgspec.Struct, frozen=True):
    """Some messages; answered with them."""

    request: GetRequest
    base64: bool
    truncate: int | None
    """Bytes of a payload that are shown; None: all."""


class Live(msgspec.Struct, frozen=True):
    """A queue declared, a message published and got: answered with `{"status": "ok"}`."""

    queue: str = "aliveness-test"


class CloseConnections(msgspec.Struct, frozen=True):
    """No AMQP of ours: the nodes end these connections."""

    connection_ids: tuple[str, ...]
    each: bool = False
    """Whichever of them are still there; otherwise it is an error when one is not."""


class Nothing(msgspec.Struct, frozen=True):
    """There is nothing to do."""


ByAmqp = Call | Publish | Ask | Get | Live
Operation = ByAmqp | CloseConnections | Nothing


class Act(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    plan: Callable[[Reading, Path, Body], Operation]
    body_bytes_max: int = 1 << 20
    may_be_long: tuple[str, ...] = ()
    """What is read of a body that is longer than others may be."""

    @property
    def statuses(self) -> tuple[int, ...]:
        """Of a success, the commonest first."""
        if self.plan in (_publish, _get) or self.method == "GET":
            return (200,)
        if self.path.startswith("/api/bindings") and self.method == "POST":
            return (201,)
        return (201, 204) if self.method == "PUT" else (204,)


def run(act: Act, reading: Reading, path: Path, fields: dict[str, Any]) -> Operation:
    """The plan. Refused as the vhost's rights and the body demand."""
    reading.principal.require(MANAGEMENT)
    if "vhost" in path:
        reading.principal.enter(path["vhost"])
    return act.plan(reading, path, Body(fields, reading.now_ms))


_LATER: Final = (ReplyCode.CONNECTION_FORCED, ReplyCode.RESOURCE_ERROR)
"""The node is going, or what is named is being changed: the same may be done in a while."""


def requests_of(operation: ByAmqp) -> tuple[AnyRequest, ...]:
    """What the node is asked to do. Refused (400) for what AMQP cannot say."""
    try:
        match operation:
            case Call():
                return (Method(m.encode(operation.method)),)
            case Get():
                return (operation.request,)
            case Live(queue=queue):
                declare = Method(m.encode(m.QueueDeclare(queue=queue)))
                publish = Publish("", queue, encode(Properties()), b"alive")
                return declare, publish, GetRequest(queue, 1, "ack_requeue_false")
            case _:
                return (operation,)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise bad_request(f"this cannot be said in AMQP: {error}") from None


def answer_of(operation: ByAmqp, outcome: Outcome) -> Any:
    """Nothing of a Call or an Ask. Refused as AMQP says."""
    if outcome.code:
        raise refused(outcome.code, outcome.text, operation)
    if outcome.nacked:
        raise bad_request("the message was refused: a queue is full, or could not take it")
    match operation:
        case Publish():
            return {"routed": outcome.routed}
        case Get():
            return [message_document(operation, got) for got in outcome.got]
        case Live():
            if not outcome.got:
                raise Refused(503, "unavailable", "the message that was published cannot be got")
            return {"status": "ok"}
    return None


def refused(code: int, text: str, operation: Operation) -> Refused:
    """What an AMQP error is over HTTP. `text` is its reply text."""
    name, _, reason = text.partition(" - ")
    reason = reason if name.isupper() else text
    if code in _LATER:
        return Refused(503, "unavailable", reason)
    if isinstance(operation, Publish):
        return bad_request(f"{code} {text}")
    if isinstance(operation, Ask) and code == UNAVAILABLE:
        return Refused(503, "unavailable", reason)
    if code == 404:
        return Refused(404, "not_found", reason)
    return not_authorised(reason) if code == 403 else bad_request(reason)


# -- queues and exchanges -------------------------------------------------------------------------------------


def _declare_queue(r: Reading, p: Path, body: Body) -> Operation:
    vhost, name = p["vhost"], p["name"]
    existed = r.map.queue(vhost, name) is not None
    if not existed:
        check_new_name(name)
    method = m.QueueDeclare(
        queue=name,
        durable=body.flag("durable", True),
        auto_delete=body.flag("auto_delete", False),
        arguments=body.arguments(),
    )
    return Call(method, 204 if existed else 201, folded=lambda map_: map_.queue(vhost, name) is not None)


def _delete_queue(r: Reading, p: Path, _body: Body) -> Operation:
    vhost, name = p["vhost"], p["name"]
    queue = r.map.queue(vhost, name)
    if queue is None:
        raise object_not_found()
    method = m.QueueDelete(queue=name, if_unused=_asked(r, "if-unused"), if_empty=_asked(r, "if-empty"))
    return Call(method, folded=lambda map_: map_.queue_by_id(queue.queue_id) is None)


def _asked(r: Reading, name: str) -> bool:
    return r.query.get(name, "").lower() == "true"


def _purge(r: Reading, p: Path, _body: Body) -> Operation:
    if r.map.queue(p["vhost"], p["name"]) is None:
        raise object_not_found()
    return Call(m.QueuePurge(queue=p["name"]))


def _end_lease(r: Reading, p: Path, _body: Body) -> Operation:
    if r.map.queue(p["vhost"], p["name"]) is None:
        raise object_not_found()
    named = {"name": r.query["name"]} if r.query.get("name") else {}
    return Ask("amq.lease", "end", {"queue": p["name"], **named})


def _queue_action(r: Reading, p: Path, body: Body) -> Operation:
    if r.map.queue(p["vhost"], p["name"]) is None:
        raise object_not_found()
    action = body.text("action")
    if action not in ("sync", "cancel_sync"):
        raise bad_request(["not_recognised", action])
    return Nothing()  # copies catch up by themselves, always


def _declare_exchange(r: Reading, p: Path, body: Body) -> Operation:
    vhost, name = p["vhost"], p["name"]
    existed = r.map.exchange(vhost, name) is not None
    if not existed:
        check_new_name(name)
    method = m.ExchangeDeclare(
        exchange=name,
        type=body.text("type", "direct"),
        durable=body.flag("durable", True),
        auto_delete=body.flag("auto_delete", False),
        internal=body.flag("internal", False),
        arguments=body.arguments(),
    )
    return Call(method, 204 if existed else 201, folded=lambda map_: map_.exchange(vhost, name) is not None)


def _delete_exchange(r: Reading, p: Path, _body: Body) -> Operation:
    vhost, exchange = p["vhost"], exchanges.find(r, p["vhost"], p["name"])
    method = m.ExchangeDelete(exchange=exchange.name, if_unused=_asked(r, "if-unused"))
    return Call(method, folded=lambda map_: map_.exchange(vhost, exchange.name) is None)


# -- bindings -------------------------------------------------------------------------------------------------


def _source(p: Path) -> str:
    return "" if p["source"] == exchanges.DEFAULT_NAME else p["source"]


def _bind(letter: str) -> Callable[[Reading, Path, Body], Operation]:
    def plan(r: Reading, p: Path, body: Body) -> Operation:
        vhost, source, destination = p["vhost"], _source(p), p["destination"]
        ends = r.map.queue if letter == "q" else r.map.exchange
        if r.map.exchange(vhost, source) is None:
            check_new_name(source)
        if ends(vhost, destination) is None:
            check_new_name(destination)
        key, arguments = body.text("routing_key", ""), body.arguments()
        method: m.Method
        if letter == "q":
            method = m.QueueBind(queue=destination, exchange=source, routing_key=key, arguments=arguments)
        else:
            method = m.ExchangeBind(destination=destination, source=source, routing_key=key, arguments=arguments)
        named = exchanges.properties_key(key, arguments)

        def folded(map_: ClusterView) -> bool:
            found = map_.bindings_to(vhost, "queue" if letter == "q" else "exchange", destination)
            return any(
                b.source == source and exchanges.properties_key(b.routing_key, b.arguments) == named for b in found
            )

        return Call(method, 201, location=f"{quote(destination, safe='')}/{quote(named, safe='~')}", folded=folded)

    return plan


def _unbind(letter: str) -> Callable[[Reading, Path, Body], Operation]:
    def plan(r: Reading, p: Path, _body: Body) -> Operation:
        kind: Literal["queue", "exchange"] = "queue" if letter == "q" else "exchange"
        binding = exchanges.binding_named(r, p["vhost"], p["source"], kind, p["destination"], p["properties_key"])
        method: m.Method
        if letter == "q":
            method = m.QueueUnbind(
                queue=binding.destination,
                exchange=binding.source,
                routing_key=binding.routing_key,
                arguments=binding.arguments,
            )
        else:
            method = m.ExchangeUnbind(
                destination=binding.destination,
                source=binding.source,
                routing_key=binding.routing_key,
                arguments=binding.arguments,
            )
        return Call(method, folded=lambda map_: map_.find_binding(binding) is None)

    return plan


# -- messages -------------------------------------------------------------------------------------------------


def _publish(_r: Reading, p: Path, body: Body) -> Operation:
    payload, encoding = body.text("payload"), body.text("payload_encoding", "string")
    if encoding == "string":
        octets = payload.encode()
    elif encoding == "base64":
        try:
            octets = base64.b64decode(payload, validate=True)
        except (ValueError, binascii.Error):
            raise bad_request("not_base64") from None
    else:
        raise bad_request(f"unsupported_payload_encoding: '{encoding[:80]}'")
    try:
        properties = encode(properties_of(body.table("properties", {})))
    except (ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"the properties cannot be sent: {error}") from None
    exchange = "" if p["name"] == exchanges.DEFAULT_NAME else p["name"]
    return Publish(exchange, body.text("routing_key"), properties, octets)


def properties_of(given: Mapping[str, Any]) -> Properties:
    """Message properties by their names in JSON. Refused (400) for an unknown one, or one of another kind."""
    properties = Properties()
    for name, value in given.items():
        if name in TEXTS:
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > 255:
                raise bad_request(f"property '{name}' is a text of at most 255 bytes")
        elif name in NUMBERS:
            if isinstance(value, str) and value.isascii() and value.isdigit():
                value = int(value) if len(value) < 21 else -1
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBERS[name]:
                raise bad_request(f"property '{name}' is a number from 0 to {NUMBERS[name]}")
        elif name == "headers":
            if not isinstance(value, dict):
                raise bad_request("property 'headers' is an object")
        else:
            raise bad_request(f"unknown property '{name[:80]}'")
        setattr(properties, name, value)
    return properties


def _get(r: Reading, p: Path, body: Body) -> Operation:
    if r.map.queue(p["vhost"], p["name"]) is None:
        raise object_not_found()
    missing = [name for name in ("ackmode", "count", "encoding") if name not in body]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")
    ack_mode, encoding = body.text("ackmode"), body.text("encoding")
    if ack_mode not in ACK_MODES:
        raise bad_request(f"ackmode is one of {', '.join(ACK_MODES)}")
    if encoding not in ("auto", "base64"):
        raise bad_request("encoding is 'auto' or 'base64'")
    count = body.number("count")
    if not 0 <= count <= MESSAGES_MAX:
        raise bad_request(f"count is from 0 to {MESSAGES_MAX}")
    truncate = body.number("truncate") if body.value("truncate", None) is not None else None
    if truncate is not None and truncate < 0:
        raise bad_request("truncate is not negative")
    return Get(GetRequest(p["name"], count, ack_mode), encoding == "base64", truncate)  # type: ignore[arg-type]


def message_document(get: Get, got: Got) -> Document:
    """One message as it was got."""
    shown = got.payload if get.truncate is None else got.payload[: get.truncate]
    return {
        "exchange": got.exchange,
        "message_count": got.left,
        **payload_document(shown, get.base64),
        "payload_bytes": len(got.payload),
        "properties": properties_document(decode(got.properties)),
        "redelivered": got.redelivered,
        "routing_key": got.routing_key,
    }


def payload_document(payload: bytes, as_base64: bool, cut: bool = False) -> Document:
    """As text where it is one and that is wanted, else as base64. What is `cut` may end within a character."""
    if not as_base64:
        try:
            return {"payload": payload.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError as error:
            if cut and error.start >= len(payload) - 3:
                return {"payload": payload[: error.start].decode(), "payload_encoding": "string"}
    return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}


def properties_document(properties: Properties) -> Document:
    """Those that there are."""
    told = {name: getattr(properties, name) for name in Properties.__struct_fields__}
    return {name: plain(value) for name, value in told.items() if value is not None}


def _close_connection(r: Reading, p: Path, _body: Body) -> Operation:
    row = connections.connection_named(r, p["name"]).row
    if not r.principal.is_own(row):
        r.principal.require(ADMINISTRATOR)
    return CloseConnections((row.connection_id,))


def _close_connections(r: Reading, p: Path, _body: Body) -> Operation:
    if p["user"] != r.principal.name:
        r.principal.require(ADMINISTRATOR)
    rows = connections.rows_of_user(r, p["user"])
    # who monitors sees other users' connections, and closes its own alone
    return CloseConnections(
        tuple(row.connection_id for row in rows if r.principal.is_own(row) or r.principal.has(ADMINISTRATOR)), each=True
    )


_BINDINGS: Final = "/api/bindings/{vhost}/e/{source}"
ACTS: Final[tuple[Act, ...]] = (
    Act("PUT", "/api/queues/{vhost}/{name}", "Declare a queue", _declare_queue),
    Act("DELETE", "/api/queues/{vhost}/{name}", "Delete a queue", _delete_queue),
    Act("DELETE", "/api/queues/{vhost}/{name}/contents", "Purge a queue", _purge),
    Act("DELETE", "/api/queues/{vhost}/{name}/lease", "End the lease on a queue", _end_lease),
    Act("POST", "/api/queues/{vhost}/{name}/get", "Get messages", _get),
    Act("POST", "/api/queues/{vhost}/{name}/actions", "Synchronise a queue", _queue_action),
    Act("PUT", "/api/exchanges/{vhost}/{name}", "Declare an exchange", _declare_exchange),
    Act("DELETE", "/api/exchanges/{vhost}/{name}", "Delete an exchange", _delete_exchange),
    Act(
        "POST",
        "/api/exchanges/{vhost}/{name}/publish",
        "Publish a message",
        _publish,
        PAYLOAD_BYTES_MAX,
        ("payload", "payload_encoding", "properties", "routing_key"),
    ),
    Act("POST", _BINDINGS + "/q/{destination}", "Bind a queue", _bind("q")),
    Act("POST", _BINDINGS + "/e/{destination}", "Bind an exchange", _bind("e")),
    Act("DELETE", _BINDINGS + "/q/{destination}/{properties_key}", "Unbind a queue", _unbind("q")),
    Act("DELETE", _BINDINGS + "/e/{destination}/{properties_key}", "Unbind an exchange", _unbind("e")),
    Act("GET", "/api/aliveness-test/{vhost}", "Whether a message goes through a vhost", lambda _r, _p, _body: Live()),
    Act("DELETE", "/api/connections/username/{user}", "Close all connections of a user", _close_connections),
    Act("DELETE", "/api/connections/{name}", "Close a connection", _close_connection),
)
