"""The journal itself under the simulation: its segments, writer, replay and LMDB index, in a folder of the run's.

Its threads are none: what they would do is done when the simulation says so. `RealJournal` keeps the model that
`SimJournal` is beside it, and compares: what the journal tells at a start is what the model tells, in the same order.
So the checkers see the same as ever.

A crash is a loss of power. Of groups that nobody flushed the first ones are there (`kept`), of the next one perhaps the
beginning, of later ones perhaps all: a disk writes in any order. A checkpoint under way may be durable though nobody
has heard of it. A page of the index may be as it was before the last commit (`lose_page`): then the journal is damaged,
or all is there. A record may be unreadable (`rot`).
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from clusterbroker.broker.queues.ring import Ring
from clusterbroker.broker.server.recovery import Recovery
from clusterbroker.broker.streams.store import store_of
from clusterbroker.journal.disk_state import Notify, OnState
from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import Index
from clusterbroker.journal.journal import Journal
from clusterbroker.journal.look import look
from clusterbroker.journal.options import JournalOptions
from clusterbroker.journal.record import DamagedRecord, GroupWriter, Message, SegmentUse
from clusterbroker.journal.replay import RecoverySink
from clusterbroker.journal.stamp import Stamp
from clusterbroker.journal.stream_catalogue import Filing, Moved, StreamFile, Taken, Wish
from clusterbroker.journal.worker import Worker
from clusterbroker.journal.writer import Group, Soon, Writer
from tests.simulation.checkers.history import Violation
from tests.simulation.sim_journal import SimJournal
from tests.simulation.sim_streams import FILE_BYTES

OPTIONS: Final = JournalOptions(segment_bytes=64 << 10, reserve_bytes=0, map_bytes=64 << 20)
PAGE_BYTES: Final = 4096
META_PAGES: Final = 2
TORN_SHARE: Final = 0.7
UNHEARD_SHARE: Final = 0.3


class SyncWorker(Worker):
    """Does what it is given when it is told to, or at once."""

    def __init__(self, at_once: bool) -> None:
        self._at_once = at_once
        self._held: deque[Callable[[], object]] = deque()

    def start(self) -> None:
        """There is no thread."""

    def put(self, call: Callable[[], object]) -> None:
        if self._at_once:
            call()
        else:
            self._held.append(call)

    def run(self) -> bool:
        """What it holds, the oldest first; whether there was anything."""
        held, self._held = self._held, deque()
        for call in held:
            call()
        return bool(held)

    def close(self) -> None:
        self._held.clear()


class SyncWriter(Writer):
    """Writes its group when it is told to."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waiting: Group | None = None
        self._barriers: list[Callable[[], object]] = []

    def start(self) -> None:
        self._open(self._segment, self._options.segment_bytes)
        self._allocate_ahead(0.0)

    def put(self, group: Group, soon: Soon | None = None) -> None:
        self.waiting = group

    def write(self) -> None:
        """The group that waits."""
        group, self.waiting = self.waiting, None
        assert group is not None, "a group is under way"
        self._write(group)
        if self._ahead < 0:
            self._allocate_ahead(0.0)

    def barrier(self, call: Callable[[], object]) -> None:
        self._barriers.append(call)

    def pass_barriers(self) -> None:
        """All that was written is flushed."""
        self._flush()
        barriers, self._barriers = self._barriers, []
        for call in barriers:
            call()

    def close(self) -> None:
        for fd in (self._fd, self._flush_fd, self._ahead, *self._retired):
            if fd >= 0:
                os.close(fd)


class SyncJournal(Journal):
    """Without threads."""

    def __init__(
        self,
        directory: Path,
        options: JournalOptions,
        notify: Notify,
        on_state: OnState,
        watch: Any,
        lock: int,
        index: Index,
    ) -> None:
        super().__init__(directory, options, notify, on_state, watch, lock, index)
        self._reading = self.reading = SyncWorker(at_once=True)
        self._checkpointing = self.checkpointing = SyncWorker(at_once=False)

    def _new_writer(self) -> SyncWriter:
        self.writer = SyncWriter(self._segments, self.options, self._state, self._end, None)
        return self.writer

    def take(self, queue_id: int, part: StreamFile | Moved, wish: Wish) -> Taken:
        """What a stream's files or segments have; read by the reader's thread else."""
        taken = self._streams.take(queue_id, part, wish)
        assert not isinstance(taken, DamagedRecord), f"a stream's records are whole: {taken}"
        return taken

    def bring(self, queue_id: int, wanted: Sequence[Any]) -> list[Message] | DamagedRecord:
        return self._reader.read(queue_id, wanted)

    def path(self, segment: int) -> Path:
        return self._segments.path(segment)


