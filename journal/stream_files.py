"""The files of streams: what has left the shared log, and stays until retention lets it go (waits).

Theory. The shared log is one write and one flush for all queues; a stream would keep its segments for ever. So a
checkpoint copies the stream's records to files of its own, flushes those, and commits a catalogue of them with the
index, in this order: a record stands in the log until the catalogue that counts it is durable
(`stream_catalogue.py`).

Bytes of a file behind its counted size are of a checkpoint that a crash cut off: the next one writes over them. A file
is appended to until it has `segment_bytes`, and never after a part of it was cut off. Files that no catalogue names
any more go when the one without them is durable. No call here knows what a queue is besides its number.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from clusterbroker.journal.errors import DamagedJournal, JournalFull
from clusterbroker.journal.layout import ENQ, ENQ_OVERHEAD_BYTES, RECORD_HEADER, RECORD_HEADER_BYTES
from clusterbroker.journal.platform import NO_SPACE, sync_data, sync_directory, write_all
from clusterbroker.journal.record import DamagedRecord
from clusterbroker.journal.segments import Segments
from clusterbroker.journal.stream_catalogue import (
    HEADER_BYTES,
    NOTHING,
    Filing,
    Moved,
    StreamFile,
    Taken,
    Wish,
    check_header,
    header,
)
from clusterbroker.journal.walk import prove_run, take_records

PIECE_BYTES: Final = 1 << 20
MARK_BYTES: Final = 256 << 10
"""About so far apart places in a file are remembered."""
MARKED_FILES_MAX: Final = 4096
OPEN_FILES_MAX: Final = 64
_QUEUE_ID_AT: Final = 16
"""In a record's head (journal/layout.py)."""


class Proved(NamedTuple):
    """What came of a look at a piece of a file."""

    at: tuple[int, int]
    """Where the next piece begins, or the damage: (offset, seq)."""
    damage: str = ""


