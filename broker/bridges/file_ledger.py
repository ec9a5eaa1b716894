"""A ledger in a file: records are appended and flushed; what is closed is dropped by writing the file anew (waits)."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clusterbroker.broker.bridges.ledger import State, begun, closed, framed, opened, state, summary
from clusterbroker.broker.bridges.ledger import bodies as whole

ANEW_BYTES: Final = 4 << 20
"""A file that grew by so much is written anew when a window is closed."""


class FileLedger:
    """Of one queue; `close` in the end. Nobody else writes the file meanwhile."""

    def __init__(self, path: Path, name: str) -> None:
        """Opens or makes it. Raises OSError, BadLedger. `name`: begins the producer of a new one."""
        self._path = path
        self._producer = f"{name}/{uuid.uuid4().hex}".encode()
        octets = path.read_bytes() if path.exists() else b""
        found = list(whole(octets))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = found[-1][0] if found else 0
        self._anew_at = ANEW_BYTES
        os.ftruncate(self._file, self._size)
        if not found:
            self._write(framed(opened(self._producer)))
            _flush_directory(path.parent)
            found = [(0, opened(self._producer))]
        self.state: State = begun(state(body for _, body in found), time.time())
        """As it was found, in a new session."""
        self._producer = self.state.producer
        self._write(framed(closed(self.state.next, (one for one in self.state.window if not one.closed))))

    async def append(self, bodies: Sequence[bytes]) -> None:
        """Returns when they are durable. Raises OSError."""
        await asyncio.to_thread(self._append, bodies)

    def _append(self, bodies: Sequence[bytes]) -> None:
        self._write(b"".join(map(framed, bodies)))
        if self._size > self._anew_at and bodies[-1][:1] == closed(0)[:1]:
            self._anew()

    def _write(self, octets: bytes) -> None:
        written = 0
        while written < len(octets):
            written += os.write(self._file, octets[written:])
        os.fdatasync(self._file)
        self._size += len(octets)

    def _anew(self) -> None:
        found = state(body for _, body in whole(self._path.read_bytes()))
        octets = b"".join(map(framed, summary(found)))
        beside = self._path.with_suffix(".new")
        file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        old, self._file, self._size = self._file, file, 0
        os.close(old)
        self._write(octets)
        self._anew_at = len(octets) + ANEW_BYTES
        beside.rename(self._path)
        _flush_directory(self._path.parent)

    def close(self) -> None:
        """May be called again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _flush_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
