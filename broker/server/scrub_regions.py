"""Regions of a scrub, and the treatment of damage in them: segments, streams' files, the index.

a segment        its groups are walked; a live message that cannot be read is held back, or written again
a stream's file  the part counted by its catalogue is read. A file that has changed meanwhile is read again, once:
                 retention removes files, and a sync cuts their ends off
the index        its values, and that none is missing. The node's memory is right: a start would not have begun with
                 less, so of a queue without other copies an operator is told, and a start makes the index anew from
                 the log (`journal.salvage`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from clusterbroker.journal.index_walk import Looked
from clusterbroker.journal.ranges import contains
from clusterbroker.journal.scrub import Piece
from clusterbroker.journal.stream_catalogue import StreamFile
from clusterbroker.journal.stream_files import Proved
from clusterbroker.journal.survivors import Hurt
from clusterbroker.replication.sync import BUCKET_SEQS

if TYPE_CHECKING:
    from clusterbroker.broker.node.core import Node
    from clusterbroker.broker.streams.past import Past
    from clusterbroker.journal.journal import Journal


class Region(Protocol):
    """`done` of `size` bytes were proved; both are estimates, but `over` is not."""

    size: int
    done: int
    over: bool

    def step(self, done: Callable[[Any], object]) -> None:
        """Proves the next piece; what came of it goes to `proved`, on the loop."""

    def proved(self, piece: Any) -> tuple[int, int]:
        """(bytes read, damages found); they are treated."""


class SegmentRegion:
    def __init__(self, journal: Journal, node: Node, segment: int, size: int) -> None:
        self._journal = journal
        self._node = node
        self._segment = segment
        self.size = size
        self.done = 0
        self.over = False

    def step(self, done: Callable[[Piece], object]) -> None:
        self._journal.scrub(self._segment, self.done, done)

    def proved(self, piece: Piece) -> tuple[int, int]:
        found = sum(self._treat(hurt) for hurt in piece.hurt)
        read = max(0, piece.end - self.done)
        self.done, self.over = piece.end, piece.over
        return read, found

    def _treat(self, hurt: Hurt) -> bool:
        node, queue_id, seq = self._node, hurt.queue_id, hurt.seq
        queue = node.queues.get(queue_id)
        if queue is not None and not queue.deleted:
            ring = queue.ring
            if not ring.living(seq, seq, 1) or ring.location(seq)[1] != self._segment:
                return False  # it has left, or stands elsewhere by now
            message = ring.message(seq)
            if message is not None:
                ring.rewrite(seq, self._segment, ring.location(seq)[2], message)
                return False
        else:
            replica = None if node.part is None else node.part.copying.replicas.get(queue_id)
            if replica is None or not contains(replica.emitted_live(seq // BUCKET_SEQS), seq):
                return False
            if replica.location(seq)[1] != self._segment:
                return False
        node.damages.found(queue_id, (seq,), hurt.damage.args[1])
        return True


def _past(node: Node, queue_id: int) -> Past | None:
    queue = node.queues.get(queue_id)
    if queue is not None:
        return queue.ring.past  # type: ignore[no-any-return]
    replica = None if node.part is None else node.part.copying.replicas.get(queue_id)
    return None if replica is None else replica.past


def streams_of(journal: Journal, node: Node) -> Iterator[StreamRegion]:
    """The files that the streams of this node have now."""
    copies = () if node.part is None else tuple(node.part.copying.replicas)
    for queue_id in sorted({*node.queues, *copies}):
        past = _past(node, queue_id)
        for part in () if past is None else past.files:
            yield StreamRegion(journal, node, queue_id, part)


class StreamRegion:
    def __init__(self, journal: Journal, node: Node, queue_id: int, part: StreamFile) -> None:
        self._journal = journal
        self._node = node
        self._queue_id = queue_id
        self._part = part
        self._at = (0, 0)
        self._anew = False
        self.size = part.size
        self.done = 0
        self.over = False

    def step(self, done: Callable[[Proved], object]) -> None:
        self._journal.scrub_stream(self._queue_id, self._part, self._at, done)

    def proved(self, piece: Proved) -> tuple[int, int]:
        read = max(0, piece.at[0] - self._at[0])
        self._at, self.done = piece.at, min(piece.at[0], self.size)
        if not piece.damage:
            self.over = piece.at[1] >= self._part.end
            return read, 0
        now = self._now()
        if now is not None and not self._anew:
            self._part, self._at, self._anew, self.done = now, (0, 0), True, 0
            return read, 0
        self.over = True
        if now is None:
            return read, 0
        self._node.damages.found(self._queue_id, (), piece.damage)
        return read, 1

    def _now(self) -> StreamFile | None:
        """What counts of the file now."""
        past = _past(self._node, self._queue_id)
        if past is None:
            return None
        return next((part for part in past.files if part.name == self._part.name and part.end > past.first), None)


class IndexRegion:
    def __init__(self, journal: Journal, node: Node) -> None:
        self._journal = journal
        self._node = node
        self.size = journal.index_bytes()
        self.done = 0
        self.over = False

    def step(self, done: Callable[[Looked], object]) -> None:
        self._journal.scrub_index(done)

    def proved(self, looked: Looked) -> tuple[int, int]:
        self.done, self.over = min(self.done + looked.bytes_read, self.size), looked.over
        for damage in looked.hurt:
            what = f"{damage.file}: {damage.what}"
            if damage.queue_id is None:
                self._node.alerts.set(
                    "journal.damaged", "index", f"{what}; look at the disk, then start the node again: it is rebuilt"
                )
            else:
                self._node.damages.found(damage.queue_id, (), what)
        return looked.bytes_read, len(looked.hurt)
