"""What a management process knows: a replica of the cluster map, and the rows of every member.

    restored(snapshot, now_ms), applied(index, command, now_ms)     the wiring, as the node folded it
    told(batch, now_ms)     the rows of one member
    closed(now_ms)          a round of batches is over: totals of the cluster take their sample

Everything a page asks is found by a name or an id, never by a walk over all rows. Three sums over many rows are kept
up to date as rows change: depths of each vhost, and the message and byte totals of each vhost, which must not fall
when a channel or connection ends: they grow by what each row grew.

A queue's row is its owner's. While the map names another owner than the one that told last, the row with the highest
epoch counts, so that a queue that moves never seems to be empty.

No clock here: `now_ms` is the process's wall clock, used for staleness, the cluster's curves and its time line only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from clusterbroker.broker.stats.attempts import Attempts
from clusterbroker.broker.stats.links import RecoverableRow, SuspendedRow
from clusterbroker.broker.stats.rows import (
    AnyRow,
    Batch,
    Certificate,
    ChannelRow,
    ConnectionRow,
    ConsumerRow,
    ExchangeRow,
    Key,
    LoginSourceRow,
    MessageTotals,
    NodeRow,
    QueueFlowRow,
    QueueRow,
    emptied,
)
from clusterbroker.cluster.ids import LOCAL_NODE, LogIndex, NodeId, QueueId
from clusterbroker.cluster.wiring import changes as told
from clusterbroker.cluster.wiring.commands import AnyCommand, PutUser
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.cluster.wiring.map import Applied, ClusterMap
from clusterbroker.cluster.wiring.snapshot import Snapshot

from .history import DAY, MINUTE, Sampling, Track, grown
from .timeline import Timeline

WATCHED_MAX: Final = 1_000
"""So many single things may have an hour of their past."""
UNHEARD_MS: Final = 30_000
"""A member whose rows are older than this is shown as they were, and as not running."""
DEPTHS: Final = ("ready", "unacknowledged")
BYTES: Final = ("received_bytes", "sent_bytes")
TOTALS: Final = MessageTotals.__struct_fields__
DISK: Final = ("disk_reads", "disk_writes")
"""What no channel knows."""


class Sums(msgspec.Struct, frozen=True):
    """Of a vhost, or of all vhosts."""

    ready: int = 0
    unacknowledged: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    messages: MessageTotals = MessageTotals()


class _Running(Counter[str]):
    """Sums while they are being made, by name."""

    def add(self, fields: Iterable[str], row: Any, sign: int = 1) -> None:
        for field in fields:
            self[field] += sign * getattr(row, field)

    def grow(self, fields: Iterable[str], before: Any, now: Any) -> None:
        """`before`: None: it is new."""
        for field in fields:
            old, new = getattr(before, field, 0), getattr(now, field)
            if old != new:
                self[field] += int(grown(old, new))

    def now(self) -> Sums:
        messages = MessageTotals(*(self[field] for field in TOTALS))
        return Sums(**{field: self[field] for field in DEPTHS + BYTES}, messages=messages)


class MemberRows:
    """What one member told last."""

    __slots__ = ("heard_ms", "leased", "life", "moved", "node", "number", "rows", "sampling")

    def __init__(self, node: str) -> None:
        self.node = node
        self.life = 0
        self.number = 0
        """Ask with (life, number) for what comes next."""
        self.leased = True
        self.heard_ms = 0
        """On the process's clock; 0: never."""
        self.sampling = Sampling()
        self.rows: dict[Key, Track[Any]] = {}
        self.moved: dict[Track[Any], None] = {}
        """Tracks with a past; the one that was told last stands last."""

    def put(self, track: Track[Any], row: Any) -> None:
        """The next row of a track."""
        self.moved.pop(track, None)
        self.moved[track] = None
        track.put(row)

    def let_rest(self, all_of_them: bool = False) -> None:
        """Those that were told nothing for long have no past any more."""
        for track in tuple(takewhile(lambda track: all_of_them or track.is_quiet, self.moved)):
            del self.moved[track]
            track.rest()


