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
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec.structs import asdict

from clusterbroker.broker.stats.as_user import AnyRequest, Ask, Got, Method, Outcome, Publish
from clusterbroker.broker.stats.as_user import Get as GetRequest
from clusterbroker.broker.wire.amqp091 import methods as m
from clusterbroker.broker.wire.amqp091.errors import ReplyCode
from clusterbroker.broker.wire.amqp091.properties import Properties, decode, encode
from clusterbroker.cluster.wiring.entities import DestinationKind, Queue
from clusterbroker.cluster.wiring.view import ClusterView

from . import bodies, connections, exchanges, links
from .bodies import ACK_MODES, ENCODINGS, NUMBERS, TEXTS
from .errors import Refused, bad_request, not_authorised, object_not_found
from .forms import BODY_BYTES_MAX, Form, Said
from .naming import check_new_name
from .principals import ADMINISTRATOR, MANAGEMENT
from .reading import Document, Reading, plain
from .reads import Path

PAYLOAD_BYTES_MAX: Final = 64 << 20
UNAVAILABLE: Final = 503
"""Of an answer to a question: it may be repeated."""


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


class EndLinks(msgspec.Struct, frozen=True):
    """The nodes end these links of AMQP 1.0."""

    ends: tuple[Document, ...]
    """Arguments of the operation `link.end`, for each."""


class Nothing(msgspec.Struct, frozen=True):
    """There is nothing to do."""


ByAmqp = Call | Publish | Ask | Get | Live
Operation = ByAmqp | CloseConnections | EndLinks | Nothing


