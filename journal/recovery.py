"""What a journal remembers, told to the queues once, when a node starts (waits).

First the index: each queue's meta and its runs, in the order of queue ids and seqs. Then the tail: everything that
the log says after the checkpoint, in the order in which it happened, whatever the queue. An ENQ of a seq that is
there already is a message that was copied forward: it moves, it does not come twice.

A queue's meta is a map: next_seq, reserved, epoch, and of a replicated queue (absent before there was one) also
epochs [[epoch, first seq]], attributes [[name, upto]] and dead [[seq, mark]], as journal/queue_state.py folds them. A
stream's has first and files, as journal/stream_files.py says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import META_KEY, RUN_KEY, Index
from clusterbroker.journal.layout import ENQ, RUN_ENTRY
from clusterbroker.journal.platform import drop_cache, sync, sync_directory, write_all
from clusterbroker.journal.record import Record, checksum
from clusterbroker.journal.replay import RecoverySink, Tail, first_head, replay, tell
from clusterbroker.journal.salvage import Care, HurtRecord, believed_beside, fold_again
from clusterbroker.journal.segments import START, Position, SegmentFile, Segments
from clusterbroker.journal.stream_catalogue import StreamFile
from clusterbroker.journal.stream_files import StreamFiles
from clusterbroker.journal.sums import Sums

RUN_WORDS = RUN_ENTRY.size // 4
RUNS_MAPPED_MAX = 1024
"""After so many runs the index gives back the pages they were on: less than 1 MiB as a rule, 8 MiB at worst."""


def load_index(
    index: Index,
    segments: Segments,
    sink: RecoverySink,
    streams: StreamFiles | None = None,
    start: Position = START,
    care: Care | None = None,
) -> Sums:
    """The sums of what was read. Raises DamagedJournal also for values that are missing or not the last, for a run that
    points into a segment that is not there, and for a stream's file; with `care`, only for what is no queue's. Then
    queues of which the index is wrong are folded anew from the log up to `start`, and from the files of streams."""
    sums = Sums()
    catalogues: dict[int, list[StreamFile]] = {}
    missing = _Missing(segments)
    lost: dict[int, DamagedJournal] = {}

    def told(damage: DamagedJournal) -> None:
        assert damage.queue_id is not None, "what is no queue's is raised"
        lost.setdefault(damage.queue_id, damage)

    hurt = None if care is None else told
    runs = 0
    for key, payload in index.scan(sums=sums, hurt=hurt):
        if len(key) == RUN_KEY.size:
            runs += 1
            if runs % RUNS_MAPPED_MAX == 0:
                index.reopen()
            queue_id, first_seq = RUN_KEY.unpack(key)
            damage = missing.of(queue_id, first_seq, payload)
            if damage is not None and care is None:
                raise damage
            sink.run(queue_id, first_seq, payload)
        else:
            queue_id, meta = META_KEY.unpack(key)[0], msgspec.msgpack.decode(payload)
            if meta.get("files"):
                catalogues[queue_id] = [StreamFile.of_entry(entry) for entry in meta["files"]]
            sink.meta(queue_id, meta)
    index.prove(sums, hurt)
    index.reopen()
    if care is not None:
        missing.told(care)
        if lost:
            whats = {queue_id: f"{damage.file}: {damage.what}" for queue_id, damage in lost.items()}
            ahead = _Ahead(lost)
            replay_tail(segments, start, ahead, care)
            catalogues |= fold_again(whats, index, segments, start, sink, care, streams, ahead.epochs)
    if streams is not None:
        streams.sweep(catalogues, None if care is None else care.hurt)
    return sums


class _Ahead:
    """Of the log's tail before it is told: which messages of these queues it has, with their epochs."""

    def __init__(self, queue_ids: Iterable[int]) -> None:
        self.epochs: dict[int, dict[int, int]] = {queue_id: {} for queue_id in queue_ids}

    def enqueued(self, queue_id: int, segment: int, record: Record) -> None:  # noqa: ARG002
        if queue_id in self.epochs:
            self.epochs[queue_id][record.seq] = record.epoch

    def _nothing(self, *_: Any) -> None:
        """All else is told when its time has come."""

    meta = run = settled = reserved = counted = dead = cut = set_attribute = began = _nothing


