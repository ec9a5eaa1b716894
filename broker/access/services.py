"""Exchanges that are the broker itself: a request published to one of them is answered, and goes to no queue.

Each is known to the sessions of every vhost and not in the map, so it cannot be declared, bound or deleted. A request
is one message: the routing key says what is wanted, the body is one JSON object. In this order:

    rights      of the exchange, then those that the handler asks for
    the body    what is no such object, or has fields that are not known, is refused as a failed precondition
    the answer  to `reply_to`, with the request's correlation id; before the confirm
    the confirm ack, or nack for what was refused, when the answer is as safe as its queue makes a publish

A key that the exchange does not know is a key without a queue: returned if mandatory. In a transaction nothing is
asked, for an answer cannot be taken back. What is asked twice is answered twice: who repeats a request must be able to.

`virtual_exchanges` lists them. A handler reads its request, and may ask others before it calls `answer`, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from clusterbroker.broker.access.errors import Refusal, precondition_failed
from clusterbroker.broker.content.message import new_message
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.node.counts import ChannelCounts
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.cluster.wiring.queue_rules import closed_queue_text
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.access.authorization import Authorization
    from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.cluster.wiring.authorization import PermissionKind

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""Direct reply-to: the address of a session itself, in place of a queue."""
BODY_BYTES_MAX: Final = 1 << 20
OPEN_MAX: Final = 256
"""Requests of one session that may wait for their answers."""


class Requester(Protocol):
    """The session that a request came from."""

    access: Authorization
    counts: ChannelCounts
    deadlines: list[Callable[[int], bool]]
    """Called about twice a second with the time; True: it is over."""
    reply_key: str
    """Its own address, in place of REPLY_TO; empty: it has none."""
    requests: int
    """Those that are not answered."""

    @property
    def is_transactional(self) -> bool: ...

    def ticket(self, count: int) -> Ticket | None:
        """For the next publishes; None: without confirms."""

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        """`then` as a callback for later: an error in it ends this client, and no caller."""


