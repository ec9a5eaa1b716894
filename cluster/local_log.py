"""The wiring log of a node that is alone: ordered by this process, durable in LMDB, folded on the loop's thread.

    loop thread     propose -> pending -> (one batch at a time) ----.            .--> apply, notify
    writer thread                                                   '-> commit --'

Group commit: while one commit is on its way to the disk, proposals pile up; all of them (up to 1,000) are the
next commit, so a slow disk makes batches larger, not a longer queue. A command is applied only after its
commit.

What promises nothing (durability.py) is applied at once when nothing waits before it. If it changed something
it is logged all the same, with the next commit and without waiting for it: the answer to a later durable
command may depend on it (a durable declare refused because a transient queue has the name), and replay must
give that answer again. So replay folds exactly what was folded before, and transient things then end by a
command of their own, ForgetTransient, as the node's first.

Indices: the log reserves them in blocks, durably and ahead, so that an index which was given to an unlogged
command is not given again after a crash; a queue id is such an index. A start may therefore leave a gap.

A snapshot is taken when it is due (wiring_log.py). Entities are frozen, so the loop only copies lists; the writer
thread encodes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from clusterbroker.journal.stamp import Stamp

from .errors import ClusterError, DiskFailed, DiskFull, LogFailure, Unavailable, WiringError
from .ids import LOCAL_NODE, LogIndex, NodeId
from .log_store import Entry, LogStore
from .wiring import commands as c
from .wiring import snapshot
from .wiring.durability import waits_for_disk
from .wiring.map import Applied
from .wiring.view import ClusterView
from .wiring_log import SNAPSHOT_EVERY, Done, Listener, Notifier, snapshot_is_due, unlogged

BATCH_COMMANDS_MAX: Final = 1000
RESERVE_BLOCK: Final = 1 << 20
CLOSE_TIMEOUT_S: Final = 30.0

CallSoon = Callable[[Callable[[], object]], object]
"""`loop.call_soon_threadsafe`, or anything that runs a callable soon on the thread that owns the log."""


class _Waiting(Struct, frozen=True):
    index: LogIndex
    stored: bytes
    command: c.AnyCommand
    done: Done | None


class _Append(NamedTuple):
    entries: Sequence[Entry]
    reserved: LogIndex | None


class _Result(NamedTuple):
    job: _Append | snapshot.Snapshot
    error: ClusterError | None


class LocalLog:
    """`WiringLog` for one node, over a directory.

    Invariants: (1) at most one job is with the writer; (2) entries reach the store in ascending index, and
    all of them that changed the map before a given durable one are stored with or before it; (3) an index
    below the stored `reserved` is given out at most once, ever.
    """

    def __init__(
        self,
        directory: Path,
        *,
        call_soon: CallSoon,
        on_failure: Callable[[LogFailure], object],
        node: NodeId = LOCAL_NODE,
        sync: bool = True,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        """Open or create the log, replay it, and end what was transient; blocks until that is done.

        `on_failure` is called once, on the loop's thread, when the disk failed: the node must stop.
        Raises DamagedLog, FormatTooNew, DiskFull or DiskFailed; the text says where and what to do.
        """
        self._store = LogStore(directory, sync=sync)
        try:
            self._map, self._tail_length, self._next = self._store.fold()
        except BaseException:
            self._store.close()
            raise
        self._reserved = self._next
        self._call_soon = call_soon
        self._on_failure = on_failure
        self._snapshot_every = snapshot_every
        self._notifier = Notifier()
        self._pending: list[_Waiting] = []
        self._writing: list[_Waiting] = []
        self._lazy: list[Entry] = []
        self._covered: list[Entry] = []
        self._snapshot_after = snapshot_every
        self._busy = False
        self._failure: LogFailure | None = None
        self._closed = False
        self._jobs: queue.SimpleQueue[_Append | snapshot.Snapshot | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="wiring-log", daemon=True)
        self._writer.start()
        self._apply_now(c.ForgetTransient(node=node), self._take_index(), None)

    @property
    def map(self) -> ClusterView:
        """The fold of all that has been applied."""
        return self._map

    @property
    def next_index(self) -> LogIndex:
        """The index that the next command gets: above all that were ever given."""
        return max(self._next, self._reserved)

    @property
    def stamp(self) -> Stamp | None:
        """Whose this log is."""
        return self._store.stamp

    def put_stamp(self, stamp: Stamp) -> None:
        """Durable on return. For a start: before anything is proposed."""
        assert not self._busy, "the writer has nothing to do before the first proposal"
        self._store.put_stamp(stamp)

    def leave_out(self, index: LogIndex) -> None:
        """No command gets this index, or one below: it declared a queue of which a journal has messages. For a start:
        before anything is proposed."""
        self._next = LogIndex(max(self._next, index + 1))

    @property
    def pending(self) -> int:
        """How many proposals wait for the disk."""
        return len(self._pending) + len(self._writing)

    def listen(self, listener: Listener) -> None:
        """Call the listener for every command applied from now on."""
        self._notifier.listen(listener)

    def propose(self, command: c.AnyCommand, done: Done | None = None) -> None:
        """Order a command; loop's thread only. The contract is in wiring_log.py."""
        if self._closed or self._failure is not None:
            self._notifier.notify(unlogged(command, Unavailable("the metadata log is closed")), done)
            return
        try:
            stored = c.encode(command)
        except WiringError as error:
            self._notifier.notify(unlogged(command, error), done)
            return
        # the stored form is what replay will see, so it is what is applied now
        command = c.decode(stored)
        index = self._take_index()
        in_turn = not self._pending and not self._writing
        if in_turn and index < self._reserved and not waits_for_disk(self._map, command):
            self._apply_now(command, index, done, stored)
            return
        self._pending.append(_Waiting(index, stored, command, done))
        self._continue()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Finish the commit under way and notify, refuse what waits behind it, and close the directory. Blocks."""
        if self._closed:
            return
        self._closed = True
        refused, self._pending = self._pending, []
        if self._failure is None:
            # nothing waits behind: exact bounds leave no gap of indices for the next start
            self._jobs.put(_Append(self._lazy, self._next))
        self._jobs.put(None)
        self._writer.join(timeout_s)
        self._collect()
        try:
            self._refuse(refused, Unavailable("the node is stopping"))
        finally:
            self._close_store()

    def _close_store(self) -> None:
        if not self._writer.is_alive():
            self._store.close()

    def _take_index(self) -> LogIndex:
        index = self._next
        self._next = LogIndex(index + 1)
        return index

    def _apply_now(
        self, command: c.AnyCommand, index: LogIndex, done: Done | None, stored: bytes | None = None
    ) -> None:
        applied = self._map.apply(index, command)
        if applied.changes:
            self._lazy.append((index, stored if stored is not None else c.encode(command)))
            if len(self._lazy) >= BATCH_COMMANDS_MAX:
                self._continue()
        self._notifier.notify(applied, done)

    def _continue(self) -> None:
        """Give the writer its next job, if it is idle and there is one."""
        if self._busy or self._failure is not None or self._closed:
            return
        if snapshot_is_due(self._tail_length, self._snapshot_after, self._map):
            # everything given an index so far and not pending is applied, so the snapshot covers `_lazy` too
            self._covered, self._lazy = self._lazy, []
            self._start(self._map.snapshot())
        elif self._pending or len(self._lazy) >= BATCH_COMMANDS_MAX:
            self._writing, self._pending = (self._pending[:BATCH_COMMANDS_MAX], self._pending[BATCH_COMMANDS_MAX:])
            entries = [*self._lazy, *((waiting.index, waiting.stored) for waiting in self._writing)]
            self._lazy = []
            low = self._next + RESERVE_BLOCK // 2 > self._reserved
            self._start(_Append(entries, LogIndex(self._next + RESERVE_BLOCK) if low else None))

    def _start(self, job: _Append | snapshot.Snapshot) -> None:
        self._busy = True
        self._jobs.put(job)

    def _write(self) -> None:
        """The writer thread: one job after the other, until None."""
        while (job := self._jobs.get()) is not None:
            error: ClusterError | None = None
            try:
                if isinstance(job, snapshot.Snapshot):
                    self._store.write_snapshot(job.index, snapshot.encode(job))
                elif job.entries or job.reserved is not None:
                    self._store.append(job.entries, reserved=job.reserved)
            except ClusterError as failure:
                error = failure
            except Exception as failure:
                error = DiskFailed(f"{self._store.path}: the metadata log failed ({failure!r}); the node must stop")
            self._results.put(_Result(job, error))
            try:
                self._call_soon(self._collect)
            except RuntimeError:
                # the loop is closed: `close` collects, or nobody waits
                continue

    def _collect(self) -> None:
        """Loop's thread: take what the writer has finished, apply it, notify, and go on."""
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                return
            try:
                if result.error is None:
                    self._committed(result.job)
                elif isinstance(result.error, DiskFull):
                    self._rolled_back(result.job, result.error)
                else:
                    self._failed(result.error)
            finally:
                self._busy = False
                # on a full disk only a new proposal tries again
                if result.error is None or self._pending:
                    self._continue()

    def _committed(self, job: _Append | snapshot.Snapshot) -> None:
        if isinstance(job, snapshot.Snapshot):
            self._covered = []
            self._tail_length = 0
            self._snapshot_after = self._snapshot_every
            return
        self._tail_length += len(job.entries)
        if job.reserved is not None:
            self._reserved = max(self._reserved, job.reserved)
        # `_writing` and `_busy` stay set until all are applied: what is proposed meanwhile comes after the batch
        try:
            self._notify_each(
                (partial(self._map.apply, waiting.index, waiting.command), waiting.done) for waiting in self._writing
            )
        finally:
            self._writing = []

    def _rolled_back(self, job: _Append | snapshot.Snapshot, error: DiskFull) -> None:
        """Nothing of the job was written: refuse its commands, keep what nobody waits for."""
        refused, self._writing = self._writing, []
        if isinstance(job, snapshot.Snapshot):
            self._lazy, self._covered = [*self._covered, *self._lazy], []
            self._snapshot_after = self._tail_length + self._snapshot_every
        else:
            waiting = {entry.index for entry in refused}
            self._lazy = [*(entry for entry in job.entries if entry[0] not in waiting), *self._lazy]
        self._refuse(refused, error)

    def _refuse(self, refused: Sequence[_Waiting], error: Unavailable) -> None:
        self._notify_each((partial(unlogged, entry.command, error), entry.done) for entry in refused)

    def _notify_each(self, outcomes: Iterable[tuple[Callable[[], Applied], Done | None]]) -> None:
        """Compute and hand out one after the other; an exception of a listener keeps no command from the fold."""
        failure: Exception | None = None
        for outcome, done in outcomes:
            applied = outcome()
            try:
                self._notifier.notify(applied, done)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _failed(self, error: ClusterError) -> None:
        failure = error if isinstance(error, LogFailure) else DiskFailed(str(error))
        self._failure = failure
        refused, self._writing, self._pending = [*self._writing, *self._pending], [], []
        try:
            self._refuse(refused, Unavailable("the metadata log failed"))
        finally:
            self._on_failure(failure)
