"""The firehose of a vhost: what clients of this node publish and get there, published again to `amq.rabbitmq.trace`.

    routing key     publish.EXCHANGE, deliver.QUEUE
    body            the message's
    headers         exchange_name, routing_keys, properties, node, vhost, connection (the client's address), channel,
                    user; of a publish routed_queues, of a delivery redelivered (0 or 1)

as RabbitMQ's, whose tools for it work ("Firehose tracer" in its documentation). Messages of `amq.rabbitmq.trace` itself
are not told, or a queue that is bound there would tell of itself for ever. Whoever publishes waits for nobody here:
what a queue of listeners cannot take now (an alarm, an owner that does not keep up) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.amqp import properties as codec
from clusterbroker.broker.amqp.codec import make_message
from clusterbroker.broker.amqp.errors import AmqpError
from clusterbroker.broker.amqp.fields import FieldTable
from clusterbroker.broker.node.dead_letters import short
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Delivery
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.node.vhost import VirtualHost

TRACE: Final = "amq.rabbitmq.trace"
SPARE_BYTES: Final = 4096
"""What a content header leaves of its frame, for it cannot be cut."""
TOLD: Final = tuple(name for name, _ in codec.PROPERTIES if name != "cluster_id")


class Firehose:
    """Of one vhost at one node. `left_out`: how many messages could not be told."""

    everything = True

    def __init__(self, node: Node, vhost: VirtualHost) -> None:
        self._node = node
        self._vhost = vhost
        self._waiting: list[tuple[str, Message, FieldTable]] = []
        self.left_out = 0

    def wants(self, _records: bytes | memoryview) -> bool:
        return True

    def published(
        self, channel: Any, route: Any, messages: Sequence[Message], _ticket: Ticket | None
    ) -> Sequence[Message]:
        about = {**self._about(channel), "routed_queues": list(route.queues)}
        for message in messages:
            self._note(f"publish.{_text(message.exchange)}", message, about)
        return messages

    def delivered(self, delivery: Delivery) -> None:
        about = {"redelivered": int(delivery.redelivered), **self._about(delivery.channel)}
        self._note(f"deliver.{delivery.queue}", delivery.message, about)

    def _about(self, channel: Any) -> FieldTable:
        connection = channel.connection
        return {
            "vhost": self._vhost.name, "connection": connection.peer, "channel": channel.number,
            "user": connection.user,
        }  # fmt: skip

    def _note(self, key: str, message: Message, about: FieldTable) -> None:
        if message.exchange != TRACE.encode():
            self._waiting.append((key, message, about))

    def turn(self) -> bool:
        """Publishes what was noted, for no queue is at work now; whether there was anything."""
        waiting, self._waiting = self._waiting, []
        for key, message, about in waiting:
            if self._node.alarms:
                self.left_out += 1
                continue
            route = self._vhost.router.reach(TRACE, key, lambda: None)
            if route.targets:
                self._publish(route.targets, self._told(key, message, about))
        return bool(waiting)

    def _publish(self, targets: Sequence[Any], told: Message) -> None:
        node = self._node
        for queue in targets:
            if queue in node.congested or (queue.rejects and not queue.accepts(told, node.now_ms)):
                self.left_out += 1
            else:
                queue.publish((told,), None, node.now_ms)
                node.unwritten_bytes += told.size if queue.ring.journaled else 0

    def _told(self, key: str, message: Message, about: FieldTable) -> Message:
        """Without properties and CC keys where these leave no room in a frame, or nest too deep for one more level; and
        without the queues of a route, where these alone leave none."""
        keys = [_text(message.routing_key)]
        least: FieldTable = {
            "exchange_name": _text(message.exchange), "routing_keys": [*keys], "properties": {},
            "node": self._node.options.name, **about,
        }  # fmt: skip
        properties = codec.decode(message.header)
        told = {name: value for name in TOLD if (value := getattr(properties, name)) is not None}
        if properties.headers and "BCC" in properties.headers:  # hidden from whoever gets the message, so here
            told["headers"] = {name: value for name, value in properties.headers.items() if name != "BCC"}
        try:
            copies = copy_keys(properties.headers, "CC")
            raw = codec.encode(codec.Properties(headers=least | {"routing_keys": [*keys, *copies], "properties": told}))
            made = self._made(key, raw, message.body)
            if self._fits(raw):
                return made
        except (AmqpError, ValueError, TypeError):
            pass
        raw = codec.encode(codec.Properties(headers=least))
        if not self._fits(raw):
            raw = codec.encode(codec.Properties(headers=least | {"routed_queues": []}))
        return self._made(key, raw, message.body)

    def _fits(self, header: bytes) -> bool:
        return len(header) <= self._node.options.frame_max_bytes - SPARE_BYTES

    def _made(self, key: str, header: bytes, body: bytes) -> Message:
        made = make_message(short(TRACE) + short(key), header, body, self._node.now_ms)
        assert isinstance(made, Message), "no property of it can be wrong"
        return made


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
