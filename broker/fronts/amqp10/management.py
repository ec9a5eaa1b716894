"""Requests to the node itself and their responses, as RabbitMQ 4 has them (HTTP over AMQP 1.0).

    request     properties: subject = method, to = path, reply-to = $me, message-id; an amqp-value: a map, or null
    response    properties: subject = status, correlation-id = the message-id; `http:response`; an amqp-value

    GET     /queues/:queue                  200   the queue
    PUT     /queues/:queue                  200, 201 the queue; durable, exclusive, auto_delete, arguments
    DELETE  /queues/:queue                  200   message_count
    DELETE  /queues/:queue/messages         200   message_count
    PUT     /exchanges/:exchange            204   type, durable, auto_delete, internal, arguments
    DELETE  /exchanges/:exchange            204
    GET     /exchanges/:exchange/delayed    200   message_count: what waits; with ?key= the message of a key, and due_ms
    DELETE  /exchanges/:exchange/delayed?key= 200 message_count: that message waits no more
    POST    /bindings                       204   source, destination_queue or _exchange, binding_key, arguments
    GET     /bindings?src=&dstq=&key=       200   a list of bindings, each with its location; dste: to an exchange
    DELETE  /bindings/src=;dstq=;key=;args= 204   a location
    PUT     /auth/tokens                    204   another token of the client's user, binary
    GET     /links, DELETE /links/:container/:name    `management_links`

Segments are percent-encoded UTF-8. What is refused has a status of STATUSES and the reason as a text. The commands are
those of `access.admin`, with the same rights and limits as over AMQP 0-9-1; whatever is wrong with a request, its link
lives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast
from urllib.parse import parse_qsl, quote

from clusterbroker.broker.access.admin import Admin
from clusterbroker.broker.access.delay_service import cancel, due_ms, look, waiting_in
from clusterbroker.broker.access.errors import Refusal
from clusterbroker.broker.access.questions import Pending
from clusterbroker.broker.access.sign_in import renew
from clusterbroker.broker.content.sections import APPLICATION, DATA, SEQUENCE, VALUE, from_field, to_field
from clusterbroker.broker.fronts.amqp10 import management_links
from clusterbroker.broker.fronts.amqp10.addresses import NAME_BYTES_MAX, checked, segment
from clusterbroker.broker.fronts.amqp10.conditions import Refused
from clusterbroker.broker.fronts.amqp10.ports import SessionCore
from clusterbroker.broker.fronts.amqp10.reply_link import KEY
from clusterbroker.broker.routing.delays import KEY_BYTES_MAX
from clusterbroker.broker.stats.inspection import Result, Told
from clusterbroker.broker.wire.amqp10.errors import UNAUTHORIZED, LinkError
from clusterbroker.broker.wire.amqp10.performatives import Composite, Properties, composed
from clusterbroker.broker.wire.amqp10.types import Array, DecodeError, Described, Symbol, decode, encode
from clusterbroker.broker.wire.numbers import UInt32, UInt64
from clusterbroker.cluster.wiring.arguments import digest
from clusterbroker.cluster.wiring.commands import AnyCommand
from clusterbroker.cluster.wiring.entities import Binding, DestinationKind

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.queues.handle import QueueHandle

OK, CREATED, NO_CONTENT = 200, 201, 204
BAD_REQUEST, NOT_AUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT = 400, 401, 403, 404, 409
STATUSES: Final = {
    "access_refused": FORBIDDEN,
    "not_allowed": FORBIDDEN,
    "limit": FORBIDDEN,
    "not_found": NOT_FOUND,
    "precondition_failed": CONFLICT,
    "already_exists": CONFLICT,
    "in_use": CONFLICT,
    "resource_locked": BAD_REQUEST,
    "not_implemented": BAD_REQUEST,
    "internal_error": 500,
    "resource_error": 503,
    "unavailable": 503,
    "moved": 503,
}
"""By the kind of a refusal. 400 for an exclusive queue of another connection is RabbitMQ's."""
REPLY_TO: Final = "$me"
_STRING32: Final = 0xB1
_SHOWN_MAX: Final = 255
"""Characters of what a client has sent, in a reason."""
_LOCATION: Final = re.compile(r"src=([^;]+);dst([eq])=([^;]*);key=([^;]*);args=([\w-]*)", re.ASCII)
_QUEUE: Final = {"durable": bool, "exclusive": bool, "auto_delete": bool, "arguments": dict}
_EXCHANGE: Final = {"type": str, "durable": bool, "auto_delete": bool, "internal": bool, "arguments": dict}
_BINDING: Final = {
    "source": str, "destination_queue": str, "destination_exchange": str, "binding_key": str, "arguments": dict,
}  # fmt: skip


