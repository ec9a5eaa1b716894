"""Queues from the journal's content: the listener of `Journal.recover`.

The metadata log is read first and gives the existing queues. Content of a deleted queue is passed over, and the journal
forgets it. Content of a queue that the log does not know at all is *set aside*: a log that went back, or a deletion
that is no longer remembered, must not cost messages. It is folded like any other queue's and goes into the next
checkpoint, so that it is whole when a later start knows the queue again; its segments are pinned (`Journal.pin`),
because nothing copies it forward; and an alert names it.

At a start: `recovered(node, journal).adopt_into(node)`, after the node has its role in a cluster, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from clusterbroker.broker.node.core import Node
from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.streams.past import Past
from clusterbroker.cluster.ids import QueueId
from clusterbroker.cluster.wiring.entities import Queue
from clusterbroker.journal.queue_state import QueueState
from clusterbroker.journal.record import Record, SegmentUse
from clusterbroker.journal.recovery import RUN_WORDS
from clusterbroker.journal.replay import RecoverySink
from clusterbroker.journal.salvage import Care

PRIORITY_MAX: Final = 255
SEGMENT_BYTES: Final = 64 << 20
"""Of a stream's files while its settings are unknown."""

Find = Callable[[QueueId], Queue | None]
Deleted = Callable[[QueueId], bool]
Make = Callable[[Queue], Ring]


