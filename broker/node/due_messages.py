"""What goes on when a delayed message is due, and to whom: to those behind its exchange now, or nobody. It keeps the
address with which it was published; its time to live begins.

Most headers are not decoded: delays are negated where they stand (`content.delays`), and messages of one address go the
way that the router remembers. Headers that the way depends on, CC, BCC and targets of its own are for Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec.structs import replace

from clusterbroker.broker.content.delays import fired_header
from clusterbroker.broker.content.message import republished, with_flags
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.choosing import EVERY, numbered
from clusterbroker.broker.routing.delays import TARGETS, negated, undelayed
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp091.codec import make_message
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost

NUMBER_BYTES: Final = 1024
"""Of a message, by which a random exchange chooses: whoever leads the queue later must choose the same."""


class Publishing(Protocol):
    """The dead letters of the node."""

    dead_lettering: bool


class DueMessages:
    """Of one node."""

    def __init__(self, node: NodeCore, letters: Publishing) -> None:
        self._node = node
        self._letters = letters

    def is_answered(self, queue: LocalQueue) -> bool:
        """See `Due.is_answered`."""
        return self._node.pools.delayed_by(queue.entity) is not None

    def targets(self, queue: LocalQueue, message: Message) -> Sequence[QueueHandle] | None:
        """See `Due.targets`."""
        vhost = self._node.vhosts.get(queue.entity.vhost)
        if vhost is None or vhost.router.exchange_type(queue.entity.delays) is None:
            return None
        targets = self._targets(vhost, queue, message)
        if not targets:
            vhost.counts(queue.entity.delays).drop_unroutable += 1
        return targets

    def _targets(self, vhost: VirtualHost, queue: LocalQueue, message: Message) -> Sequence[QueueHandle]:
        if fired_header(message) is None:
            self._node.effort.decoded(message.header_length)
            return self._of_its_own(vhost, queue, message)
        self._node.effort.looked(message.header_length)
        return self._route(vhost, queue, message, (), _number(message)).targets

    @staticmethod
    def _route(
        vhost: VirtualHost, queue: LocalQueue, message: Message, copies: Sequence[str], number: bytes
    ) -> Route[QueueHandle]:
        exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
        properties = None

        def known() -> Any:
            nonlocal properties
            properties = properties or properties_of(message)
            return properties

        return vhost.router.due(
            queue.entity.delays, exchange, (key, *copies), lambda: undelayed(known().headers or {}),
            lambda name: getattr(known(), name, None), number,
        )  # fmt: skip

    def _of_its_own(self, vhost: VirtualHost, queue: LocalQueue, message: Message) -> Sequence[QueueHandle]:
        headers = properties_of(message).headers or {}
        copies = (*copy_keys(headers, "CC"), *copy_keys(headers, "BCC"))
        left = headers.get(TARGETS)
        if not isinstance(left, list):
            return self._route(vhost, queue, message, copies, _number(message)).targets
        # those that it was meant for are named: nothing is chosen again
        return [one for one in self._route(vhost, queue, message, copies, EVERY).targets if one.name in left]

    def publish(
        self, queue: LocalQueue, messages: Sequence[Message], numbers: Sequence[int], targets: Sequence[QueueHandle],
        tickets: Sequence[Ticket],
    ) -> None:  # fmt: skip
        """See `Due.publish`."""
        node, now_ms = self._node, self._node.now_ms
        made = [self._fired(message, len(targets), now_ms) for message in messages]
        if (vhost := node.vhosts.get(queue.entity.vhost)) is not None:
            vhost.counts(queue.entity.delays).publish_out += len(targets) * len(made)
        before, self._letters.dead_lettering = self._letters.dead_lettering, True
        try:
            self._give(queue, made, numbers, targets, tickets)
        finally:
            self._letters.dead_lettering = before

    def _give(
        self, queue: LocalQueue, made: Sequence[Message], numbers: Sequence[int], targets: Sequence[QueueHandle],
        tickets: Sequence[Ticket],
    ) -> None:  # fmt: skip
        node, now_ms = self._node, self._node.now_ms
        producer = dead_letter_producer(queue.entity.queue_id, queue.entity.gap_epoch)
        for target, ticket in zip(targets, tickets, strict=True):
            if target.rejects:
                assert len(made) == 1, "what may be refused goes alone"
                if target.accepts(made[0], now_ms):
                    target.publish_numbered(producer, numbers, made, ticket, now_ms)
                else:
                    ticket.rejected = True
            else:
                target.publish_numbered(producer, numbers, made, ticket, now_ms)
            if target.ring.journaled:
                node.unwritten_bytes += sum([message.size for message in made])
            ticket.pass_()

    def _fired(self, message: Message, targets: int, now_ms: int) -> Message:
        """The message that goes on."""
        effort = self._node.effort
        if (header := fired_header(message)) is None:
            effort.letter(message.header_length, targets)
            return _decoded(message, now_ms)
        effort.due(message.header_length, targets)
        made = make_message(message.address, header, message.body, now_ms)
        assert isinstance(made, Message), "what was accepted is well-formed"
        return with_flags(made, made.flags | ANSWERABLE) if message.flags & ANSWERABLE else made


def _number(message: Message) -> bytes:
    """By which a random exchange chooses; of the body, for headers change while a message waits."""
    return numbered(bytes(message.body[:NUMBER_BYTES]), message.time_ms)


def _decoded(message: Message, now_ms: int) -> Message:
    properties = properties_of(message)
    exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
    seen = {name: value for name, value in (properties.headers or {}).items() if name not in ("BCC", TARGETS)}
    after = replace(properties, headers=negated(seen))  # the route has the blind copies
    return republished(message, exchange, key, after, now_ms)
