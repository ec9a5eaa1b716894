"""A node's disk in the simulation: the journal in memory, with time, and with what the checkers see of it.

`records` of a group are read back from the bytes that were submitted, so what is checked is what was written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from clusterbroker.broker.content.formats import SECTIONS
from clusterbroker.journal.layout import CUT, DEAD, ENQ, SET
from clusterbroker.journal.record import GroupWriter, Message, Record, read_message, scan_group
from clusterbroker.journal.replay import RecoverySink
from clusterbroker.journal.stamp import Stamp
from clusterbroker.journal.stream_catalogue import Filing
from tests.simulation.sim_streams import SimStreams
from tests.unit.broker.fronts.amqp091.memory_journal import MemoryJournal

SHORT_DATA: Final = b"\0\x53\x75\xa0"
"""Of a data section of less than 256 bytes; a byte with its size follows."""


class Written(NamedTuple):
    """One record, as far as the checkers care. `body` of an ENQ."""

    kind: int
    queue_id: int
    seq: int
    epoch: int
    body: bytes
    ranges: tuple[tuple[int, int], ...]


class SimJournal(MemoryJournal):
    """`live[queue_id][seq]` = (epoch, body) of what a crash at this moment would certainly leave. `folder`: where the
    files of streams are, if there are any."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.streams = SimStreams(folder, self.segments) if folder is not None else None
        self.live: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.lost = False
        """It replaces one that was lost, and has not been in sync everywhere since."""
        self.rotten: dict[tuple[int, int], tuple[int, int]] = {}
        """Records that cannot be read any more, (segment, offset), and whose they are: (queue id, seq)."""
        self.lost_before = 0
        """The node's last incarnation before: the map cannot know of the loss unless a later one has registered."""
        self.right: SimJournal | None = None
        """The one in whose place it is, for an operator who puts that back."""
        self.stamp: Stamp | None = None
        """None: nothing of a journal is there."""
        self.last: list[Written] = []
        """Of the group that was submitted last."""
        self._unsynced: deque[tuple[int, list[Written]]] = deque()
        self._behind: list[Written] = []
        """What became durable behind the position of the checkpoint under way."""
        self.delay_s = 0.0
        """More than the usual time for a group."""

    def copy(self) -> SimJournal:
        """As it is on the disk between two processes. There are no files of streams."""
        assert self.streams is None, "files are not copied"
        other = SimJournal()
        other.segments = {number: bytearray(data) for number, data in self.segments.items()}
        other.ends, other.end, other.checkpointed = list(self.ends), self.end, self.checkpointed
        other.synced_lsn, other.runs, other.metas = self.synced_lsn, dict(self.runs), dict(self.metas)
        other.live = {queue_id: dict(messages) for queue_id, messages in self.live.items()}
        other.stamp, other.rotten = self.stamp, dict(self.rotten)
        return other

    def submit(self, writer: GroupWriter, sync: bool, now_ms: int) -> None:
        segment, offset, _ = self.end
        super().submit(writer, sync, now_ms)
        self.last = self._read(segment, offset)
        self._unsynced.append((self.end.lsn, self.last))

    def _read(self, segment: int, offset: int) -> list[Written]:
        data = bytes(self.segments[segment][offset:])
        _, _, records = scan_group(data, 0)
        return [_written(data, record) for record in records if record.kind in (ENQ, SET, DEAD, CUT)]

    def complete_group(self) -> None:
        super().complete_group()
        self._synced()

    def read(self, queue_id: int, locations: Sequence[tuple[int, int, int, int]]) -> list[Message | None]:
        """None: it cannot be read."""
        messages = super().read(queue_id, locations)
        found = zip(locations, messages, strict=True)
        return [None if (segment, offset) in self.rotten else message for (_, segment, offset, _), message in found]

    @property
    def copies(self) -> bool:
        """Whether it can be copied: not with files of streams."""
        return self.streams is None

    def close(self) -> None:
        """The process that had it open is gone."""

    def may_rot(self, segment: int, offset: int) -> bool:
        """Whether a record is one that a fault may make unreadable."""
        return True

    def rot(self, segment: int, offset: int, queue_id: int, seq: int) -> None:
        """From now on it cannot be read."""
        self.rotten[segment, offset] = queue_id, seq

    def lose_page(self) -> bool:
        """A page of the index is as it was; a model has none."""
        return False

    def mend(self) -> None:
        """Somebody has mended the disk, between two processes."""
        self.rotten.clear()
        if self.streams is not None:
            self.streams.mend()

    def sound(self, segment: int) -> list[tuple[int, int, int]]:
        """(queue id, seq, offset) of what lives in a segment, and perhaps of what lives elsewhere by now."""
        return [
            (queue_id, seq, offset)
            for queue_id, seq, offset, message in self.old_messages(segment)
            if self.live.get(queue_id, {}).get(seq, (0, b""))[1] == plain_body(message)
        ]

    @property
    def rots(self) -> bool:
        """Whether a message that lives may have a record that cannot be read."""
        if self.streams is not None and self.streams.rots:
            return True
        return any(seq in self.live.get(queue_id, ()) for queue_id, seq in self.rotten.values())

    def begin_checkpoint(self, runs: Any, metas: Any, forgotten: Any, filings: Sequence[Filing] = ()) -> None:
        super().begin_checkpoint(runs, metas, forgotten)
        if self.streams is not None:
            self.streams.begin(filings)

    def complete_checkpoint(self) -> None:
        """A copy that the node gave up is out of the index now, a newer one behind the position is not."""
        checkpoint = self.checkpoint
        assert checkpoint is not None, "a checkpoint is under way"
        if self.streams is not None:
            self.streams.file()
        super().complete_checkpoint()
        if self.streams is not None:
            self.streams.counted(checkpoint.forgotten)
        self._synced()
        kept = {queue_id for queue_id, *_ in (*checkpoint.runs, *checkpoint.metas)}
        gone = {queue_id for queue_id in checkpoint.forgotten if queue_id not in kept}
        for queue_id in checkpoint.forgotten:
            if queue_id in gone:
                self.live.pop(queue_id, None)
        for record in self._behind:
            if record.queue_id in gone:
                fold(self.live, record)
        self._behind.clear()

    def _synced(self) -> None:
        while self._unsynced and self._unsynced[0][0] <= self.synced_lsn:
            lsn, records = self._unsynced.popleft()
            if self.checkpoint is not None and lsn > self.checkpoint.position.lsn:
                self._behind += records
            for record in records:
                fold(self.live, record)

    def crash(self, kept: int = 0) -> int:
        if self.streams is not None:
            if self.checkpoint is not None and self.checkpoint.position.lsn <= self.synced_lsn and self.end.lsn % 2:
                self.streams.file()  # and the index did not hear of it
            self.streams.crash()
        lsn = super().crash(kept)
        self._synced()
        self._unsynced.clear()
        self._behind.clear()
        return lsn

    def recover(self, sink: RecoverySink) -> None:
        if self.streams is not None:
            self.streams.recover(self.metas)  # type: ignore[arg-type]
        super().recover(sink)


def fold(live: dict[int, dict[int, tuple[int, bytes]]], record: Written) -> None:
    queue = live.setdefault(record.queue_id, {})
    if record.kind == ENQ:
        queue[record.seq] = (record.epoch, record.body)
    elif record.kind == SET:
        for first, last in record.ranges:
            for seq in (
                range(first, last + 1) if last - first < len(queue) else [s for s in queue if first <= s <= last]
            ):
                queue.pop(seq, None)
    elif record.kind == CUT:
        for seq in [seq for seq in queue if seq >= record.seq]:
            del queue[seq]


def plain_body(message: Message) -> bytes:
    """As its publisher named it: of AMQP 1.0 the content of its data section, of which there is one, and short."""
    body = bytes(message.body)
    if message.format != SECTIONS:
        return body
    assert body.startswith(SHORT_DATA), "a simulated client sends a short data section"
    return body[len(SHORT_DATA) + 1 :]


def _written(data: bytes, record: Record) -> Written:
    body = b""
    if record.kind == ENQ:
        message = read_message(data, record.offset, record.queue_id, record.seq)
        body = plain_body(message)
    return Written(record.kind, record.queue_id, record.seq, record.epoch, body, tuple(record.ranges))
