"""Spans of sampled messages, in OpenTelemetry's form: the steps of a message in this node, with their times.

    publish   a client's message came, and went to the queues of its route
    commit    from there until the publisher is told that it is safe (only with publisher confirms)
    deliver   it was handed to a client
    settle    from there until that client has acknowledged, rejected or returned it, or went

What the broker itself does with requests of worker pools has spans too (`pool_spans`).

A trace is that of the message's header `traceparent` (W3C Trace Context): its publisher began it, and decided its
sampling. Publish and deliver are children of the publisher's span, commit of publish, settle of deliver. A message
without that header may be chosen by chance (`sampled`): then the trace begins here, and the message gets the header,
for all nodes and its consumers. A chosen one also wears the flag HAS_BCC, because rings show flagged messages only
(`broker.queues.watch`); the flag is stored with the message, so its deliveries are seen after a restart too.

Publishers decide the amount of sampling, so there is a bound: `messages_per_s_max`, counted at each publish and
delivery. Ended spans are handed to their sender (`broker.server.spans`). Nothing here waits; time and chance come
from there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from clusterbroker.broker.content.message import with_properties
from clusterbroker.broker.content.properties import properties_of, routing_headers
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Delivery
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.fields import DEFAULT_LIMITS, FieldLimits
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.layout import HAS_BCC, HAS_HEADERS
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.options import NodeOptions

HEADER: Final = b"traceparent"
_HEADER: Final = re.compile(HEADER)
_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED: Final = 1
SPARE_BYTES: Final = 256
"""A content header cannot be cut: one that leaves less of its frame gets no header of ours."""
WITH_ROOM: Final = FieldLimits(entries_max=DEFAULT_LIMITS.entries_max - 1)
"""Headers that take one more, so that a consumer may publish what it got."""
QUEUES_MAX: Final = 100
"""So many names of a route's queues: thousands of spans may wait to be sent, and a route may have 10,000 queues."""
OPEN_MAX: Final = 1000
"""So many deliveries of a channel wait for their settlement here; of more there is no such span."""
DEFAULT_EXCHANGE: Final = "amq.default"

Attributes = dict[str, str | int | bool | Sequence[str]]


@dataclass(frozen=True, slots=True)
class Span:
    """One that has ended. Times are ns since 1970; ids are never 0, but a `parent_id` of none."""

    name: str
    kind: str
    """"server": it was asked for from outside; "producer": it hands on; "internal"."""
    trace_id: int
    span_id: int
    parent_id: int
    began_ns: int
    ended_ns: int
    attributes: Attributes
    failed: str = ""
    """Why, if what it stands for failed."""


class World(Protocol):
    """Time, chance, and who sends spans."""

    def now_ns(self) -> int:
        """Wall clock."""

    def chance(self, bits: int) -> int:
        """A number of so many random bits."""

    def ended(self, span: Span) -> None:
        """A span to be sent. Returns at once, whatever becomes of it."""


class Context(NamedTuple):
    """Of a `traceparent`."""

    trace_id: int
    parent_id: int


class Commit(NamedTuple):
    """A publish that waits until it is safe."""

    exchange: str
    context: Context
    began_ns: int
    about: Attributes


