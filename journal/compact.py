"""Making a journal small while no node has it open (waits): sparse segments are copied forward, then the index.

A running node copies sparse segments forward by itself; its index file never shrinks, because LMDB keeps free
pages. The order is safe against a kill at any moment: new copies are durable before the index knows them, the index
knows them before the old segment goes, and the new index file takes the old one's place in one rename.
"""

from __future__ import annotations

import os
import queue
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterbroker.journal.errors import DamagedJournal, JournalFailed, JournalFull
from clusterbroker.journal.fold import Fold
from clusterbroker.journal.index import Index
from clusterbroker.journal.inspect import JournalView
from clusterbroker.journal.journal import Journal, lock_directory
from clusterbroker.journal.layout import ENQ, RUN_ENTRY
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.platform import sync, sync_directory
from clusterbroker.journal.record import DamagedRecord, GroupWriter, Record
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.stream_catalogue import Filing, StreamFile
from clusterbroker.journal.survivors import Hurt, Survivor


class CompactReport(NamedTuple):
    bytes_before: int
    bytes_after: int
    segments_removed: int
    messages_moved: int


def disk_bytes(directory: Path) -> int:
    """What the journal's files take on the disk."""
    parts = (("segments", "*"), ("index", "*.mdb"), ("streams", "*/*.seg"))
    paths = [path for folder, pattern in parts for path in (directory / folder).glob(pattern)]
    return sum(path.stat().st_blocks * 512 for path in paths)


def compact(directory: Path | str, options: JournalOptions | None = None) -> CompactReport:
    """Raises LockedJournal, DamagedJournal, ForeignJournal, JournalFull; whatever happens, the journal
    stays whole."""
    directory = Path(directory)
    if not (directory / "index/data.mdb").exists():
        raise FileNotFoundError(f"no journal is in {directory}")
    before, count = disk_bytes(directory), len(Segments(directory).numbers())
    moved = _Compaction(directory, replace(options or JournalOptions(), reserve_bytes=0)).run()
    _compact_index(directory)
    return CompactReport(before, disk_bytes(directory), count - len(Segments(directory).numbers()), moved)


def forget(directory: Path | str, queue_id: int, options: JournalOptions | None = None) -> int:
    """Drops all that the journal has of a queue; how many messages that were. The segments go, as far as nobody else
    has messages in them, when they are compacted. Raises as `compact`."""
    directory = Path(directory)
    with JournalView(directory) as view:
        count = view.count(queue_id)
    _Compaction(directory, replace(options or JournalOptions(), reserve_bytes=0)).drop(queue_id)
    return count