class Recovery:
    """`rings` by queue id when `finish` has returned; `deleted` are the ids to forget, `unknown` those of `rings` that
    are set aside, `pinned` the segments with their messages, `changed` those of which the log's tail said more than the
    index knows: they belong into the next checkpoint.

    damaged     what is wrong with a queue, and of which messages (0: of no single one)
    begun_again queues that were folded anew, for the index is wrong about them: it shall forget what it has
    """

    def __init__(self, find: Find, make: Make, was_deleted: Deleted, use: SegmentUse | None) -> None:
        self._find = find
        self._make = make
        self._was_deleted = was_deleted
        self._use = use
        self._ends: dict[int, tuple[int, int]] = {}
        self._committed: dict[int, int] = {}
        self.rings: dict[int, Ring] = {}
        self.deleted: set[int] = set()
        self.unknown: set[int] = set()
        self.pinned: set[int] = set()
        self.changed: set[int] = set()
        self.damaged: dict[int, dict[int, str]] = {}
        self.begun_again: dict[int, str] = {}

    # -- damage at a start (journal.salvage.Care)

    def knows(self, queue_id: int) -> bool:
        return queue_id in self.rings or self._find(QueueId(queue_id)) is not None

    def hurt(self, queue_id: int, what: str, seqs: Sequence[int] = ()) -> None:
        if not self._was_deleted(QueueId(queue_id)):
            self.damaged.setdefault(queue_id, {}).update(dict.fromkeys(seqs or (0,), what))

    def begins_again(self, queue_id: int, what: str) -> None:
        self.begun_again[queue_id] = what
        ring = self.rings.pop(queue_id, None)
        if ring is not None:
            ring.destroy()
        for known in (self._ends, self._committed):
            known.pop(queue_id, None)
        self.unknown.discard(queue_id)
        self.changed.discard(queue_id)

    # -- what the journal remembers (journal.replay.RecoverySink)

    def _tail_ring(self, queue_id: int) -> Ring | None:
        if (ring := self._ring(queue_id)) is not None:
            self.changed.add(queue_id)
        return ring

    def _ring(self, queue_id: int) -> Ring | None:
        ring = self.rings.get(queue_id)
        if ring is None and queue_id not in self.deleted:
            entity = self._find(QueueId(queue_id))
            if entity is not None:
                ring = self.rings[queue_id] = self._make(entity)
            elif self._was_deleted(QueueId(queue_id)):
                self.deleted.add(queue_id)
            else:
                self.unknown.add(queue_id)
                ring = self.rings[queue_id] = Ring(queue_id, True, PRIORITY_MAX, self._use)
        return ring

    def meta(self, queue_id: int, meta: dict[str, Any]) -> None:
        if (ring := self._ring(queue_id)) is not None:
            ring.epoch = meta.get("epoch", ring.epoch)
            ring.restore_state(QueueState.of_meta(meta))
            if queue_id in self.unknown and "files" in meta:
                ring.past = Past(queue_id, SEGMENT_BYTES)
            if ring.past is not None:
                ring.past.restore(meta)
                if queue_id in self.begun_again:
                    ring.past.close()  # parts of its files may count that are not their ends
            self._ends[queue_id] = meta["next_seq"], meta["reserved"]
            self._committed[queue_id] = meta.get("committed", 0)

    def run(self, queue_id: int, first_seq: int, entries: bytes) -> None:
        if (ring := self._ring(queue_id)) is not None:
            ring.restore_run(first_seq, entries)
            if queue_id in self.unknown:
                self.pinned.update(memoryview(entries).cast("I")[1::RUN_WORDS])

    def enqueued(self, queue_id: int, segment: int, record: Record) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.restore(
                record.seq, segment, record.offset, record.length, record.body_length, record.priority,
                record.delivery_count,
            )  # fmt: skip
            if queue_id in self.unknown:
                self.pinned.add(segment)

    def settled(self, queue_id: int, ranges: tuple[tuple[int, int], ...]) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.restore_settled(ranges)

    def reserved(self, queue_id: int, upto: int) -> None:
        if self._tail_ring(queue_id) is not None:
            next_seq, reserved = self._ends.get(queue_id, (1, 0))
            self._ends[queue_id] = next_seq, max(reserved, upto)

    def counted(self, queue_id: int, seq: int, delivery_count: int) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.restore_count(seq, delivery_count)

    def dead(self, queue_id: int, seq: int, mark: int) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.restore_dead(seq, mark)

    def cut(self, queue_id: int, from_seq: int) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.cut(from_seq)
            next_seq, reserved = self._ends.get(queue_id, (1, 0))
            self._ends[queue_id] = min(next_seq, from_seq), reserved
            self._committed[queue_id] = min(self._committed.get(queue_id, 0), from_seq)

    def set_attribute(self, queue_id: int, name: bytes, upto: int) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.restore_attribute(name, upto)

    def began(self, queue_id: int, epoch: int, first_seq: int) -> None:
        if (ring := self._tail_ring(queue_id)) is not None:
            ring.restore_epoch(epoch, first_seq)

    def finish(self) -> None:
        """After the last record of the log."""
        for queue_id, ring in self.rings.items():
            ring.restore_end(*self._ends.get(queue_id, (1, 0)))

    def adopt_into(self, node: Node) -> None:
        """Gives the node its queues by the map, with these messages."""
        node.set_aside = {queue_id: self.rings[queue_id] for queue_id in sorted(self.unknown)}
        node.adopt(self.rings)
        if node.role is not None:
            node.role.copying.backup.ends.update(self._committed)
        node.forgotten.extend(sorted(self.deleted | self.begun_again.keys()))
        for queue_id in sorted(self.changed | self.begun_again.keys() & self.rings.keys()):
            if not self.rings[queue_id].destroyed:  # of a queue that this node holds no more
                node.touched[self.rings[queue_id]] = None


class Recoverable(Protocol):
    def recover(self, sink: RecoverySink, settled: Callable[[], object] = ..., care: Care | None = ...) -> object: ...


def recovered(node: Node, journal: Recoverable, settled: Callable[[Recovery], object] | None = None) -> Recovery:
    """The journal's content for the queues of the node's map. A member holds copies, until the metadata log says after
    its registration which of them it leads. `settled`: see Journal.recover; with it, damage that names its queue does
    not end the start. Raises DamagedJournal."""
    member = node.role is not None
    recovery = Recovery(
        node.map.queue_by_id,
        lambda entity: node.new_ring(entity, member and not entity.transient),
        node.map.was_deleted,
        node.use,
    )
    if settled is None:
        journal.recover(recovery)
    else:
        journal.recover(recovery, lambda: settled(recovery), recovery)
    recovery.finish()
    return recovery