class Spans:
    """Of one node; a `Watch` of all its vhosts."""

    everything = False

    def __init__(self, options: NodeOptions, world: World, sampled: float, messages_per_s_max: int) -> None:
        """`sampled`: the share, 0 to 1, of messages without a `traceparent` that begin a trace."""
        self._node = options.name
        self._header_bytes_max = options.frame_max_bytes - SPARE_BYTES
        self._world = world
        self._chosen = int(sampled * (1 << 32))
        self._most = messages_per_s_max
        self._second = 0
        self._count = 0

    def wants(self, records: bytes | memoryview) -> bool:
        return _HEADER.search(records) is not None

    # -- publishes

    def published(
        self, channel: Any, route: Any, messages: Sequence[Message], ticket: Ticket | None
    ) -> Sequence[Message]:
        if not self._chosen and not any(HEADER in message.header for message in messages):
            return messages
        seen, commits = list(messages), list[Commit]()
        for place, message in enumerate(messages):
            context = _context(message) if HEADER in message.header else self._begun(message)
            if context is not None and self._allowed():
                seen[place], commit = self._publish(channel, route, message, context)
                commits.append(commit)
        if ticket is not None and commits:
            self._await(ticket, commits)
        return seen

    def _begun(self, message: Message) -> Context | None:
        """A trace that begins here, by chance."""
        if not self._chosen or message.exchange.startswith(b"amq.rabbitmq."):
            return None
        if len(message.header) > self._header_bytes_max or self._world.chance(32) >= self._chosen:
            return None
        try:
            properties_of(message, WITH_ROOM)
        except AmqpError:
            return None
        return Context(self._id(128), 0)

    def _publish(self, channel: Any, route: Any, message: Message, context: Context) -> tuple[Message, Commit]:
        began_ns, span_id = self._world.now_ns(), self._id(64)
        properties = properties_of(message)
        exchange = _text(message.exchange) or DEFAULT_EXCHANGE
        attributes = self._about(channel, "publish", message, properties) | {
            "messaging.destination.name": exchange,
            "clusterbroker.queues": list(route.queues[:QUEUES_MAX]),
        }
        if not context.parent_id:
            headers = dict(properties.headers or {})
            headers["traceparent"] = f"00-{context.trace_id:032x}-{span_id:016x}-01"
            properties = replace(properties, headers=headers)
        self._emit(f"publish {exchange}", "server", context, span_id, began_ns, attributes)
        shown = with_properties(message, properties, message.flags | HAS_BCC | HAS_HEADERS)
        return shown, Commit(exchange, Context(context.trace_id, span_id), began_ns, attributes)

    def _await(self, ticket: Ticket, commits: Sequence[Commit]) -> None:
        """They end with the ticket: all in one call, for a batch may be longer than Python's stack is deep."""
        answered = ticket.on_done

        def done(passed: Ticket) -> None:
            failed = "a queue refused the message" if passed.rejected else ""
            for exchange, context, began_ns, about in commits:
                attributes = about | {"messaging.operation.name": "commit"}
                self._emit(f"commit {exchange}", "internal", context, self._id(64), began_ns, attributes, failed)
            answered(passed)

        ticket.on_done = done

    # -- deliveries

    def delivered(self, delivery: Delivery) -> None:
        message = delivery.message
        context = _context(message) if HEADER in message.header else None
        if context is None or not self._allowed():
            return
        now_ns, span_id, queue = self._world.now_ns(), self._id(64), delivery.queue
        attributes = self._about(delivery.channel, "deliver", message, properties_of(message)) | {
            "messaging.destination.name": queue,
            "messaging.rabbitmq.message.delivery_tag": delivery.tag,
            "clusterbroker.consumer_tag": delivery.consumer,
            "clusterbroker.redelivered": delivery.redelivered,
        }
        self._emit(f"deliver {queue}", "producer", context, span_id, now_ns, attributes)
        if delivery.unsettled:
            opened = delivery.channel.traced
            if opened is None:
                opened = delivery.channel.traced = Unsettled(self)
            opened.add(delivery.tag, queue, Context(context.trace_id, span_id), now_ns, attributes)

    def settled(self, queue: str, outcome: str, context: Context, began_ns: int, about: Attributes) -> None:
        """A delivery came to its end."""
        attributes = about | {"messaging.operation.name": "settle", "clusterbroker.outcome": outcome}
        self._emit(f"settle {queue}", "internal", context, self._id(64), began_ns, attributes)

    # -- steps of the broker itself (`broker.node.pool_spans`)

    def of(self, message: Message) -> Context | None:
        """The trace of a message whose steps are to be told; None: they are not."""
        context = _context(message) if HEADER in message.header else None
        return context if context is not None and self._allowed() else None

    def step(self, name: str, context: Context, began_ms: int, about: Attributes, failed: str = "") -> None:
        """Something began then, ms since 1970, and has just come to its end."""
        self._emit(name, "internal", context, self._id(64), 1_000_000 * began_ms, about, failed)

    # -- what all have

    def _emit(
        self, name: str, kind: str, context: Context, span_id: int, began_ns: int, attributes: Attributes,
        failed: str = "",
    ) -> None:  # fmt: skip
        ended_ns = max(began_ns, self._world.now_ns())
        trace_id, parent_id = context
        self._world.ended(Span(name, kind, trace_id, span_id, parent_id, began_ns, ended_ns, attributes, failed))

    def _about(self, channel: Any, operation: str, message: Message, properties: Properties) -> Attributes:
        connection = channel.connection
        host, _, port = connection.peer.rpartition(":")
        about = self.about(operation, message, channel.vhost_name, properties)
        about |= {"network.peer.address": host.strip("[]"), "clusterbroker.user": connection.user}
        if port.isdigit():
            about["network.peer.port"] = int(port)
        return about

    def about(self, operation: str, message: Message, vhost: str, properties: Properties | None = None) -> Attributes:
        """A message, whoever is at work with it."""
        properties = properties_of(message) if properties is None else properties
        about: Attributes = {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": operation,
            "messaging.rabbitmq.destination.routing_key": _text(message.routing_key),
            "messaging.message.body.size": message.body_length,
            "clusterbroker.node": self._node,
            "clusterbroker.vhost": vhost,
        }
        if properties.message_id is not None:
            about["messaging.message.id"] = _encodable(properties.message_id)
        if properties.correlation_id is not None:
            about["messaging.message.conversation_id"] = _encodable(properties.correlation_id)
        return about

    def _allowed(self) -> bool:
        second = self._world.now_ns() // 1_000_000_000
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= self._most

    def _id(self, bits: int) -> int:
        return self._world.chance(bits) or 1


class Unsettled:
    """Deliveries of one channel whose settlement ends a span, by tag."""

    __slots__ = ("_open", "_spans")

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._open: dict[int, tuple[str, Context, int, Attributes]] = {}

    def add(self, tag: int, queue: str, context: Context, began_ns: int, attributes: Attributes) -> None:
        """A delivery."""
        if len(self._open) < OPEN_MAX:
            self._open[tag] = queue, context, began_ns, attributes

    def settled(self, tag: int, multiple: bool, outcome: str) -> None:
        """As basic.ack says it: `multiple` with tag 0 means all."""
        tags = [tag] if not multiple else [known for known in self._open if not tag or known <= tag]
        for known in tags:
            entry = self._open.pop(known, None)
            if entry is not None:
                queue, context, began_ns, attributes = entry
                self._spans.settled(queue, outcome, context, began_ns, attributes)


def _context(message: Message) -> Context | None:
    """What the header says, if it is one, and the trace is sampled."""
    value = routing_headers(message).get("traceparent")
    if isinstance(value, bytes):  # as some clients write it
        value = value.decode("ascii", "replace")
    match = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[1] == "00" and match[5]) or not int(match[4], 16) & SAMPLED:
        return None  # versions after 00 may have more behind it
    context = Context(int(match[2], 16), int(match[3], 16))
    return context if all(context) else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _encodable(text: str) -> str:
    return _text(str.__str__(text).encode("utf-8", "surrogateescape"))
