"""Flushes, and space taken ahead, where systems differ (waits)."""

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
_ZEROS: Final = bytes(1 << 20)


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


def allocate(fd: int, first: int, size: int) -> None:
    """Takes the disk's space for the bytes from `first` up to `size`, the file's length afterwards; what is there
    stays. Raises OSError."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, first, size - first)
        return
    for at in range(max(first, os.fstat(fd).st_size), size, len(_ZEROS)):
        os.pwrite(fd, _ZEROS[: size - at], at)
