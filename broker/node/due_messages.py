"""What goes on when a delayed message is due, and to whom: to those behind its exchange now, or nobody. It keeps the
address with which it was published; its time to live begins.

One whose delay stood in its key goes to the exchange that its queue names, by the same key and with its headers as they
are. It says that it was published where the lowest of the levels that it stands for would have published it (`level`).

Most headers are not decoded: delays are negated where they stand (`content.delays`), and messages of one address go the
way that the router remembers. Headers that the way depends on, CC, BCC and targets of its own are for Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from msgspec.structs import replace

from clusterbroker.broker.content.delays import alike, fired, fired_header, kept_header, key_delay_s
from clusterbroker.broker.content.message import republished, with_flags
from clusterbroker.broker.content.properties import KnownProperties, properties_of
from clusterbroker.broker.delay.own_targets import own_targets
from clusterbroker.broker.node.passed_messages import PassedMessages, chance_of
from clusterbroker.broker.queues.effort import LOOKED_BYTES
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.choosing import EVERY
from clusterbroker.broker.routing.delays import TARGETS, negated, undelayed
from clusterbroker.broker.routing.router import Route
from clusterbroker.broker.wire.amqp091.codec import make_message
from clusterbroker.broker.wire.amqp091.domains import push_shortstr
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.journal.layout import ANSWERABLE
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost


class Publishing(Protocol):
    """The dead letters of the node."""

    dead_lettering: bool

    def give(self, target: QueueHandle, producer: bytes, number: int, copy: Message, ticket: Ticket) -> None: ...


class DueMessages:
    """Of one node."""

    def __init__(self, node: NodeCore, letters: Publishing) -> None:
        self._node = node
        self._letters = letters
        self._passed = PassedMessages(node)

    def targets(self, queue: LocalQueue, message: Message) -> Sequence[QueueHandle] | None:
        """See `Due.targets`."""
        vhost = self._node.vhosts.get(queue.entity.vhost)
        if vhost is not None and queue.entity.key_bits:
            return self._of_key(vhost, queue, message)
        if vhost is not None and queue.entity.compares:
            return self._passed.targets(vhost, queue, message)
        if vhost is None or vhost.router.exchange_type(queue.entity.delays) is None:
            return None
        targets = self._targets(vhost, queue, message)
        if not targets:
            vhost.counts(queue.entity.delays).drop_unroutable += 1
        return targets

    def together(
        self, queue: LocalQueue, messages: list[Message], bytes_max: int
    ) -> tuple[int, QueueHandle | None]:  # fmt: skip
        """See `Due.together`."""
        vhost = self._node.vhosts.get(queue.entity.vhost)
        if vhost is not None and queue.entity.compares:
            return self._passed.together(vhost, queue, messages, bytes_max)
        if vhost is None or queue.entity.key_bits or vhost.router.exchange_type(queue.entity.delays) is None:
            return len(messages), None
        effort = self._node.effort
        count, looked = alike(messages, min(bytes_max, max(0, effort.left) * LOOKED_BYTES))
        effort.looked_at(count, looked)
        if not count:
            return 1, None
        route = self._route(vhost, queue, messages[0], (), chance_of(messages[0]))
        if route.uncacheable or len(route.targets) != 1:
            return count, None
        return count, route.targets[0]

    def _targets(self, vhost: VirtualHost, queue: LocalQueue, message: Message) -> Sequence[QueueHandle]:
        if fired_header(message) is None:
            self._node.effort.decoded(message.header_length)
            return self._of_its_own(vhost, queue, message)
        self._node.effort.looked(message.header_length)
        return self._route(vhost, queue, message, (), chance_of(message)).targets

    def _of_key(self, vhost: VirtualHost, queue: LocalQueue, message: Message) -> Sequence[QueueHandle]:
        """Of a message with its delay in its key: not to its queue again, for that would be a circle."""
        key = message.routing_key.decode("utf-8", "surrogateescape")
        known = KnownProperties(message)
        route = vhost.router.reach(
            queue.entity.delay_exchange, key, known.headers, (), known.named, chance_of(message),
        )  # fmt: skip
        targets: Sequence[QueueHandle] = route.targets
        if queue.name in route.queues:
            targets = [one for one in targets if one.name != queue.name]
        if kept_header(message) is not None:
            self._node.effort.looked(message.header_length)
            return targets
        self._node.effort.decoded(message.header_length)
        left = own_targets(message)
        return targets if left is None else [one for one in targets if one.name in left]

    @staticmethod
    def _route(
        vhost: VirtualHost, queue: LocalQueue, message: Message, copies: Sequence[str], number: bytes
    ) -> Route[QueueHandle]:
        exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
        known = KnownProperties(message)
        return vhost.router.due(
            queue.entity.delays, exchange, (key, *copies), lambda: undelayed(known.headers()), known.named, number,
        )  # fmt: skip

    def _of_its_own(self, vhost: VirtualHost, queue: LocalQueue, message: Message) -> Sequence[QueueHandle]:
        headers = properties_of(message).headers or {}
        copies = (*copy_keys(headers, "CC"), *copy_keys(headers, "BCC"))
        left = headers.get(TARGETS)
        if not isinstance(left, list):
            return self._route(vhost, queue, message, copies, chance_of(message)).targets
        # those that it was meant for are named: nothing is chosen again
        return [one for one in self._route(vhost, queue, message, copies, EVERY).targets if one.name in left]

    def publish(
        self, queue: LocalQueue, messages: Sequence[Message], numbers: Sequence[int], targets: Sequence[QueueHandle],
        tickets: Sequence[Ticket],
    ) -> None:  # fmt: skip
        """See `Due.publish`."""
        before, self._letters.dead_lettering = self._letters.dead_lettering, True
        try:
            if queue.entity.compares:
                for made, places in self._passed.made(queue, messages, targets):
                    self._give(queue, made, numbers, [targets[at] for at in places], [tickets[at] for at in places])
            else:
                self._give(queue, self._fired(queue, messages, targets), numbers, targets, tickets)
        finally:
            self._letters.dead_lettering = before

    def _fired(
        self, queue: LocalQueue, messages: Sequence[Message], targets: Sequence[QueueHandle]
    ) -> list[Message]:  # fmt: skip
        node, now_ms = self._node, self._node.now_ms
        vhost, of_key = node.vhosts.get(queue.entity.vhost), queue.entity.key_bits
        if vhost is not None and of_key:
            made = [self._fired_by_key(vhost, queue, message, len(targets), now_ms) for message in messages]
        else:
            made = self._made(messages, len(targets), now_ms)
        if vhost is not None:
            exchange = queue.entity.delay_exchange if of_key else queue.entity.delays
            vhost.counts(exchange).publish_out += len(targets) * len(made)
        return made

    def _give(
        self, queue: LocalQueue, made: Sequence[Message], numbers: Sequence[int], targets: Sequence[QueueHandle],
        tickets: Sequence[Ticket],
    ) -> None:  # fmt: skip
        node, now_ms = self._node, self._node.now_ms
        producer = dead_letter_producer(queue.entity.queue_id, queue.entity.gap_epoch)
        for target, ticket in zip(targets, tickets, strict=True):
            if target.deleted:  # since this was held: what it would have taken is gone with it, or goes another way
                if target.entity.ends_unasked:
                    ticket.reject(target.name)
                ticket.pass_()
                continue
            if target.rejects:
                assert len(made) == 1, "what may be refused goes alone"
                self._letters.give(target, producer, numbers[0], made[0], ticket)
            else:
                target.publish_numbered(producer, numbers, made, ticket, now_ms)
                if target.ring.journaled:
                    node.unwritten_bytes += sum([message.size for message in made])
            ticket.pass_()

    def _made(self, messages: Sequence[Message], targets: int, now_ms: int) -> list[Message]:
        """The messages that go on."""
        effort = self._node.effort
        made, looked = fired(list(messages), now_ms)
        effort.due(len(made), looked, targets)
        if None not in made:
            return cast("list[Message]", made)
        for message in (message for message, after in zip(messages, made, strict=True) if after is None):
            effort.letter(message.header_length, targets)
        return [after or _decoded(before, now_ms) for before, after in zip(messages, made, strict=True)]

    def _fired_by_key(
        self, vhost: VirtualHost, queue: LocalQueue, message: Message, targets: int, now_ms: int
    ) -> Message:
        effort, entity = self._node.effort, queue.entity
        exchange = level(vhost, entity, key_delay_s(message, entity.key_bits))
        if (header := kept_header(message)) is None:
            effort.letter(message.header_length, targets)
            properties = properties_of(message)
            seen = {name: value for name, value in (properties.headers or {}).items() if name != TARGETS}
            key = message.routing_key.decode("utf-8", "surrogateescape")
            return republished(message, exchange, key, replace(properties, headers=seen or None), now_ms)
        effort.due(1, message.header_length, targets)
        address = push_shortstr(exchange) + message.address[1 + message.address[0] :]
        made = make_message(address, header, message.body, now_ms)
        assert isinstance(made, Message), "what was accepted is well-formed"
        return with_flags(made, made.flags | ANSWERABLE) if message.flags & ANSWERABLE else made


def level(vhost: VirtualHost, entity: QueueEntity, delay_s: int) -> str:
    """The exchange to which the last queue of the levels gives its dead letters: that of the lowest bit that is set has
    the one below, if there are levels with names NAME_BITS-1 ... NAME_0, and that of bit 0 the last exchange."""
    lowest = (delay_s & -delay_s).bit_length() - 1
    stem = entity.delays.removesuffix(str(entity.key_bits - 1))
    below = f"{stem}{lowest - 1}"
    if lowest < 1 or not stem.endswith("_") or vhost.router.exchange_type(below) is None:
        return entity.delay_exchange
    return below


def _decoded(message: Message, now_ms: int) -> Message:
    properties = properties_of(message)
    exchange, key = (part.decode("utf-8", "surrogateescape") for part in (message.exchange, message.routing_key))
    seen = {name: value for name, value in (properties.headers or {}).items() if name not in ("BCC", TARGETS)}
    after = replace(properties, headers=negated(seen))  # the route has the blind copies
    return republished(message, exchange, key, after, now_ms)
