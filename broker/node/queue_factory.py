"""Rings and queues out of the map, and their state for a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.delay.comparing import ComparingQueue
from clusterbroker.broker.delay.delay_queue import DelayQueue
from clusterbroker.broker.delay.key_delays import KeyDelayQueue
from clusterbroker.broker.pools.activity_queue import ActivityQueue
from clusterbroker.broker.pools.dead_queue import DeadQueue
from clusterbroker.broker.pools.group_queue import GroupQueue
from clusterbroker.broker.pools.later_queue import LaterQueue
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.pools.ports import PoolHost
from clusterbroker.broker.queues.deduplicating import DeduplicatingQueue
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.passing import PassingQueue
from clusterbroker.broker.queues.queue import Queue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.streams.past import Past
from clusterbroker.broker.streams.stream import Stream
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.pool_table import PoolQueue
from clusterbroker.cluster.wiring.queue_settings import QueueSettings
from clusterbroker.cluster.wiring.stream_settings import STREAM
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.record import SegmentUse
from clusterbroker.journal.stream_catalogue import Filing

if TYPE_CHECKING:
    from clusterbroker.broker.node.ports import MemberCore

Written = tuple[list[tuple[int, int, bytes]], list[tuple[int, dict[str, Any]]], list[int]]
"""(queue id, first seq, run bytes) that changed, (queue id, meta) of the same queues, ids to forget."""


class FactoryNode(PoolHost, Protocol):
    """The node."""

    agenda: list[LocalQueue]
    files_streams: bool
    filings: list[Filing]
    forgotten: list[int]
    map: ClusterView
    touched: dict[Ring, None]
    use: SegmentUse | None

    @property
    def role(self) -> MemberCore | None: ...

    def new_ring(self, entity: QueueEntity, replica: bool = False) -> Ring: ...


OF_POOLS: Final = {
    "orphans": OrphanQueue, "dead": DeadQueue, "activity": ActivityQueue, "requests": GroupQueue,
}  # fmt: skip
"""The queues of a worker pool that are not as others."""


def new_ring(node: FactoryNode, entity: QueueEntity, replica: bool = False) -> Ring:
    settings = node.map.effective(entity)
    journaled = node.use is not None and not entity.transient
    use = node.use if journaled else None
    ring = Ring(entity.queue_id, journaled, _priorities(settings), use, node.agenda, replica=replica)
    if settings.queue_type == STREAM:
        ring.past = Past(entity.queue_id, settings.segment_bytes)
    return ring


def new_queue(node: FactoryNode, entity: QueueEntity, found: Ring | None = None) -> LocalQueue:
    """What its owner has of it; `found`: what there is of it, in the journal or as a copy."""
    settings = node.map.effective(entity)
    ring = found or node.new_ring(entity)
    if ring.past is not None:
        return Stream(entity, settings, ring, node, node.now_ms)
    if entity.delays or entity.compares:
        waiting = _of_exchange(node, entity, ring)
        if not ring.replica:  # a replicated queue's epoch begins with it
            waiting.begin_alone()
        return waiting
    part = node.map.pools.queue(entity.queue_id)
    if part is not None:
        queue = _of_pool(node, entity, ring, part)
    elif settings.message_deduplication and not entity.staging:
        queue = DeduplicatingQueue(entity, settings, ring, node, node.now_ms)
    else:
        queue = Queue(entity, settings, ring, node, node.now_ms)
    if isinstance(queue, DeduplicatingQueue) and not ring.replica:
        queue.begin_alone()
    if isinstance(queue, PassingQueue):
        if not ring.replica:
            queue.begin_alone()
        return queue
    if found is not None and not found.replica:  # a replicated queue's epoch begins with it
        queue.resume_lease(node.now_ms)
    return queue


def _of_exchange(node: FactoryNode, entity: QueueEntity, ring: Ring) -> DelayQueue:
    """What waits in an exchange."""
    settings = node.map.effective(entity)
    if (pool_id := node.map.pools.delays(entity.queue_id)) is not None:
        return LaterQueue(entity, settings, ring, node, node.now_ms, pool_id)
    kind = ComparingQueue if entity.compares else KeyDelayQueue if entity.key_bits else DelayQueue
    return kind(entity, settings, ring, node, node.now_ms)


def _of_pool(node: FactoryNode, entity: QueueEntity, ring: Ring, part: PoolQueue) -> Queue:
    kind = OF_POOLS.get(part.part)
    settings = node.map.effective(entity)
    if kind is None:
        return Queue(entity, settings, ring, node, node.now_ms)
    return kind(entity, settings, ring, node, node.now_ms, part)


def checkpoint(node: FactoryNode) -> Written:
    """Takes what changed since the last one. Streams give up what they have written: see `node.filings`."""
    runs: list[tuple[int, int, bytes]] = []
    metas: list[tuple[int, dict[str, Any]]] = []
    for ring in node.touched:
        parts = ring.move_out() if ring.past is not None and node.files_streams else []
        runs.extend((ring.queue_id, first, run) for first, run in ring.dirty_runs())
        meta = ring.checkpoint_meta()
        if node.role is not None and (end := node.role.copying.known_committed(ring)):
            meta["committed"] = end
        if ring.past is not None:
            node.filings.append(ring.past.begin(parts, meta))
        metas.append((ring.queue_id, meta))
    node.touched.clear()
    forgotten, node.forgotten = node.forgotten, []
    return runs, metas, forgotten


def _priorities(settings: QueueSettings) -> int:
    """docs/decisions/004: 32 priorities without declaration, unless the queue is classic."""
    if settings.max_priority is not None:
        return settings.max_priority
    return 31 if settings.queue_type == "quorum" else 0
