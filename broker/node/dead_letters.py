"""Dead letters: a copy for each queue behind the dead-letter exchange, and the way back to where a message died first.

`x-first-death-queue` is a header, and a publisher may have written it. A returned message (`to_origin`) is published
with an operator's rights, so the header alone must not choose the target: the named queue must be one whose dead
letters come here, by the present settings of the queues on the way. A stranger's message then comes at most to places
where the dead letters of this queue belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterbroker.broker.content.message import died
from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.node.due_messages import DueMessages
from clusterbroker.broker.queues.dead_lettering.death import Reason, dead_letter_keys, death, is_cycle
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.broker.routing.carbon_copy import copy_keys
from clusterbroker.broker.routing.choosing import EVERY, numbered
from clusterbroker.broker.stats.inspection import FIRST_DEATH_QUEUE
from clusterbroker.broker.wire.amqp091.properties import Properties
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost


class DeadLetters:
    """Of one node."""

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self.due = DueMessages(node, self)
        self.dead_lettering = False
        """A letter is on its way: asking a target whether it takes it may kill another message, which waits."""

    def publish(self, queue: LocalQueue, message: Message, reason: Reason) -> None:
        """Publishes the message to the queue's dead-letter exchange."""
        before, self.dead_lettering = self.dead_lettering, True
        try:
            self._publish(queue, message, reason)
        finally:
            self.dead_lettering = before

    def _publish(self, queue: LocalQueue, message: Message, reason: Reason) -> None:
        """amqp-rules 5.6. A missing exchange, no route and a cycle drop the message silently."""
        copy, targets = self._dead_copy(queue, message, reason) or (message, [])
        for target in targets:
            if not target.rejects or target.accepts(copy, self._node.now_ms):
                target.accept_dead_letter(copy)
                self._node.unwritten_bytes += copy.size if target.ring.journaled else 0

    def publish_once(self, queue: LocalQueue, message: Message, reason: Reason, number: int, ticket: Ticket) -> bool:
        """A dead letter of a replicated queue: each target takes it once, under the queue's name and this number."""
        if reason == "answered":
            self._node.pools.answer(queue, message, number, ticket)
            return True
        producer = dead_letter_producer(queue.entity.queue_id, queue.entity.gap_epoch)
        if reason == "moved":
            parts = (self._node.pools.moved(queue, message),)
        else:
            parts = (self._dead_copy(queue, message, reason, numbered(producer, number)),)
        before, self.dead_lettering = self.dead_lettering, True
        try:
            for part in parts:
                if part is None:
                    return False
                copy, targets = part
                for target in targets:
                    self.give(target, producer, number, copy, ticket)
        finally:
            self.dead_lettering = before
        return True

    def give(self, target: QueueHandle, producer: bytes, number: int, copy: Message, ticket: Ticket) -> None:
        """One letter, to a target that may have it already, or refuse it."""
        if target.rejects and not _has(target, producer, number):
            if isinstance(target, LocalQueue) and target.kills:
                if not target.has_room(self._node.now_ms):
                    target.kill_named(producer, number, copy, ticket)
                    return
            elif not target.accepts(copy, self._node.now_ms):
                ticket.rejected = True
                return
        target.publish_numbered(producer, (number,), (copy,), ticket, self._node.now_ms)
        self._node.unwritten_bytes += copy.size if target.ring.journaled else 0

    def _dead_copy(
        self, queue: LocalQueue, message: Message, reason: Reason, letter: bytes | None = None
    ) -> tuple[Message, list[QueueHandle]] | None:
        """What is published when a queue gives a message up, and to whom: nobody, when it would go in a circle.

        None: there is no such exchange, or no route.
        """
        settings = queue.settings
        vhost = self._node.vhosts.get(queue.entity.vhost)
        exchange = self._exchange(queue)
        if vhost is None or exchange is None:
            return None
        properties = properties_of(message)
        keys = [message.routing_key.decode()]
        copies, blind = copy_keys(properties.headers, "CC"), copy_keys(properties.headers, "BCC")
        forced = settings.dead_letter_routing_key
        dead = death(
            properties, queue.name, reason, message.exchange.decode(), [*keys, *copies], self._node.now_ms // 1000,
            key_replaced=forced is not None,
        )  # fmt: skip
        keys = list(dead_letter_keys(forced, keys, copies, blind))
        route = vhost.router.reach(
            exchange, keys[0], lambda: dead.headers, keys[1:], lambda name: getattr(dead, name, None), letter
        )
        self._node.effort.letter(len(message.header), len(route.targets))
        if not route.targets:
            return None
        targets = [target for target in route.targets if not is_cycle(dead.headers, target.name)]
        return died(message, exchange, keys[0], dead, self._node.now_ms), targets

    def _exchange(self, queue: LocalQueue) -> str | None:
        """Where what a queue gives up goes: of a pool's delayed request to the responder."""
        if not queue.entity.delays:
            return queue.settings.dead_letter_exchange
        names = self._node.pools.delayed_by(queue.entity)
        return None if names is None else names.exchange_of(names.dead)


def _has(target: QueueHandle, producer: bytes, number: int) -> bool:
    """Whether it took the letter when that was tried before: what is here needs no room. Another node's queue says so
    itself."""
    return isinstance(target, LocalQueue) and target.log.producers.knows(producer, number)


QUEUES_MAX: Final = 64
"""So many queues on the way are asked where their dead letters go."""


def origin_of(vhost: VirtualHost, properties: Properties, keys: Sequence[str], here: str) -> str | None:
    """The queue in which a message of queue `here` died first; None: none that there is, or none that leads here.

    `keys`: the message's routing keys, for queues that its deaths say nothing of.
    """
    headers = properties.headers or {}
    origin = headers.get(FIRST_DEATH_QUEUE)
    if not isinstance(origin, str):
        return None
    asked = {origin}
    waiting = [origin]
    while waiting:
        name = waiting.pop(0)
        queue = vhost.queues.get(name)
        if queue is None or queue.settings.dead_letter_exchange is None:
            continue
        forced = queue.settings.dead_letter_routing_key
        routed = keys_at(headers, name) or keys if forced is None else (forced,)
        route = vhost.router.reach(
            queue.settings.dead_letter_exchange, routed[0], lambda: headers, routed[1:],
            lambda field: getattr(properties, field, None), EVERY,
        )  # fmt: skip
        if any(target.name == here for target in route.targets):
            return origin
        for target in route.targets:
            if target.name not in asked and len(asked) < QUEUES_MAX:
                asked.add(target.name)
                waiting.append(target.name)
    return None


def keys_at(headers: Mapping[str, Any], queue: str) -> Sequence[str]:
    """By which keys the message was routed when it died in this queue, as its deaths tell."""
    deaths = headers.get("x-death")
    for each in deaths if isinstance(deaths, list) else ():
        if isinstance(each, Mapping) and each.get("queue") == queue:
            keys = each.get("routing-keys")
            return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else ()
    return ()
