"""The copies of queues: between a node's group commits and the two cores of replication.

Own queues: their records go into the node's group and, as the same bytes, to the backups. A queue has one group in
flight (`flights`): it is written again when that one is committed. Queues of durability "memory" have their records
in a group that no disk sees.

Copies for other owners: writes of the backup's core wait in `pending` for the node's next group; there they get their
place on the disk and are folded into the replica's ring. Their mark is the number of that group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Epoch, Incarnation, NodeId, QueueId
from clusterbroker.cluster.wiring.commands import AnyCommand, ChangeInSync, GiveUpCopy, InSyncProposal, TransferOwner
from clusterbroker.cluster.wiring.map import Applied
from clusterbroker.cluster.wiring.view import ClusterView
from clusterbroker.journal.ranges import contains
from clusterbroker.journal.record import (
    DamagedRecord,
    GroupWriter,
    Message,
    RecordBuffer,
    attributes_named,
    enqueued,
    verify_records,
)

from .backup import Backup
from .copies import State
from .messages import Range, ReplicationMessage, SyncDone
from .places import PLACE, place_of
from .ports import Bytes, OwnedLog, Replica, ReplicaRing, ReplicaStore
from .primary import Primary
from .records import Records
from .sync import BUCKET_SEQS, shorten

VOLATILE_SEGMENT: Final = 0

Log = TypeVar("Log", bound=OwnedLog)
Ring = TypeVar("Ring", bound=ReplicaRing)


class Node(Protocol[Log, Ring]):
    """The node: its queues, and what it wants of the wiring."""

    @property
    def now_ms(self) -> int: ...

    @property
    def newest_group(self) -> int:
        """Number of the last group that was made."""

    @property
    def map(self) -> ClusterView: ...

    @property
    def queues(self) -> Mapping[int, Log]:
        """Those that this node owns, by id."""

    @property
    def touched(self) -> MutableMapping[Ring, None]:
        """For the next checkpoint."""

    def propose(self, command: AnyCommand, done: Callable[[Applied], None]) -> None: ...

    def stumbled(self, queue: Log, error: Exception) -> None:
        """A queue's own work raised: it is set aside."""

    def write(self, queue: Log) -> None:
        """The queue has records for the next group."""


class Member(Protocol):
    """The node's role in the cluster: its links, and the consequences of what replication finds."""

    @property
    def name(self) -> str: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def registered(self) -> bool:
        """This incarnation is a member, alive in the map."""

    def owes(self, queue_id: int) -> bool:
        """Whether the map knows more of a queue than was carried out here."""

    def send(self, node: str, head: ReplicationMessage, payload: Sequence[Bytes] = ...) -> bool: ...

    def freeze(self, queue_id: int) -> None:
        """A hand-over of a queue begins."""

    def thaw(self, queue_id: int) -> None:
        """It will not be."""

    def synced(self, queue_id: int) -> None:
        """The first sync of an own queue is complete."""

    def copy_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        """For the log; `node`: of the copy, or the heir."""

    def copy_stumbled(self, queue_id: int, error: Exception) -> None:
        """Replication raised over a queue."""

    def link_stumbled(self, node: str, error: Exception) -> None:
        """Replication raised over what is sent to a peer."""


class Flight(NamedTuple):
    """What of a queue is on its way."""

    group: int
    upto: int
    """The watermark that the ring reaches with it."""


class Pending(NamedTuple):
    """Records for a replica's ring, on their way into a group."""

    queue_id: int
    records: Bytes
    epochs: tuple[tuple[int, int], ...] | None
    begins: bool = False
    """It ends what an earlier copy may have left in the journal: it is written whatever becomes of the ring."""


