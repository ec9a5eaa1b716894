"""Observers of publishes and deliveries on this node, by vhost: none, as a rule.

    watches     vhost -> its observer; code that runs per batch asks this alone (`broker.queues.watch`)
    spans       of sampled messages of all vhosts; None: off

The *firehose* of a vhost publishes them again to `amq.rabbitmq.trace`. The map has the vhosts with an open firehose, so
it is open at all nodes or at none, and each node traces its own clients.

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

from clusterbroker.broker.content.message import key_of, new_message
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.queues.watch import Delivery, Watch
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.wire.amqp091.errors import AmqpError
from clusterbroker.broker.wire.amqp091.fields import FieldTable
from clusterbroker.broker.wire.amqp091.properties import PROPERTIES, Properties
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost
    from clusterbroker.broker.queues.handle import QueueHandle

TRACE: Final = "amq.rabbitmq.trace"
SPARE_BYTES: Final = 4096
"""What a content header leaves of its frame, for it cannot be cut."""
TRACED: Final = tuple(name for name, _ in PROPERTIES if name != "cluster_id")


class Firehose:
    """Of one vhost at one node. `left_out`: how many messages could not be published."""

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
                self._publish(route.targets, self._trace_of(key, message, about))
        return bool(waiting)

    def _publish(self, targets: Sequence[Any], trace: Message) -> None:
        node = self._node
        for queue in targets:
            if queue in node.congested or (queue.rejects and not queue.accepts(trace, node.now_ms)):
                self.left_out += 1
            else:
                queue.publish((trace,), None, node.now_ms)
                node.unwritten_bytes += trace.size if queue.ring.journaled else 0

    def _trace_of(self, key: str, message: Message, about: FieldTable) -> Message:
        """Without properties and CC keys where these leave no room in a frame, or nest too deep for one more level; and
        without the queues of a route, where these alone leave none."""
        keys = [_text(message.routing_key)]
        least: FieldTable = {
            "exchange_name": _text(message.exchange), "routing_keys": [*keys], "properties": {},
            "node": self._node.options.name, **about,
        }  # fmt: skip
        properties = properties_of(message)
        sent = {name: value for name in TRACED if (value := getattr(properties, name)) is not None}
        if properties.headers and "BCC" in properties.headers:  # hidden from whoever gets the message, so here
            sent["headers"] = {name: value for name, value in properties.headers.items() if name != "BCC"}
        try:
            copies = copy_keys(properties.headers, "CC")
            whole = self._made(key, least | {"routing_keys": [*keys, *copies], "properties": sent}, message.body)
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


class Both:
    """Two who look at the same vhost."""

    def __init__(self, firehose: Firehose, spans: Watch) -> None:
        self._two: tuple[Watch, Watch] = firehose, spans

    @property
    def everything(self) -> bool:
        return any(watch.everything for watch in self._two)

    def wants(self, records: bytes | memoryview) -> bool:
        return any(watch.wants(records) for watch in self._two)

    def published(
        self, channel: Any, route: Any, messages: Sequence[Message], ticket: Ticket | None
    ) -> Sequence[Message]:
        for watch in self._two:
            messages = watch.published(channel, route, messages, ticket)
        return messages

    def delivered(self, delivery: Delivery) -> None:
        for watch in self._two:
            watch.delivered(delivery)


class Watching:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self.watches: dict[str, Watch] = {}
        self.spans: Watch | None = None
        self._firehoses: dict[str, Firehose] = {}

    def trace(self, spans: Watch) -> None:
        """Sampled messages are observed from now on."""
        self.spans = spans
        for vhost in self._node.vhosts:
            self.review(vhost)

    def review(self, vhost: str) -> None:
        """A vhost began, changed or ended: whoever looks at it from now on."""
        entity, here = self._node.map.vhost(vhost), self._node.vhosts.get(vhost)
        if entity is None or here is None:
            self._firehoses.pop(vhost, None)
            self.watches.pop(vhost, None)
            return
        if not entity.tracing:
            self._firehoses.pop(vhost, None)
        elif vhost not in self._firehoses:
            self._firehoses[vhost] = Firehose(self._node, here)
        before, watch = self.watches.pop(vhost, None), self._of(vhost)
        if watch is not None:
            self.watches[vhost] = watch
        if before is not None or watch is not None:
            for handle in here.queues.values():
                handle.watch(watch)

    def _of(self, vhost: str) -> Watch | None:
        firehose = self._firehoses.get(vhost)
        if firehose is None or self.spans is None:
            return firehose or self.spans
        return Both(firehose, self.spans)

    def began(self, vhost: str, handle: QueueHandle) -> None:
        """A queue that clients of this node may use."""
        watch = self.watches.get(vhost)
        if watch is not None:
            handle.watch(watch)

    def turn(self) -> bool:
        """Queues have ended their turns: what firehoses have to tell is published; whether there was anything."""
        moved = False
        for vhost, firehose in tuple(self._firehoses.items()):
            try:
                moved = firehose.turn() or moved
            except Exception as error:  # what it had to tell is left out, and nobody else pays for it
                self._node.log.crashed(f"firehose of vhost '{vhost}'", error)
        return moved