class BadRequest(Exception):
    """400, with the reason."""


class Requester(Protocol):
    """The link that a request has come by."""

    session: SessionCore

    @property
    def access(self) -> Authorization: ...

    @property
    def attached(self) -> bool: ...

    def answered(self, request: Request, response: bytes) -> None: ...


class Request:
    """One request, which may wait for answers (`access.questions.Client`)."""

    __slots__ = ("_link", "_payload", "body", "message_id", "query", "status")

    def __init__(self, link: Requester, payload: bytes) -> None:
        self._link = link
        self._payload = payload
        self.message_id: Any = None
        self.query = ""
        self.body: Any = None
        self.status = OK
        """Of a success."""

    def read(self) -> tuple[str, list[str]]:
        """The method, and the segments of the path as they came. Raises BadRequest."""
        properties = Properties()
        for section in _sections(self._payload):
            if isinstance(section, Properties):
                properties, self.message_id = section, section.message_id
            elif section.descriptor in (VALUE, "amqp:amqp-value:*"):
                self.body = section.value
            elif section.descriptor in (DATA, SEQUENCE, "amqp:data:binary", "amqp:amqp-sequence:list"):
                raise BadRequest("the body of a request is an amqp-value")
        method, to = properties.subject, properties.to
        if method is None or not isinstance(to, str):
            raise BadRequest("a request has the properties subject (its method) and to (its path)")
        if properties.reply_to != REPLY_TO:
            raise BadRequest(f"a request has the property reply-to = {REPLY_TO}")
        path, _, self.query = to.partition("?")
        root, *segments = path.split("/")
        if root or not segments:
            raise BadRequest(f"bad path '{to[:_SHOWN_MAX]}': it does not begin with /")
        return method, segments

    # -- responses

    def answer(self, status: int, value: Any = None) -> None:
        properties = Properties(subject=str(status), correlation_id=self.message_id)
        application = encode(Described(UInt64(APPLICATION), {"http:response": "1.1"}))
        body = encode(Described(UInt64(VALUE), value))
        self._link.answered(self, properties.encoded() + application + body)

    def fail(self, status: int, text: str) -> None:
        """The node's log has what was not permitted."""
        if status in (NOT_AUTHENTICATED, FORBIDDEN):
            session = self._link.session
            self.access.node.log_fault(session.connection, LinkError(UNAUTHORIZED, text), session.number)
        self.answer(status, text)

    def done(self, _: object = None) -> None:
        """A success without anything to say."""
        self.answer(NO_CONTENT)

    def counted(self, messages: int) -> None:
        """So many messages are gone."""
        self.answer(OK, {"message_count": UInt64(messages)})

    # -- as its handler and its questions see it

    @property
    def session(self) -> SessionCore:
        return self._link.session

    @property
    def access(self) -> Authorization:
        return self._link.access

    @property
    def admin(self) -> Admin:
        return Admin(self.access)

    @property
    def deadlines(self) -> list[Callable[[int], bool]]:
        return self.session.deadlines

    @property
    def ending(self) -> str | None:
        return None if self._link.attached else "detached"

    def refuse(self, error: Refused) -> None:
        self.fail(STATUSES[error.kind], error.text)

    def crashed(self, error: Exception) -> None:
        self.session.connection.crashed(error)

    def order(self, command: AnyCommand) -> None:
        self.admin.order(command, Pending(self), self.done)


def carry_out(request: Request) -> None:
    """Answers a request now, or when what it needs has answered."""
    try:
        method, segments = request.read()
        if segments[0] == "links" and len(segments) == 3:
            segments = ["links", "/".join(segments[1:])]
        named = segments[1] if len(segments) > 1 and segments[0] != "auth" else ""
        shape = "/".join((segments[0], ":", *segments[2:])) if named or segments[1:] == [""] else "/".join(segments)
        handler = _HANDLERS.get((method, shape))
        if handler is not None:
            handler(request, named)
        elif any(known == shape for _, known in _HANDLERS):
            raise BadRequest(f"bad method '{method[:_SHOWN_MAX]}' of /{shape}")
        else:
            request.fail(NOT_FOUND, f"there is no path '/{'/'.join(segments)[:_SHOWN_MAX]}'")
    except Refusal as refusal:
        request.refuse(refusal)
    except (BadRequest, LinkError) as error:
        request.fail(BAD_REQUEST, error.text if isinstance(error, LinkError) else str(error))