class StreamFiles:
    """The files of all streams of one journal directory. Writing is the checkpoint thread's, reading the reader's."""

    def __init__(self, directory: Path, segments: Segments) -> None:
        self.folder = directory / "streams"
        self._segments = segments
        self._open: OrderedDict[tuple[int, int], int] = OrderedDict()  # the reader's
        self._marks: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()  # (seq, offset), ascending
        self._made: set[tuple[int, int]] = set()  # files that no durable catalogue names yet
        self._sizes: dict[int, int] = {}  # per stream, of what counts in its files

    def path(self, queue_id: int, name: int) -> Path:
        """Of one file."""
        return self.folder / str(queue_id) / f"{name:020d}.seg"

    def size(self) -> int:
        """Bytes in files of all streams, by the catalogues."""
        return sum(tuple(self._sizes.values()))

    def _count(self, queue_id: int, files: Sequence[StreamFile]) -> None:
        self._sizes[queue_id] = sum(part.size for part in files)

    def queues(self) -> list[int]:
        """Those that have a folder, ascending."""
        try:
            return sorted(int(name) for name in os.listdir(self.folder) if name.isdigit())
        except FileNotFoundError:
            return []

    def names(self, queue_id: int) -> list[int]:
        """The files that a stream's folder holds, ascending."""
        try:
            found = os.listdir(self.folder / str(queue_id))
        except FileNotFoundError:
            return []
        return sorted(int(name[:-4]) for name in found if name.endswith(".seg") and name[:-4].isdigit())

    # -- the checkpoint's part

    def file(self, filing: Filing) -> tuple[StreamFile, ...]:
        """Copies what moved out of the shared log, durably, and completes the meta; returns the new catalogue.

        Raises JournalFull: nothing counts yet, and it may be tried again. Raises DamagedRecord, OSError.
        """
        files = [self.counted_upto(filing.queue_id, part) if part.name in filing.cut else part for part in filing.files]
        fds: dict[int, int] = {}
        try:
            folder = self.folder / str(filing.queue_id)
            made = not folder.exists()
            for moved in filing.moved:
                self._append(filing, files, fds, moved)
            for fd in fds.values():
                sync_data(fd)
            if fds:
                sync_directory(folder)
            if made and fds:
                sync_directory(self.folder)
                sync_directory(self.folder.parent)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise JournalFull(f"{self.folder / str(filing.queue_id)}: {error}") from error
            raise
        finally:
            for fd in fds.values():
                os.close(fd)
        filing.meta["files"] = [part.entry() for part in files]
        self._count(filing.queue_id, files)
        return tuple(files)

    def _append(self, filing: Filing, files: list[StreamFile], fds: dict[int, int], moved: Moved) -> None:
        seq = moved.first
        for segment, offset, size in moved.places:
            with open(self._segments.path(segment), "rb") as source:
                stop = offset + size
                while offset < stop:
                    taken, offset = take_run(source.fileno(), offset, stop, filing.queue_id, _all(seq, moved.end))
                    if not taken.records:
                        break  # none of these is wanted
                    if taken.first != seq:
                        raise DamagedRecord(offset, f"not message {seq} of queue {filing.queue_id}")
                    seq, first_ms, last_ms = prove_run(taken.records, filing.queue_id, seq)
                    place = self._place(filing, files, fds, taken.first)
                    part = files[place]
                    write_all(fds[part.name], taken.records, part.size)
                    files[place] = part._replace(
                        end=seq,
                        size=part.size + len(taken.records),
                        first_ms=part.first_ms or first_ms,
                        last_ms=max(part.last_ms, last_ms),
                    )
        if seq != moved.end:
            raise DamagedRecord(0, f"the log has no messages {seq} to {moved.end - 1} of queue {filing.queue_id}")

    def _place(self, filing: Filing, files: list[StreamFile], fds: dict[int, int], seq: int) -> int:
        """Which file takes message `seq`: the one that ends there, or a new one."""
        place = bisect_right(files, seq, key=lambda part: part.first) - 1
        part = files[place] if place >= 0 else None
        if part is not None and part.end == seq and part.size < filing.segment_bytes and part.name not in filing.closed:
            if part.name not in fds:
                fd = fds[part.name] = os.open(self.path(filing.queue_id, part.name), os.O_RDWR | os.O_CLOEXEC)
                os.ftruncate(fd, part.size)
            return place
        name, taken = seq, {known.name for known in files} | filing.closed | set(filing.gone)
        while name in taken or self._counts(filing.queue_id, name):
            name += 1  # something in a file of that name still counts, or is being read
        path = self.path(filing.queue_id, name)
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._made.add((filing.queue_id, name))
        fds[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        write_all(fds[name], header(filing.queue_id, seq), 0)
        files.insert(place + 1, StreamFile(seq, seq, HEADER_BYTES, 0, 0, name))
        return place + 1

    def _counts(self, queue_id: int, name: int) -> bool:
        """Whether a file may be of an earlier catalogue: its stream lost its copy, or the file is about to go."""
        return (queue_id, name) not in self._made and self.path(queue_id, name).exists()

    def counted(self) -> None:
        """The catalogues of all that was filed are durable."""
        self._made.clear()

    def counted_upto(self, queue_id: int, part: StreamFile) -> StreamFile:
        """A file whose end was cut off: how many of its bytes count. Damage before that is told by who reads it."""
        offset, seq = HEADER_BYTES, 0
        with open(self.path(queue_id, part.name), "rb") as source:
            fd = source.fileno()
            while seq < part.end:
                try:
                    taken, after = take_run(fd, offset, part.size, queue_id, _all(seq, part.end))
                except DamagedRecord:
                    taken = NOTHING
                if not taken.records:  # or a head that is damaged says that it is of the end, or longer than the file
                    return part._replace(size=end_beside(fd, offset, part.size, queue_id, part.end))
                seq, offset = taken.next_seq, after
        return part._replace(size=offset)

    def prove(self, queue_id: int, part: StreamFile) -> int:
        """How many messages count of a file, each of them proved. Raises DamagedRecord, OSError."""
        with open(self.path(queue_id, part.name), "rb") as source:
            fd, offset, seq = source.fileno(), HEADER_BYTES, part.first
            check_header(os.pread(fd, HEADER_BYTES, 0), queue_id)
            while seq < part.end:
                try:
                    taken, after = take_run(fd, offset, part.size, queue_id, _all(seq, part.end))
                except DamagedRecord as damage:
                    raise DamagedRecord(offset + damage.offset, damage.args[1]) from damage
                if taken.first != seq:
                    raise DamagedRecord(offset, f"message {seq} is not in it")
                seq, offset = taken.next_seq, after
        return part.end - part.first

    def prove_piece(self, queue_id: int, part: StreamFile, at: tuple[int, int], bytes_max: int) -> Proved:
        """About so many bytes of a file from `at` on: (offset, the seq that stands there); (0, 0) is the beginning."""
        offset, seq = at if at[0] else (HEADER_BYTES, part.first)
        stop = offset + bytes_max
        try:
            with open(self.path(queue_id, part.name), "rb") as source:
                fd = source.fileno()
                if not at[0]:
                    check_header(os.pread(fd, HEADER_BYTES, 0), queue_id)
                while seq < part.end and offset < stop:
                    taken, after = take_run(fd, offset, part.size, queue_id, _all(seq, part.end))
                    if taken.first != seq:
                        return Proved((offset, seq), f"message {seq} is not in it")
                    seq, offset = taken.next_seq, after
        except (DamagedRecord, OSError) as error:
            what = error.args[1] if isinstance(error, DamagedRecord) else error
            return Proved((offset, seq), f"{what} (message {seq} or one behind it)")
        return Proved((offset, seq))

    def remove(self, queue_id: int, names: Iterable[int]) -> None:
        """Files that no catalogue names. On the reader's thread, behind what was asked to be read of them."""
        for name in names:
            fd = self._open.pop((queue_id, name), -1)
            if fd >= 0:
                os.close(fd)
            self._marks.pop((queue_id, name), None)
            self.path(queue_id, name).unlink(missing_ok=True)

    def forget(self, queue_id: int, kept: Sequence[StreamFile]) -> None:
        """A copy of the stream is no more, and its meta neither; `kept` are files of another copy that began since. On
        the checkpoint's thread; `forget_open` on the reader's."""
        names = {part.name for part in kept}
        self._sizes.pop(queue_id, None)
        if not names:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.folder / str(queue_id))
            return
        self._count(queue_id, kept)
        for name in self.names(queue_id):
            if name not in names:
                self.path(queue_id, name).unlink(missing_ok=True)

    def forget_open(self, queue_id: int) -> None:
        """What the reader knows of its files."""
        for known in [key for key in self._open if key[0] == queue_id]:
            os.close(self._open.pop(known))
        for known in [key for key in self._marks if key[0] == queue_id]:
            del self._marks[known]

    def sweep(
        self,
        catalogues: Mapping[int, Sequence[StreamFile]],
        hurt: Callable[[int, str], object] | None = None,
    ) -> None:
        """At the start: files that no catalogue names are what a crash left. Raises DamagedJournal when a file that one
        names is gone, or shorter than it counts; with `hurt(queue id, what)` it is told there instead."""
        for queue_id, files in catalogues.items():
            for part in files:
                path = self.path(queue_id, part.name)
                size = path.stat().st_size if path.exists() else -1
                if size < part.size:
                    what = "the file is gone" if size < 0 else f"the file ends at {size}, {part.size} bytes of it count"
                    file = f"streams/{queue_id}/{path.name}"
                    if hurt is None:
                        raise DamagedJournal(self.folder.parent, file, None, what, queue_id)
                    hurt(queue_id, f"{file}: {what}")
        for queue_id in self.queues():
            self.forget(queue_id, catalogues.get(queue_id, ()))

    # -- the reader's part

    def take(self, queue_id: int, part: StreamFile | Moved, wish: Wish) -> Taken | DamagedRecord:
        """Out of a file, or of the shared log what a checkpoint is about to copy. Damage is returned, in words."""
        if max(wish.seq, part.first) >= min(wish.end, part.end):
            return NOTHING
        try:
            if isinstance(part, Moved):
                return self.read_moved(queue_id, part, wish)
            return self.read(queue_id, part, wish)
        except (DamagedRecord, OSError) as error:
            what = error.args[1] if isinstance(error, DamagedRecord) else error
            where = self.path(queue_id, part.name) if isinstance(part, StreamFile) else self._segments.folder
            return DamagedRecord(0, f"{what} ({where}, queue {queue_id:#x})")

    def read(self, queue_id: int, part: StreamFile, wish: Wish) -> Taken:
        """Out of a file. Raises DamagedRecord, OSError."""
        fd = self._fd(queue_id, part.name)
        marks = self._known(queue_id, part.name, fd)
        offset = marks[bisect_right(marks, wish.seq, key=lambda mark: mark[0]) - 1][1]
        taken, after = take_run(fd, offset, part.size, queue_id, wish._replace(end=min(wish.end, part.end)))
        if taken.records:
            _mark(marks, taken.next_seq, after)
        return taken

    def read_moved(self, queue_id: int, moved: Moved, wish: Wish) -> Taken:
        """Out of the shared log, of what a checkpoint is about to copy. Raises DamagedRecord, OSError."""
        wish = wish._replace(end=min(wish.end, moved.end))
        for segment, offset, size in moved.places:
            with open(self._segments.path(segment), "rb") as source:
                taken, _ = take_run(source.fileno(), offset, offset + size, queue_id, wish)
            if taken.records:
                return taken
        return NOTHING

    def _known(self, queue_id: int, name: int, fd: int) -> list[tuple[int, int]]:
        """(seq, offset) of places in the file, ascending."""
        marks = self._marks.get((queue_id, name))
        if marks is None:
            check_header(os.pread(fd, HEADER_BYTES, 0), queue_id)
            if len(self._marks) >= MARKED_FILES_MAX:
                self._marks.popitem(last=False)
            marks = self._marks[queue_id, name] = [(0, HEADER_BYTES)]
        return marks

    def _fd(self, queue_id: int, name: int) -> int:
        key = queue_id, name
        fd = self._open.pop(key, -1)
        if fd < 0:
            fd = os.open(self.path(queue_id, name), os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) >= OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
        self._open[key] = fd
        return fd

    def close(self) -> None:
        """The reader's descriptors."""
        while self._open:
            os.close(self._open.popitem()[1])


