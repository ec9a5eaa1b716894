"""Exchanges that are the broker itself: a request published to one of them is answered, and goes to no queue.

Each is known to the sessions of every vhost and not in the map, so it cannot be declared, bound or deleted. A request
is one message: the routing key says what is wanted, the body is one JSON object. In this order:

    rights      of the exchange, then those that the handler asks for
    the body    what is no such object, or has fields that are not known, closes the channel with 406
    the answer  to `reply_to`, with the request's correlation id; before the confirm
    the confirm ack, or nack for what was refused, when the answer is as safe as its queue makes a publish

A key that the exchange does not know is a key without a queue: returned if mandatory. In tx mode nothing is asked, for
an answer cannot be taken back. What is asked twice is answered twice: who repeats a request must be able to.

`virtual_exchanges` lists them. A handler reads its request, and may ask others before it calls `answer`, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from clusterbroker.broker.amqp import properties as codec
from clusterbroker.broker.amqp.codec import Published
from clusterbroker.broker.amqp.errors import AmqpError, precondition_failed
from clusterbroker.broker.amqp.own_message import own_message
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.session.declaring import REPLY_TO
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.session.channel import Channel

BODY_BYTES_MAX: Final = 1 << 20
OPEN_MAX: Final = 256
"""Requests of one channel that may wait for their answers."""


class Request:
    """One request. `body` is the object; the handler looks into it by `text` and the like, or by itself."""

    __slots__ = ("_answered", "_properties", "_ticket", "body", "channel", "exchange", "key")

    def __init__(
        self, channel: Channel, exchange: str, key: str, body: dict[str, Any], properties: codec.Properties,
        ticket: Ticket | None,
    ) -> None:  # fmt: skip
        self.channel = channel
        self.exchange = exchange
        self.key = key
        self.body = body
        self._properties = properties
        self._ticket = ticket
        self._answered = False

    def patient(self, due_ms: int) -> None:
        """Without an answer by then it is refused; one that comes later is dropped."""

        def overdue(now_ms: int) -> bool:
            if not self._answered and now_ms >= due_ms:
                self.refuse(503, "unavailable, may be repeated")
            return self._answered

        self.channel.deadlines.append(overdue)

    def invalid(self, why: str) -> AmqpError:
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

    def answer(self, outcome: Mapping[str, Any], refused: bool = False) -> None:
        """Says it to who asked, then confirms; `refused`: with a nack."""
        if self._answered:
            return
        self._answered = True
        self.channel.requests -= 1
        ticket = self._ticket
        if ticket is not None and refused:
            ticket.rejected = True
        self.channel.answers(_reply)(self.channel, self._properties, outcome, ticket)
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


def requested(channel: Channel, event: Published, service: Service) -> bool:
    """Whether the batch was requests: then they are under way. Raises the AMQP error that they deserve."""
    if service.needs_write:
        channel.check("write", "exchange", event.exchange)
    handler = service.handlers.get(event.routing_key)
    if handler is None:
        return False
    if channel.transaction is not None:
        raise precondition_failed(f"'{event.exchange}' does not take requests on a transactional channel")
    for message in event.messages:
        _ask(channel, event, message, handler)
    return True


def _ask(channel: Channel, event: Published, message: Message, handler: Handler) -> None:
    exchange, key = event.exchange, event.routing_key
    if channel.requests >= OPEN_MAX:
        raise precondition_failed(f"{OPEN_MAX} requests to '{exchange}' wait for their answers on this channel")
    properties = codec.decode(message.header)
    if properties.reply_to == REPLY_TO:
        if not channel.reply_key:
            raise precondition_failed("fast reply consumer does not exist")
        properties.reply_to = channel.reply_key
    elif properties.reply_to:
        channel.check("write", "exchange", "")
    body = _parsed(exchange, key, message.body)
    ticket = None if channel.confirms is None else channel.confirms.ticket(1)
    channel.requests += 1
    channel.counts.publish += 1
    handler(Request(channel, exchange, key, body, properties, ticket))


def invalid_body(exchange: str, key: str, why: str) -> AmqpError:
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


def _reply(channel: Channel, asked: codec.Properties, outcome: Mapping[str, Any], ticket: Ticket | None) -> None:
    """To a requester's channel, or to the queue of that name; nobody there: nothing, as of any reply."""
    key, node, vhost = asked.reply_to, channel.connection.node, channel.connection.vhost
    if not key or vhost is None:
        return
    header = codec.encode(
        codec.Properties(content_type="application/json", correlation_id=asked.correlation_id, delivery_mode=2)
    )
    message = own_message("", key, header, json.dumps(outcome).encode(), node.now_ms)
    if key.startswith(REPLY_TO + "."):
        node.reply(vhost.name, key, message)
        return
    queue = vhost.queues.get(key)
    if queue is not None and not queue.deleted:
        queue.publish((message,), ticket, node.now_ms)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