class _Compaction:
    """An owner of the journal without queues: the fold stands in for them."""

    def __init__(self, directory: Path, options: JournalOptions) -> None:
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.journal = Journal.open(directory, options, self.calls.put, self._on_state)
        self.fold = Fold(self.journal.index, Segments(directory))
        self.moved = 0

    def _on_state(self, state: str, detail: str) -> None:
        if state == "full":
            raise JournalFull(detail)
        if state == "failed":
            raise JournalFailed(detail)

    def run(self) -> int:
        try:
            self._recover()
            self._checkpoint()
            for segment in self.journal.sparse_segments():
                self._move(segment)
            self._checkpoint()
        finally:
            self.journal.close()
        return self.moved

    def drop(self, queue_id: int) -> None:
        """All of one queue."""
        try:
            self._recover(without=queue_id)
            self._checkpoint(without=queue_id)
            self._checkpoint(without=queue_id)  # the first one is what lets segments go
        finally:
            self.journal.close()

    def _recover(self, without: int | None = None) -> None:
        self.journal.recover(self.fold)
        for queue_id in self.fold.queue_ids():
            if queue_id != without:
                for entry in self.fold.entries(queue_id):
                    self.journal.use.add(entry.segment, entry.length)

    def _wait(self, start: Callable[[Callable[..., None]], None]) -> object:
        answers: list[object] = []
        start(lambda *answer: answers.append(answer))
        while not answers:
            self.calls.get()()
        return answers[0]

    def _checkpoint(self, without: int | None = None) -> None:
        metas = []
        for queue_id in self.fold.queue_ids():
            if queue_id == without:
                continue
            meta = dict(self.fold.meta_of(queue_id))
            meta["reserved"] = self.fold.reserved_upto(queue_id)
            meta["next_seq"] = self.fold.next_seq(queue_id)
            meta.setdefault("epoch", 1)
            self.fold.state_of(queue_id).into(meta)
            metas.append((queue_id, meta))
        filings = [_filing(queue_id, meta, self.fold.shortened.get(queue_id, set())) for queue_id, meta in metas]
        runs, position = [run for run in self.fold.runs() if run[0] != without], self.journal.position
        wanted = [filing for filing in filings if filing is not None]
        gone = [] if without is None else [without]
        self._wait(lambda done: self.journal.checkpoint(runs, metas, gone, position, done, wanted))

    def _move(self, segment: int) -> None:
        answer = self._wait(lambda done: self.journal.survivors(segment, done))
        assert isinstance(answer, tuple), "survivors answer once"
        answers: list[Survivor | Hurt] | DamagedRecord = answer[0]
        hurt = [answers] if isinstance(answers, DamagedRecord) else [a.damage for a in answers if isinstance(a, Hurt)]
        for damage in hurt:
            raise DamagedJournal(self.journal.directory, f"segments/{segment:08d}.seg", damage.offset, damage.args[1])
        assert not isinstance(answers, DamagedRecord), "it was raised"
        found = [answer for answer in answers if isinstance(answer, Survivor)]
        while found:
            writer = self.journal.begin_group(min(sum(s.message.size for s in found), 8 << 20))
            taken = 0
            while taken < len(found) and not writer.full:
                self._write(writer, segment, found[taken])
                taken += 1
            found = found[taken:]
            self._wait(lambda done, writer=writer: self.journal.submit(writer, True, done))  # type: ignore[misc]

    def _write(self, writer: GroupWriter, segment: int, survivor: Survivor) -> None:
        queue_id, seq, offset, message = survivor
        entry = self.fold.entry(queue_id, seq)
        if entry is None or RUN_ENTRY.unpack(entry)[4:6] != (segment, offset):
            return
        count = RUN_ENTRY.unpack(entry)[3]
        epochs = [epoch for epoch, first in self.fold.state_of(queue_id).epochs if first <= seq]
        epoch = epochs[-1] if epochs else self.fold.meta_of(queue_id).get("epoch", 0)
        at = writer.enqueue(queue_id, epoch, seq, message, count)
        length = RUN_ENTRY.unpack(entry)[6]
        record = Record(
            ENQ, message.flags, message.priority, epoch, queue_id, seq, at, length, message.body_length, count, ()
        )
        self.fold.enqueued(queue_id, writer.segment, record)
        self.journal.use.release(segment, length)
        self.journal.use.add(writer.segment, length)
        self.moved += 1


def _filing(queue_id: int, meta: dict[str, Any], shortened: set[int]) -> Filing | None:
    """Has it found how much still counts of a stream's files whose ends were cut off."""
    if not shortened:
        return None
    files = tuple(StreamFile.of_entry(entry) for entry in meta["files"])
    return Filing(queue_id, files, (), frozenset(shortened), frozenset(), (), 0, meta, lambda _: None)


def _compact_index(directory: Path) -> None:
    lock = lock_directory(directory)
    try:
        copy = directory / "index.new"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir(mode=0o750)
        index = Index(directory)
        try:
            index.copy(copy)
        finally:
            index.close()
        fd = os.open(copy / "data.mdb", os.O_RDWR)
        sync(fd)
        os.close(fd)
        os.rename(copy / "data.mdb", directory / "index/data.mdb")
        sync_directory(directory / "index")
        shutil.rmtree(copy)
    finally:
        os.close(lock)
