"""Worker pools at a node: what their queues publish, and who hears of changes in the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from clusterbroker.broker.content.sections import readable
from clusterbroker.broker.pools.controller import key_of
from clusterbroker.broker.pools.credentials import WorkerKey, user_of
from clusterbroker.broker.pools.events import Event, ids_of
from clusterbroker.broker.pools.figures import NO_FIGURES, Figures
from clusterbroker.broker.pools.group_queue import GroupQueue
from clusterbroker.broker.pools.later_queue import LaterQueue
from clusterbroker.broker.pools.losses import WorkerEnd, poison_of
from clusterbroker.broker.pools.orphan_queue import OrphanQueue
from clusterbroker.broker.pools.passing_queue import PassingPoolQueue
from clusterbroker.broker.pools.policy import EVICTIONS, START_FAILURES
from clusterbroker.broker.pools.progress import Progress
from clusterbroker.broker.pools.responder import answer_to
from clusterbroker.broker.pools.times import REQUESTS, PoolTimes, Times
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.producers import dead_letter_producer
from clusterbroker.broker.queues.ticket import Ticket
from clusterbroker.cluster.ids import LogIndex, QueueId
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.cluster.wiring.pool_entities import Assignment, Group, Launch, Pool
from clusterbroker.cluster.wiring.pool_names import PoolNames
from clusterbroker.journal.record import Message

if TYPE_CHECKING:
    from clusterbroker.broker.node.clients import ClientCore
    from clusterbroker.broker.node.mistakes import SettingAside
    from clusterbroker.broker.node.occupancy import Occupancy
    from clusterbroker.broker.node.pool_desk import PoolDesk
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.broker.pools.fleet import Fleet
    from clusterbroker.broker.stats.pools import PlaceRow, PoolRow

    class PoolNode(NodeCore, Protocol):
        """The node."""

        clients: dict[str, ClientCore]
        occupancy: Occupancy
        pool_desk: PoolDesk
        setting_aside: SettingAside

        def reply(self, vhost: str, key: str, message: Message) -> bool: ...


DIRECT: Final = "amq.rabbitmq.reply-to."
"""Addresses of sessions begin so."""
ENDS_MAX: Final = 1000


class NodePools:
    """Of one node.

    answered  (pool, reason) -> requests that were answered here
    dead      (pool, reason) -> requests that died and were looked at here, whether somebody wanted an answer or not
    unheard   pool -> answers whose address is gone, or took none
    poison    pool -> requests that went to its inventory
    """

    def __init__(self, node: PoolNode) -> None:
        self._node = node
        self.key = WorkerKey()
        """What workers' passwords are made with; the node's shell brings it."""
        self.answered: Counter[tuple[LogIndex, str]] = Counter()
        self.dead: Counter[tuple[LogIndex, str]] = Counter()
        self.unheard: Counter[LogIndex] = Counter()
        self.poison: Counter[LogIndex] = Counter()
        self.ends: dict[str, WorkerEnd] = {}
        """Launch -> how it ended, of those that ended last."""
        self.progress = Progress()

    def rows(self) -> tuple[PoolRow, ...]:
        """Of the pools of which something died, or was timed, here, whose starts fail, or whose controller this is."""
        from clusterbroker.broker.stats.pools import (  # only a management process needs it
            FAILED_MAX,
            NO_TIMES,
            PoolPlaceRow,
            PoolRow,
            TimesRow,
        )

        def row(times: Times) -> TimesRow:
            return TimesRow(tuple(times.counts), times.sum_ms) if any(times.counts) else NO_TIMES

        desk, now_ms = self._node.pool_desk, self._node.now_ms
        timed, none = desk.timed(), PoolTimes()
        found = {pool_id for pool_id, _ in self.dead} | set(self.unheard) | set(self.poison) | set(timed)
        found |= set(desk.events.lost)
        found |= {LogIndex(pool_id) for pool_id in desk.failing}
        fleets = {
            pool.pool_id: fleet for pool in self._node.map.pools.all() if (fleet := self._fleet(pool)) is not None
        }
        figures = {pool_id: fleet.figures(now_ms / 1000) for pool_id, fleet in fleets.items()}

        def places(of: Figures) -> dict[str, PoolPlaceRow]:
            return {
                name: PoolPlaceRow(
                    one.room_bytes, one.promised_bytes, one.workers, one.short,
                    0 if one.suspended_s is None else round(1000 * one.suspended_s) - now_ms, one.why,
                )
                for name, one in of.places.items()
            }  # fmt: skip

        return tuple(
            PoolRow(
                pool_id, _of(self.answered, pool_id), _of(self.dead, pool_id), self.unheard[pool_id],
                self.poison[pool_id], row(times.wait), row(times.service), row(times.start),
                {key: (until_ms - now_ms, why) for key, until_ms, why in islice(desk.failed(pool_id), FAILED_MAX)},
                times.counts[REQUESTS], times.counts[EVICTIONS], times.counts[START_FAILURES],
                dict(of.workers), places(of), of.version, desk.events.lost[LogIndex(pool_id)],
            )
            for pool_id in sorted(found | set(figures))
            for times, of in ((timed.get(pool_id, none), figures.get(pool_id, NO_FIGURES)),)
        )  # fmt: skip

    def _fleet(self, pool: Pool) -> Fleet | None:
        """None: the controller is elsewhere, or its workers come by themselves."""
        orphans = self._node.queues.get(pool.orphans)
        return orphans.fleet if isinstance(orphans, OrphanQueue) else None

    def place(self) -> PlaceRow | None:
        """This node, where workers are started."""
        from clusterbroker.broker.stats.pools import PlaceRow, TemplateRow  # likewise

        told, use = self._node.pool_desk.own_told, self._node.pool_desk.in_use
        if told is None:
            return None
        templates = {
            name: TemplateRow(one.version, one.driver, one.max_workers, one.memory_bytes, told.suspends(one))
            for name, one in told.templates.items()
        }
        return PlaceRow(templates, told.memory_bytes, use.used_bytes, use.running, use.starting, told.alarm)

    # -- what the map says --------------------------------------------------------------------------------------

    def pool_changed(self, pool: Pool) -> None:
        """A pool came, was set, paused, resumed or deleted."""
        groups = (group.queue_id for group in self._node.map.pools.groups(pool.pool_id))
        for queue_id in (pool.orphans, pool.dead, pool.delayed, *groups):
            self._tell(queue_id)
        self._node.pool_desk.launches_told(self._node.pool_desk.own_place)  # what they are told of it

    def pool_ended(self, pool: Pool) -> None:
        """Nobody asks for its numbers any more."""
        self.unheard.pop(pool.pool_id, None)
        self.poison.pop(pool.pool_id, None)
        self._node.pool_desk.pool_ended(pool.pool_id)
        for counter in (self.answered, self.dead):
            for key in [key for key in counter if key[0] == pool.pool_id]:
                del counter[key]

    def group_changed(self, group: Group) -> None:
        """A group came, or changed."""
        self._tell(group.queue_id)
        pool = self._node.map.pools.get(group.pool_id)
        orphans = None if pool is None else self._node.queues.get(pool.orphans)
        if isinstance(orphans, OrphanQueue):
            if group.moving:
                orphans.group_required(group.key)
            orphans.group_changed(group.key)

    def group_directed(self, group: Group, word: str) -> None:
        """An operator's word about it was carried out in the map."""
        self._node.pool_desk.directed(group.pool_id, group.key, word)
        queue = self._node.queues.get(group.queue_id)
        if isinstance(queue, GroupQueue):
            queue.directed(word)
        pool = self._node.map.pools.get(group.pool_id)
        orphans = None if pool is None else self._node.queues.get(pool.orphans)
        if isinstance(orphans, OrphanQueue):
            orphans.group_directed(group.key, word)

    def group_ended(self, group: Group) -> None:
        """A pool that is deleted ends when its groups have."""
        pool = self._node.map.pools.get(group.pool_id)
        orphans = None if pool is None else self._node.queues.get(pool.orphans)
        if isinstance(orphans, OrphanQueue):
            orphans.group_changed(group.key)
        if pool is not None and pool.deleting:
            self._tell(pool.orphans)
            self._tell(pool.delayed)

    def launch_changed(self, launch: Launch) -> None:
        """A worker was ordered, revoked, or is gone. Its connections end with its launch: that is the fence."""
        known = self._node.map.pools.launch(launch.launch_id)
        if known is not None and not known.revoked:
            return
        self._review(launch.launch_id)

    def key_ended(self, one: Assignment) -> None:
        """A worker of several keys has one less: it consumes it no more."""
        if self._node.map.pools.launch(one.launch_id) is not None:
            self._review(one.launch_id)

    def _review(self, launch_id: str) -> None:
        for connection_id in self._node.occupancy.connections_of(user_of(launch_id)):
            connection = self._node.clients.get(connection_id)
            if connection is not None:
                self._node.setting_aside.notify(connection, connection.review_rights)

    def launch_ended(self, launch: Launch, end: WorkerEnd) -> None:
        """A worker is gone. Its request may be about to be kept as poison."""
        self.launch_changed(launch)
        if end != WorkerEnd():
            self.ends[launch.launch_id] = end
            if len(self.ends) > ENDS_MAX:
                del self.ends[next(iter(self.ends))]
        pool = self._node.map.pools.get(launch.pool_id)
        if pool is not None:
            self._tell(pool.dead)

    def _tell(self, queue_id: QueueId) -> None:
        queue = self._node.queues.get(queue_id)
        if isinstance(queue, (PassingPoolQueue, GroupQueue, LaterQueue)):
            queue.pool_changed()

    def delayed_by(self, entity: QueueEntity) -> PoolNames | None:
        """Of the pool whose requests of later wait in this queue; None: it is no pool's."""
        pools = self._node.map.pools
        pool_id = pools.delays(entity.queue_id)
        return None if pool_id is None else pools.names(pool_id)

    # -- what leaves a pool's queues ----------------------------------------------------------------------------

    def moved(self, queue: LocalQueue, message: Message) -> tuple[Message, Sequence[QueueHandle]] | None:
        """An orphan, as it is, and the queue of its key. None: there is none just now."""
        pools = self._node.map.pools
        part = pools.queue(queue.entity.queue_id)
        key = key_of(message.routing_key)
        vhost = self._node.vhosts.get(queue.entity.vhost)
        if part is None or key is None or vhost is None or pools.group(part.pool_id, key) is None:
            return None
        target, pool = vhost.queues.get(pools.names(part.pool_id).request_queue(key)), pools.get(part.pool_id)
        if target is None or target.deleted or pool is None:
            return None
        self._node.pool_desk.spans.moved(pool, key, queue, message)
        return message, (target,)

    def answer(self, queue: LocalQueue, request: Message, number: int, ticket: Ticket) -> None:
        """Says to the caller of a request what became of it, under this number."""
        node = self._node
        part = node.map.pools.queue(queue.entity.queue_id)
        pool = None if part is None else node.map.pools.get(part.pool_id)
        if pool is None:
            return
        answer = answer_to(pool, request, node.now_ms, self._why(pool, request))
        if answer is None:
            return
        self._keep_poison(queue, pool, request, number, ticket)
        self.dead[pool.pool_id, answer.reason] += 1
        heard = answer.message is not None and self._say(queue, pool, answer.reply_to, answer.message, number, ticket)
        if heard:
            self.answered[pool.pool_id, answer.reason] += 1
        elif answer.message is not None:
            self.unheard[pool.pool_id] += 1
        self._node.pool_desk.spans.answered(pool, request, answer.reason, heard)
        if node.map.pools.tells_events(pool.pool_id):
            about = {**ids_of(request).fields, "reason": readable(answer.reason), "heard": heard}
            event = Event("died", node.now_ms, answer.key, about)
            node.pool_desk.events.tell(pool.pool_id, event)

    def _why(self, pool: Pool, request: Message) -> str:
        key = key_of(request.routing_key)
        return "" if key is None else self._node.pool_desk.failure(pool.pool_id, key)

    def _keep_poison(self, queue: LocalQueue, pool: Pool, request: Message, number: int, ticket: Ticket) -> None:
        """A copy of a request with which workers were lost to the end, once over failovers."""
        node = self._node
        names = node.map.pools.names(pool.pool_id)
        copy = poison_of(request, names.exchange, node.now_ms, self.ends)
        vhost = node.vhosts.get(pool.vhost)
        inventory = None if copy is None or vhost is None else vhost.queues.get(names.poison)
        if copy is not None and inventory is not None and not inventory.deleted:
            producer = dead_letter_producer(queue.entity.queue_id, queue.entity.gap_epoch)
            inventory.publish_numbered(producer, (number,), (copy,), ticket, node.now_ms)
            self.poison[pool.pool_id] += 1

    def _say(self, queue: LocalQueue, pool: Pool, address: str, answer: Message, number: int, ticket: Ticket) -> bool:
        node = self._node
        if address.startswith(DIRECT):
            return node.reply(pool.vhost, address, answer)
        vhost = node.vhosts.get(pool.vhost)
        target = vhost.queues.get(address) if vhost is not None and vhost.router.has_key(address) else None
        if target is None or target.deleted:
            return False
        if target.rejects and not target.accepts(answer, node.now_ms):
            return False
        producer = dead_letter_producer(queue.entity.queue_id, queue.entity.gap_epoch)
        target.publish_numbered(producer, (number,), (answer,), ticket, node.now_ms)
        return True


def _of(counter: Counter[tuple[LogIndex, str]], pool_id: LogIndex) -> dict[str, int]:
    return {reason: count for (of, reason), count in counter.items() if of == pool_id}