class Portions:
    """Records for copies on their way to the disk, cut into groups; the first one goes with the next group.

    Owners' records gather here while this node's disk is slow, and one group commit would hold up the node for the time
    of all of them. An addition learns the group of its portion, and nothing changes that: portions keep their places,
    also when nothing is left in them. `portion_bytes`: one is full with it, and one frame's records more.
    """

    __slots__ = ("_portion_bytes", "_portions", "_sizes")

    def __init__(self, portion_bytes: int) -> None:
        self._portion_bytes = portion_bytes
        self._portions: deque[list[Pending]] = deque()
        self._sizes: deque[int] = deque()

    def __len__(self) -> int:
        """How many groups it takes."""
        return len(self._portions)

    @property
    def next_bytes(self) -> int:
        """Of the first one."""
        return self._sizes[0] if self._sizes else 0

    def put(self, pending: Pending) -> None:
        if not self._sizes or self._sizes[-1] >= self._portion_bytes:
            self._portions.append([])
            self._sizes.append(0)
        self._portions[-1].append(pending)
        self._sizes[-1] += len(pending.records)

    def take(self) -> list[Pending]:
        """For the group that is being made."""
        if not self._portions:
            return []
        self._sizes.popleft()
        return self._portions.popleft()

    def drop(self, queue_id: int) -> None:
        """All of the queue, but for beginnings."""
        for place, portion in enumerate(self._portions):
            kept = [pending for pending in portion if pending.queue_id != queue_id or pending.begins]
            self._portions[place] = kept
            self._sizes[place] = sum(len(pending.records) for pending in kept)

    def rest(self) -> Iterable[Pending]:
        for portion in self._portions:
            yield from portion


