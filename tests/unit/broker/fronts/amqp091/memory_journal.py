"""A journal in memory: segments, groups and an index that forget, in a crash, what was not synced.

It keeps the contract of `journal.journal` with the journal's own records: groups are made by `GroupWriter`, sealed,
and read back by `scan_group`; a checkpoint takes effect at once or not at all, and never before the log is durable
up to its position. When things complete is the test's choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from clusterbroker.journal.layout import ENQ, GROUP_HEADER_BYTES
from clusterbroker.journal.record import GroupWriter, Message, SegmentUse, read_message, scan_group, seal
from clusterbroker.journal.replay import RecoverySink, tell


class Position(NamedTuple):
    """Where a group ends, and its lsn."""

    segment: int
    offset: int
    lsn: int


class Checkpoint(NamedTuple):
    """What the queues held at a position, on its way into the index."""

    runs: Sequence[tuple[int, int, bytes]]
    metas: Sequence[tuple[int, dict[str, int]]]
    forgotten: Sequence[int]
    position: Position
    unused: Sequence[int]


class MemoryJournal:
    """One group and one checkpoint may be under way; `use` belongs to the life between two crashes."""

    def __init__(self, segment_bytes: int = 64 << 10) -> None:
        self.segment_bytes = segment_bytes
        self.segments: dict[int, bytearray] = {1: bytearray()}
        self.ends: list[Position] = []
        """Of the groups since the checkpoint, oldest first."""
        self.end = self.checkpointed = Position(1, 0, 0)
        self.synced_lsn = 0
        self.runs: dict[tuple[int, int], bytes] = {}
        self.metas: dict[int, dict[str, int]] = {}
        self.group_sync: bool | None = None
        """Of the group under way."""
        self.checkpoint: Checkpoint | None = None
        """The one under way."""
        self.use = SegmentUse()
        self.damaged: set[tuple[int, int]] = set()
        """(queue id, seq) of records that cannot be read."""

    def as_it_is(self) -> MemoryJournal:
        """A copy of the disk at this moment, when nothing is under way."""
        other = MemoryJournal(self.segment_bytes)
        other.segments = {number: bytearray(data) for number, data in self.segments.items()}
        other.ends, other.end, other.checkpointed = list(self.ends), self.end, self.checkpointed
        other.synced_lsn, other.runs, other.metas = self.synced_lsn, dict(self.runs), dict(self.metas)
        return other

    # -- groups

    @property
    def idle(self) -> bool:
        return self.group_sync is None

    @property
    def room(self) -> int:
        """Bytes that the last segment has left."""
        return self.segment_bytes - self.end.offset

    def begin_group(self, pending_bytes: int) -> GroupWriter:
        segment, offset, lsn = self.end
        if offset and offset + GROUP_HEADER_BYTES + pending_bytes > self.segment_bytes:
            self.end = Position(segment + 1, 0, lsn)
        self.segments.setdefault(self.end.segment, bytearray())
        return GroupWriter(self.end.segment, self.end.offset, expected=pending_bytes)

    def submit(self, writer: GroupWriter, sync: bool, now_ms: int) -> None:
        assert self.idle, "one group at a time"
        segment, offset, lsn = self.end
        data = writer.finish(lsn + 1, now_ms)
        seal(data)
        assert len(self.segments[segment]) == offset, "groups follow each other"
        self.segments[segment] += data
        self.end = Position(segment, offset + len(data), lsn + 1)
        self.ends.append(self.end)
        self.group_sync = sync

    def complete_group(self) -> None:
        """The group is written, and flushed if it asked for that."""
        assert self.group_sync is not None, "a group is under way"
        if self.group_sync:
            self.synced_lsn = self.end.lsn
        self.group_sync = None

    # -- checkpoints

    def begin_checkpoint(self, runs: Any, metas: Any, forgotten: Any) -> None:
        assert self.idle, "a group under way is neither in the runs nor behind the position"
        assert self.checkpoint is None, "one checkpoint at a time"
        unused = [number for number in self.segments if number < self.end.segment and not self.use.live(number)]
        self.checkpoint = Checkpoint(runs, metas, forgotten, self.end, unused)

    def complete_checkpoint(self) -> None:
        assert self.checkpoint is not None, "a checkpoint is under way"
        checkpoint, self.checkpoint = self.checkpoint, None
        self.synced_lsn = max(self.synced_lsn, checkpoint.position.lsn)
        for queue_id in checkpoint.forgotten:
            self.metas.pop(queue_id, None)
            for key in [key for key in self.runs if key[0] == queue_id]:
                del self.runs[key]
        for queue_id, first_seq, entries in checkpoint.runs:
            self.runs[queue_id, first_seq] = entries
            if not entries:
                del self.runs[queue_id, first_seq]
        self.metas.update(checkpoint.metas)
        self.checkpointed = checkpoint.position
        self.ends = [end for end in self.ends if end.lsn > checkpoint.position.lsn]
        for number in checkpoint.unused:
            self.use.forget(number)
            del self.segments[number]

    # -- crash and recovery

    @property
    def unsynced(self) -> int:
        """How many groups a power failure may take."""
        return self.end.lsn - self.synced_lsn

    def crash(self, kept: int = 0) -> int:
        """Forgets all but the first `kept` of the unsynced groups; returns the last lsn that is left."""
        assert kept <= self.unsynced, "there are not so many"
        lsn = self.synced_lsn + kept
        ends = [end for end in self.ends if end.lsn <= lsn]
        self.ends = ends
        self.end = ends[-1] if ends else self.checkpointed
        for number in [number for number in self.segments if number > self.end.segment]:
            del self.segments[number]
        del self.segments[self.end.segment][self.end.offset :]
        self.synced_lsn = lsn  # journal.recovery.settle_end flushes what was replayed
        self.group_sync = self.checkpoint = None
        self.use = SegmentUse()
        return lsn

    def recover(self, sink: RecoverySink) -> None:
        """As `Journal.recover`: the index in the order of its keys, then the tail in the order of the log."""
        for queue_id in sorted({*self.metas, *(queue_id for queue_id, _ in self.runs)}):
            if queue_id in self.metas:
                sink.meta(queue_id, dict(self.metas[queue_id]))
            for key in sorted(key for key in self.runs if key[0] == queue_id):
                sink.run(*key, self.runs[key])
        segment, offset, lsn = self.checkpointed
        for end in self.ends:
            if end.segment != segment:
                segment, offset = end.segment, 0
            found, length, records = scan_group(bytes(self.segments[segment]), offset)
            offset += length
            lsn += 1
            assert (found, offset) == (lsn, end.offset), "the log is whole up to its end"
            tell(sink, segment, records)

    # -- reading

    def read(self, queue_id: int, locations: Sequence[tuple[int, int, int, int]]) -> list[Message | None]:
        """None: it is one of `damaged`."""
        return [
            None if (queue_id, seq) in self.damaged else read_message(self.segments[segment], offset, queue_id, seq)
            for seq, segment, offset, _ in locations
        ]

    def old_messages(self, segment: int) -> list[tuple[int, int, int, Message]]:
        """(queue id, seq, offset, message) of all that was ever written there; queues know what lives."""
        data, at, found = bytes(self.segments[segment]), 0, []
        while at < len(data):
            _, length, records = scan_group(data, at)
            at += length
            for record in records:
                if record.kind == ENQ:
                    message = read_message(data, record.offset, record.queue_id, record.seq)
                    found.append((record.queue_id, record.seq, record.offset, message))
        return found
