"""The journal of one node: one log for all queues, and each queue's index (the shell that ties the floor together).

    queues ──group──> writer thread ──> segments/*.seg       one group commit = one pwrite + one fdatasync
    queues ──runs───> checkpoint thread ──> index/data.mdb   what the log's older part comes down to
    queues <─messages── reader thread <── segments/*.seg     page-in

Everything is called from one thread, the owner's loop, and answers there through `notify`, in the order in which
it was asked. Invariants:

1. A group is acknowledged only when its bytes are written, and flushed if it asked for that.
2. The index never runs ahead of the log: a checkpoint waits until the log is durable up to its position.
3. A segment disappears only after a checkpoint that does not know it any more is durable.
4. Bytes at or below the last durable group are never changed, repaired or skipped: wrong ones are DamagedJournal.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from clusterbroker.journal.disk_state import DiskState, Notify, OnState
from clusterbroker.journal.errors import DamagedJournal, JournalFailed, JournalFull, LockedJournal
from clusterbroker.journal.flushes import FlushTimes
from clusterbroker.journal.index import Index, Run
from clusterbroker.journal.index_walk import IndexWalk, Looked
from clusterbroker.journal.layout import GROUP_HEADER_BYTES, WINDOW_MAX, WINDOW_SHIFT
from clusterbroker.journal.lingering import Lingering
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.platform import allocate
from clusterbroker.journal.reader import Reader, Wanted
from clusterbroker.journal.record import DamagedRecord, GroupWriter, Message, SegmentUse
from clusterbroker.journal.recovery import load_index, replay_tail, settle_end, start_of_tail
from clusterbroker.journal.replay import RecoverySink, Tail
from clusterbroker.journal.salvage import Care
from clusterbroker.journal.scrub import PIECE_BYTES as SCRUB_BYTES
from clusterbroker.journal.scrub import Piece, scrub_piece
from clusterbroker.journal.segments import START, Position, Segments
from clusterbroker.journal.stream_catalogue import Filing, Moved, StreamFile, Taken, Wish
from clusterbroker.journal.stream_files import Proved, StreamFiles
from clusterbroker.journal.survivors import Hurt, Survivor, survivors_of
from clusterbroker.journal.worker import Worker
from clusterbroker.journal.writer import Group, Soon, Watch, Writer

SEGMENT_END_MAX = 2**32 - 1
BUSY_BYTES = 1 << 20
SPARE_SEGMENTS = 4
WALKED_MAPPED_MAX = 1 << 20


def lock_directory(directory: Path) -> int:
    """Takes the directory for this process; the lock goes with the returned descriptor. Raises LockedJournal."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise LockedJournal(f"{directory} is in use by another process") from error
    return fd


