"""The firehose of a vhost: publishes and deliveries of this node, published again to `amq.rabbitmq.trace`.

    routing key     publish.EXCHANGE, deliver.QUEUE
    body            the message's
    headers         exchange_name, routing_keys, properties, node, vhost, connection (the client's address), channel,
                    user; of a publish routed_queues, of a delivery redelivered (0 or 1)

as RabbitMQ's, whose tools for it work ("Firehose tracer" in its documentation). Messages of `amq.rabbitmq.trace`
itself are not traced, otherwise a queue bound there would trace itself for ever. Publishers wait for nobody here: a
listening queue without room (an alarm, an owner that does not keep up) misses messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.amqp.errors import AmqpError
from clusterbroker.broker.amqp.fields import FieldTable
from clusterbroker.broker.amqp.properties import PROPERTIES, Properties
from clusterbroker.broker.content.message import key_of, new_message
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Delivery
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost

TRACE: Final = "amq.rabbitmq.trace"
SPARE_BYTES: Final = 4096
"""What a content header leaves of its frame, for it cannot be cut."""
TOLD: Final = tuple(name for name, _ in PROPERTIES if name != "cluster_id")


class Firehose:
    """Of one vhost at one node. `left_out`: how many messages could not be told."""

    everything = True

    def __init__(self, node: NodeCore, vhost: VirtualHost) -> None:
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
        properties = properties_of(message)
        told = {name: value for name in TOLD if (value := getattr(properties, name)) is not None}
        if properties.headers and "BCC" in properties.headers:  # hidden from whoever gets the message, so here
            told["headers"] = {name: value for name, value in properties.headers.items() if name != "BCC"}
        try:
            copies = copy_keys(properties.headers, "CC")
            whole = self._made(key, least | {"routing_keys": [*keys, *copies], "properties": told}, message.body)
            if self._fits(whole):
                return whole
        except (AmqpError, ValueError, TypeError):
            pass
        made = self._made(key, least, message.body)
        return made if self._fits(made) else self._made(key, least | {"routed_queues": []}, message.body)

    def _fits(self, made: Message) -> bool:
        return made.header_length <= self._node.options.frame_max_bytes - SPARE_BYTES

    def _made(self, key: str, headers: FieldTable, body: bytes) -> Message:
        return new_message(TRACE, key_of(key), Properties(headers=headers), body, self._node.now_ms)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
