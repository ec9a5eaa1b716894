"""A look into a journal from outside, offline or beside a running node, without writing a byte of it (waits).

Beside a running node the view is of one moment that has passed: messages that are settled and whose segment is
reclaimed while somebody looks are left out. LMDB notes its readers in `index/lock.mdb` then; nothing else changes.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.fold import Entry, Fold
from clusterbroker.journal.index import LAST, Index
from clusterbroker.journal.layout import ENQ_OVERHEAD_BYTES
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.reader import Reader
from clusterbroker.journal.record import DamagedRecord, Message, read_message, read_records
from clusterbroker.journal.replay import Tail
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.stamp import Stamp
from clusterbroker.journal.stream_catalogue import StreamFile, Wish
from clusterbroker.journal.stream_files import StreamFiles

BATCH = 256
RECORDS = 4096
RECORDS_BYTES = 4 << 20
LOOKS = 8
PAUSE_S = 0.02


class QueueSummary(NamedTuple):
    queue_id: int
    ready: int
    body_bytes: int
    """of a stream without those in its files, where only records are counted"""
    record_bytes: int
    oldest_seq: int | None
    newest_seq: int | None
    oldest_ms: int | None
    newest_ms: int | None
    redelivered: int
    meta: dict[str, Any]
    dead: int = 0
    """of `ready`, held for their dead-letter targets"""


class StoredMessage(NamedTuple):
    entry: Entry
    message: Message
    file: str = ""
    """Of a stream's files: where it is, in the place of the entry's segment and offset."""


def is_running(directory: Path) -> bool:
    """Whether a node holds the directory."""
    try:
        fd = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


class JournalView:
    """`with JournalView(directory) as view`. Raises FileNotFoundError, ForeignJournal, DamagedJournal."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self.running = is_running(self.directory)
        self._index = Index(self.directory, readonly=True, lock=self.running)
        self._segments = Segments(self.directory)
        self._reader = Reader(self._segments, JournalOptions())
        self._streams = StreamFiles(self.directory, self._segments)
        try:
            self.tail = self._load()
        except BaseException:
            self._index.close()
            raise

    def _load(self) -> Tail:
        """A running node may take the segments of one checkpoint away while it writes the next."""
        for look in range(1, LOOKS + 1):
            self._fold = Fold(self._index, self._segments)
            try:
                return self._fold.load()
            except (DamagedJournal, FileNotFoundError):
                if not self.running or look == LOOKS:
                    raise
                time.sleep(PAUSE_S)
        raise AssertionError("the last look returns or raises")

    def __enter__(self) -> JournalView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._streams.close()
        self._index.close()

    @property
    def stamp(self) -> Stamp | None:
        """Whose journal it is; None: no start of a release that stamps has used it. Raises DamagedJournal."""
        return self._index.stamp

    def queue_ids(self) -> list[int]:
        return self._fold.queue_ids()

    def queues(self) -> Iterator[QueueSummary]:
        """One line for each queue."""
        for queue_id in self.queue_ids():
            ready = body_bytes = record_bytes = redelivered = 0
            oldest: Entry | None = None
            newest: Entry | None = None
            lowest, files = self._files(queue_id)
            for part in files:
                ready += max(0, part.end - max(part.first, lowest))
                record_bytes += part.size
            for entry in self._fold.entries(queue_id):
                ready += 1
                body_bytes += entry.body_length
                record_bytes += entry.length
                redelivered += entry.redelivered
                oldest = oldest or entry
                newest = entry
            yield QueueSummary(
                queue_id,
                ready,
                body_bytes,
                record_bytes,
                max(lowest, files[0].first) if files else oldest and oldest.seq,
                newest.seq if newest else files[-1].end - 1 if files else None,
                files[0].first_ms if files else self._time_ms(queue_id, oldest),
                files[-1].last_ms if files and newest is None else self._time_ms(queue_id, newest),
                redelivered,
                self._fold.meta_of(queue_id),
                len(self._fold.state_of(queue_id).dead),
            )

    def _time_ms(self, queue_id: int, entry: Entry | None) -> int | None:
        message = None if entry is None else self._read(queue_id, entry)
        return None if message is None else message.time_ms

    def entries(self, queue_id: int, first: int = 0, last: int = LAST) -> Iterator[Entry]:
        """The live messages of a queue without their contents, in the order of their seqs, of these seqs only; of a
        stream without those in its files."""
        return self._fold.entries(queue_id, first, last)

    def count(self, queue_id: int, most: int = LAST) -> int:
        """How many live messages there are, in a stream's files too; it may stop at `most`."""
        lowest, files = self._files(queue_id)
        filed = sum(max(0, part.end - max(part.first, lowest)) for part in files)
        behind = self._fold.entries(queue_id, max(lowest, files[-1].end if files else 0))
        return filed + sum(1 for _ in islice(behind, min(max(0, most - filed), sys.maxsize)))

    def bounds(self, queue_id: int) -> tuple[int, int]:
        """(lowest seq, next seq) of what is there, also in a stream's files; equal when nothing is."""
        lowest, files = self._files(queue_id)
        upto = self._fold.next_seq(queue_id)
        if files:
            return max(lowest, files[0].first), max(upto, files[-1].end)
        first = next(self._fold.entries(queue_id, lowest), None)
        return (upto, upto) if first is None else (first.seq, upto)

    def _files(self, queue_id: int) -> tuple[int, list[StreamFile]]:
        """The lowest seq that a stream keeps, and the catalogue of its files; (0, []) of another queue."""
        meta = self._fold.meta_of(queue_id)
        return int(meta.get("first", 0)), [StreamFile.of_entry(entry) for entry in meta.get("files", ())]

    def records(self, queue_id: int, first: int = 0, last: int = LAST) -> Iterator[bytes]:
        """The messages of these seqs as their records (layout.py), some thousand at a time, of a stream too.

        Raises DamagedJournal."""
        lowest, files = self._files(queue_id)
        first = max(first, lowest)
        for part in files:
            yield from self._filed(queue_id, part, first, last)
            first = max(first, part.end)
        entries = self._fold.entries(queue_id, first, last)
        while batch := list(islice(entries, RECORDS)):
            wanted = [(entry.seq, entry.segment, entry.offset, entry.length) for entry in batch]
            try:
                yield self._reader.records(queue_id, wanted)
            except (DamagedRecord, OSError):  # one of them is gone, or damaged: the careful way tells which
                parts = [self._record(queue_id, entry) for entry in batch]
                yield b"".join(part for part in parts if part is not None)

    def messages(self, queue_id: int) -> Iterator[StoredMessage]:
        """The live messages of a queue, in the order of their seqs, of a stream too. Raises DamagedJournal."""
        first, files = self._files(queue_id)
        for part in files:
            for records in self._filed(queue_id, part, first, LAST):
                file = self._file(queue_id, part)
                for seq, message, _, _ in read_records(records):
                    length = ENQ_OVERHEAD_BYTES + len(message.address) + len(message.payload)
                    entry = Entry(seq, message.priority, False, 0, 0, 0, length, message.body_length)
                    yield StoredMessage(entry, message, file)
            first = max(first, part.end)
        entries = self._fold.entries(queue_id, first)
        while batch := list(islice(entries, BATCH)):
            wanted = [(entry.seq, entry.segment, entry.offset, entry.length) for entry in batch]
            found = self._reader.read(queue_id, wanted)
            if not isinstance(found, DamagedRecord):
                yield from map(StoredMessage, batch, found)
                continue
            for entry in batch:
                one = self._read(queue_id, entry)
                if one is not None:
                    yield StoredMessage(entry, one)

    def _file(self, queue_id: int, part: StreamFile) -> str:
        return str(self._streams.path(queue_id, part.name).relative_to(self.directory))

    def _filed(self, queue_id: int, part: StreamFile, first: int, last: int) -> Iterator[bytes]:
        """Out of one file of a stream. One that retention took meanwhile is left out."""
        seq, end = max(first, part.first), min(last + 1, part.end)
        file = self._file(queue_id, part)
        while seq < end:
            try:
                taken = self._streams.read(queue_id, part, Wish(seq, end, RECORDS, RECORDS_BYTES))
            except FileNotFoundError:
                if self.running:
                    return
                raise DamagedJournal(self.directory, file, None, "the file is gone", queue_id) from None
            except DamagedRecord as damage:
                raise DamagedJournal(self.directory, file, damage.offset, damage.args[1], queue_id) from damage
            if not taken.records:
                raise DamagedJournal(self.directory, file, None, f"message {seq} is not in it", queue_id)
            yield taken.records
            seq = taken.next_seq

    def _read(self, queue_id: int, entry: Entry) -> Message | None:
        data = self._record(queue_id, entry)
        return None if data is None else read_message(data, 0, queue_id, entry.seq, entry.offset)

    def _record(self, queue_id: int, entry: Entry) -> bytes | None:
        """Padded; None when it is gone."""
        try:
            fd = os.open(self._segments.path(entry.segment), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if self.running:
                return None
            raise self._segments.damaged(entry.segment, None, "the file is gone", queue_id) from None
        try:
            data = os.pread(fd, entry.length, entry.offset)
            read_message(data, 0, queue_id, entry.seq, entry.offset)
            return data + bytes(-entry.length % 8)
        except DamagedRecord as damage:
            raise self._segments.damaged(entry.segment, damage.offset, damage.args[1], queue_id) from damage
        finally:
            os.close(fd)