class Journal:
    """Open it, `recover` once, then write; `close` in the end. Not thread-safe: one owner."""

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        notify: Notify,
        on_state: OnState,
        watch: Watch | None,
        lock: int,
        index: Index,
    ) -> None:
        self.directory = directory
        self.options = options
        self.use = SegmentUse()
        self._watch = watch
        self._lock = lock
        self.index = index
        self._segments = Segments(directory)
        self._segments.folder.mkdir(mode=0o750, exist_ok=True)
        self._state = DiskState(notify, on_state)
        self._reader = Reader(self._segments, options)
        self._streams = StreamFiles(directory, self._segments)
        self._reading = Worker("journal-reader", self._state)
        self._checkpointing = Worker("journal-checkpoint", self._state)
        self._closing = threading.Event()
        self._writer: Writer | None = None
        self._end = START
        self._checkpoint = START
        self._older: set[int] = set()
        self._lingering = Lingering()
        self._pinned: frozenset[int] = frozenset()
        self._in_flight = False
        self._checkpoint_runs = False
        self._bytes_since_checkpoint = 0
        self._due_since_s: float | None = None
        self._walked_bytes = 0
        self._walk: IndexWalk | None = None  # the checkpoint thread's, which tells it of each commit
        self.written_bytes = 0
        """Of all groups since it was opened."""
        self.flushes = FlushTimes()
        """Of groups written since it was opened, and flushed if that was asked for."""
        self.reads = 0
        """How often messages were read back since it was opened, many at a time."""
        self.read_bytes = 0
        self.read_us = 0
        """How long they took together, from `submit` to `done`."""

    @classmethod
    def open(
        cls,
        directory: Path | str,
        options: JournalOptions,
        notify: Notify,
        on_state: OnState,
        watch: Watch | None = None,
    ) -> Journal:
        """`notify` is `loop.call_soon_threadsafe`. `watch` is `loop.add_reader`: with it, groups are written by a
        thread that needs no interpreter lock, which a busy loop gives away late. The owner takes no further care of
        the watched descriptor but `loop.remove_reader(journal.watched)` before `close`.

        Raises LockedJournal, ForeignJournal, DamagedJournal, JournalFull, OSError."""
        directory = Path(directory)
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lock = lock_directory(directory)
        try:
            index = Index(directory, options.map_bytes)
        except BaseException:
            os.close(lock)
            raise
        return cls(directory, options, notify, on_state, watch, lock, index)

    def recover(
        self, sink: RecoverySink, settled: Callable[[], object] = lambda: None, care: Care | None = None
    ) -> Tail:
        """Tells `sink` everything that is remembered; afterwards the journal takes groups. Blocks.

        The sink adds what it keeps to `use`. `settled()` is called when all is read, sound and durable, and before
        anybody takes space of the disk. Damage that names its queue goes to `care`, if there is one (salvage.py).
        Raises DamagedJournal, having changed nothing, and what `settled` raises.
        """
        assert self._writer is None, "a journal is recovered once"
        start = start_of_tail(self.index, self._segments)
        sums = load_index(self.index, self._segments, sink, self._streams, start, care)
        tail = replay_tail(self._segments, start, sink, care)
        settle_end(self._segments, start, tail)
        if not self.index.summed:
            self.index.keep_sums(sums)
        settled()
        self._end = tail.position
        self._checkpoint = start
        if tail.groups:
            self._bytes_since_checkpoint = self.options.checkpoint_bytes
        self._older = {number for number in self._segments.numbers() if number < self._end.segment}
        self._keep_reserve()
        self._writer = self._new_writer()
        self._writer.start()
        self._reading.start()
        self._checkpointing.start()
        return tail

    def _new_writer(self) -> Writer:
        return Writer(self._segments, self.options, self._state, self._end, self._watch)

    def spend_reserve(self) -> None:
        """Gives back the space that was kept for a full disk; it is taken again when there is some."""
        self._reserve().unlink(missing_ok=True)

    def close(self) -> None:
        """Waits for the group in flight and what else is under way. A group that finds no space is given up (it
        was never acknowledged). A last checkpoint is the owner's."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._writer is not None:
            self._writer.close()
            self._checkpointing.close()
            self._reading.close()
        self._reader.close()
        self._streams.close()
        self.index.close()
        os.close(self._lock)

    # -- the log

    @property
    def idle(self) -> bool:
        """No group is under way: the next one may be begun."""
        return not self._in_flight

    @property
    def watched(self) -> int | None:
        """The descriptor that was given to `watch`, if any."""
        return None if self._writer is None else self._writer.watched

    @property
    def full(self) -> bool:
        return self._state.full

    @property
    def position(self) -> Position:
        """The end of everything submitted; what queues hold besides what they have not submitted yet."""
        return self._end

    @property
    def room(self) -> int:
        """Bytes of records that a group may have without a new segment."""
        return self.options.segment_bytes - self._end.offset - GROUP_HEADER_BYTES

    def begin_group(self, pending_bytes: int = 0) -> GroupWriter:
        """For about `pending_bytes` of records; starts a new segment when they would not fit this one."""
        assert self._writer is not None, "recover comes first"
        segment, offset, lsn = self._end
        end = offset + GROUP_HEADER_BYTES + pending_bytes
        assert GROUP_HEADER_BYTES + pending_bytes <= SEGMENT_END_MAX, "a group of 4 GiB cannot be written"
        if offset and (end > self.options.segment_bytes or offset >= self.options.segment_bytes):
            self._older.add(segment)
            self._end = Position(segment + 1, 0, lsn)
        return GroupWriter(self._end.segment, self._end.offset, self.options.group_bytes_max, pending_bytes)

    def submit(self, writer: GroupWriter, sync: bool, done: Callable[[], object], soon: Soon | None = None) -> None:
        """Writes the group; `done()` runs on the loop when it is written (and flushed, with `sync`). It does not
        run when the disk fails or the journal is closed while the disk is full. With `soon`, `loop.call_soon`, a
        small group may hold up the loop for as long as a quick disk takes: for an owner who has little else to do."""
        assert self._writer is not None, "recover comes first"
        assert not self._in_flight, "one group at a time"
        segment, offset, lsn = self._end
        assert (writer.segment, writer.offset) == (segment, offset), "the group was begun before the last one"
        lsn += 1
        size = writer.size
        window = min(lsn - self._writer.durable_lsn, WINDOW_MAX)
        data = writer.finish(lsn, int(time.time() * 1000) | window << WINDOW_SHIFT)
        self._in_flight = True
        self.flushes.began(time.monotonic())
        self.written_bytes += size
        self._end = Position(segment, offset + size, lsn)
        self._bytes_since_checkpoint += size
        if self._due_since_s is None:
            self._due_since_s = time.monotonic()
        self._writer.put(Group(segment, offset, lsn, data, sync, partial(self._group_done, done)), soon)

    def _group_done(self, done: Callable[[], object]) -> None:
        self._in_flight = False
        self.flushes.ended(time.monotonic())
        done()

    # -- checkpoints and space

    @property
    def checkpoint_due(self) -> bool:
        if self._checkpoint_runs or self._state.failed:
            return False
        if self._bytes_since_checkpoint >= self.options.checkpoint_bytes:
            return True
        since_s = self._due_since_s
        return since_s is not None and time.monotonic() - since_s >= self.options.checkpoint_interval_s

    def checkpoint(
        self,
        runs: Sequence[Run],
        metas: Sequence[tuple[int, dict[str, Any]]],
        forgotten: Sequence[int],
        position: Position,
        done: Callable[[], object],
        filings: Sequence[Filing] = (),
    ) -> None:
        """Writes what the queues hold at `position` (take both in the same breath; groups under way are waited
        for). Runs and metas of queues that did not change since the last checkpoint may be left out.

        `filings` are the streams among them: what they moved out is copied to their files first.

        `done()` runs on the loop when it is durable and the segments that nobody needs any more are on their way
        out. No space: it is tried again.
        """
        assert not self._checkpoint_runs, "one checkpoint at a time"
        assert self._writer is not None, "recover comes first"
        unused = [
            segment for segment in sorted(self._older) if segment < position.segment and not self.use.live(segment)
        ]
        self._checkpoint_runs = True
        self._bytes_since_checkpoint = 0
        self._due_since_s = None
        durable = threading.Event()
        self._writer.barrier(durable.set)

        def commit() -> None:
            durable.wait()
            filed: list[tuple[StreamFile, ...]] = []
            while not self._state.failed:
                try:
                    filed = [self._streams.file(filing) for filing in filings]
                    self.index.commit(runs, metas, forgotten, position, self._walk)
                    break
                except JournalFull as error:
                    self.spend_reserve()
                    self._state.no_space("index", str(error))
                    if self._closing.wait(self.options.full_retry_s):
                        return
            else:
                return
            self._state.has_space("index")
            self._streams.counted()
            kept = {filing.queue_id: files for filing, files in zip(filings, filed, strict=True)}
            for queue_id in forgotten:
                self._streams.forget(queue_id, kept.get(queue_id, ()))
            self._state.tell(partial(self._checkpoint_done, position, unused, forgotten, filings, filed, done))

        self._checkpointing.put(commit)

    def _checkpoint_done(
        self,
        position: Position,
        unused: list[int],
        forgotten: Sequence[int],
        filings: Sequence[Filing],
        filed: Sequence[tuple[StreamFile, ...]],
        done: Callable[[], object],
    ) -> None:
        self._checkpoint = position
        self._checkpoint_runs = False
        for segment in unused:
            self._older.discard(segment)
            self.use.forget(segment)
            self._reading.put(partial(self._reader.unlink, segment))
        for queue_id in forgotten:
            self._reading.put(partial(self._streams.forget_open, queue_id))
        for filing, files in zip(filings, filed, strict=True):
            filing.done(files)
            if filing.gone:
                self._reading.put(partial(self._streams.remove, filing.queue_id, filing.gone))
        self._reading.put(self._keep_reserve)
        done()

    def _reserve(self) -> Path:
        return self.directory / "reserve"

    def _keep_reserve(self) -> None:
        path = self._reserve()
        size = self.options.reserve_bytes
        if size and not self._state.full and not path.exists():
            with open(path, "wb") as file:
                try:
                    allocate(file.fileno(), 0, size)
                except OSError:
                    path.unlink()

    def size(self) -> tuple[int, int]:
        """(segment files, bytes of them and of streams' files): what stands on the disk now."""
        sizes = []
        for number in self._segments.numbers():
            with contextlib.suppress(FileNotFoundError):  # a checkpoint has just let it go
                sizes.append(self._segments.size(number))
        return len(sizes), sum(sizes) + self._streams.size()

    def sparse_segments(self) -> list[int]:
        """Segments before the checkpoint whose live bytes are few enough to be worth copying forward."""
        found = []
        for segment in sorted(self._older):
            live = self.use.live(segment)
            if live and segment < self._checkpoint.segment and segment not in self._pinned:
                size = self._segments.size(segment)
                if live * 100 < size * self.options.sparse_percent:
                    found.append(segment)
        return found

    def pin(self, segments: Iterable[int]) -> None:
        """What lives in these is written again by nobody: they stay until it is forgotten, and are not looked at."""
        self._pinned = frozenset(segments)

    def pinned_bytes(self) -> int:
        """What the pinned segments take of the disk."""
        sizes = []
        for number in self._pinned:
            with contextlib.suppress(FileNotFoundError):
                sizes.append(self._segments.size(number))
        return sum(sizes)

    def lingering_segments(self) -> list[int]:
        """Those to be copied forward now: sparse segments that do not empty by themselves (see `Lingering`), the oldest
        first. To be asked once after each checkpoint; as long as any segment is sparse, another checkpoint will be due,
        though nothing is written.

        At least one if there is any; else at most 2 * `checkpoint_bytes` are read, and `sparse_percent` of
        `checkpoint_bytes` written. So segments that are less than half as full as sparse ones may be go faster than a
        load can make them, and what waits for its turn is at least so full: that bounds the disk.

        Under a load (BUSY_BYTES since the checkpoint began) SPARE_SEGMENTS are left alone: to copy is to write once
        more, and a quieter moment will do.
        """
        sparse = {segment: self.use.live(segment) for segment in self.sparse_segments()}
        lingering = self._lingering.shown(sparse)
        if len(sparse) <= SPARE_SEGMENTS and self._bytes_since_checkpoint >= BUSY_BYTES:
            lingering = []
        taken: list[int] = []
        size = live = 0
        for segment in lingering:
            size += self._segments.size(segment)
            live += sparse[segment]
            bytes_max = self.options.checkpoint_bytes
            if taken and (size > 2 * bytes_max or live * 100 > bytes_max * self.options.sparse_percent):
                break
            self._lingering.taken(segment)
            taken.append(segment)
        if sparse:
            self.owe_checkpoint()
        return taken

    def owe_checkpoint(self) -> None:
        """One will be due, though nothing is written."""
        if self._due_since_s is None:
            self._due_since_s = time.monotonic()

    def survivors(self, segment: int, done: Callable[[list[Survivor | Hurt] | DamagedRecord], object]) -> None:
        """Reads what may still live in a segment before the checkpoint, which must have live bytes; queues write again
        what they still hold there (same seq: the message moves). `done` runs on the loop."""
        assert segment in self._older, "only a segment that is complete is copied forward"

        def read() -> None:
            found = survivors_of(self.index, self._segments, self.options, segment)
            self._state.tell(partial(done, found))

        self._checkpointing.put(read)

    def scrubbable(self) -> list[tuple[int, int]]:
        """(segment, bytes) of those that are complete and whose messages the index knows, the oldest first."""
        found = []
        for segment in sorted(self._older):
            if segment < self._checkpoint.segment:
                with contextlib.suppress(FileNotFoundError):
                    found.append((segment, self._segments.size(segment)))
        return found

    def scrub(self, segment: int, at: int, done: Callable[[Piece], object]) -> None:
        """Proves a piece of one of these, from byte `at` on; `done` gets what came of it, on the loop."""

        def prove() -> None:
            found = scrub_piece(self.index, self._segments, self.options, segment, at)
            self._state.tell(partial(done, found))

        self._checkpointing.put(prove)

    def scrub_stream(
        self, queue_id: int, part: StreamFile, at: tuple[int, int], done: Callable[[Proved], object]
    ) -> None:
        """Proves a piece of a stream's file, from `at` on (see StreamFiles.prove_piece)."""
        self._checkpointing.put(
            lambda: self._state.tell(partial(done, self._streams.prove_piece(queue_id, part, at, SCRUB_BYTES)))
        )

    def index_bytes(self) -> int:
        """What the index takes of the disk."""
        try:
            return (self.index.path / "data.mdb").stat().st_size
        except OSError:
            return 0

    def scrub_index(self, done: Callable[[Looked], object]) -> None:
        """Proves a piece of the index: the next one of the pass that is under way, or the first."""

        def prove() -> None:
            index = self.index
            walk = self._walk = self._walk or IndexWalk(index)
            try:
                looked = walk.step()
            except DamagedJournal as damage:
                looked = Looked(0, True, (damage,))
            if looked.over:
                self._walk = None
            self._walked_bytes += looked.bytes_read
            if looked.over or self._walked_bytes >= WALKED_MAPPED_MAX:
                self._walked_bytes = 0
                index.reopen()  # gives back the pages
            self._state.tell(partial(done, looked))

        self._checkpointing.put(prove)

    # -- reading

    def read(
        self, queue_id: int, wanted: Sequence[Wanted], done: Callable[[list[Message] | DamagedRecord], object]
    ) -> None:
        """Brings messages back: `wanted` are (seq, segment, offset, length) of records that are written. `done`
        gets them in the same order, or the damage, on the loop."""

        def bring() -> None:
            began_s = time.monotonic()
            found = self._reader.read(queue_id, wanted)
            self.read_us += int((time.monotonic() - began_s) * 1e6)
            self.read_bytes += sum(length for *_, length in wanted)
            self._state.tell(partial(done, found))

        self.reads += 1
        self._reading.put(bring)

    def read_stream(
        self, queue_id: int, part: StreamFile | Moved, wish: Wish, done: Callable[[Taken | DamagedRecord], object]
    ) -> None:
        """Reads a part of a stream; `done` gets it on the loop, or the damage."""
        self._reading.put(lambda: self._state.tell(partial(done, self._streams.take(queue_id, part, wish))))

    def free_bytes(self) -> int:
        """What the file system has left for this process."""
        found = os.statvfs(self.directory)
        return found.f_bavail * found.f_frsize


__all__ = ["Journal", "JournalFailed", "Position", "lock_directory"]