class Finished:
    """A group's bytes, which are made once, for two journals."""

    def __init__(self, writer: GroupWriter) -> None:
        self._writer = writer
        self._made: bytearray | None = None
        self.segment, self.offset, self.size = writer.segment, writer.offset, writer.size

    def finish(self, lsn: int, time_ms: int) -> bytearray:
        if self._made is None:
            self._made = self._writer.finish(lsn, time_ms)
        return bytearray(self._made)


class Told:
    """A sink that writes down what it hears, and passes it on to `sink`, if there is one."""

    def __init__(self, sink: RecoverySink | None) -> None:
        self.calls: list[bytes] = []
        self._sink = sink

    def __getattr__(self, name: str) -> Callable[..., object]:
        def hear(*arguments: Any) -> None:
            self.calls.append(msgspec.msgpack.encode((name, arguments), enc_hook=repr))
            if self._sink is not None:
                getattr(self._sink, name)(*arguments)

        return hear


def folded(recover: Callable[[Any], object]) -> dict[int, tuple[Any, ...]]:
    """What queues come of what a journal tells: from an older checkpoint on it tells more, and the same comes of it."""
    recovery = Recovery(lambda _: None, lambda _: Ring(0, True), lambda _: False, None)
    recover(recovery)
    recovery.finish()
    return {
        queue_id: (ring.epoch, ring.next_seq, dict(ring.emitted_attributes()), _living(ring))
        for queue_id, ring in recovery.rings.items()
    }


def _living(ring: Ring) -> list[tuple[int, int]]:
    store = store_of(ring)
    return [span for bucket, _ in store.emitted_buckets() for span in store.emitted_live(bucket)]


class RealStreams:
    """In the place of `SimStreams`: a node's site asks it; what checkpoints do for streams the journal does itself."""

    def __init__(self, journal: RealJournal) -> None:
        self._journal = journal

    def take(self, queue_id: int, part: StreamFile | Moved, wish: Wish) -> Taken:
        return self._journal.inner.take(queue_id, part, wish)

    def begin(self, filings: Sequence[Filing]) -> None: ...
    def file(self) -> None: ...
    def counted(self, forgotten: Sequence[int]) -> None: ...
    def crash(self) -> None: ...
    def recover(self, metas: Any) -> None: ...
    def mend(self) -> None: ...

    @property
    def rots(self) -> int:
        """What a start finds on the journal itself is all of the journal's: no file of a stream is made to rot."""
        return 0

    def rot(self, queue_id: int, chance: Random) -> bool:
        return False