# -- queues


def _get_queue(request: Request, named: str) -> None:
    _check_no_body(request)
    name = _name(named)
    if name.startswith(KEY):
        _get_requester(request, name)
        return

    def counted(ready: int, consumers: int) -> None:
        request.answer(OK, _queue(request.access, name, ready, consumers))

    request.admin.ask_counts(name, Pending(request), counted)


def _get_requester(request: Request, name: str) -> None:
    """An address of direct replies, while its requester is there, perhaps at another node. Who knows it may ask."""
    access = request.access

    def found(there: bool) -> None:
        if not there:
            request.refuse(access.no_queue(name))
            return
        request.answer(
            OK,
            {
                "message_count": UInt64(0),
                "consumer_count": UInt32(1),
                "name": name,
                "vhost": access.vhost.name,
                "durable": False,
                "auto_delete": True,
                "exclusive": True,
                "type": "classic",  # clients read no others but quorum and stream
                "arguments": {},
                "replicas": Array(_STRING32, []),
            },
        )

    access.node.seek_requester(access.vhost.name, name, found)


def _put_queue(request: Request, named: str) -> None:
    fields = _fields(request.body, "queue", _QUEUE)
    name = _name(named)
    if not name:
        raise BadRequest("declare queue with empty name not allowed")
    exclusive = fields.get("exclusive", False)
    command = request.admin.declare_queue(
        name,
        fields["arguments"],
        durable=fields.get("durable", True),
        auto_delete=fields.get("auto_delete", False),
        exclusive=exclusive,
        server_named=False,
    )

    def made() -> None:
        request.status = CREATED

    def declared(ready: int, consumers: int) -> None:
        request.answer(request.status, _queue(request.access, name, ready, consumers))

    connection = request.session.connection
    # before the response: a connection that is lost meanwhile must end the queue as well
    connection.exclusive_queues = connection.exclusive_queues or exclusive
    request.admin.order_queue(command, Pending(request), declared, made)


def _delete_queue(request: Request, named: str) -> None:
    _check_no_body(request)
    queue = request.admin.may_delete_queue(_name(named))
    if queue is None:
        request.counted(0)
    else:
        request.admin.delete_queue(queue, Pending(request), request.counted, if_unused=False, if_empty=False)


def _purge_queue(request: Request, named: str) -> None:
    _check_no_body(request)
    request.admin.purge_queue(_name(named), Pending(request), request.counted)


def _queue(access: Authorization, name: str, ready: int, consumers: int) -> dict[str, Any]:
    """Raises Refusal for one that was deleted meanwhile."""
    queue: QueueHandle = access.queue(name)
    entity, here = queue.entity, access.node.options.name
    alone = access.node.role is None
    described = {
        "message_count": UInt64(ready),
        "consumer_count": UInt32(consumers),
        "name": name,
        "vhost": entity.vhost,
        "durable": entity.durable,
        "auto_delete": entity.auto_delete,
        "exclusive": entity.exclusive_owner is not None,
        "type": queue.settings.queue_type,
        "arguments": from_field(entity.arguments),
        "replicas": Array(_STRING32, [here] if alone else list(entity.replicas)),
    }
    leader = here if alone else entity.owner
    return described if leader is None else {**described, "leader": str(leader)}


# -- exchanges and bindings


def _put_exchange(request: Request, named: str) -> None:
    fields = _fields(request.body, "exchange", _EXCHANGE)
    command = request.admin.declare_exchange(
        _name(named),
        fields.get("type", "direct"),
        fields["arguments"],
        durable=fields.get("durable", True),
        auto_delete=fields.get("auto_delete", False),
        internal=fields.get("internal", False),
    )
    request.order(command)


def _delete_exchange(request: Request, named: str) -> None:
    _check_no_body(request)
    request.order(request.admin.delete_exchange(_name(named), if_unused=False))


