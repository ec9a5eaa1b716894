"""Index and tail folded into one view of every queue, without a node (waits for the disk only).

Runs that the tail touches are held in memory as an overlay; all others stay in the index and are read when they are
asked for. So memory follows the tail, which a checkpoint bounds, and not the backlog.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from clusterbroker.journal.index import LAST, Index
from clusterbroker.journal.layout import REDELIVERED, RUN_ENTRY, RUN_LENGTH
from clusterbroker.journal.queue_state import QueueState
from clusterbroker.journal.record import Record
from clusterbroker.journal.recovery import replay_tail, start_of_tail
from clusterbroker.journal.replay import Tail
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.stream_catalogue import StreamFile

Block = dict[int, bytes]
"""seq -> run entry"""


class Entry(NamedTuple):
    """What the journal knows of one live message without reading it."""

    seq: int
    priority: int
    redelivered: bool
    delivery_count: int
    segment: int
    offset: int
    length: int
    body_length: int


class Fold:
    """A recovery sink. `load` reads the tail; raises DamagedJournal.

    shortened   queue id to the names of a stream's files whose ends the tail has cut off
    """

    def __init__(self, index: Index, segments: Segments) -> None:
        self.index = index
        self.segments = segments
        self.touched: dict[int, dict[int, Block]] = {}
        self.tail: Tail | None = None
        self.shortened: dict[int, set[int]] = {}
        self._metas: dict[int, dict[str, Any]] = {}
        self._reserved: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._states: dict[int, QueueState] = {}

    def load(self) -> Tail:
        self._metas = dict(self.index.metas())
        self.tail = replay_tail(self.segments, start_of_tail(self.index, self.segments), self)
        return self.tail

    def queue_ids(self) -> list[int]:
        return sorted({*self._metas, *self.touched})

    def meta(self, queue_id: int, meta: dict[str, Any]) -> None:
        self._metas[queue_id] = meta

    def meta_of(self, queue_id: int) -> dict[str, Any]:
        return self._metas.get(queue_id, {})

    def reserved_upto(self, queue_id: int) -> int:
        """Messages up to this seq may have been delivered before."""
        known = self.meta_of(queue_id).get("reserved", 0)
        return max(known if isinstance(known, int) else 0, self._reserved.get(queue_id, 0))

    def state_of(self, queue_id: int) -> QueueState:
        """Epochs, attributes and the dead set, to the log's end."""
        state = self._states.get(queue_id)
        if state is None:
            state = self._states[queue_id] = QueueState.of_meta(self.meta_of(queue_id))
        return state

    def entries(self, queue_id: int, first: int = 0, last: int = LAST) -> Iterator[Entry]:
        """The live messages of a queue from seq `first` to `last`, in the order of their seqs."""
        for entry in self._entries(queue_id, first // RUN_LENGTH * RUN_LENGTH, last):
            if first <= entry.seq <= last:
                yield entry

    def _entries(self, queue_id: int, first_block: int, last: int) -> Iterator[Entry]:
        """Those of whole blocks."""
        blocks = self.touched.get(queue_id, {})
        waiting = sorted(block for block in blocks if first_block <= block <= last)
        upto = self.reserved_upto(queue_id)
        for first_seq, entries in self.index.runs(queue_id, first_block, last):
            block = first_seq // RUN_LENGTH * RUN_LENGTH
            while waiting and waiting[0] < block:
                yield from _entries(blocks[waiting.pop(0)], upto)
            if block in blocks:
                continue
            yield from _entries(_block(block, entries), upto)
        for block in waiting:
            yield from _entries(blocks[block], upto)

    def runs(self) -> list[tuple[int, int, bytes]]:
        """The touched runs as a checkpoint wants them."""
        found = []
        for queue_id, blocks in self.touched.items():
            for block, entries in blocks.items():
                for first_seq, _ in self.index.runs(queue_id, block, block + RUN_LENGTH - 1):
                    if first_seq != block or not entries:
                        found.append((queue_id, first_seq, b""))
                if entries:
                    found.append((queue_id, block, b"".join(entries[seq] for seq in sorted(entries))))
        return found

    def entry(self, queue_id: int, seq: int) -> bytes | None:
        """The run entry of one message."""
        return self._touch(queue_id, seq).get(seq)

    def next_seq(self, queue_id: int) -> int:
        """The lowest seq that nothing in the log has used, or that was cut off."""
        known = self.meta_of(queue_id).get("next_seq", 1)
        return max(known if isinstance(known, int) else 1, self._newest.get(queue_id, 0) + 1)

    def _touch(self, queue_id: int, seq: int) -> Block:
        blocks = self.touched.setdefault(queue_id, {})
        first = seq // RUN_LENGTH * RUN_LENGTH
        block = blocks.get(first)
        if block is None:
            block = blocks[first] = {}
            for _, entries in self.index.runs(queue_id, first, first + RUN_LENGTH - 1):
                block.update(_block(first, entries))
        return block

    # the recovery sink

    def run(self, queue_id: int, first_seq: int, entries: bytes) -> None:
        """Stays where it is."""

    def enqueued(self, queue_id: int, segment: int, record: Record) -> None:
        self._newest[queue_id] = max(self._newest.get(queue_id, 0), record.seq)
        block = self._touch(queue_id, record.seq)
        before = block.get(record.seq)
        flags = 0 if before is None else RUN_ENTRY.unpack(before)[2]
        count = record.delivery_count if before is None else RUN_ENTRY.unpack(before)[3]
        block[record.seq] = RUN_ENTRY.pack(
            record.seq % RUN_LENGTH,
            record.priority,
            flags,
            min(count, 255),
            segment,
            record.offset,
            record.length,
            record.body_length,
        )

    def settled(self, queue_id: int, ranges: tuple[tuple[int, int], ...]) -> None:
        state = self.state_of(queue_id)
        for first, last in ranges:
            if state.dead:
                state.settled(first, last)
            self._drop_files(queue_id, first, last)
            for block in self._blocks_between(queue_id, first, last):
                entries = self._touch(queue_id, block)
                for seq in [seq for seq in entries if first <= seq <= last]:
                    del entries[seq]

    def _blocks_between(self, queue_id: int, first: int, last: int) -> list[int]:
        low, high = first // RUN_LENGTH * RUN_LENGTH, last // RUN_LENGTH * RUN_LENGTH
        if high == low:
            return [low]
        in_index = {seq // RUN_LENGTH * RUN_LENGTH for seq, _ in self.index.runs(queue_id, low, high + RUN_LENGTH - 1)}
        touched = {block for block in self.touched.get(queue_id, {}) if low <= block <= high}
        return sorted(in_index | touched)

    def reserved(self, queue_id: int, upto: int) -> None:
        self._reserved[queue_id] = max(self._reserved.get(queue_id, 0), upto)

    def dead(self, queue_id: int, seq: int, mark: int) -> None:
        if seq in self._touch(queue_id, seq):
            self.state_of(queue_id).died(seq, mark)

    def cut(self, queue_id: int, from_seq: int) -> None:
        last = max(self.next_seq(queue_id) - 1, from_seq, *self.touched.get(queue_id, {}))
        self.settled(queue_id, ((from_seq, last + RUN_LENGTH),))
        self.state_of(queue_id).cut(from_seq)
        self._newest[queue_id] = min(self._newest.get(queue_id, 0), from_seq - 1)
        meta = dict(self.meta_of(queue_id))
        meta["next_seq"] = min(self.next_seq(queue_id), from_seq)
        self._metas[queue_id] = meta
        if "files" in meta:
            files = [StreamFile.of_entry(entry) for entry in meta["files"]]
            cut = {part.name for part in files if part.first < from_seq < part.end}
            self.shortened[queue_id] = self.shortened.get(queue_id, set()) | cut
            left = [part._replace(end=min(part.end, from_seq)) for part in files if part.first < from_seq]
            meta.update(first=min(meta["first"], from_seq), files=[part.entry() for part in left])

    def _drop_files(self, queue_id: int, first: int, last: int) -> None:
        """A stream's messages are gone: its oldest ones, as a rule."""
        meta = self.meta_of(queue_id)
        if "files" not in meta or last < meta["first"]:
            return
        lowest, files = meta["first"], [StreamFile.of_entry(entry) for entry in meta["files"]]
        if first <= lowest:
            lowest, left = last + 1, [part for part in files if part.end > last + 1]
        else:
            cut = {part.name for part in files if part.first < part.end and first < part.end <= last + 1}
            self.shortened[queue_id] = self.shortened.get(queue_id, set()) | cut
            ends = [(part, (part.first, min(part.end, first)), (max(part.first, last + 1), part.end)) for part in files]
            left = [part._replace(first=low, end=end) for part, *two in ends for low, end in two if low < end]
        self._metas[queue_id] = {**meta, "first": lowest, "files": [part.entry() for part in left]}

    def set_attribute(self, queue_id: int, name: bytes, upto: int) -> None:
        self.state_of(queue_id).set_attribute(name, upto)

    def began(self, queue_id: int, epoch: int, first_seq: int) -> None:
        self.state_of(queue_id).began(epoch, first_seq)
        self._metas[queue_id] = {**self.meta_of(queue_id), "epoch": epoch}

    def counted(self, queue_id: int, seq: int, delivery_count: int) -> None:
        block = self._touch(queue_id, seq)
        entry = block.get(seq)
        if entry is not None:
            block[seq] = entry[:2] + bytes([entry[2] | REDELIVERED, min(delivery_count, 255)]) + entry[4:]


def _block(first: int, entries: bytes) -> Block:
    size = RUN_ENTRY.size
    return {first + entries[at]: entries[at : at + size] for at in range(0, len(entries), size)}


def _entries(block: Block, upto: int) -> Iterator[Entry]:
    for seq in sorted(block):
        _, priority, flags, count, segment, offset, length, body_length = RUN_ENTRY.unpack(block[seq])
        yield Entry(
            seq,
            priority,
            bool(flags & REDELIVERED) or seq <= upto,
            count,
            segment,
            offset,
            length,
            body_length,
        )
