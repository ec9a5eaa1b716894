"""New settings after a change of policies: queues and exchanges take them up, in slices.

Theory. The map has the new policies at once. A queue's settings are a function of the map, so a queue may take them
up later, and once for several changes: only a look is owed. A node that is late with that is to others one that has
applied the command late. For a queue with other owed changes (`arrears`) those are carried out first. Few queues look
at once; of many, some in each turn, with input of sockets in between: in the same numbers and for the same time as
owed changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clusterbroker.broker.routing.labour import STEPS_AT_ONCE
from clusterbroker.cluster.wiring.delays import delay_queue

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.node.vhost import VirtualHost


AT_ONCE: Final = 256
"""So many queues look at changed policies at once, and so many changes come with their command (`arrears`)."""
SLICE: Final = 128
SLICE_NS: Final = 5_000_000
"""A slice, there as well, ends with the first of these: so many queues, so much time."""


def keep_delays(node: NodeCore, vhost: VirtualHost, name: str) -> None:
    """The policy, the exchange or its queue is another one: whether messages with delays in their keys wait there. The
    queue looks whether it is still wanted."""
    entity = node.map.queue(vhost.name, delay_queue(name))
    queue = None if entity is None or not entity.key_bits else vhost.queues.get(entity.name)
    bits = 0
    if entity is not None and queue is not None and node.map.wants_delays(entity):
        # the map may be ahead of this node: as long as the queue before is here, that reads keys by bits of its own
        bits = entity.key_bits if queue.entity.queue_id == entity.queue_id else 0
    if vhost.router.exchange_type(name) is not None:
        vhost.router.set_key_bits(name, bits, "" if entity is None else entity.name)
    if entity is not None and (owned := node.queues.get(entity.queue_id)) is not None:
        owned.ring.mark()


class Renewals:
    """Of one node. True: somebody has not looked yet.

    at_once   so many queues and exchanges of a vhost look with the command that changed its policies
    slice     looks in one slice, at most
    """

    __slots__ = ("_exchanges", "_node", "_queues", "at_once", "slice")

    def __init__(self, node: NodeCore) -> None:
        self._node = node
        self._queues: dict[tuple[str, str], None] = {}  # vhost and name
        self._exchanges: dict[tuple[str, str], None] = {}
        self.at_once = AT_ONCE
        self.slice = SLICE

    def __bool__(self) -> bool:
        return bool(self._queues or self._exchanges)

    def begin(self, name: str) -> None:
        """The policies of a vhost have changed. Who was to look before is not put off by that."""
        vhost = self._node.vhosts[name]
        under_way = bool(self)
        self._queues.update(dict.fromkeys((name, queue) for queue in vhost.queues))
        exchanges = (exchange.name for exchange in self._node.map.exchanges(name))
        self._exchanges.update(dict.fromkeys((name, exchange) for exchange in exchanges if exchange))
        if under_way:
            return
        if len(self._queues) + len(self._exchanges) <= self.at_once:
            self._look(self.at_once)
        if self:
            self._node.soon(self.go_on)

    def go_on(self) -> None:
        """One slice."""
        self._look(self.slice)
        self._node.labour.done += STEPS_AT_ONCE  # of what waits for turns that is enough for this one
        if self:
            self._node.soon(self.go_on)

    def _look(self, most: int) -> None:
        node = self._node
        began_ns = node.stopwatch()
        for _ in range(most):
            of = self._queues or self._exchanges
            if not of or node.stopwatch() - began_ns > SLICE_NS:
                break
            place = next(iter(of))
            del of[place]
            vhost = node.vhosts.get(place[0])
            if vhost is None:
                continue
            if of is self._queues:
                self._queue(vhost, place[1])
            else:
                self._exchange(vhost, place[1])

    def _queue(self, vhost: VirtualHost, name: str) -> None:
        node = self._node
        face = vhost.queues.get(name)
        if face is None:
            return  # it was deleted meanwhile
        role = node.role
        if role is not None:
            role.arrears.settle(face.entity.queue_id)
            queue = node.queues.get(face.entity.queue_id)
            if queue is not None and queue.ring.replicated:
                queue.adopt(node.map.effective(queue.entity))
                role.minimum_changed(queue.entity)
        face.adopt(node.map.effective(face.entity))

    def _exchange(self, vhost: VirtualHost, name: str) -> None:
        exchange = self._node.map.exchange(vhost.name, name)
        # one that the same command has declared is told later, and begins with what the policy says
        if exchange is not None and vhost.router.exchange_type(name) is not None:
            vhost.router.set_alternate(name, self._node.map.exchange_settings(exchange).alternate_exchange)
            keep_delays(self._node, vhost, name)
