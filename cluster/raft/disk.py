"""The files of a Raft log, behind a port: names in one directory, appended to, synced, or replaced as a whole.

The simulation has another one, which forgets what was not synced.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Protocol

from cluster.errors import DiskFailed, DiskFull


class Disk(Protocol):
    """What the log needs of a disk. Every method may raise DiskFailed or DiskFull: the node must stop then."""

    @property
    def path(self) -> str:
        """Where it is, for texts of errors."""

    def read(self, name: str) -> bytes | None:
        """The whole file; None: there is none."""

    def append(self, name: str, data: bytes | bytearray) -> None:
        """Write at the end of the file, which is made when it is missing. Durable only after `sync`."""

    def sync(self, name: str) -> None:
        """What was appended is durable when this returns (one fdatasync)."""

    def truncate(self, name: str, size: int) -> None:
        """Cut the file, durably."""

    def replace(self, name: str, data: bytes | bytearray) -> None:
        """Put a file in the place of another: a crash leaves the one or the other, whole. Durable on return."""

    def close(self) -> None:
        """Give the files back."""


class FileDisk:
    """The port over a directory, which is made when it is missing."""

    __slots__ = ("_directory", "_open")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, int] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._failure(error, "cannot be made") from error

    @property
    def path(self) -> str:
        """Where it is, for texts of errors."""
        return str(self._directory)

    def read(self, name: str) -> bytes | None:
        """See Disk."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error, f"{name} cannot be read") from error

    def append(self, name: str, data: bytes | bytearray) -> None:
        """See Disk."""
        try:
            _write(self._descriptor(name), data)
        except OSError as error:
            raise self._failure(error, f"{name} cannot be written") from error

    def sync(self, name: str) -> None:
        """See Disk."""
        try:
            os.fdatasync(self._descriptor(name))
        except OSError as error:
            raise self._failure(error, f"{name} cannot be synced") from error

    def truncate(self, name: str, size: int) -> None:
        """See Disk."""
        try:
            descriptor = self._descriptor(name)
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        except OSError as error:
            raise self._failure(error, f"{name} cannot be cut") from error

    def replace(self, name: str, data: bytes | bytearray) -> None:
        """See Disk. Written beside, synced, renamed, and the rename synced with the directory."""
        new = self._directory / f"{name}.new"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            new.rename(self._directory / name)
            self._sync_directory()
        except OSError as error:
            raise self._failure(error, f"{name} cannot be replaced") from error
        self._forget(name)

    def close(self) -> None:
        """See Disk."""
        for name in sorted(self._open):
            self._forget(name)

    def _descriptor(self, name: str) -> int:
        descriptor = self._open.get(name)
        if descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = self._open[name] = os.open(self._directory / name, flags, 0o600)
            self._sync_directory()
        return descriptor

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _forget(self, name: str) -> None:
        """Close a descriptor that no longer stands for the name."""
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def _failure(self, error: OSError, what: str) -> DiskFailed | DiskFull:
        text = f"{self._directory}: {what} ({error.strerror}); the node must stop"
        return DiskFull(text) if error.errno in (errno.ENOSPC, errno.EDQUOT) else DiskFailed(text)


def _write(descriptor: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
