"""The queue of workers' reports, at its owner: a report prolongs the life of its group, and can do nothing else.

Reports stay in the queue for whoever looks, the newest ones. A group hears of one report in TOLD_MS at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clusterbroker.broker.content.properties import properties_of
from clusterbroker.broker.pools.activity_headers import EVENT, WORKER, text_of
from clusterbroker.broker.pools.controller import key_of
from clusterbroker.broker.pools.messages import WorkerTold
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.pool_table import PoolQueue
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.journal.record import Message, read_records

EVENTS: Final = frozenset(("started", "ready", "request-received", "progress", "draining"))
TOLD_MS: Final = 250
TOLD_MAX: Final = 1000
"""So many groups are remembered that have heard of a report just now."""


class ActivityQueue(Queue):
    """See the module. `node` is the host."""

    __slots__ = ("_part", "_told", "node")

    def __init__(
        self, entity: QueueEntity, settings: QueueSettings, ring: Ring, node: PoolHost, now_ms: int, part: PoolQueue
    ) -> None:
        self.node = node
        self._part = part
        self._told: dict[str, int] = {}
        super().__init__(entity, settings, ring, node, now_ms)

    def publish(self, messages: Sequence[Message], ticket: Ticket | None, now_ms: int) -> None:
        super().publish(messages, ticket, now_ms)
        for message in messages:
            self._heard(message, now_ms)

    def publish_records(self, records: bytes | memoryview, ticket: Ticket, now_ms: int) -> int:
        count = super().publish_records(records, ticket, now_ms)
        for _, message, _, _ in read_records(records):
            self._heard(message, now_ms)
        return count

    def _heard(self, message: Message, now_ms: int) -> None:
        key = key_of(message.routing_key)
        if key is None:
            return
        headers = properties_of(message).headers or {}
        event = text_of(headers.get(EVENT))
        if event == "ready" and (worker_id := text_of(headers.get(WORKER))):
            self.node.pool_desk.tell_controller(WorkerTold(self._part.pool_id, worker_id[:64], ready=True))
        if now_ms - self._told.get(key, -TOLD_MS) < TOLD_MS or event not in EVENTS:
            return
        pools = self.node.map.pools
        group, vhost = pools.group(self._part.pool_id, key), self.node.vhosts.get(self.entity.vhost)
        if group is None or vhost is None:
            return
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told[key] = now_ms
        queue = vhost.queues.get(pools.names(self._part.pool_id).request_queue(key))
        if queue is not None:
            queue.touch(now_ms, lambda _ready, _consumers: None)
