"""A node's part in a cluster: its role for each queue, and the cores that do the work.

    role       when                                              contents
    OWNER      the map names this node, in this incarnation      the Queue, its OwnedQueue, its place in Primary
    REPLICA    the map counts this node among the replicas       a Ring that folds the owner's records (Backup)
    NONE       otherwise                                         nothing but the handle

Roles follow the map's changes, in log order, so every node changes its own at the same index. Every queue has one
handle for this node's sessions: a RemoteQueue, in any role; only a transient queue that lives here is its own handle.
A restarted node finds its former queues as replicas: its ownership ended with its process. It owns nothing before its
new incarnation is registered, and nothing after the map has failed that incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from clusterbroker.broker.node.alerts import CopyCare
from clusterbroker.broker.node.arrears import Arrears
from clusterbroker.broker.node.backpressure import MINORITY, AlarmsOfNodes
from clusterbroker.broker.node.failover import Failover
from clusterbroker.broker.node.hub import Handler, Hub, MemberShell, Payload
from clusterbroker.broker.node.messages import HandOver, Occupied
from clusterbroker.broker.node.mistakes import Mistakes
from clusterbroker.broker.node.occupancy import Occupancy, OccupancyOfNodes
from clusterbroker.broker.node.ports import NodeCore
from clusterbroker.broker.node.queue_factory import FactoryNode, new_queue
from clusterbroker.broker.node.relay import Relaying
from clusterbroker.broker.queues.handle import QueueHandle
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.remote import remote_queues as client_side
from clusterbroker.broker.remote.messages import Alarmed, LinkKeep
from clusterbroker.broker.remote.owned_queues import OwnedQueues
from clusterbroker.broker.remote.remote_queues import RemoteQueues
from clusterbroker.broker.remote.replies import Replies, Target
from clusterbroker.broker.streams.messages import StreamAsk, StreamTold
from clusterbroker.broker.streams.store import store_of
from clusterbroker.cluster.ids import NodeId, QueueId
from clusterbroker.cluster.wiring.changes import (
    CopyLost,
    InSyncChanged,
    MemberChanged,
    MemberForgotten,
    OwnerChanged,
    ReplicasChanged,
)
from clusterbroker.cluster.wiring.entities import Member
from clusterbroker.cluster.wiring.entities import Queue as QueueEntity
from clusterbroker.replication import messages as copies
from clusterbroker.replication.copying import Copying
from clusterbroker.replication.hand_overs import HAND_OVER_MS

if TYPE_CHECKING:
    import msgspec

    from clusterbroker.broker.node.damages import Damages
    from clusterbroker.broker.node.effects import Group
    from clusterbroker.broker.node.link_recovery import LinkRecovery
    from clusterbroker.broker.node.mistakes import SettingAside
    from clusterbroker.broker.node.pool_desk import PoolDesk
    from clusterbroker.broker.queues.handle import QueueHandle
    from clusterbroker.broker.streams.streams import Streams

ROOM_BYTES: Final = 8 << 20
"""So much may wait for a peer's socket before deliveries to it are held back."""
COPY_EVENTS: Final = {
    "caught_up": "replica.caught_up",
    "fell_behind": "replica.fell_behind",
    "refused": "replica.refused",
    "rolled_back": "replica.rolled_back",
    "later": "replica.ahead",
    "in_doubt": "owner.in_doubt",
    "kept_apart": "replica.kept_apart",
    "differs": "replica.differs",
    "damaged": "replica.damaged",
    "hand_over_failed": "owner.hand_over_failed",
}
"""Events of replication, as the log has them."""


class MemberNode(NodeCore, FactoryNode, Protocol):
    """The node, as its role in a cluster uses it (`core.Node`)."""

    damages: Damages
    pool_desk: PoolDesk
    occupancy: Occupancy
    recovery: LinkRecovery
    replies: Replies | None
    reply_targets: dict[str, Target]
    streams: Streams
    throttled: bool

    @property
    def setting_aside(self) -> SettingAside: ...

    def add_handle(self, entity: QueueEntity, handle: QueueHandle) -> None: ...

    def add_queue(self, entity: QueueEntity, ring: Ring | None = None) -> None: ...

    def forget_ring(self, ring: Ring) -> None: ...

    def published(self, size: int) -> None: ...

    def review_throttle(self) -> None: ...

    def set_alarm(self, name: str, raised: bool) -> None: ...