class Replica:
    """Belongs to one thread.

    Invariants: (1) `queue_names` are exactly the queues of the map, sorted; (2) a row is in the index of its kind
    exactly when it is among its member's rows; (3) the sums of a vhost are those of its queues' counting rows.
    """

    def __init__(self, node: str, cluster: str = "") -> None:
        """`node`: the one that this process belongs to; `cluster`: what that node calls its cluster."""
        self.node = node
        self.cluster = cluster or f"clusterbroker@{node}"
        self.map = ClusterMap()
        self.folded: Callable[[], object] = lambda: None
        """Called after the map has changed."""
        self.user_gone: Callable[[str | None], object] = lambda _name: None
        """Called when a user was deleted, though one of that name may be there again; None: it may have been anyone,
        for the wiring begins anew from a snapshot."""
        self.rehashed: Callable[[str, str, str], object] = lambda _name, _before, _after: None
        """Called when a hash of a user was replaced by another one of the same password."""
        self.certificates: Callable[[], Sequence[Certificate]] = tuple
        """What the TLS listeners of this process show."""
        self.attempts = Attempts("http")
        """To sign in at this process."""
        self.timeline = Timeline()
        """Changes of owners and members."""
        self.queue_names: list[tuple[str, str]] = []
        """(vhost, name), sorted."""
        self.members: dict[str, MemberRows] = {}
        self.leased = True
        self.lost_lease_ms = 0
        """Since when this process's node holds no lease; 0: it does."""

        self.connections: dict[str, Track[ConnectionRow]] = {}
        self.connection_ids: dict[str, str] = {}
        self.channels: dict[str, dict[int, Track[ChannelRow]]] = {}
        self.consumers: dict[int, dict[Key, Track[ConsumerRow]]] = {}
        self.consumers_of_channel: dict[tuple[str, int], dict[str, Track[ConsumerRow]]] = {}
        self.exchanges: dict[tuple[str, str], dict[str, Track[ExchangeRow]]] = {}
        self.flows_of_exchange: dict[tuple[str, str], dict[Key, dict[str, Track[QueueFlowRow]]]] = {}
        self.flows_of_queue: dict[int, dict[Key, dict[str, Track[QueueFlowRow]]]] = {}
        self.login_sources: dict[str, dict[Key, Track[LoginSourceRow]]] = {}
        """By node: over AMQP."""
        self.suspended_links: dict[str, dict[Key, Track[SuspendedRow]]] = {}
        """By node, which keeps them in its memory."""
        self.recoverable_links: dict[int, dict[tuple[str, int], Track[RecoverableRow]]] = {}
        """By number; then by who tells, and of which queue."""
        self._queues: dict[int, dict[str, Track[QueueRow]]] = {}
        self._node_of: dict[int, str] = {}  # by id of the track's sampling: who told it
        self._counted: dict[int, tuple[str, QueueRow]] = {}  # queue_id: what it adds to the depths of its vhost
        self._running: dict[str, _Running] = {}
        self.vhost_sums: dict[str, Track[Sums]] = {}
        self._sampling = Sampling()
        self.sums: Track[Sums] = Track(self._sampling, Sums(), DAY)
        self._watched: OrderedDict[int, Track[Any]] = OrderedDict()
        self._reindex()

    # -- the wiring -------------------------------------------------------------------------------------------

    def restored(self, snapshot: Snapshot, now_ms: int) -> None:
        """Begin anew from a snapshot; rows stay."""
        before, self.map = self.map, ClusterMap.restored(snapshot)
        if before.applied:
            self.timeline.resumed(before, self.map, now_ms)
        else:
            self.timeline.began(self.map, now_ms)
        self._reindex()
        self.user_gone(None)
        self.folded()

    def applied(self, index: LogIndex, command: AnyCommand, now_ms: int) -> Applied:
        """The next command that the node applied."""
        outcome = self.map.apply(index, command)
        if isinstance(command, PutUser) and command.only_if_hash is not None and outcome.ok:
            self.rehashed(command.name, command.only_if_hash, command.password_hash)
        self.timeline.applied(outcome, now_ms)
        for change in outcome.changes:
            match change:
                case told.QueueDeclared(queue=queue) | told.QueueDeleted(queue=queue) if queue.staging:
                    pass  # no list has it
                case told.QueueDeclared(queue=queue):
                    insort(self.queue_names, (queue.vhost, queue.name))
                    self._count(queue.queue_id)
                case told.QueueDeleted(queue=queue):
                    del self.queue_names[bisect_left(self.queue_names, (queue.vhost, queue.name))]
                    self._count(queue.queue_id)
                case told.OwnerChanged(queue=queue):
                    self._count(queue.queue_id)
                case told.UserChanged(user=user, deleted=True):
                    self.user_gone(user)
                case _:
                    pass
        self.folded()
        return outcome

    def _reindex(self) -> None:
        self.queue_names = sorted((queue.vhost, queue.name) for queue in self.map.queues())
        for queue_id in list(self._queues):
            self._count(queue_id)

    # -- rows -------------------------------------------------------------------------------------------------

    def since(self) -> dict[str, tuple[int, int]]:
        """(life, number) of each member that told something: what the next question begins with."""
        return {member.node: (member.life, member.number) for member in self.members.values()}

    def told(self, batch: Batch, now_ms: int) -> None:
        """What a member told."""
        member = self.members.get(batch.node)
        if member is None:
            member = self.members[batch.node] = MemberRows(batch.node)
            self._node_of[id(member.sampling)] = batch.node
        again = batch.life == member.life
        if not again:
            member.sampling.at_ms = 0  # its clock may be another one now
        member.life, member.number, member.heard_ms = batch.life, batch.number, now_ms
        member.sampling.sampled(batch.sampled_at_ms)
        member.leased = batch.leased
        if batch.node == self.node:
            self.lease(batch.leased, now_ms)
        if batch.whole:
            kept = {row.key for row in batch.rows}
            for key in [key for key in member.rows if key not in kept]:
                self._gone(member, key)
        for key in batch.gone:
            self._gone(member, key)
        # connections first: a channel's growth is counted in the vhost of its connection
        for row in sorted(batch.rows, key=lambda row: not isinstance(row, ConnectionRow)):
            self._row(member, row, new=again and not batch.whole)
        member.let_rest()

    def let_rest(self) -> None:
        """Nobody has asked any member for longer than a minute of anything is kept."""
        for member in self.members.values():
            member.let_rest(all_of_them=True)

    def forgotten(self, node: str) -> None:
        """The node is no member any more."""
        member = self.members.pop(node, None)
        if member is not None:
            for key in list(member.rows):
                self._gone(member, key)
            del self._node_of[id(member.sampling)]

    def closed(self, now_ms: int) -> None:
        """A round of batches is over."""
        present = {member.name for member in self.map.members()}
        for node in [node for node in self.members if present and node not in present]:
            self.forgotten(node)
        self._sampling.sampled(now_ms)
        for vhost in [vhost for vhost in self._running if self.map.vhost(vhost) is None]:
            del self._running[vhost]
            self.vhost_sums.pop(vhost, None)
        whole = _Running()
        for vhost, running in self._running.items():
            for field in (*DEPTHS, *BYTES, *DISK):
                whole[field] += running[field]
            track = self.vhost_sums.get(vhost)
            if track is None:
                self.vhost_sums[vhost] = Track(self._sampling, running.now(), DAY)
            else:
                track.put(running.now())
        for row in self.node_rows():
            whole.add(TOTALS, row.messages)
        self.sums.put(whole.now())

    def lease(self, leased: bool, now_ms: int) -> None:
        """Whether this process's node holds a lease from now on."""
        self.leased = leased
        self.lost_lease_ms = 0 if leased else self.lost_lease_ms or now_ms

    def _row(self, member: MemberRows, row: AnyRow, new: bool) -> None:
        key = row.key
        track = member.rows.get(key)
        if track is not None:
            before = track.row
            member.put(track, row)
            self._grew(row, before)
            return
        track = member.rows[key] = Track(
            member.sampling,
            row,
            spans=DAY if isinstance(row, NodeRow) else MINUTE,
            since=emptied(row) if new else None,
        )
        if new:
            member.moved[track] = None
        if isinstance(row, ConnectionRow):
            self.connections[row.connection_id] = track
            self.connection_ids[row.name] = row.connection_id
        for index, place, name in self._places(member, row):
            index.setdefault(place, {})[name] = track
        self._grew(row, None)

    def _places(self, member: MemberRows, row: AnyRow) -> tuple[tuple[dict[Any, dict[Any, Any]], Any, Any], ...]:
        """(index, place, name) of all indices that have the row."""
        node, key = member.node, row.key
        match row:
            case ChannelRow():
                return ((self.channels, row.connection_id, row.number),)
            case ConsumerRow():
                channel = (row.connection_id, row.channel)
                return (self.consumers, row.queue_id, key), (self.consumers_of_channel, channel, row.tag)
            case QueueRow():
                return ((self._queues, row.queue_id, node),)
            case LoginSourceRow():
                return ((self.login_sources, node, key),)
            case SuspendedRow():
                return ((self.suspended_links, node, key),)
            case RecoverableRow():
                return ((self.recoverable_links, row.link, (node, row.queue_id)),)
            case ExchangeRow():
                return ((self.exchanges, (row.vhost, row.name), node),)
            case QueueFlowRow():
                of_exchange = self.flows_of_exchange.setdefault((row.vhost, row.exchange), {})
                return (of_exchange, key, node), (self.flows_of_queue.setdefault(row.queue_id, {}), key, node)
            case _:
                return ()

    def _gone(self, member: MemberRows, key: Key) -> None:
        track = member.rows.pop(key, None)
        if track is None:
            return
        self._watched.pop(id(track), None)
        member.moved.pop(track, None)
        row = track.row
        for index, place, name in self._places(member, row):
            _drop(index, place, name)
        match row:
            case ConnectionRow():
                del self.connections[row.connection_id]
                if self.connection_ids.get(row.name) == row.connection_id:
                    del self.connection_ids[row.name]
            case QueueRow():
                self._count(row.queue_id)
            case QueueFlowRow():
                if not self.flows_of_exchange[row.vhost, row.exchange]:
                    del self.flows_of_exchange[row.vhost, row.exchange]
                if not self.flows_of_queue[row.queue_id]:
                    del self.flows_of_queue[row.queue_id]

    # -- sums -------------------------------------------------------------------------------------------------

    def _grew(self, row: AnyRow, before: Any) -> None:
        match row:
            case QueueRow():
                self._count(row.queue_id)
                queue = self.map.queue_by_id(QueueId(row.queue_id))
                if queue is not None and (before is None or before.messages != row.messages):
                    self._running_of(queue.vhost).grow(DISK, before and before.messages, row.messages)
            case ConnectionRow():
                self._running_of(row.vhost).grow(BYTES, before, row)
            case ChannelRow():
                connection = self.connections.get(row.connection_id)
                if connection is not None:
                    self._running_of(connection.row.vhost).grow(TOTALS, before and before.messages, row.messages)

    def _count(self, queue_id: int) -> None:
        """Brings the depths of a vhost up to date with one of its queues."""
        counted = self._counted.pop(queue_id, None)
        if counted is not None:
            vhost, row = counted
            self._running_of(vhost).add(DEPTHS, row, -1)
        queue = self.map.queue_by_id(QueueId(queue_id))
        track = self.queue_track(queue) if queue is not None and not queue.staging else None
        if queue is not None and track is not None:
            self._running_of(queue.vhost).add(DEPTHS, track.row)
            self._counted[queue_id] = (queue.vhost, track.row)

    def _running_of(self, vhost: str) -> _Running:
        running = self._running.get(vhost)
        if running is None:
            running = self._running[vhost] = _Running()
        return running

    # -- questions --------------------------------------------------------------------------------------------

    def queue_track(self, queue: Queue) -> Track[QueueRow] | None:
        """The row of a queue that counts."""
        told_by = self._queues.get(queue.queue_id)
        if not told_by:
            return None
        owner = told_by.get(queue.owner) if queue.owner is not None else None
        if owner is not None and owner.row.owned:
            return owner
        return max(told_by.values(), key=lambda track: (track.row.epoch, track.row.owned))

    def node_rows(self) -> Iterator[NodeRow]:
        """Of all members that told something."""
        for member in self.members.values():
            track = member.rows.get(("node", member.node))
            if track is not None:
                yield track.row

    def node_track(self, node: str) -> Track[NodeRow] | None:
        """The row of a node about itself."""
        member = self.members.get(node)
        return member.rows.get(("node", node)) if member is not None else None

    def running_tracks(self, now_ms: int) -> Iterator[Track[NodeRow]]:
        """Of the members that run: the last rate of one that does not is none of now."""
        for node in self.node_names():
            track = self.node_track(node)
            if track is not None and self.running(node, now_ms):
                yield track

    def name_of(self, node: str) -> str:
        """A node that was never in a cluster has no name in its wiring log; here it has the one it was started with."""
        return self.node if node == LOCAL_NODE else node

    def node_names(self) -> list[str]:
        """All members; of a single node, itself."""
        return [member.name for member in self.map.members()] or [self.node]

    def running(self, node: str, now_ms: int) -> bool:
        """Whether the node is alive, as the wiring and its last words say."""
        member = self.members.get(node)
        entity = self.map.member(NodeId(node))
        alive = entity is None or entity.alive
        return alive and member is not None and now_ms - member.heard_ms <= UNHEARD_MS

    def node_of(self, track: Track[Any]) -> str:
        """Who told a row."""
        return self._node_of[id(track.sampling)]

    def stale_s(self, now_ms: int) -> int | None:
        """For how long this node has been without a lease; None: it has one."""
        return max(0, now_ms - self.lost_lease_ms) // 1000 if self.lost_lease_ms else None

    def watch(self, tracks: Iterable[Track[Any]]) -> None:
        """Somebody looks at more than a minute of these."""
        for track in tracks:
            self._watched[id(track)] = track
            self._watched.move_to_end(id(track))
            track.watch()
            if len(self._watched) > WATCHED_MAX:
                self._watched.popitem(last=False)[1].unwatch()


def _drop(index: dict[Any, dict[Any, Any]], place: Any, name: Any) -> None:
    inner = index.get(place)
    if inner is not None:
        inner.pop(name, None)
        if not inner:
            del index[place]
