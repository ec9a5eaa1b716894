"""What is kept of a worker's output: two files of at most half the bound each.

The worker writes to a FIFO that it has open for reading as well: it gets no SIGPIPE while no foreman reads, and the
next foreman goes on reading. A worker that writes more than the FIFO holds (64 KiB) meanwhile waits.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

READ_BYTES: Final = 1 << 16


class Output:
    """Copies a FIFO to a file, until the last writer is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fifo: Path, log: Path, bytes_max: int) -> None:
        """Raises OSError."""
        self._loop = loop
        self._log = log
        self._half = max(1, bytes_max // 2)
        self._fifo = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self._file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
        loop.add_reader(self._fifo, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._fifo, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._keep(data)
        else:
            self.close()

    def _keep(self, data: bytes) -> None:
        data = data[-self._half :]
        if self._size + len(data) > self._half:
            os.close(self._file)
            self._log.replace(self._log.with_suffix(".log.1"))
            self._file = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._size = 0
        try:
            self._size += os.write(self._file, data)
        except OSError:
            pass  # a full disk keeps nothing of it, and the worker runs on

    def close(self) -> None:
        """Reads what is there, once. May be called again."""
        if self._fifo < 0:
            return
        self._loop.remove_reader(self._fifo)
        fifo, self._fifo = self._fifo, -1
        try:
            while data := os.read(fifo, READ_BYTES):
                self._keep(data)
        except OSError:
            pass  # a child that left the worker's session holds it open
        os.close(fifo)
        os.close(self._file)