class RealJournal(SimJournal):
    """In `directory`, which it makes. Between a crash and the next `use` or `recover` no process has it open."""

    def __init__(self, directory: Path, has_streams: bool) -> None:
        self._inner: SyncJournal | None = None
        super().__init__()
        self.directory = directory
        self.streams = RealStreams(self) if has_streams else None  # type: ignore[assignment]
        self._has_streams = has_streams
        self._chance = Random(f"disk {directory.name}")
        self._copies = 0
        self._silent = False
        self._index_before = b""
        self._lost_page: tuple[int, bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def copy(self) -> RealJournal:
        assert self._inner is None, "between two processes"
        self._copies += 1
        other = RealJournal(self.directory.with_name(f"{self.directory.name}-old{self._copies}"), self._has_streams)
        shutil.copytree(self.directory, other.directory, dirs_exist_ok=True)
        streams, self.streams = self.streams, None
        model = super().copy()
        self.streams = streams
        for name in ("segments", "ends", "end", "checkpointed", "synced_lsn", "runs", "metas", "live", "rotten"):
            setattr(other, name, getattr(model, name))
        other._stamp = self._stamp
        return other

    @property
    def copies(self) -> bool:
        return True

    # -- the process

    @property
    def inner(self) -> SyncJournal:
        """Open. Raises DamagedJournal."""
        if self._inner is None:
            if self._lost_page is not None:
                self._probe()
            self._open()
        assert self._inner is not None, "it was opened"
        return self._inner

    def _open(self) -> None:
        self._silent = False
        self._inner = SyncJournal.open(self.directory, OPTIONS, self._heard, self._state)

    def _probe(self) -> None:
        """With a page that was lost. If nothing is missing, it is put back: a page of free ones would be met later, and
        end this process. Raises DamagedJournal."""
        if (deadly := look([self.directory / "index"])) is not None:
            raise DamagedJournal(self.directory, "index/data.mdb", None, deadly.what)
        copy = self.directory.with_name(f"{self.directory.name}-probed")  # what a start writes stands on the lost page
        shutil.copytree(self.directory, copy)
        try:
            probed = SyncJournal.open(copy, OPTIONS, self._heard, self._state)
            try:
                told = folded(probed.recover)
            finally:
                probed.close()
        finally:
            shutil.rmtree(copy)
        expected = folded(super().recover)
        other = {queue_id: told.get(queue_id) for queue_id, has in expected.items() if told.get(queue_id) != has}
        if other:  # what was forgotten since an older checkpoint may be there: the wiring knows better
            right = {queue_id: expected[queue_id] for queue_id in other}
            raise Violation(f"journal: {self.directory.name} has lost a page, and holds {other}, not {right}")
        self._mend_page()

    def _mend_page(self) -> None:
        assert self._lost_page is not None, "one is lost"
        at, right = self._lost_page
        self._lost_page = None
        self._put_page(at, right)

    def _heard(self, call: Callable[[], object]) -> None:
        if not self._silent:
            call()

    def _state(self, state: str, detail: str) -> None:
        raise Violation(f"journal: {self.directory.name} is {state}: {detail}")

    def close(self) -> None:
        """The process is gone."""
        if self._inner is not None:
            self._silent = True
            self._inner.close()
            self._inner = None

    @property  # type: ignore[override]
    def use(self) -> SegmentUse:
        return self.inner.use

    @use.setter
    def use(self, use: SegmentUse) -> None:
        """Each life has its own."""

    @property  # type: ignore[override]
    def stamp(self) -> Stamp | None:
        return self._stamp

    @stamp.setter
    def stamp(self, stamp: Stamp | None) -> None:
        self._stamp = stamp
        if stamp is not None and self._inner is not None:
            self._inner.index.put_stamp(stamp)

    # -- groups

    @property
    def room(self) -> int:
        return self.inner.room

    def begin_group(self, pending_bytes: int) -> GroupWriter:
        writer, model = self.inner.begin_group(pending_bytes), super().begin_group(pending_bytes)
        assert (writer.segment, writer.offset) == (model.segment, model.offset), "the model goes along"
        return writer

    def submit(self, writer: GroupWriter, sync: bool, now_ms: int) -> None:
        finished: Any = Finished(writer)
        self.inner.submit(finished, sync, lambda: None)
        super().submit(finished, sync, now_ms)

    def complete_group(self) -> None:
        self.inner.writer.write()
        super().complete_group()
        self._follow()

    def _follow(self) -> None:
        """The writer may have flushed more than it was asked for."""
        self.synced_lsn = max(self.synced_lsn, self.inner.writer.durable_lsn)
        self._synced()

    # -- checkpoints

    def begin_checkpoint(self, runs: Any, metas: Any, forgotten: Any, filings: Sequence[Filing] = ()) -> None:
        inner = self.inner
        small = [filing._replace(segment_bytes=FILE_BYTES) for filing in filings]
        inner.checkpoint(runs, metas, forgotten, inner.position, lambda: None, small)
        super().begin_checkpoint(runs, metas, forgotten, filings)

    def complete_checkpoint(self) -> None:
        index = self.directory / "index" / "data.mdb"
        self._index_before = index.read_bytes()
        self.inner.writer.pass_barriers()
        self.inner.checkpointing.run()
        super().complete_checkpoint()
        self._follow()

    # -- crash and recovery

    def crash(self, kept: int = 0) -> int:
        if self._inner is None:  # it was found damaged
            return self.synced_lsn
        if self.checkpoint is not None and self._chance.random() < UNHEARD_SHARE:
            self._silent = True
            self.complete_checkpoint()
        kept = min(kept, self.unsynced)
        if self._inner.writer.waiting is not None:
            self._silent = True
            self._inner.writer.write()
        self.close()
        lost = self._lost(self.synced_lsn + kept)
        lsn = super().crash(kept)
        self._lose(lost)
        return lsn

    def _lost(self, lsn: int) -> list[tuple[int, int, int]]:
        """(segment, first byte, end) of groups behind this one."""
        found = []
        segment, offset, _ = self.checkpointed
        for end in self.ends:
            first = offset if end.segment == segment else 0
            segment, offset = end.segment, end.offset
            if end.lsn > lsn:
                found.append((segment, first, offset))
        return found

    def _lose(self, groups: list[tuple[int, int, int]]) -> None:
        for place, (segment, first, end) in enumerate(groups):
            path = self.directory / "segments" / f"{segment:08d}.seg"
            with open(path, "r+b") as file:
                file.seek(first)
                data = file.read(end - first)
                keep = 0
                if self._chance.random() < TORN_SHARE:
                    keep = len(data) if place else self._chance.randrange(len(data.rstrip(b"\0")))
                file.seek(first + keep)
                file.write(bytes(len(data) - keep))

    def recover(self, sink: RecoverySink) -> None:
        assert self.inner is not None, "it is open"
        self._compare(Told(sink))

    def _compare(self, told: Told) -> None:
        """What it tells is what the model tells."""
        inner, expected = self._inner, Told(None)
        assert inner is not None, "it is open"
        tail = inner.recover(told)  # type: ignore[arg-type]
        super().recover(expected)  # type: ignore[arg-type]
        if told.calls != expected.calls:
            pairs = zip(told.calls, expected.calls, strict=False)
            place = next((n for n, (one, other) in enumerate(pairs) if one != other), -1)
            raise Violation(
                f"journal: {self.directory.name} tells {told.calls[place : place + 1]} in the place of "
                f"{expected.calls[place : place + 1]}, {len(told.calls)} things and not {len(expected.calls)}"
            )
        segment, _, lsn = self.end
        if tail.position == (segment + 1, 0, lsn):  # of the group that began the next segment only the header is left
            self.end = type(self.end)(*tail.position)
        elif tail.position != self.end:
            raise Violation(f"journal: {self.directory.name} ends at {tail.position}, and was written to {self.end}")
        if inner.index.stamp != self._stamp:
            raise Violation(f"journal: {self.directory.name} is stamped {inner.index.stamp}, not {self._stamp}")

    # -- reading, and what the disk does to it

    def read(self, queue_id: int, locations: Sequence[tuple[int, int, int, int]]) -> list[Message | None]:
        together = self.inner.bring(queue_id, locations)
        if not isinstance(together, DamagedRecord):
            return list(together)
        apart = [self.inner.bring(queue_id, (location,)) for location in locations]
        return [None if isinstance(found, DamagedRecord) else found[0] for found in apart]

    def may_rot(self, segment: int, offset: int) -> bool:
        """Not what the next start reads anyway: it would set the whole journal aside."""
        return (segment, offset) < self.checkpointed[:2]

    def rot(self, segment: int, offset: int, queue_id: int, seq: int) -> None:
        super().rot(segment, offset, queue_id, seq)
        self._flip(segment, offset)

    def _flip(self, segment: int, offset: int) -> None:
        path = self.directory / "segments" / f"{segment:08d}.seg"
        if path.exists():
            with open(path, "r+b") as file:
                file.seek(offset + 4)  # in its checksum
                (octet,) = file.read(1)
                file.seek(offset + 4)
                file.write(bytes((octet ^ 1,)))

    def mend(self) -> None:
        for segment, offset in self.rotten:
            self._flip(segment, offset)
        super().mend()
        if self._lost_page is not None:
            assert self._inner is None, "between two processes"
            self._mend_page()

    def lose_page(self) -> bool:
        """One that the last commit has written is as it was before. Whether there is one."""
        assert self._inner is None, "between two processes"
        path = self.directory / "index" / "data.mdb"
        now, before = path.read_bytes() if path.exists() else b"", self._index_before
        pages = range(META_PAGES * PAGE_BYTES, len(now), PAGE_BYTES)
        changed = [at for at in pages if now[at : at + PAGE_BYTES] != before[at : at + PAGE_BYTES]]
        if self._lost_page is not None or not before or not changed:
            return False
        at = self._chance.choice(changed)
        self._lost_page = at, now[at : at + PAGE_BYTES]
        self._put_page(at, before[at : at + PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))
        return True

    def _put_page(self, at: int, page: bytes) -> None:
        with open(self.directory / "index" / "data.mdb", "r+b") as file:
            file.seek(at)
            file.write(page)