def _get_delayed(request: Request, named: str) -> None:
    """How many wait, or the one of a key."""
    _check_no_body(request)
    key, access = _delay_key(request), request.access
    queue = waiting_in(access, _name(named), by_key=key is not None)
    if key is not None:

        def found(result: Result) -> None:
            due = due_ms(result)
            request.answer(
                OK, {"message_count": UInt64(len(result.shown)), "due_ms": None if due is None else UInt64(due)}
            )

        look(access, queue, key, _inspected(request, found))
        return
    question = Pending(request)

    def counted(ready: int, _: int) -> None:
        if question.awaits():
            request.counted(ready)

    question.ask(queue)
    queue.counts(access.node.now_ms, question.answers(counted))


def _delete_delayed(request: Request, named: str) -> None:
    _check_no_body(request)
    key, access = _delay_key(request), request.access
    if key is None:
        raise BadRequest("a query has key: the x-delay-key of the message")
    queue = waiting_in(access, _name(named), cancels=True)
    cancel(access, queue, key, _inspected(request, lambda result: request.counted(result.done)))


def _delay_key(request: Request) -> str | None:
    """None: none is said."""
    asked = _asked(request)
    key = asked.get("key")
    if asked.keys() - {"key"} or (key is not None and not 0 < len(key.encode()) <= KEY_BYTES_MAX):
        raise BadRequest(f"a query has key, a text of 1 to {KEY_BYTES_MAX} bytes: '{request.query[:_SHOWN_MAX]}'")
    return key


def _inspected(request: Request, then: Callable[[Result], None]) -> Told:
    question = Pending(request)

    def told(result: Result | None, code: int, why: str) -> None:
        if not question.awaits():
            return
        if result is None:
            request.fail(code, why)
        else:
            then(result)

    return question.answers(told)


def _bind(request: Request, _: str) -> None:
    fields = _fields(request.body, "binding", _BINDING)
    to = [each for each in ("destination_queue", "destination_exchange") if each in fields]
    if "source" not in fields or len(to) != 1:
        raise BadRequest("a binding has source, and one of destination_queue and destination_exchange")
    source, destination, key = (_clean(fields.get(each, "")) for each in ("source", to[0], "binding_key"))
    kind: DestinationKind = "queue" if to[0] == "destination_queue" else "exchange"
    request.order(request.admin.bind(source, destination, kind, key, fields["arguments"]))


def _get_bindings(request: Request, _: str) -> None:
    _check_no_body(request)
    asked = _asked(request)
    to = asked.keys() & {"dstq", "dste"}
    if len(to) != 1 or not {"src", "key"} <= asked.keys():
        raise BadRequest(f"a query has src, key, and one of dstq and dste: '{request.query[:_SHOWN_MAX]}'")
    kind: DestinationKind = "queue" if "dstq" in to else "exchange"
    found = _bindings(request.access, asked["src"], kind, asked[to.pop()], asked["key"])
    request.answer(OK, [_binding(each) for each in found])


def _unbind(request: Request, named: str) -> None:
    _check_no_body(request)
    location = _LOCATION.fullmatch(named)
    if location is None:
        raise BadRequest(f"bad binding path segment '{named[:_SHOWN_MAX]}'")
    source, destination, key = (_name(location[place]) for place in (1, 3, 4))
    kind: DestinationKind = "queue" if location[2] == "q" else "exchange"
    known = [
        each.arguments
        for each in _bindings(request.access, source, kind, destination, key)
        if _digest(each.arguments) == location[5]
    ]
    command = request.admin.unbind(source, destination, kind, key, known[0] if known else {})
    if known:
        request.order(command)
    else:
        request.done()


def _bindings(access: Authorization, source: str, kind: DestinationKind, destination: str, key: str) -> list[Binding]:
    return [
        each
        for each in access.node.map.bindings_from(access.vhost.name, source, key)
        if each.destination_kind == kind and each.destination == destination
    ]


def _binding(binding: Binding) -> dict[str, Any]:
    source, destination, key = (
        quote(each, safe="") for each in (binding.source, binding.destination, binding.routing_key)
    )
    kind = binding.destination_kind
    return {
        "source": binding.source,
        f"destination_{kind}": binding.destination,
        "binding_key": binding.routing_key,
        "arguments": from_field(binding.arguments),
        "location": f"/bindings/src={source};dst{kind[0]}={destination};key={key};args={_digest(binding.arguments)}",
    }


def _digest(arguments: Mapping[str, Any]) -> str:
    return digest(arguments) if arguments else ""


# -- tokens