def _all(seq: int, end: int) -> Wish:
    return Wish(seq, end, 2**62, PIECE_BYTES)


def take_run(fd: int, offset: int, stop: int, queue_id: int, wish: Wish) -> tuple[Taken, int]:
    """Out of the run of records between two bytes of a file; and where the next record begins."""
    room = wish.bytes_max
    while offset < stop:
        data = os.pread(fd, min(room, stop - offset), offset)
        start, after, first, next_seq = take_records(data, queue_id, *wish)
        if first:
            return Taken(first, next_seq, data[start:after]), offset + after
        if start == 0 and len(data) == room:
            room *= 4  # one record is longer
        elif start == 0 or len(data) < room:
            break
        offset += start
    return NOTHING, offset


class Beside(NamedTuple):
    """A sound record of a run with damaged ones, and where it stands."""

    at: int
    after: int
    seq: int
    record: bytes
    times: tuple[int, int]
    """(first_ms, last_ms)"""
    passed_over: int
    """The highest seq of the heads since the last sound record that were too long to be proved; 0: none."""


def end_beside(fd: int, offset: int, stop: int, queue_id: int, end: int) -> int:
    """Where what stands before message `end` ends, in a run with damaged records from `offset` to `stop`: at the first
    sound record of it or a later one, or right behind the message before it; where nothing sound follows, behind the
    last sound one. Damage of which nobody can say on which side it stands is kept: who reads it is told, and skips
    nothing without a word. If a head was passed over that may be of the end, nothing counts behind the last sound one
    before it: nothing that was cut off counts."""
    last, known = 0, offset
    for one in sound_records(fd, offset, stop, queue_id):
        if one.seq >= end:
            return known if last == end - 1 or one.passed_over >= end else one.at
        last, known = one.seq, one.after
    return known


