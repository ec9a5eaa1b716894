"""The copies of queues: between a node's group commits and the two cores of replication.

Own queues: their records go into the node's group and, as the same bytes, to the backups. A queue has one group in
flight (`flights`): it is written again when that one is committed. Queues of durability "memory" have their records
in a group that no disk sees.

Copies for other owners: writes of the backup's core wait in `pending` for the node's next group; there they get their
place on the disk and are folded into the replica's ring. Their mark is the number of that group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from clusterbroker.broker.node.pending import Pending, Portions
from clusterbroker.broker.queues.local_queue import LocalQueue
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.queues.states import BUCKET_SEQS
from clusterbroker.broker.streams.store import store_of
from clusterbroker.broker.streams.stream import Stream
from clusterbroker.cluster.errors import Unavailable
from clusterbroker.cluster.ids import Epoch, Incarnation, NodeId, QueueId
from clusterbroker.cluster.wiring.commands import ChangeInSync, GiveUpCopy, InSyncProposal, TransferOwner
from clusterbroker.cluster.wiring.map import Applied
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
from clusterbroker.replication.backup import Backup
from clusterbroker.replication.copies import State
from clusterbroker.replication.messages import Range, SyncDone
from clusterbroker.replication.places import PLACE, place_of
from clusterbroker.replication.primary import Primary
from clusterbroker.replication.replica import Replica
from clusterbroker.replication.store import RecordMaker
from clusterbroker.replication.sync import shorten

if TYPE_CHECKING:
    from clusterbroker.broker.node.hub import Hub
    from clusterbroker.broker.node.ports import NodeCore
    from clusterbroker.replication.messages import ReplicationMessage

Bytes = bytes | memoryview
VOLATILE_SEGMENT: Final = 0


class Flight(NamedTuple):
    """What of a queue is on its way."""

    group: int
    upto: int
    """The watermark that the ring reaches with it."""


class Copying:
    """Host of a node's Primary and Backup."""

    def __init__(
        self,
        node: NodeCore,
        hub: Hub,
        name: str,
        records: RecordMaker,
        *,
        registered: Callable[[], bool],
        owing: Callable[[int], bool],
        freezing: Callable[[int, bool], None],
        synced: Callable[[int], None],
        mistaken: Callable[[int, Exception], None],
        link_mistaken: Callable[[str, Exception], None],
        on_event: Callable[[str, int, str, str], None],
    ) -> None:
        """What the node's member is asked and told.

        registered     whether this incarnation is a member, alive in the map
        owing          whether the map knows more of a queue than was carried out here
        freezing       a hand-over of a queue begins (True) or will not be (False)
        synced         the first sync of an own queue is complete
        mistaken       replication raised over a queue; `link_mistaken`: over what is sent to a peer
        on_event       for the log: (event, queue, node of the copy or heir, detail)
        """
        self._node = node
        self._hub = hub
        self._name = name
        self._registered = registered
        self._freezing = freezing
        self._synced = synced
        self._mistaken = mistaken
        self._link_mistaken = link_mistaken
        self._on_event = on_event
        self.distrusted: dict[int, Ring | None] = {}
        """Queues over which something raised here: what this node holds of them is not believed, until it begins anew.
        Of a replica its ring, which nobody asks any more. No checkpoint is taken meanwhile."""
        self.primary = Primary(self, name, owing)
        self._records = records
        self.backup = Backup(self, name, records)
        self.backup.rate.limit_bytes = node.options.copy_rate_bytes
        self.replicas: dict[int, Ring] = {}
        """Rings of queues that others own, or nobody does."""
        self.from_disk: dict[int, None] = {}
        """Queues of which this process has what its disk had at the start, and nobody has agreed to it yet."""
        self._flights: dict[int, Flight] = {}
        self._spans: list[tuple[int, GroupWriter, int, int]] = []
        self._volatile = GroupWriter(VOLATILE_SEGMENT, 0)
        self._pending = Portions(2 * node.options.group_bytes_max)
        self._beginnings: dict[int, None] = {}  # queues with a beginning in `_pending`
        self._unfolded: dict[int, None] = {}  # queues with records of their owners in `_pending`
        self._live: tuple[Ring | None, int, int, Sequence[Range]] = (
            None,
            0,
            0,
            (),
        )  # of the last `move`: what lives there
        self.sent_bytes = self.received_bytes = 0  # of records, to copies and from owners; totals for operators
        self._durable = 0

    # -- own queues -------------------------------------------------------------------------------------------

    def take_over(self, queue: LocalQueue, min_in_sync: int, after_group: int) -> None:
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
        self.primary.take_over(
            entity, store_of(queue.ring), min_in_sync, self._node.now_ms, after_group, queue.ring.volatile, unproven
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

    def write_own(self, queue: LocalQueue, writer: GroupWriter) -> bool:
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
        self._mistaken(queue_id, error)
        if entity is not None and entity.owner is not None and entity.owner != self._name:
            self.backup.unlinked(entity.owner)
            self._link_mistaken(entity.owner, error)

    # -- what the cores ask: both -----------------------------------------------------------------------------

    def send(self, peer: str, head: ReplicationMessage, payload: Sequence[Bytes] = ()) -> bool:
        if isinstance(head, SyncDone):
            self.from_disk.pop(head.queue_id, None)
        sent = self._hub.send(peer, head, payload)
        if sent:
            self.sent_bytes += sum(map(len, payload))
        return sent

    def received(self, peer: str, message: ReplicationMessage, payload: memoryview) -> None:
        """What an owner elsewhere says of a queue that this node copies."""
        self.received_bytes += len(payload)
        self.backup.received(peer, message, payload, self._node.now_ms)

    def stumbled(self, queue_id: int, error: Exception) -> None:
        self._mistaken(queue_id, error)

    def link_stumbled(self, peer: str, error: Exception) -> None:
        self._link_mistaken(peer, error)

    def replication_event(self, event: str, queue_id: int, node: str, detail: str) -> None:
        self._on_event(event, queue_id, node, detail)

    # -- Primary ----------------------------------------------------------------------------------------------

    def change_in_sync(self, changes: tuple[InSyncProposal, ...], done: Callable[[], None]) -> None:
        command = ChangeInSync(
            node=NodeId(self._name), incarnation=Incarnation(self._node.options.incarnation), changes=changes
        )
        self._node.propose(command, lambda _: done())

    def transfer_owner(self, queue_id: int, epoch: int, version: int, to: str, done: Callable[[bool], None]) -> None:
        def told(applied: Applied) -> None:
            done(applied.error is None)

        command = TransferOwner(
            node=NodeId(self._name),
            incarnation=Incarnation(self._node.options.incarnation),
            queue_id=QueueId(queue_id),
            epoch=Epoch(epoch),
            version=version,
            to=NodeId(to),
        )
        self._node.propose(command, told)

    def yield_to(self, queue_id: int, epoch: int, to: str, lacks: bool, done: Callable[[bool], None]) -> None:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None or entity.epoch != epoch:
            return  # it is another's, or gone, and what the owner's side knew of it with it
        command = GiveUpCopy(
            node=NodeId(self._name),
            incarnation=Incarnation(self._node.options.incarnation),
            queue_id=entity.queue_id,
            epoch=entity.epoch,
            heir=NodeId(to),
            doubted=not lacks,
        )

        def told(applied: Applied) -> None:
            if isinstance(applied.error, Unavailable):
                self.yield_to(queue_id, epoch, to, lacks, done)
            else:
                done(applied.error is None)

        self._node.propose(command, told)

    def committed(self, queue_id: int, group: int) -> None:
        flight = self._flights.pop(queue_id)
        assert flight.group == group, "one group of a queue is in flight"
        queue = self._node.queues[queue_id]
        self._node.setting_aside.work(queue, queue.committed, flight.upto)
        if queue.ring.needs_write:
            queue.ring.mark()  # what came meanwhile may need a reservation, which goes with it
            self._node.write(queue)

    def first_sync_complete(self, queue_id: int) -> None:
        queue = self._node.queues[queue_id]
        self._node.setting_aside.work(queue, queue.committed, queue.ring.emitted_end())
        self.from_disk.pop(queue_id, None)
        self._synced(queue_id)
        queue.ring.mark()
        if queue.ring.needs_write:
            self._node.write(queue)

    def freeze(self, queue_id: int) -> None:
        self._freezing(queue_id, True)

    def thaw(self, queue_id: int) -> None:
        self._freezing(queue_id, False)
        queue = self._node.queues.get(queue_id)
        if queue is not None and queue.ring.needs_write:
            self._node.write(queue)

    def load(self, queue_id: int, seqs: Sequence[Range], bytes_max: int, then: Callable[[bytes], None]) -> None:
        queue = self._node.queues[queue_id]
        ring = queue.ring
        if isinstance(queue, Stream):
            queue.copy(seqs, bytes_max, then)
            return
        wanted, absent = ring.copies_of(seqs, bytes_max)

        def loaded(messages: Sequence[Message]) -> None:
            found = {location[0]: message for location, message in zip(absent, messages, strict=True)}
            then(ring.encode_emitted(wanted, found))

        if absent:
            self._node.fetch(queue, absent, loaded)
        else:
            loaded(())

    # -- Backup -----------------------------------------------------------------------------------------------

    def queue(self, queue_id: int) -> Replica | None:
        entity = self._node.map.queue_by_id(QueueId(queue_id))
        if entity is None or not self._registered():
            return None
        electable = self._name in entity.in_sync or self._name in entity.eligible
        ring = self.replicas.get(queue_id)
        return Replica(
            entity.owner, entity.epoch, None if ring is None else store_of(ring), electable, entity.gap_epoch
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
