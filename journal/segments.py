"""The segment files: `segments/00000001.seg`, `00000002.seg` ... of one journal directory.

Numbers only grow. Behind the file in use one more is allocated ahead, so that rolling over costs nothing and a full
disk is noticed while there is still a whole segment to write acknowledgements into. Files disappear from anywhere
below the checkpoint, so gaps in the numbers are normal there and nowhere else.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.platform import allocate, no_read_ahead, sync, sync_directory, written_from


class Position(NamedTuple):
    """A place between two groups: the next one starts at `offset` of `segment`; `lsn` is the last one before it."""

    segment: int
    offset: int
    lsn: int


START = Position(1, 0, 0)
PIECE_BYTES = 4 << 20
"""How much of a segment is read at once; more only for a longer group."""


class Segments:
    """Names, sizes and births of the segment files of the journal in `directory`."""

    __slots__ = ("directory", "folder")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.folder = directory / "segments"

    def path(self, segment: int) -> Path:
        return self.folder / f"{segment:08d}.seg"

    def numbers(self) -> list[int]:
        """All that exist, ascending."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        return sorted(int(name[:-4]) for name in names if name.endswith(".seg") and name[:-4].isdigit())

    def size(self, segment: int) -> int:
        return self.path(segment).stat().st_size

    def create(self, segment: int, size: int) -> int:
        """Allocates the file, or lets an existing one grow, and returns its descriptor. The file and its name are
        durable afterwards. Raises OSError; then whatever space was taken has been given back."""
        path = self.path(segment)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            before = os.fstat(fd).st_size
            if before < size:
                try:
                    allocate(fd, 0, size)
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            sync(fd)
            sync_directory(self.folder)
        except OSError:
            os.close(fd)
            raise
        return fd

    def unlink(self, segment: int) -> None:
        self.path(segment).unlink(missing_ok=True)

    def damaged(self, segment: int, offset: int | None, what: str, queue_id: int | None = None) -> DamagedJournal:
        return DamagedJournal(self.directory, f"segments/{self.path(segment).name}", offset, what, queue_id)

    def open(self, segment: int) -> SegmentFile:
        """Raises FileNotFoundError."""
        return SegmentFile(self.path(segment))

    @contextmanager
    def mapped(self, segment: int) -> Iterator[mmap.mmap | bytes]:
        """The file's bytes without reading them, for tools that jump about in it; raises FileNotFoundError."""
        with open(self.path(segment), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                yield b""
                return
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                yield data


class SegmentFile:
    """One segment, read in pieces: memory follows the piece, not the file. `with segments.open(number) as file`.

    A map of the whole file would do without copies, but its pages count as the process's resident memory, and a
    file that is shorter than it was kills the reader with a signal.
    """

    __slots__ = ("_base", "_fd", "_piece", "size")

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self._fd).st_size
        self._base = 0
        self._piece = b""
        no_read_ahead(self._fd)

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, first: int, end: int) -> bytes:
        """Bytes first..end, fewer where the file ends."""
        data = os.pread(self._fd, max(0, end - first), first)
        while len(data) < min(end, self.size) - first:
            more = os.pread(self._fd, end - first - len(data), first + len(data))
            if not more:
                break
            data += more
        return data

    def around(self, at: int, length: int) -> tuple[bytes, int]:
        """(data, base): a piece that begins with byte `base` of the file and holds at..at + length, as far as the
        file does. It is kept for the next call."""
        if at < self._base or at + length > self._base + len(self._piece):
            self._piece = b""
            found, end = written_from(self._fd, at, self.size)
            wanted = min(end, at + PIECE_BYTES) if found == at else at
            self._piece = self.read(at, max(wanted, at + length))
            self._base = at
        return self._piece, self._base

    def written(self, start: int) -> list[tuple[int, int]]:
        """(first, end) of the parts from `start` on that may hold anything but zeros; space that was allocated and
        never written is left out where the file system can tell."""
        extents = []
        while start < self.size:
            first, start = written_from(self._fd, start, self.size)
            if first < start:
                extents.append((first, start))
        return extents

    def pieces(self, start: int, beyond: int = 0) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of all written parts from `start` on; each goes on for `beyond` bytes into what follows,
        so that nothing of that length is missed for standing across an edge."""
        for first, end in self.written(start):
            for at in range(first, end, PIECE_BYTES):
                yield at, self.read(at, min(at + PIECE_BYTES, end) + beyond)

    def any_byte(self, start: int) -> bool:
        """Whether anything but zeros stands at or after `start`."""
        return any(piece != bytes(len(piece)) for _, piece in self.pieces(start))
