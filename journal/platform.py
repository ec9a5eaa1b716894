"""Files where systems differ: flushes, space taken ahead, hints to the cache, never-written space (waits).

macOS has no fdatasync, posix_fallocate and posix_fadvise, and its fsync stops at the disk's own memory. `flush_file` in
commit_thread.h is `sync_data` for the thread that needs no interpreter.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Final

_FULL: Final = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its fsync leaves the bytes in the disk's own memory."""
_UNKNOWN: Final = frozenset((errno.ENOTSUP, errno.ENOTTY, errno.EINVAL))
"""A file system without it refuses with one of these."""
NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
"""The disk or the quota is full; numbers differ between systems."""
_ZEROS: Final = bytes(1 << 20)
_ADVISE: Final = getattr(os, "posix_fadvise", None)
_SEEK_DATA: Final = getattr(os, "SEEK_DATA", None)


def sync(fd: int) -> None:
    """The file's bytes and attributes outlive a crash from now on. Raises OSError."""
    if _FULL is not None:
        try:
            fcntl.fcntl(fd, _FULL)
            return
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """The file's bytes and length outlive a crash from now on. Raises OSError."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync(fd)


def sync_directory(path: Path) -> None:
    """Names that were made, changed or removed in it outlive a crash from now on. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Every byte at `offset`, in as many writes as the system needs. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def allocate(fd: int, first: int, size: int) -> None:
    """Takes the disk's space for the bytes from `first` up to `size`, the file's length afterwards; what is there
    stays. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, first, size - first)
        return
    for at in range(max(first, os.fstat(fd).st_size), size, len(_ZEROS)):
        write_all(fd, _ZEROS[: size - at], at)


def no_read_ahead(fd: int) -> None:
    """Reading ahead turns never-written space into cached pages of zeros, which count as written from then on."""
    if _ADVISE is not None:
        _ADVISE(fd, 0, 0, os.POSIX_FADV_RANDOM)


def drop_cache(fd: int) -> None:
    """The next read asks the disk; on macOS the cache."""
    if _ADVISE is not None:
        _ADVISE(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def written_from(fd: int, at: int, size: int) -> tuple[int, int]:
    """(first, end) of the first part of a file of `size` bytes at or after `at` that may hold anything but zeros; it is
    empty at the end of the file. A file system that cannot tell has written everything."""
    if _SEEK_DATA is not None:
        try:
            first = os.lseek(fd, at, _SEEK_DATA)
            return min(first, size), min(os.lseek(fd, first, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return size, size
    return min(at, size), size
