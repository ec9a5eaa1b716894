"""The one thread that writes the log (waits).

It takes one group after the other: checksums, one pwrite, one fdatasync where the group asks for it, then the
callback through the loop. A group that did not ask is flushed within `flush_interval_s`. Nothing is acknowledged
before its bytes are where its durability asks them to be; every failure here ends in silence, not in a wrong yes:

* no space: the same bytes are tried again, at the same place, until space returns or the journal is closed;
* any other error, and any error of a flush (after which the kernel may have thrown the pages away): failed.

Where the owner can watch a descriptor, groups that go into the segment in use take a short
cut: a thread of C code writes them and wakes the loop through a pipe. This thread then has what is rare: rolling over,
no space, the flush of `disk` groups, barriers. Both never write at once, because there is one group at a time.

*Here.* A small group of an owner who has nothing better to do (`soon`) is written on the loop itself, as long as the
disk is quick: to hand it to a thread and hear of it costs two switches, and beside other work each of them waits for a
processor. When flushes take longer than SLOW_S, in the mean of the last ones, or one takes STALL_S, the next groups are
left to the thread, for PATIENCE_S at first and twice as long each time: a slow disk holds up the loop for a few flushes
in a while, and no more.

The next segment is allocated ahead. When that finds no space the disk counts as full although the current segment
still takes groups: publishers stop, acknowledgements go on and free segments.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from clusterbroker.journal.disk_state import DiskState
from clusterbroker.journal.errors import JournalFailed
from clusterbroker.journal.layout import WINDOW_MAX
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.platform import NO_SPACE, sync_data
from clusterbroker.journal.record import CommitThread, write_group
from clusterbroker.journal.segments import Position, Segments

Watch = Callable[[int, Callable[[], object]], object]
"""Has a callable called on the loop whenever a descriptor is readable; `loop.add_reader`."""
Soon = Callable[[Callable[[], object]], object]
"""Has a callable called on the loop when what it is at is done; `loop.call_soon`."""
HERE_BYTES_MAX = 16 << 10
SLOW_S = 0.004
STALL_S = 0.05
MEAN_OF = 8
"""About so many flushes count for the mean."""
PATIENCE_S = 1.0
PATIENCE_MAX_S = 60.0


class Group(NamedTuple):
    segment: int
    offset: int
    lsn: int
    data: bytearray
    sync: bool
    done: Callable[[], object]


def look_at_clock() -> None:
    """A job that only makes the thread look at its clock."""


class Writer:
    """Owns the descriptor of the segment in use. `durable_lsn` may be read from any thread."""

    def __init__(
        self,
        segments: Segments,
        options: JournalOptions,
        state: DiskState,
        end: Position,
        watch: Watch | None = None,
    ) -> None:
        self._commits = CommitThread() if watch is not None else None
        if self._commits is not None and watch is not None:
            watch(self._commits.fileno(), self._committed)
        self._committing: Group | None = None
        self._here = False  # the group that is being committed waits for its turn on the loop
        self._mean_s = 0.0  # how long it took
        self._slow_until_s = 0.0  # nothing is written here before
        self._next_patience_s = PATIENCE_S
        self._behind: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._segments = segments
        self._options = options
        self._state = state
        self._jobs: queue.SimpleQueue[Group | Callable[[], object] | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._segment = end.segment
        self._fd = -1
        # Linux tells a failed write-back once to each open file: the two that flush must not share one
        self._flush_fd = -1
        self._ahead = -1
        self._retired: tuple[int, ...] = ()
        self._next_ahead_s = 0.0
        self._dirty_since_s: float | None = None
        self._written_lsn = end.lsn
        self._synced_lsn = end.lsn
        self.durable_lsn = end.lsn
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    def start(self) -> None:
        """Opens the segment in use; raises OSError, but not for want of space."""
        try:
            self._open(self._segment, self._options.segment_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        self._thread.start()

    @property
    def watched(self) -> int | None:
        return None if self._commits is None else self._commits.fileno()

    def put(self, group: Group, soon: Soon | None = None) -> None:
        """`done` goes through the loop once the group is as durable as it asked to be. With `soon` it may be written
        here, on the loop."""
        if self._commits is None or self._fd < 0 or self._state.failed:
            self._jobs.put(group)
            return
        small = group.segment == self._segment and len(group.data) <= HERE_BYTES_MAX
        if soon is not None and small and time.monotonic() >= self._slow_until_s:
            self._committing, self._here = group, True
            soon(self._commit_here)
            return
        before = -1
        if group.segment != self._segment:
            if self._ahead < 0 or len(group.data) > self._options.segment_bytes:
                self._jobs.put(group)
                return
            before = self._roll()
        self._committing = group
        self._commits.start(self._fd, group.data, group.offset, self._must_flush(group), before)

    def _roll(self) -> int:
        """Takes the segment ahead into use, on the loop. Returns the old one's descriptor when it must be flushed,
        which the commit thread does from now on."""
        flush_fd = os.open(self._segments.path(self._segment + 1), os.O_RDWR | os.O_CLOEXEC)
        with self._lock:
            before = self._fd if self._dirty_since_s is not None else -1
            self._dirty_since_s = None
            self._retired = (self._fd, self._flush_fd)
            self._fd, self._flush_fd, self._segment = self._ahead, flush_fd, self._segment + 1
            self._ahead = -1
        return before

    def _close_retired(self) -> None:
        retired, self._retired = self._retired, ()
        for fd in retired:
            os.close(fd)

    def _commit_here(self) -> None:
        """Writes the group that waits for it, on the loop; nothing when it was closed meanwhile."""
        if self._here and self._committing is not None:
            self._answered(self._committing, self._write_here(self._committing))

    def _write_here(self, group: Group) -> int:
        self._here = False
        began_s = time.monotonic()
        error = write_group(self._fd, group.data, group.offset, self._must_flush(group))
        ended_s = time.monotonic()
        took_s = ended_s - began_s
        self._mean_s += (took_s - self._mean_s) / MEAN_OF
        if self._mean_s > SLOW_S or took_s > STALL_S:
            self._slow_until_s = ended_s + self._next_patience_s
            self._next_patience_s = min(2 * self._next_patience_s, PATIENCE_MAX_S)
            self._mean_s = 0.0
        elif ended_s - self._slow_until_s > self._next_patience_s:
            self._next_patience_s = PATIENCE_S  # it has been quick for as long as it would be left alone
        return error

    def _committed(self) -> None:
        """The short cut's answer, on the loop."""
        assert self._commits is not None, "nobody else's descriptor is watched"
        error = self._commits.take()
        if error is not None and self._committing is not None:
            self._answered(self._committing, error)

    def _answered(self, group: Group, error: int) -> None:
        """The group is written, or could not be (see `write_group`)."""
        self._committing = None
        if self._retired:
            self._jobs.put(self._close_retired)  # behind a flush that may still be using one of them
        if self._state.failed:
            error = errno.EIO
        elif error in NO_SPACE:
            self._jobs.put(group)
        elif error:
            what = f"segment {group.segment} at byte {group.offset}: {os.strerror(abs(error))}"
            self._state.fail(what)
        else:
            if self._note(group, self._must_flush(group)):
                self._jobs.put(look_at_clock)  # so that it flushes in time
        for call in self._behind:
            self._jobs.put(call)
        self._behind.clear()
        if not error:
            group.done()

    def barrier(self, call: Callable[[], object]) -> None:
        """Calls on the writer thread, when everything put before is durable (or the disk has failed)."""
        if self._committing is not None:
            self._behind.append(call)
        else:
            self._jobs.put(call)

    def close(self) -> None:
        """Waits for what was put; gives up a group that finds no space."""
        self._closing.set()
        if self._commits is not None:
            here = self._committing if self._here else None
            error = self._commits.take(wait=True) if here is None else self._write_here(here)
            if self._committing is not None and error == 0:
                self._note(self._committing, self._must_flush(self._committing))
                self._state.tell(self._committing.done)
            self._committing = None
            for call in self._behind:
                self._jobs.put(call)
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._commits is not None:
            self._commits.close()

    def _run(self) -> None:
        while True:
            self._upkeep()
            try:
                job = self._jobs.get(timeout=self._patience_s())
            except queue.Empty:
                continue
            if job is None:
                break
            try:
                if job is look_at_clock:
                    continue
                if job == self._close_retired:
                    self._close_retired()
                elif isinstance(job, Group):
                    if not self._state.failed:
                        self._write(job)
                else:
                    self._flush()
                    job()
            except (OSError, JournalFailed) as error:
                self._state.fail(str(error))
                if not isinstance(job, Group):
                    job()
        self._upkeep(last=True)
        for fd in (self._fd, self._flush_fd, self._ahead, *self._retired):
            if fd >= 0:
                os.close(fd)

    def _patience_s(self) -> float | None:
        dirty_since_s = self._dirty_since_s
        until = [] if dirty_since_s is None else [dirty_since_s + self._options.flush_interval_s]
        if self._ahead < 0 and self._fd >= 0:
            until.append(self._next_ahead_s)
        return max(0.0, min(until) - time.monotonic()) if until and not self._state.failed else None

    def _upkeep(self, last: bool = False) -> None:
        """What is due although nobody asked: the flush of `disk` groups, the segment ahead."""
        if self._state.failed:
            return
        now_s = time.monotonic()
        dirty_since_s = self._dirty_since_s
        if dirty_since_s is not None and (last or now_s - dirty_since_s >= self._options.flush_interval_s):
            try:
                self._flush()
            except JournalFailed as error:
                self._state.fail(str(error))
                return
        if self._ahead < 0 and self._fd >= 0 and now_s >= self._next_ahead_s and not last:
            self._allocate_ahead(now_s)

    def _allocate_ahead(self, now_s: float) -> None:
        try:
            self._ahead = self._segments.create(self._segment + 1, self._options.segment_bytes)
        except OSError as error:
            self._next_ahead_s = now_s + self._options.full_retry_s
            if error.errno in NO_SPACE:
                self._state.no_space("segment", f"segment {self._segment + 1}: {error}")
            else:
                self._state.fail(f"segment {self._segment + 1}: {error}")
        else:
            self._state.has_space("segment")

    def _flush(self) -> None:
        with self._lock:
            if self._dirty_since_s is None:
                return
            upto, fd = self._written_lsn, self._flush_fd
        try:
            sync_data(fd)
        except OSError as error:
            raise JournalFailed(f"segment {self._segment}: fdatasync: {error}") from error
        with self._lock:
            self.durable_lsn = max(self.durable_lsn, upto)
            self._dirty_since_s = None if self._written_lsn == upto else time.monotonic()

    def _must_flush(self, group: Group) -> bool:
        return group.sync or group.lsn - self._synced_lsn >= WINDOW_MAX - 1

    def _note(self, group: Group, synced: bool) -> bool:
        """The group is written. True when there is something to flush now and was not before."""
        with self._lock:
            self._written_lsn = group.lsn
            if group.offset == 0:
                self.durable_lsn = max(self.durable_lsn, group.lsn - 1)  # rolling over flushes what was before
            if synced:
                self._synced_lsn = self.durable_lsn = group.lsn
                self._dirty_since_s = None
            elif self._dirty_since_s is None:
                self._dirty_since_s = time.monotonic()
                return True
        return False

    def _open(self, segment: int, size: int) -> None:
        """Makes `segment` the one in use."""
        self._flush()
        if segment == self._segment and self._fd >= 0:
            return
        assert segment in (self._segment, self._segment + 1), "segments are used in order"
        if segment == self._segment + 1 and self._ahead >= 0 and os.fstat(self._ahead).st_size >= size:
            fd, self._ahead = self._ahead, -1
        else:
            fd = self._segments.create(segment, size)
            if self._ahead >= 0:
                os.close(self._ahead)
                self._ahead = -1
        for old in (self._fd, self._flush_fd):
            if old >= 0:
                os.close(old)
        self._flush_fd = os.open(self._segments.path(segment), os.O_RDWR | os.O_CLOEXEC)
        self._fd = fd
        self._segment = segment

    def _write(self, group: Group) -> None:
        sync = self._must_flush(group)
        while True:
            error = self._try(group, sync)
            if error == 0:
                break
            what = f"segment {group.segment} at byte {group.offset}: {os.strerror(abs(error))}"
            if error not in NO_SPACE:
                raise JournalFailed(what)
            self._state.no_space("group", what)
            if self._closing.wait(self._options.full_retry_s):
                return
        self._state.has_space("group")
        self._note(group, sync)
        self._state.tell(group.done)

    def _try(self, group: Group, sync: bool) -> int:
        if group.segment != self._segment or self._fd < 0:
            try:
                self._open(group.segment, max(self._options.segment_bytes, group.offset + len(group.data)))
            except OSError as error:
                return error.errno or errno.EIO
        return write_group(self._fd, group.data, group.offset, sync)