class MemberRole:
    """All of a node that a node which is alone does not have."""

    def __init__(self, node: MemberNode, shell: MemberShell) -> None:
        self.node = node
        self._shell = shell
        self.name = node.options.name
        self.registered = False
        """This incarnation is a member, alive in the map."""
        self.leased = False
        self.mistakes = Mistakes(self, node.damages)
        self.hub = Hub(self.name, lambda: node.map.applied, shell.bad_frame, self.mistakes.link)
        self.arrears = Arrears(node, self._needed, self._owing)
        self.remote_queues = RemoteQueues(
            self, node.options.incarnation, lambda: self.arrears.owing, self.arrears.sooner, lambda: node.map.level,
            node.recovery.goes_on,
        )  # fmt: skip
        node.congested = self.remote_queues.congested
        self.owned_queues = OwnedQueues(self, self._behind)
        self.copying: Copying[LocalQueue, Ring] = Copying(
            node, self, store_of, group_bytes=node.options.group_bytes_max, rate_bytes=node.options.copy_rate_bytes
        )
        self.care = CopyCare(self.name, node.alerts)
        self.relay = Relaying(node, self.hub, shell, self._link_begins, self._link_ends).relay
        self.failover = Failover(node)
        self._members_changed = False
        self._storing = 0  # how many members hold messages
        self._full: dict[str, None] = {}
        node.replies = self.replies = Replies(self, self._generation_of)
        self.alarms = AlarmsOfNodes(node, self.hub, self.remote_queues)
        self.occupancy = OccupancyOfNodes(node.occupancy, node.map, self.hub)
        handlers: tuple[tuple[Iterable[type], Handler], ...] = (
            (copies.TO_BACKUP, self.copying.received), (copies.TO_OWNER, self.copying.received_as_owner),
            (self.owned_queues.handles, self.owned_queues.received),
            (client_side.MESSAGES, self.remote_queues.received), ((Alarmed,), self.alarms.received),
            ((HandOver,), lambda _peer, message, _payload: self.hand_over(message.queue_id, message.to)),
            ((Occupied,), self.occupancy.received), ((StreamAsk,), node.streams.asked),
            ((StreamTold,), node.streams.answered), ((LinkKeep,), node.recovery.received),
        )  # fmt: skip
        for heads, handler in handlers:
            self.hub.handlers.update(dict.fromkeys(heads, handler))
        self.hub.handlers.update({**self.replies.handlers, **node.pool_desk.handlers})

    @property
    def incarnation(self) -> int:
        """Of this process, as it registers."""
        return self.node.options.incarnation

    @property
    def reply_targets(self) -> Mapping[str, Target]:
        return self.node.reply_targets

    def _generation_of(self, name: str) -> int | None:
        member = self.node.map.member(NodeId(name))
        return member.incarnation if member is not None and member.alive else None

    # -- the map ----------------------------------------------------------------------------------------------

    def declared(self, entity: QueueEntity, ring: Ring | None = None, found: bool = False) -> None:
        """A queue exists: by command, or found at the start with what the journal knows of it. If that is nothing, the
        log may still have a copy that was forgotten, and the new one begins behind it."""
        node = self.node
        if entity.transient and self.owns(entity):
            node.add_queue(entity)
            queue = node.queues[entity.queue_id]
            self.owned_queues.begin(queue, queue.ring.epoch, node.map.applied, {})
            return
        settings = node.map.effective(entity)
        handle = self.remote_queues.add(entity, settings, Ring(entity.queue_id, agenda=node.agenda, proxy=True))
        node.add_handle(entity, handle)
        if ring is not None and self._holds(entity) and not entity.volatile:
            self.copying.replicas[entity.queue_id] = ring
            self.copying.from_disk[entity.queue_id] = None
        elif ring is not None:  # it ceased to be a replica while this node was down, or never was on the disk
            node.forget_ring(ring)
        self._assume(entity, declared=not found or ring is not None or entity.owner == self.name)

    def deleted(self, entity: QueueEntity) -> None:
        """A queue ended."""
        queue_id = entity.queue_id
        self.care.deleted(entity)
        self.owned_queues.end(queue_id)
        self.copying.give_up(queue_id)
        self.forget_copy(queue_id)
        self.remote_queues.remove(queue_id)

    def owner_changed(self, change: OwnerChanged) -> None:
        self._assume(change.queue)
        self.remote_queues.owner_changed(change.queue)
        self.node.streams.owner_changed(change.queue)

    def in_sync_changed(self, change: InSyncChanged) -> None:
        self._renew(change.queue)

    def replicas_changed(self, change: ReplicasChanged) -> None:
        self._assume(change.queue)
        self._renew(change.queue)

    def copy_lost(self, change: CopyLost) -> None:
        """A copy is damaged and begins anew. Its owner believes nothing of it that it heard before this index."""
        entity, node = change.queue, change.node
        if node != self.name:
            self.copying.primary.copy_lost(entity.queue_id, node, self.node.now_ms)
        elif self._holds(entity) and not self.owns(entity):
            self.forget_copy(entity.queue_id)
            self.copying.replicas[entity.queue_id] = self._new_replica(entity)
            self.copying.begin_empty(entity.queue_id, entity.epoch)
            self.node.damages.rebuilt(entity)

    def _renew(self, entity: QueueEntity) -> None:
        self.remote_queues.owner_changed(entity)
        queue = self.node.queues.get(entity.queue_id)
        if queue is not None:
            before, queue.entity = queue.entity.in_sync, entity
            self.copying.primary.entity_changed(entity, self.node.map.min_in_sync(entity), self.node.now_ms)
            for name in (name for name in entity.in_sync if name not in before):
                self._log_event("replica.in_sync", entity, node=name)
            for name in (name for name in before if name not in entity.in_sync):
                self._log_event("replica.out_of_sync", entity, node=name)

    def minimum_changed(self, entity: QueueEntity) -> None:
        """The minimum of copies may be another one, of a replicated queue that this node owns."""
        self.copying.primary.entity_changed(entity, self.node.map.min_in_sync(entity), self.node.now_ms)

    def member_changed(self, change: MemberChanged) -> None:
        member = change.member
        if member.name == self.name:
            self.registered = member.alive and member.incarnation == self.incarnation
        self._members()

    def member_forgotten(self, change: MemberForgotten) -> None:
        if change.name == self.name:
            self.registered = False
        self._members()

    def changed(self) -> None:
        """All changes of a command have been carried out."""
        if self._members_changed:
            self._members_changed = False
            self.node.pool_desk.members_changed()
            self._renew_minimums()
            self.failover.applied()
        self.alarms.owners_changed()

    # -- what is owed of the wiring ---------------------------------------------------------------------------

    def go_on(self) -> None:
        """One slice of what a command has changed of thousands of queues."""
        self.arrears.go_on()
        self.alarms.owners_changed()

    def _needed(self, queue_id: int) -> bool:
        """Whether a client of this node waits for the queue, or a commit."""
        handle = self.remote_queues.queues.get(queue_id)
        return (handle is not None and handle.is_used()) or self.copying.primary.awaits(queue_id)

    def _owing(self, begins: bool) -> None:
        self.hub.before = self.arrears.before if begins else None
        if not begins:
            owed = self.arrears
            facts = {"queues": owed.queues, "slices": owed.slices, "longest": owed.longest}
            self._shell.log_event("wiring.in_slices", facts)

    def _behind(self, peer: str, queue_id: int, what: Callable[[], None], sooner: bool) -> bool:
        if not self.arrears.owes(queue_id):
            return False
        session = self.hub.linked.get(peer)

        def of_this_link() -> None:
            if self.hub.linked.get(peer) == session:
                what()

        return self.arrears.behind(queue_id, of_this_link, sooner)

    def _renew_minimums(self) -> None:
        """A minimum that was asked for is never more than there are members, and when one of them is forgotten, no
        change tells of the queues that it did not hold. (One that is added need not stop publishers before it has a
        copy.)"""
        before, self._storing = self._storing, len(self.node.map.data_members())
        if self._storing < before:
            for queue in tuple(self.node.queues.values()):
                if queue.ring.replicated:
                    self.minimum_changed(queue.entity)

    def _members(self) -> None:
        self._members_changed = True
        members: Iterable[Member] = self.node.map.members()
        known: dict[str, tuple[int, bool]] = {one.name: (one.incarnation, one.alive) for one in members}
        self.copying.primary.members_changed(known, self.node.now_ms)
        alive = {name: incarnation for name, (incarnation, alive) in known.items() if alive}
        self.owned_queues.members_changed(alive)
        self.relay.members(alive)

    # -- roles ------------------------------------------------------------------------------------------------

    def owns(self, entity: QueueEntity) -> bool:
        """Whether this process owns the queue, by the map."""
        return self.registered and entity.owner == self.name and entity.incarnation == self.incarnation

    def _holds(self, entity: QueueEntity) -> bool:
        return self.name in entity.replicas and not entity.transient

    def _assume(self, entity: QueueEntity, declared: bool = False) -> None:
        """Takes the role that the map gives this node."""
        queue = self.node.queues.get(entity.queue_id)
        owns = self.owns(entity)
        if queue is not None and not (owns and queue.ring.epoch == entity.epoch):
            self._step_down(queue)
            queue = None
        if queue is not None:
            return  # it owns the queue as before; `_renew` tells what else has changed
        if owns:
            self._take_over(entity, declared)
        elif self._holds(entity):
            if entity.queue_id not in self.copying.replicas and entity.queue_id not in self.copying.distrusted:
                self.copying.replicas[entity.queue_id] = self._new_replica(entity)
                if not declared:
                    self.copying.begin_empty(entity.queue_id, entity.epoch)
        else:
            self.forget_copy(entity.queue_id)

    def forget_copy(self, queue_id: int) -> None:
        ring = self.copying.drop(queue_id)
        self.copying.from_disk.pop(queue_id, None)
        self.node.damages.ended(queue_id)
        if ring is not None:
            self.node.forget_ring(ring)

    def _new_replica(self, entity: QueueEntity) -> Ring:
        ring = self.node.new_ring(entity, replica=True)
        ring.volatile = self.node.use is None or entity.volatile
        return ring

    def _take_over(self, entity: QueueEntity, declared: bool) -> None:
        node = self.node
        assert entity.queue_id not in self.copying.distrusted, "what is not believed is given up before it leads again"
        copy = self.copying.drop(entity.queue_id)
        ring = copy or self._new_replica(entity)
        of_before = (ring.epochs[-1][0] if ring.epochs else 0) < entity.gap_epoch
        if of_before and (entity.volatile or entity.begins_empty):  # nobody is left who knew what was acknowledged
            node.forget_ring(ring)
            self.copying.from_disk.pop(entity.queue_id, None)
            copy, ring = None, self._new_replica(entity)
        if copy is None and not declared and not ring.volatile:
            self.copying.begin(entity.queue_id, entity.epoch)
        queue = new_queue(node, entity, ring)
        ring.take_over(entity.epoch, of_before)
        node.queues[entity.queue_id] = queue
        moment = self.arrears.moment or self.arrears.now()
        node.moving.own(queue)
        node.recovery.own(queue)
        node.setting_aside.began(queue)
        self.owned_queues.begin(queue, entity.epoch, moment.applied, {} if declared else moment.alive, synced=False)
        self.copying.take_over(queue, node.map.min_in_sync(entity), node.newest_group)
        self._log_event("owner.began", entity)

    def _step_down(self, queue: LocalQueue) -> None:
        node, entity = self.node, queue.entity
        node.moving.lose(queue)
        self.care.ended(entity)
        node.setting_aside.forget(queue)
        node.damages.stepped_down(entity.queue_id)
        self.owned_queues.end(entity.queue_id)
        self.copying.give_up(entity.queue_id)
        queue.end_epoch()
        del node.queues[entity.queue_id]
        node.writes.pop(queue, None)
        if queue in node.agenda:
            node.agenda.remove(queue)
        queue.ring.marked = False
        queue.ring.step_down()
        queue.ring.owner = None
        if not queue.ring.volatile:
            node.touched[queue.ring] = None
        self.copying.keep(queue.ring)
        self._log_event("owner.ended", entity, queue.ring.epoch)

    def copy_event(self, event: str, queue_id: int, node: str, why: str) -> None:
        entity = self.node.map.queue_by_id(QueueId(queue_id))
        if entity is not None:  # else it was deleted meanwhile
            self.care.on_event(event, entity, node, why)
            self._log_event(COPY_EVENTS[event], entity, node=node, why=why)

    def _log_event(
        self, event: str, entity: QueueEntity, epoch: int | None = None, node: str | None = None, why: str = ""
    ) -> None:
        facts: dict[str, Any] = {
            "queue": entity.name, "vhost": entity.vhost, "queue_id": entity.queue_id, "epoch": epoch or entity.epoch,
            "node": node or self.name,
        }  # fmt: skip
        if node is None:
            facts["incarnation"] = self.incarnation
        if why:
            facts["why"] = why
        self._shell.log_event(event, facts)

    # -- links and leases -------------------------------------------------------------------------------------

    def linked(self, peer: str, session: int) -> None:
        """A direct data link to the peer; also said of this node itself, once."""
        if peer == self.name:
            self.remote_queues.linked(peer)
            return
        self.relay.linked(peer)
        self._link_begins(peer, session)

    def unlinked(self, peer: str) -> None:
        """The direct link is gone."""
        self.relay.unlinked(peer)
        self._link_ends(peer)

    def _link_begins(self, peer: str, session: int) -> None:
        """A link, direct or relayed."""
        self.hub.link(peer, session)
        self.copying.backup.linked(peer)
        self.copying.primary.linked(peer, self.node.now_ms)
        self.owned_queues.unlinked(peer)
        self.remote_queues.linked(peer)
        self.alarms.linked(peer)
        self.occupancy.linked(peer)
        self.node.streams.linked(peer)
        self.node.pool_desk.linked(peer)

    def _link_ends(self, peer: str) -> None:
        self.hub.unlink(peer)
        self.copying.backup.unlinked(peer)
        self.copying.primary.unlinked(peer, self.node.now_ms)
        remote, streams = self.remote_queues, self.node.streams
        for part in (self.owned_queues, remote, self.replies, self.alarms, self.occupancy, streams):
            part.unlinked(peer)

    def lease(self, leased: bool) -> None:
        """Whether this node may speak to clients."""
        if leased == self.leased:
            return
        self.leased = leased
        self.node.set_alarm(MINORITY, not leased)
        self.owned_queues.lease(leased)
        if leased:
            self.remote_queues.lease_regained()

    # -- turns and groups -------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> bool:
        """What turns of queues have gathered goes on its way; whether anything moved."""
        if self.mistakes.fatal is not None:
            raise self.mistakes.fatal
        due_ms = self.copying.primary.due_ms
        if due_ms is not None and due_ms <= now_ms:
            self.copying.primary.tick(now_ms)
        due_ms = self.copying.backup.due_ms
        if due_ms is not None and due_ms <= now_ms:
            self.copying.backup.tick(now_ms)
        self.remote_queues.turn(now_ms)
        self.owned_queues.turn(now_ms)
        if self._full:
            full, self._full = self._full, {}
            rooms = [self.room(peer) for peer in full]
            if any(rooms):
                self.owned_queues.drained()
        return self.hub.turn() or self.owned_queues.touched

    @property
    def at_rest(self) -> bool:
        """`turn` would find nothing to do, and nothing waits for a group; frames may wait for their links."""
        return not (
            self.owned_queues.touched or self.copying.waits or self._full or self.hub.round or self.remote_queues.shared
            or self.relay.via or self.arrears.owing
        )  # fmt: skip

    @property
    def tick_rests(self) -> bool:
        """Nothing that a tick looks at is less than a second away: it may come every 250 ms."""
        return self.copying.primary.at_rest and self.hub.at_rest and self.relay.at_rest

    def tick(self, now_ms: int) -> None:
        """To be called every 50 ms, unless `tick_rests` and there was no turn. What is due between two calls
        (`next_wake_ms`) is done by `turn`."""
        self.relay.tick(now_ms)
        self.copying.primary.tick(now_ms)
        self.occupancy.tick()
        self.node.streams.tick(now_ms)
        self.node.damages.tick(now_ms)
        self.hub.tick(now_ms)

    @property
    def next_wake_ms(self) -> int | None:
        own_ms, copies_ms = self.copying.primary.due_ms, self.copying.backup.due_ms
        proxies_ms = self.remote_queues.next_wake_ms
        rests_ms = self.arrears.rests_until_ms if self.arrears.owing else None
        if own_ms is None and copies_ms is None and rests_ms is None:
            return proxies_ms  # as a rule, and asked several times a turn
        return min(due_ms for due_ms in (own_ms, copies_ms, proxies_ms, rests_ms) if due_ms is not None)

    def cut(self, group: int, now_ms: int) -> list[int]:
        queues = self.copying.cut(group, now_ms)
        if self.arrears.owing:
            for queue_id in queues:  # it may wait for the copy of a member that has failed
                self.arrears.sooner(queue_id)
        return queues

    def group_durable(self, group: Group, now_ms: int) -> None:
        for queue_id in group.replicated:
            queue = self.node.queues.get(queue_id)
            if queue is not None and not queue.ring.volatile:
                queue.ring.moved()
                self.node.touched[queue.ring] = None
        self.copying.durable(group.number, now_ms)

    # -- ports of remote and owned queues ------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        return self.node.now_ms

    @property
    def applied_index(self) -> int:
        return self.node.map.applied

    def send(self, node: str, head: msgspec.Struct, payload: Iterable[Payload] = ()) -> bool:
        return self.hub.send(node, head, payload)

    def hurry(self, queue_id: int) -> None:
        self.copying.primary.hurry(queue_id, self.node.now_ms)

    def stumbled(self, queue: LocalQueue, error: Exception) -> None:
        self.node.stumbled(queue, error)

    def soon(self, goes_on: Callable[[], None]) -> None:
        self.node.soon(goes_on)

    def link_stumbled(self, node: str, error: Exception) -> None:
        self.mistakes.link(node, error)

    def delivery_stumbled(self, queue: QueueHandle, error: Exception) -> None:
        self.node.setting_aside.stumbled(queue, error)

    def proxy_stumbled(self, entity: QueueEntity, error: Exception) -> None:
        self.node.log.set_aside(entity, 0, error)

    def flow_changed(self) -> None:
        self.node.review_throttle()

    def relieved(self, queue: object) -> None:
        for connection in self.node.clients.values():
            connection.backpressure.relieved(queue)

    def room(self, node: str) -> int:
        if node == self.name:
            return ROOM_BYTES
        waiting = self._shell.backlog(node) + self.relay.backlog(node) + sum(map(len, self.hub.out.get(node, ())))
        room = ROOM_BYTES - waiting
        if room <= 0:
            self._full[node] = None
        return max(0, room)

    def published(self, size: int) -> None:
        self.node.published(size)

    def in_sync(self, queue_id: int) -> Sequence[str]:
        entity = self.node.map.queue_by_id(QueueId(queue_id))
        if entity is None:
            return ()
        members = (self.node.map.member(name) for name in entity.in_sync)
        return tuple(member.name for member in members if member is not None and member.alive and not member.draining)

    def transfer(self, queue_id: int, to: str) -> None:
        self.hand_over(queue_id, to)

    def hand_over(self, queue_id: int, to: str) -> bool:
        """Hands the queue over, if it can be; False: not now."""
        queue = self.node.queues.get(queue_id)
        if queue is not None and queue.aside:
            return False  # its next owner would have these messages again, and so would the queues that they went to
        return self.copying.primary.transfer(queue_id, NodeId(to), self.node.now_ms)

    def freeze(self, queue_id: int) -> None:
        self.owned_queues.freeze(queue_id, self.node.now_ms + HAND_OVER_MS)

    def thaw(self, queue_id: int) -> None:
        self.owned_queues.thaw(queue_id)

    def synced(self, queue_id: int) -> None:
        self.owned_queues.synced(queue_id)

    def owes(self, queue_id: int) -> bool:
        return self.arrears.owes(queue_id)

    def copy_stumbled(self, queue_id: int, error: Exception) -> None:
        self.mistakes.copy(queue_id, error)