class Copying(Generic[Log, Ring]):
    """Host of a node's Primary and Backup."""

    def __init__(
        self, node: Node[Log, Ring], member: Member, store_of: Callable[[Ring], ReplicaStore], *,
        group_bytes: int, rate_bytes: int,
    ) -> None:  # fmt: skip
        """`store_of`: a replica as the cores ask about it. `group_bytes`: a group of the node is full with it.
        `rate_bytes`: a second, of copies that no publisher waits for; 0: as fast as it goes."""
        self._node = node
        self._member = member
        self._name = member.name
        self._store_of = store_of
        self.distrusted: dict[int, Ring | None] = {}
        """Queues over which something raised here: what this node holds of them is not believed, until it begins anew.
        Of a replica its ring, which nobody asks any more. No checkpoint is taken meanwhile."""
        self.primary = Primary(self, self._name, member.owes)
        self._records = Records()
        self.backup = Backup(self, self._name, self._records)
        self.backup.rate.limit_bytes = rate_bytes
        self.replicas: dict[int, Ring] = {}
        """Rings of queues that others own, or nobody does."""
        self.from_disk: dict[int, None] = {}
        """Queues of which this process has what its disk had at the start, and nobody has agreed to it yet."""
        self._flights: dict[int, Flight] = {}
        self._spans: list[tuple[int, GroupWriter, int, int]] = []
        self._volatile = GroupWriter(VOLATILE_SEGMENT, 0)
        self._pending = Portions(2 * group_bytes)
        self._beginnings: dict[int, None] = {}  # queues with a beginning in `_pending`
        self._unfolded: dict[int, None] = {}  # queues with records of their owners in `_pending`
        self._live: tuple[Ring | None, int, int, Sequence[Range]] = None, 0, 0, ()  # of the last `move`: what lives
        self.sent_bytes = self.received_bytes = 0  # of records, to copies and from owners; totals for operators
        self._durable = 0

    # -- own queues -------------------------------------------------------------------------------------------

    def take_over(self, queue: Log, min_in_sync: int, after_group: int) -> None:
        """The queue is this node's from now on; `queue.ring` stands as it was folded."""
        entity = queue.entity
        if entity.queue_id in self._beginnings:
            after_group = self._last_group
        self.backup.stop(entity.queue_id)
        self._flights.pop(entity.queue_id, None)
        first = queue.ring.committed  # nothing is committed yet: that is the first that lives
        if queue.ring.past is not None:
            first = min(first, queue.ring.past.lowest or first)
        shorten(queue.ring.epochs, first)
        unproven = entity.queue_id in self.from_disk
        store = self._store_of(queue.ring)
        self.primary.take_over(
            entity, store, min_in_sync, self._node.now_ms, after_group, queue.ring.volatile, unproven
        )

    def begin_syncs_anew(self, queue_id: int) -> None:
        """What a sync had asked for could not be read, and is gone by now."""
        for copy in self.primary.copies(queue_id):
            if copy.state is State.SYNCING:
                self.primary.copy_lost(queue_id, copy.node, self._node.now_ms)

    def give_up(self, queue_id: int) -> None:
        """The queue is not this node's any more."""
        self.primary.give_up(queue_id)
        self._flights.pop(queue_id, None)

    def known_committed(self, ring: Ring) -> int:
        """The seq before which all that lives here is known as committed."""
        queue = self._node.queues.get(ring.queue_id)
        if queue is not None and queue.ring is ring:
            end: int = ring.committed if ring.replicated else 0
            return end
        return self.backup.ends.get(ring.queue_id, 0)

    def keep(self, ring: Ring) -> None:
        """A queue that was this node's is a replica from now on."""
        if ring.queue_id in self.distrusted:
            self.distrusted[ring.queue_id] = ring
            return
        self.replicas[ring.queue_id] = ring
        self.backup.stepped_down(ring.queue_id, self._node.newest_group)

    def begin_empty(self, queue_id: int, epoch: int) -> None:
        """This node becomes a replica: what an earlier copy may have left in the journal ends before the new one, and
        durably so before the new one counts."""
        if self.replicas[queue_id].volatile:
            self.backup.stepped_down(queue_id, self.write(queue_id, self._records.cut(queue_id, epoch, 1), None))
        else:
            self.begin(queue_id, epoch)
            self.backup.stepped_down(queue_id, self._last_group)

    def begin(self, queue_id: int, epoch: int) -> None:
        """What an earlier copy may have left in the journal ends with a next group, and nothing is written before."""
        self._unfolded[queue_id] = None
        self._beginnings[queue_id] = None
        self._pending.put(Pending(queue_id, self._records.cut(queue_id, epoch, 1), None, True))

    def drop(self, queue_id: int) -> Ring | None:
        """The replica's ring is wanted elsewhere, or nowhere."""
        self.backup.stop(queue_id)
        self._pending.drop(queue_id)
        aside = self.distrusted.pop(queue_id, None)
        return self.replicas.pop(queue_id, None) or aside

    def distrust(self, queue_id: int) -> None:
        """Nothing of the queue is written, acknowledged or offered until it begins anew."""
        self.primary.give_up(queue_id)
        ring = self.replicas.pop(queue_id, None)
        if ring is not None:
            self.backup.stop(queue_id)
        self.distrusted[queue_id] = ring or self.distrusted.get(queue_id)

    def write_own(self, queue: Log, writer: GroupWriter) -> bool:
        """The queue's records into the group that is being made; whether somebody waits for the disk."""
        queue_id, ring = queue.entity.queue_id, queue.ring
        if not self.primary.may_write(queue_id):
            return False  # asked again by `committed` or `first_sync_complete`
        target = self._volatile if ring.volatile else writer
        start = target.size
        try:
            if ring.needs_write:
                ring.set_attribute(PLACE, place_of(ring.attributes) + 1, False)  # it is written now, and needs no turn
            upto = ring.write(target)
        except Exception as error:
            self.primary.stumbled(queue_id, error)
            return False
        self._flights[queue_id] = Flight(0, upto)
        self._spans.append((queue_id, target, start, target.size))
        return not ring.volatile and queue.settings.durability != "disk"

    def cut(self, group: int, now_ms: int) -> list[int]:
        """The group is complete: its records go to the other copies. The queues that are in it."""
        spans, self._spans = self._spans, []
        parts: list[tuple[int, Bytes]] = []
        for queue_id, writer, start, end in spans:
            self._flights[queue_id] = self._flights[queue_id]._replace(group=group)
            parts.append((queue_id, writer.span(start, end) if end > start else b""))
        if self._volatile.records:
            self._volatile = GroupWriter(VOLATILE_SEGMENT, 0)
        if parts:
            self.primary.group_cut(group, parts, now_ms)
        return [queue_id for queue_id, _ in parts]

    @property
    def volatile_bytes(self) -> int:
        """Of own queues that have no journal, in the group that is being made."""
        return self._volatile.size

    @property
    def waits(self) -> bool:
        """Copies wait for the next group."""
        return bool(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Of those that go with the next group."""
        return self._pending.next_bytes

    @property
    def _last_group(self) -> int:
        """With which all that waits will be written."""
        return self._node.newest_group + len(self._pending)

    def write_copies(self, writer: GroupWriter, group: int) -> bool:
        """Copies for other owners into the group; whether somebody waits for the disk."""
        pending = self._pending.take()
        self._unfolded = {rest.queue_id: None for rest in self._pending.rest()}
        self._beginnings = {rest.queue_id: None for rest in self._pending.rest() if rest.begins}
        for queue_id, records, epochs, begins in pending:
            offset = writer.append(records)
            ring = self.replicas.get(queue_id)
            if ring is None:
                assert begins or queue_id in self.distrusted, "what was written to a copy goes with it"
                continue
            try:
                ring.fold(records, writer.segment, offset)
                for epoch, first_seq in epochs or ():
                    writer.begin_epoch(queue_id, epoch, first_seq)
                self._replace_epochs(ring, epochs or ())
            except Exception as error:
                self._stumbled_replica(queue_id, error)
            self._node.touched[ring] = None
        self.backup.folded(group)
        return bool(pending)

    def durable(self, group: int, now_ms: int) -> None:
        """A group is durable."""
        self._durable = group
        self.primary.group_durable(group, now_ms)
        self.backup.durable(group, now_ms)

    def move(self, queue_id: int, seq: int, segment: int, offset: int, message: Message) -> None:
        """Copy forward: a replica's message is written again if it still lives at that place.

        Not while records of its owner wait to be folded: one of them may be the message's SET, and a message that is
        written after its SET would live again.
        """
        ring = self.replicas.get(queue_id)
        if ring is None or ring.volatile or queue_id in self._unfolded or ring.past is not None:
            return  # a stream's is on its way into a file
        bucket = seq // BUCKET_SEQS
        if self._live[:3] != (ring, bucket, self._node.newest_group):
            self._live = ring, bucket, self._node.newest_group, ring.emitted_live(bucket)
        if not contains(self._live[3], seq) or ring.location(seq)[1:3] != (segment, offset):
            return
        buffer = RecordBuffer()
        buffer.enqueue(queue_id, ring.epoch_of(seq), seq, message, ring.delivery_count(seq), False)
        self._pending.put(Pending(queue_id, buffer.take(), None))

    def _stumbled_replica(self, queue_id: int, error: Exception) -> None:
        """What its owner said is in the log and not in the ring: the owner must not hear that it is here."""
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        self._member.copy_stumbled(queue_id, error)
        if entity is not None and entity.owner is not None and entity.owner != self._name:
            self.backup.unlinked(entity.owner)
            self._member.link_stumbled(entity.owner, error)

    # -- what the cores ask: both -----------------------------------------------------------------------------

    def send(self, peer: str, head: ReplicationMessage, payload: Sequence[Bytes] = ()) -> bool:
        if isinstance(head, SyncDone):
            self.from_disk.pop(head.queue_id, None)
        sent = self._member.send(peer, head, payload)
        if sent:
            self.sent_bytes += sum(map(len, payload))
        return sent

    def received(self, peer: str, message: ReplicationMessage, payload: memoryview) -> None:
        """What an owner elsewhere says of a queue that this node copies."""
        self.received_bytes += len(payload)
        self.backup.received(peer, message, payload, self._node.now_ms)

    def received_as_owner(self, peer: str, message: ReplicationMessage, payload: memoryview) -> None:
        """What a copy elsewhere says of a queue that this node owns."""
        self.primary.received(peer, message, payload, self._node.now_ms)

    def stumbled(self, queue_id: int, error: Exception) -> None:
        self._member.copy_stumbled(queue_id, error)

    def link_stumbled(self, peer: str, error: Exception) -> None:
        self._member.link_stumbled(peer, error)

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        self._member.copy_event(event, queue_id, node, detail)

    # -- Primary ----------------------------------------------------------------------------------------------

    def change_in_sync(self, changes: tuple[InSyncProposal, ...], done: Callable[[], None]) -> None:
        me, incarnation = NodeId(self._name), Incarnation(self._member.incarnation)
        self._node.propose(ChangeInSync(node=me, incarnation=incarnation, changes=changes), lambda _: done())

    def transfer_owner(self, queue_id: int, epoch: int, version: int, to: str, done: Callable[[bool], None]) -> None:
        command = TransferOwner(
            node=NodeId(self._name), incarnation=Incarnation(self._member.incarnation), queue_id=QueueId(queue_id),
            epoch=Epoch(epoch), version=version, to=NodeId(to),
        )  # fmt: skip
        self._node.propose(command, lambda applied: done(applied.error is None))

    def yield_to(self, queue_id: int, epoch: int, to: str, lacks: bool, done: Callable[[bool], None]) -> None:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None or entity.epoch != epoch:
            return  # it is another's, or gone, and what the owner's side knew of it with it

        def answered(applied: Applied) -> None:
            if isinstance(applied.error, Unavailable):
                self.yield_to(queue_id, epoch, to, lacks, done)
            else:
                done(applied.error is None)

        command = GiveUpCopy(
            node=NodeId(self._name), incarnation=Incarnation(self._member.incarnation), queue_id=entity.queue_id,
            epoch=entity.epoch, heir=NodeId(to), doubted=not lacks,
        )  # fmt: skip
        self._node.propose(command, answered)

    def committed(self, queue_id: int, group: int) -> None:
        flight = self._flights.pop(queue_id)
        assert flight.group == group, "one group of a queue is in flight"
        queue = self._node.queues[queue_id]
        self._commit(queue, flight.upto)
        if queue.ring.needs_write:
            queue.ring.mark()  # what came meanwhile may need a reservation, which goes with it
            self._node.write(queue)

    def _commit(self, queue: Log, upto: int) -> None:
        try:
            queue.committed(upto)
        except Exception as error:
            self._node.stumbled(queue, error)

    def first_sync_complete(self, queue_id: int) -> None:
        queue = self._node.queues[queue_id]
        self._commit(queue, queue.ring.emitted_end())
        self.from_disk.pop(queue_id, None)
        self._member.synced(queue_id)
        queue.ring.mark()
        if queue.ring.needs_write:
            self._node.write(queue)

    def freeze(self, queue_id: int) -> None:
        self._member.freeze(queue_id)

    def thaw(self, queue_id: int) -> None:
        self._member.thaw(queue_id)
        queue = self._node.queues.get(queue_id)
        if queue is not None and queue.ring.needs_write:
            self._node.write(queue)

    def load(self, queue_id: int, seqs: Sequence[Range], bytes_max: int, then: Callable[[bytes], None]) -> None:
        self._node.queues[queue_id].copy(seqs, bytes_max, then)

    # -- Backup -----------------------------------------------------------------------------------------------

    def queue(self, queue_id: int) -> Replica | None:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None or not self._member.registered:
            return None
        electable = self._name in entity.in_sync or self._name in entity.eligible
        ring = self.replicas.get(queue_id)
        return Replica(
            entity.owner, entity.epoch, None if ring is None else self._store_of(ring), electable, entity.gap_epoch
        )

    def spare(self, queue_id: int) -> bool:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None or self._name in entity.in_sync:
            return False
        return len(entity.in_sync) >= max(2, self._node.map.min_in_sync(entity))

    def waited_for(self, queue_id: int) -> bool:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None:
            return False
        return self._name in entity.in_sync or len(entity.in_sync) < self._node.map.min_in_sync(entity)

    def sound(self, queue_id: int, records: memoryview) -> bool:
        try:
            verify_records(records, queue_id, self._epoch(queue_id))
        except DamagedRecord:
            return False
        return True

    def attributes_named(self, records: memoryview) -> set[bytes]:
        return attributes_named(records)

    def verify(self, queue_id: int, records: memoryview) -> Sequence[Range] | None:
        try:
            count = verify_records(records, queue_id, self._epoch(queue_id))
        except DamagedRecord:
            return None
        ranges, messages = enqueued(records)
        return ranges if messages == count else None

    def _epoch(self, queue_id: int) -> int:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        return 0 if entity is None else entity.epoch

    def write(self, queue_id: int, records: Bytes, epochs: tuple[tuple[int, int], ...] | None) -> int:
        ring = self.replicas[queue_id]
        if ring.volatile:
            ring.fold(records, VOLATILE_SEGMENT, 0)
            self._replace_epochs(ring, epochs or ())
            return self._durable
        self._unfolded[queue_id] = None
        self._pending.put(Pending(queue_id, records, epochs))
        return self._last_group

    @staticmethod
    def _replace_epochs(ring: Ring, epochs: Sequence[tuple[int, int]]) -> None:
        if epochs:
            ring.epochs.clear()
        for epoch, first_seq in epochs:
            ring.restore_epoch(epoch, first_seq)