def _put_token(request: Request, _: str) -> None:
    if not isinstance(request.body, bytes):
        raise BadRequest("a token is binary")
    access, connection = request.access, request.session.connection
    if access.renewing:
        raise BadRequest("another token before the last one was answered")

    def renewed(refusal: Refusal | None) -> None:
        if refusal is not None:
            request.fail(NOT_AUTHENTICATED, refusal.text)
            return
        for session in connection.sessions.values():
            session.publisher.routes.clear()  # nothing that the old token allowed is remembered
        connection.review_rights()
        request.done()

    renew(access, connection, request.body, lambda: connection.is_open, renewed)


# -- what requests are made of


def _sections(payload: bytes) -> Iterator[Any]:
    """In whatever order: RabbitMQ's client for Python sends null before its properties. Raises BadRequest."""
    at = 0
    try:
        while at < len(payload):
            section, at = decode(payload, at)
            if not isinstance(section, Described):
                raise BadRequest("a request that is no message")
            known = composed(section)
            if isinstance(known, Properties) or not isinstance(known, Composite):
                yield known
    except DecodeError as error:
        raise BadRequest(f"a request that cannot be read: {error}") from None


def _get_links(request: Request, _: str) -> None:
    _check_no_body(request)
    request.answer(OK, management_links.listed(request.access))


def _delete_link(request: Request, named: str) -> None:
    """`named`: container and name, as segments."""
    _check_no_body(request)
    container, _, name = named.partition("/")
    count = management_links.detach(request.access, segment(named, container), segment(named, name))
    if not count:
        request.fail(
            NOT_FOUND, f"no link '{name[:_SHOWN_MAX]}' of container '{container[:_SHOWN_MAX]}' is attached here"
        )
    elif request.ending is None:
        request.answer(OK, {"link_count": UInt64(count)})


def _asked(request: Request) -> dict[str, str]:
    """The query. Raises BadRequest."""
    try:
        return dict(
            parse_qsl(request.query, keep_blank_values=True, strict_parsing=bool(request.query), errors="strict")
        )
    except ValueError:  # UnicodeDecodeError too
        raise BadRequest(f"bad query '{request.query[:_SHOWN_MAX]}'") from None


def _check_no_body(request: Request) -> None:
    if request.body is not None:
        raise BadRequest("this request has no body but null")


def _fields(body: Any, what: str, known: Mapping[str, type]) -> dict[str, Any]:
    """The entries of a map, of the types that they must have; `arguments` always, as fields."""
    if type(body) is not dict:
        raise BadRequest(f"the body of this request is a map: the {what}")
    for key, value in body.items():
        if type(key) is not str or type(value) is not known.get(key):
            raise BadRequest(f"bad {what} property {key!r}: {value!r}"[:_SHOWN_MAX])
    return {**body, "arguments": _arguments(body.get("arguments", {}))}


def _arguments(arguments: dict[Any, Any]) -> dict[str, Any]:
    for key in arguments:
        if type(key) not in (str, Symbol) or len(key.encode()) > NAME_BYTES_MAX:
            raise BadRequest(f"unsupported argument {key!r}"[:_SHOWN_MAX])
    return cast("dict[str, Any]", to_field(arguments))


def _name(named: str) -> str:
    """Of a segment; it may be empty. Raises BadRequest and LinkError."""
    return _clean(segment(named, named, empty=True))


def _clean(name: str) -> str:
    if "\r" in name or "\n" in name:
        raise BadRequest(f"Bad name '{name[:_SHOWN_MAX]}': line feed and carriage return characters not allowed")
    return checked(name, name)


_HANDLERS: Final[Mapping[tuple[str, str], Callable[[Request, str], None]]] = {
    ("GET", "queues/:"): _get_queue,
    ("PUT", "queues/:"): _put_queue,
    ("DELETE", "queues/:"): _delete_queue,
    ("DELETE", "queues/:/messages"): _purge_queue,
    ("PUT", "exchanges/:"): _put_exchange,
    ("DELETE", "exchanges/:"): _delete_exchange,
    ("GET", "exchanges/:/delayed"): _get_delayed,
    ("DELETE", "exchanges/:/delayed"): _delete_delayed,
    ("POST", "bindings"): _bind,
    ("GET", "bindings"): _get_bindings,
    ("DELETE", "bindings/:"): _unbind,
    ("PUT", "auth/tokens"): _put_token,
    ("GET", "links"): _get_links,
    ("DELETE", "links/:"): _delete_link,
}
"""By method and path; a colon stands for the name in it."""
