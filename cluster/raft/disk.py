"""Files of a Raft log: names in one directory, appended to, synced, or replaced as a whole.

The simulation has another class with these methods, which forgets unsynced data.

An appended file has space ahead of its end, as zeros, so that a disk filled by others does not end the node at once:
it goes on following the wiring log while its alarm is raised. A reader after a crash finds the zeros behind the last
batch, like a torn write, and cuts them off.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from clusterbroker.cluster.errors import DiskFailed, DiskFull
from clusterbroker.journal.platform import NO_SPACE, allocate, sync, sync_data, sync_directory

AHEAD_BYTES: Final = 1 << 20
"""Between a half of it and the whole is kept free ahead of a file's end."""
REMEDY: Final = (
    "a start takes the log from the other members; where there are none, restore this node's disk, or let it join anew "
    "with an empty directory"
)
"""What is done about damage of the log, for a reader from outside."""


class FileDisk:
    """One directory, which is made when it is missing. Every method may raise DiskFailed or DiskFull: the node must
    stop then."""

    __slots__ = ("_directory", "_open")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, _File] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._failure(error, "cannot be made") from error

    @property
    def path(self) -> str:
        """Where it is, for texts of errors."""
        return str(self._directory)

    def read(self, name: str) -> bytes | None:
        """The whole file; None: there is none."""
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error, f"{name} cannot be read") from error

    def append(self, name: str, data: bytes | bytearray) -> None:
        """Write at the end of the file, which is made when it is missing. Durable only after `sync`."""
        try:
            self._file(name).append(data)
        except OSError as error:
            raise self._failure(error, f"{name} cannot be written") from error

    def sync(self, name: str) -> None:
        """What was appended is durable when this returns (one fdatasync)."""
        try:
            sync_data(self._file(name).descriptor)
        except OSError as error:
            raise self._failure(error, f"{name} cannot be synced") from error

    def truncate(self, name: str, size: int) -> None:
        """Cut the file, durably."""
        try:
            self._file(name).truncate(size)
        except OSError as error:
            raise self._failure(error, f"{name} cannot be cut") from error

    def replace(self, name: str, data: bytes | bytearray) -> None:
        """Put a file in the place of another: a crash leaves the one or the other, whole. Durable on return. Written
        beside, synced, renamed, and the rename synced with the directory."""
        new = self._directory / f"{name}.new"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write(descriptor, data)
                sync(descriptor)
            finally:
                os.close(descriptor)
            new.rename(self._directory / name)
            sync_directory(self._directory)
        except OSError as error:
            raise self._failure(error, f"{name} cannot be replaced") from error
        self._forget(name)

    def close(self) -> None:
        """Give the files back."""
        for name in sorted(self._open):
            with contextlib.suppress(OSError):
                os.ftruncate(self._open[name].descriptor, self._open[name].end)
            self._forget(name)

    def _file(self, name: str) -> _File:
        file = self._open.get(name)
        if file is None:
            descriptor = os.open(self._directory / name, os.O_WRONLY | os.O_CREAT, 0o600)
            file = self._open[name] = _File(descriptor)
            sync_directory(self._directory)
        return file

    def _forget(self, name: str) -> None:
        """Close a descriptor that no longer stands for the name."""
        file = self._open.pop(name, None)
        if file is not None:
            os.close(file.descriptor)

    def _failure(self, error: OSError, what: str) -> DiskFailed | DiskFull:
        text = f"{self._directory}: {what} ({error.strerror}); the node must stop"
        return DiskFull(text) if error.errno in NO_SPACE else DiskFailed(text)


class _File:
    """One that is appended to. `end`: what was appended ends there; the file may be longer."""

    __slots__ = ("_size", "descriptor", "end")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.end = self._size = os.fstat(descriptor).st_size

    def append(self, data: bytes | bytearray) -> None:
        if self._size < self.end + len(data) + AHEAD_BYTES // 2:
            self._go_ahead(self.end + len(data) + AHEAD_BYTES)
        view = memoryview(data)
        while view:
            written = os.pwrite(self.descriptor, view, self.end)
            self.end += written
            view = view[written:]
        self._size = max(self._size, self.end)

    def _go_ahead(self, size: int) -> None:
        with contextlib.suppress(OSError):  # a full disk: what there is must do
            allocate(self.descriptor, self.end, size)
        self._size = os.fstat(self.descriptor).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        sync(self.descriptor)
        self.end = self._size = size


def _write(descriptor: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