class _Missing:
    """Segments that the index points into and that are gone."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._present = set(segments.numbers())
        self._some_there = False
        self._sound = b""
        """The segments of a run that were all there: those of a backlog's runs are the same, run after run."""
        self._found: dict[int, tuple[DamagedJournal, list[int]]] = {}

    def of(self, queue_id: int, first_seq: int, entries: bytes) -> DamagedJournal | None:
        """What is wrong with this run."""
        in_segments = memoryview(entries).cast("I")[1::RUN_WORDS]
        named = in_segments.tobytes()
        if named == self._sound:
            return None
        if self._present.issuperset(in_segments):
            self._some_there, self._sound = True, named
            return None
        gone = set(in_segments) - self._present
        self._some_there = self._some_there or not gone.issuperset(in_segments)
        damage = self._segments.damaged(
            min(gone), None, f"the file is gone, but messages from seq {first_seq} on are in it", queue_id
        )
        seqs = self._found.setdefault(queue_id, (damage, []))[1]
        seqs.extend(first_seq + low for low, _, _, _, segment, *_ in RUN_ENTRY.iter_unpack(entries) if segment in gone)
        return damage

    def told(self, care: Care) -> None:
        """Raises DamagedJournal when no segment that the index knows is there: that is no queue's affair."""
        for queue_id, (damage, seqs) in self._found.items():
            if not self._some_there:
                raise damage
            care.hurt(queue_id, f"{damage.file}: {damage.what}", seqs)


def replay_tail(segments: Segments, start: Position, sink: RecoverySink, care: Care | None = None) -> Tail:
    """Raises DamagedJournal; with `care`, not for single records whose head says whose they are."""
    beside = None if care is None else partial(_beside, segments, sink, care)
    return replay(segments, start, lambda segment, records: tell(sink, segment, records), beside)


def _beside(segments: Segments, sink: RecoverySink, care: Care, segment: int, file: SegmentFile, at: int) -> int:
    """Tells what can be read of a group that has a damaged record; how long it is, 0: it is another kind of damage."""
    found = believed_beside(file, at, care.knows)
    if found is None:
        return 0
    head, records = found
    for one in records:
        record = one.record if isinstance(one, HurtRecord) else one
        is_message = record.kind == ENQ
        if isinstance(one, HurtRecord):
            where = f"{segments.path(segment)} at byte {record.offset}: {one.what}"
            care.hurt(record.queue_id, where, (record.seq,) if is_message else ())
        if is_message or not isinstance(one, HurtRecord):
            tell(sink, segment, (record,))
    return head.length


def start_of_tail(index: Index, segments: Segments) -> Position:
    """The checkpoint; without one the log's very beginning, which must still be there."""
    checkpoint = index.checkpoint
    if checkpoint is not None:
        return checkpoint
    numbers = segments.numbers()
    if numbers and numbers[0] != START.segment:
        raise index.damaged(f"it has no checkpoint, but the log begins with segment {numbers[0]}")
    return START


def settle_end(segments: Segments, start: Position, tail: Tail) -> None:
    """Makes what was replayed durable and leaves nothing behind its end that could be taken for a group later.

    A kill leaves the last groups in the page cache only, and they are about to be acted upon. To flush them is not
    enough: after a write-back that failed Linux calls those pages clean, whether or not their bytes are on the disk,
    and the next flush finds nothing to do. So all that was replayed is written anew, in its place (the same bytes: a
    crash in between changes nothing), flushed, and read again from the disk. Raises DamagedJournal, OSError.
    """
    if not tail.groups and not tail.torn:
        return  # a checkpoint is durable only after the log up to it is
    end = tail.position
    for segment in segments.numbers():
        if start.segment <= segment <= end.segment:
            fd = os.open(segments.path(segment), os.O_RDWR | os.O_CLOEXEC)
            try:
                if tail.torn and segment == end.segment:
                    os.ftruncate(fd, end.offset)
                first = start.offset if segment == start.segment else 0
                _write_anew(segments, segment, fd, first, end.offset if segment == end.segment else None)
            finally:
                os.close(fd)
        elif segment > end.segment and tail.torn:
            if first_head(segments, segment) is not None:
                # groups of durability `disk` that a power failure left without their predecessor
                os.rename(segments.path(segment), segments.path(segment).with_suffix(".cut"))
            else:
                segments.unlink(segment)
    sync_directory(segments.folder)


def _write_anew(segments: Segments, segment: int, fd: int, first: int, end: int | None) -> None:
    """The bytes from `first` to `end`, or to the file's end."""
    sums: list[tuple[int, int, int]] = []
    with segments.open(segment) as file:
        for offset, data in file.pieces(first):
            data = data if end is None else data[: max(0, end - offset)]
            if data == bytes(len(data)):
                continue  # space that was taken ahead, perhaps
            write_all(fd, data, offset)
            sums.append((offset, len(data), checksum(data)))
    sync(fd)
    drop_cache(fd)
    with segments.open(segment) as file:
        for offset, length, known in sums:
            if checksum(file.read(offset, offset + length)) != known:
                raise segments.damaged(segment, offset, f"{length} bytes were written anew, and others are read")