class Request:
    """One request. `body` is the object; the handler looks into it by `text` and the like, or by itself."""

    __slots__ = ("_answered", "_properties", "_session", "_ticket", "access", "body", "exchange", "key")

    def __init__(
        self, session: Requester, exchange: str, key: str, body: dict[str, Any], properties: Properties,
        ticket: Ticket | None,
    ) -> None:  # fmt: skip
        self.access = session.access
        self.exchange = exchange
        self.key = key
        self.body = body
        self._session = session
        self._properties = properties
        self._ticket = ticket
        self._answered = False

    def patient(self, due_ms: int) -> None:
        """Without an answer by then it is refused; one that comes later is dropped."""

        def overdue(now_ms: int) -> bool:
            if not self._answered and now_ms >= due_ms:
                self.refuse(503, "unavailable, may be repeated")
            return self._answered

        self._session.deadlines.append(overdue)

    def answers(self, then: Callable[..., None]) -> Callable[..., None]:
        """`then` for a later call: what it raises costs the client that has asked."""
        return self._session.answers(then)

    def invalid(self, why: str) -> Refusal:
        """The error of a body that is not as it must be."""
        return invalid_body(self.exchange, self.key, why)

    def only(self, *names: str) -> None:
        """Refuses fields that nobody reads: a misspelt one would be ignored."""
        unknown = sorted(self.body.keys() - set(names))
        if unknown:
            raise self.invalid(f"unknown field '{unknown[0][:64]}', known are {', '.join(names)}")

    def text(self, name: str, bytes_max: int = 255) -> str:
        """A text of 1 to `bytes_max` bytes of UTF-8."""
        value = self.body.get(name)
        if not isinstance(value, str) or not 0 < len(value.encode("utf-8", "surrogatepass")) <= bytes_max:
            raise self.invalid(f"'{name}' must be a text of 1 to {bytes_max} bytes")
        if not _encodes(value):
            raise self.invalid(f"'{name}' is no UTF-8")
        return value

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer of `low` to `high`; without a default it must be there."""
        value = self.body.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.invalid(f"'{name}' must be an integer of {low} to {high}")
        return value

    def queue(self, right: PermissionKind = "read") -> QueueHandle | None:
        """The queue of field "queue", for which the user has the right; None: there is none, and it is refused."""
        name, access = self.text("queue"), self.access
        access.check(right, "queue", name)
        queue: QueueHandle | None = access.vhost.queues.get(name)
        if queue is None:
            self.refuse(404, access.no_queue(name).text)
        elif queue.entity.part_of:
            self.refuse(403, closed_queue_text(queue.entity))
            return None
        return queue

    def answer(self, outcome: Mapping[str, Any], refused: bool = False) -> None:
        """Says it to who asked, then confirms; `refused`: with a nack."""
        if self._answered:
            return
        self._answered = True
        self._session.requests -= 1
        ticket = self._ticket
        if ticket is not None and refused:
            ticket.reject("", str(outcome.get("reason", "")))
        self.answers(_reply)(self.access, self._properties, outcome, ticket)
        if ticket is not None:
            ticket.pass_()

    def refuse(self, code: int, reason: str) -> None:
        """Answers `refused`."""
        self.answer({"outcome": "refused", "code": code, "reason": reason}, refused=True)


Handler = Callable[[Request], None]


class Service(NamedTuple):
    """One such exchange. `needs_write`: write permission on it is asked."""

    needs_write: bool
    handlers: Mapping[str, Handler]
    """By routing key."""


def requested(session: Requester, service: Service, exchange: str, key: str, messages: Sequence[Message]) -> bool:
    """Whether the batch was requests: then they are under way. Raises Refusal."""
    if service.needs_write:
        session.access.check("write", "exchange", exchange)
    session.access.check_key(exchange, key)
    handler = service.handlers.get(key)
    if handler is None:
        return False
    if session.is_transactional:
        raise precondition_failed(f"'{exchange}' does not take requests on a transactional channel")
    for message in messages:
        handler(_read(session, exchange, key, message))
    return True


def _read(session: Requester, exchange: str, key: str, message: Message) -> Request:
    if session.requests >= OPEN_MAX:
        raise precondition_failed(f"{OPEN_MAX} requests to '{exchange}' wait for their answers on this channel")
    properties = properties_of(message)
    if properties.reply_to == REPLY_TO:
        if not session.reply_key:
            raise precondition_failed("fast reply consumer does not exist")
        properties.reply_to = session.reply_key
    elif properties.reply_to:
        session.access.check("write", "exchange", "")
    body = _parsed(exchange, key, message.body)
    ticket = session.ticket(1)
    session.requests += 1
    session.counts.publish += 1
    return Request(session, exchange, key, body, properties, ticket)


def invalid_body(exchange: str, key: str, why: str) -> Refusal:
    return precondition_failed(f"invalid body of {exchange} '{key}': {why}")


def _parsed(exchange: str, key: str, body: bytes) -> dict[str, Any]:
    if len(body) > BODY_BYTES_MAX:
        raise invalid_body(exchange, key, f"{len(body)} bytes, at most {BODY_BYTES_MAX} are read")
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        raise invalid_body(exchange, key, "expected a JSON object") from None
    if not isinstance(parsed, dict):
        raise invalid_body(exchange, key, "expected a JSON object")
    return parsed


def _reply(access: Authorization, asked: Properties, outcome: Mapping[str, Any], ticket: Ticket | None) -> None:
    """To a requester's session, or to the queue of that name; nobody there: nothing, as of any reply."""
    key, node, vhost = asked.reply_to, access.node, access.vhost
    if not key:
        return
    about = Properties(content_type="application/json", correlation_id=asked.correlation_id, delivery_mode=2)
    message = new_message("", key, about, json.dumps(outcome).encode(), node.now_ms)
    if key.startswith(REPLY_TO + "."):
        node.reply(vhost.name, key, message)
        return
    queue = vhost.queues.get(key)
    if queue is not None and not queue.deleted and vhost.router.has_key(key):
        queue.publish((message,), ticket, node.now_ms)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
