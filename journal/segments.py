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

from journal.errors import DamagedJournal


class Position(NamedTuple):
    """A place between two groups: the next one starts at `offset` of `segment`; `lsn` is the last one before it."""

    segment: int
    offset: int
    lsn: int


START = Position(1, 0, 0)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
                    os.posix_fallocate(fd, 0, size)
                except OSError:
                    os.ftruncate(fd, before)
                    raise
            os.fsync(fd)
            sync_directory(self.folder)
        except OSError:
            os.close(fd)
            raise
        return fd

    def unlink(self, segment: int) -> None:
        self.path(segment).unlink(missing_ok=True)

    def damaged(self, segment: int, offset: int | None, what: str, queue_id: int | None = None) -> DamagedJournal:
        return DamagedJournal(self.directory, f"segments/{self.path(segment).name}", offset, what, queue_id)

    @contextmanager
    def mapped(self, segment: int) -> Iterator[mmap.mmap | bytes]:
        """The file's bytes without reading them; raises FileNotFoundError."""
        with open(self.path(segment), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                yield b""
                return
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
                yield data

    def written_extents(self, segment: int, start: int) -> Iterator[tuple[int, int]]:
        """(first, end) of the parts from `start` on that may hold anything but zeros; allocated space that was
        never written is skipped where the file system can tell."""
        fd = os.open(self.path(segment), os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            while start < size:
                try:
                    start = os.lseek(fd, start, os.SEEK_DATA)
                    end = os.lseek(fd, start, os.SEEK_HOLE)
                except OSError:
                    return
                yield start, min(end, size)
                start = end
        finally:
            os.close(fd)