class Act(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    plan: Callable[[Reading, Path, Said], Operation]
    form: type[Form] | None = None
    """What the plan reads of a body."""
    body_bytes_max: int = BODY_BYTES_MAX
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


def run(act: Act, reading: Reading, path: Path, said: Said) -> Operation:
    """The plan. Refused as the vhost's rights and the body demand."""
    reading.principal.require(MANAGEMENT)
    if "vhost" in path:
        reading.principal.enter(path["vhost"])
    return act.plan(reading, path, said)


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


def _declare_queue(r: Reading, p: Path, said: Said) -> Operation:
    vhost, name = p["vhost"], p["name"]
    existed = r.map.queue(vhost, name) is not None
    if not existed:
        check_new_name(name)
    method = m.QueueDeclare(queue=name, **asdict(bodies.Queue.of(said)))
    return Call(method, 204 if existed else 201, folded=lambda map_: map_.queue(vhost, name) is not None)


def _queue(r: Reading, p: Path) -> Queue:
    queue = r.map.queue(p["vhost"], p["name"])
    if queue is None:
        raise object_not_found()
    return queue


def _delete_queue(r: Reading, p: Path, _said: Said) -> Operation:
    queue = _queue(r, p)
    method = m.QueueDelete(queue=queue.name, if_unused=_asked(r, "if-unused"), if_empty=_asked(r, "if-empty"))
    return Call(method, folded=lambda map_: map_.queue_by_id(queue.queue_id) is None)


def _asked(r: Reading, name: str) -> bool:
    return r.query.get(name, "").lower() == "true"


def _purge(r: Reading, p: Path, _said: Said) -> Operation:
    return Call(m.QueuePurge(queue=_queue(r, p).name))


def _end_lease(r: Reading, p: Path, _said: Said) -> Operation:
    named = {"name": r.query["name"]} if r.query.get("name") else {}
    return Ask("amq.lease", "end", {"queue": _queue(r, p).name, **named})


def _queue_action(r: Reading, p: Path, said: Said) -> Operation:
    _queue(r, p)
    action = bodies.QueueAction.of(said).action
    if action not in ("sync", "cancel_sync"):
        raise bad_request(["not_recognised", action])
    return Nothing()  # copies catch up by themselves, always


def _declare_exchange(r: Reading, p: Path, said: Said) -> Operation:
    vhost, name = p["vhost"], p["name"]
    existed = r.map.exchange(vhost, name) is not None
    if not existed:
        check_new_name(name)
    method = m.ExchangeDeclare(exchange=name, **asdict(bodies.Exchange.of(said)))
    return Call(method, 204 if existed else 201, folded=lambda map_: map_.exchange(vhost, name) is not None)


def _delete_exchange(r: Reading, p: Path, _said: Said) -> Operation:
    vhost, exchange = p["vhost"], exchanges.find(r, p["vhost"], p["name"])
    method = m.ExchangeDelete(exchange=exchange.name, if_unused=_asked(r, "if-unused"))
    return Call(method, folded=lambda map_: map_.exchange(vhost, exchange.name) is None)


# -- bindings -------------------------------------------------------------------------------------------------


def _bind(kind: DestinationKind) -> Callable[[Reading, Path, Said], Operation]:
    def plan(r: Reading, p: Path, said: Said) -> Operation:
        vhost, destination = p["vhost"], p["destination"]
        source = "" if p["source"] == exchanges.DEFAULT_NAME else p["source"]
        ends = r.map.queue if kind == "queue" else r.map.exchange
        if r.map.exchange(vhost, source) is None:
            check_new_name(source)
        if ends(vhost, destination) is None:
            check_new_name(destination)
        body = bodies.Binding.of(said)
        method: m.Method
        if kind == "queue":
            method = m.QueueBind(queue=destination, exchange=source, **asdict(body))
        else:
            method = m.ExchangeBind(destination=destination, source=source, **asdict(body))
        named = exchanges.properties_key(body.routing_key, body.arguments)

        def folded(map_: ClusterView) -> bool:
            found = map_.bindings_to(vhost, kind, destination)
            return any(
                b.source == source and exchanges.properties_key(b.routing_key, b.arguments) == named for b in found
            )

        return Call(method, 201, location=f"{quote(destination, safe='')}/{quote(named, safe='~')}", folded=folded)

    return plan


def _unbind(kind: DestinationKind) -> Callable[[Reading, Path, Said], Operation]:
    def plan(r: Reading, p: Path, _said: Said) -> Operation:
        binding = exchanges.binding_named(r, p["vhost"], p["source"], kind, p["destination"], p["properties_key"])
        what: dict[str, Any] = {"routing_key": binding.routing_key, "arguments": binding.arguments}
        method: m.Method
        if kind == "queue":
            method = m.QueueUnbind(queue=binding.destination, exchange=binding.source, **what)
        else:
            method = m.ExchangeUnbind(destination=binding.destination, source=binding.source, **what)
        return Call(method, folded=lambda map_: map_.find_binding(binding) is None)

    return plan


# -- messages -------------------------------------------------------------------------------------------------


def _publish(_r: Reading, p: Path, said: Said) -> Operation:
    body = bodies.Publish.of(said)
    if body.payload_encoding == "string":
        octets = body.payload.encode()
    elif body.payload_encoding == "base64":
        try:
            octets = base64.b64decode(body.payload, validate=True)
        except (ValueError, binascii.Error):
            raise bad_request("not_base64") from None
    else:
        raise bad_request(f"unsupported_payload_encoding: '{body.payload_encoding[:80]}'")
    try:
        properties = encode(properties_of(body.properties))
    except (ValueError, TypeError, OverflowError) as error:
        raise bad_request(f"the properties cannot be sent: {error}") from None
    exchange = "" if p["name"] == exchanges.DEFAULT_NAME else p["name"]
    return Publish(exchange, body.routing_key, properties, octets)


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


def _get(r: Reading, p: Path, said: Said) -> Operation:
    name = _queue(r, p).name
    missing = [name for name in ("ackmode", "count", "encoding") if name not in said]
    if missing:
        raise bad_request(f"[{','.join(f'{{key_missing,{name}}}' for name in missing)}]")
    body = bodies.Get.of(said)
    if body.ackmode not in ACK_MODES:
        raise bad_request(f"ackmode is one of {', '.join(ACK_MODES)}")
    if body.encoding not in ENCODINGS:
        raise bad_request("encoding is 'auto' or 'base64'")
    request = GetRequest(name, body.count, body.ackmode)  # type: ignore[arg-type]
    return Get(request, body.encoding == "base64", body.truncate)


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


def _close_connection(r: Reading, p: Path, _said: Said) -> Operation:
    row = connections.connection_named(r, p["name"]).row
    if not r.principal.is_own(row):
        r.principal.require(ADMINISTRATOR)
    return CloseConnections((row.connection_id,))


def _close_connections(r: Reading, p: Path, _said: Said) -> Operation:
    if p["user"] != r.principal.name:
        r.principal.require(ADMINISTRATOR)
    rows = connections.rows_of_user(r, p["user"])
    # who monitors sees other users' connections, and closes its own alone
    return CloseConnections(
        tuple(row.connection_id for row in rows if r.principal.is_own(row) or r.principal.has(ADMINISTRATOR)), each=True
    )


def _end_links(r: Reading, p: Path, _said: Said) -> Operation:
    return EndLinks(tuple(links.ends(r, p["container"], p["name"], p.get("vhost"))))


_BINDINGS: Final = "/api/bindings/{vhost}/e/{source}"
_QUEUE: Final = "/api/queues/{vhost}/{name}"
_EXCHANGE: Final = "/api/exchanges/{vhost}/{name}"
ACTS: Final[tuple[Act, ...]] = (
    Act("PUT", _QUEUE, "Declare a queue", _declare_queue, bodies.Queue),
    Act("DELETE", _QUEUE, "Delete a queue", _delete_queue),
    Act("DELETE", _QUEUE + "/contents", "Purge a queue", _purge),
    Act("DELETE", _QUEUE + "/lease", "End the lease on a queue", _end_lease),
    Act("POST", _QUEUE + "/get", "Get messages", _get, bodies.Get),
    Act("POST", _QUEUE + "/actions", "Synchronise a queue", _queue_action, bodies.QueueAction),
    Act("PUT", _EXCHANGE, "Declare an exchange", _declare_exchange, bodies.Exchange),
    Act("DELETE", _EXCHANGE, "Delete an exchange", _delete_exchange),
    Act("POST", _EXCHANGE + "/publish", "Publish a message", _publish, bodies.Publish, PAYLOAD_BYTES_MAX,
        ("payload", "payload_encoding", "properties", "routing_key")),
    Act("POST", _BINDINGS + "/q/{destination}", "Bind a queue", _bind("queue"), bodies.Binding),
    Act("POST", _BINDINGS + "/e/{destination}", "Bind an exchange", _bind("exchange"), bodies.Binding),
    Act("DELETE", _BINDINGS + "/q/{destination}/{properties_key}", "Unbind a queue", _unbind("queue")),
    Act("DELETE", _BINDINGS + "/e/{destination}/{properties_key}", "Unbind an exchange", _unbind("exchange")),
    Act("GET", "/api/aliveness-test/{vhost}", "Whether a message goes through a vhost", lambda _r, _p, _said: Live()),
    Act("DELETE", "/api/connections/username/{user}", "Close all connections of a user", _close_connections),
    Act("DELETE", "/api/connections/{name}", "Close a connection", _close_connection),
    Act("DELETE", "/api/links/{container}/{name}", "End suspended links", _end_links),
    Act("DELETE", "/api/links/{vhost}/{container}/{name}", "End suspended links in a vhost", _end_links),
)  # fmt: skip