def sound_records(fd: int, offset: int, stop: int, queue_id: int) -> Iterator[Beside]:
    """The sound records of a run with damaged ones from `offset` to `stop`, ascending in the file.

    What a client wrote may look like heads of records. So none is proved any more once as many bytes were summed in
    vain as the run has, and as stand before it: at most three times the run is summed."""
    known, left, passed_over = offset, stop - offset, 0
    for at, after, seq in _heads(fd, offset, stop, queue_id):
        if at < known:
            continue
        if after - at > left + (at - offset):
            passed_over = max(passed_over, seq)
            continue
        record = os.pread(fd, after - at, at)
        try:
            _, first_ms, last_ms = prove_run(record, queue_id, seq)
        except DamagedRecord:
            left -= after - at
            continue
        yield Beside(at, after, seq, record, (first_ms, last_ms), passed_over)
        known, passed_over = after, 0


def _heads(fd: int, offset: int, stop: int, queue_id: int) -> Iterator[tuple[int, int, int]]:
    """(offset, end, seq) of all between two bytes of a file that a message of the queue might begin with, ascending."""
    wanted = queue_id.to_bytes(8, "little")
    more = True
    while more:
        piece = os.pread(fd, min(PIECE_BYTES, stop - offset), offset)
        place = piece.find(wanted, _QUEUE_ID_AT)
        while 0 <= place <= len(piece) - (RECORD_HEADER_BYTES - _QUEUE_ID_AT):
            at = place - _QUEUE_ID_AT
            length, _, kind, _, _, _, _, _, seq = RECORD_HEADER.unpack_from(piece, at)
            after = offset + at + (length + 7 & ~7)
            if at % 8 == 0 and kind == ENQ and length >= ENQ_OVERHEAD_BYTES and after <= stop:
                yield offset + at, after, seq
            place = piece.find(wanted, place + 1)
        more = len(piece) == PIECE_BYTES
        offset += len(piece) - (RECORD_HEADER_BYTES - 8)  # one that is cut off here is whole there


def _mark(marks: list[tuple[int, int]], seq: int, offset: int) -> None:
    """Remembers where a message begins, if nothing near it is remembered."""
    place = bisect_right(marks, offset, key=lambda mark: mark[1])
    if offset - marks[place - 1][1] >= MARK_BYTES and (place == len(marks) or marks[place][1] - offset >= MARK_BYTES):
        marks.insert(place, (seq, offset))
