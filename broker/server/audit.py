"""The audit: one line for each administrative operation, done or refused (waits).

    {"at": "2026-11-21T23:10:00.123Z", "node": "a", "user": "guest", "from": "127.0.0.1", "via": "http",
     "what": "PUT /api/users/{user}", "on": {"user": "bob"}, "outcome": "done", "status": 201}

Without a file they are lines of the node's log (event `audit`). With one they go there only, from the node and from its
management process alike: each line is one write at the end of the file, under a lock that both respect. A file beyond
its size becomes FILE.1, and so on up to the configured number; then the oldest is removed.

No line holds a password, a hash, a token or the body of a message: the callers hand in names and outcomes only. Clients
can repeat refusals at will, so these pass a bucket as in the log; completed operations always pass.

A thread of its own writes. A hanging disk delays lines and no operation; beyond WAITING_MAX lines the newest are lost,
with a report.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final

from clusterbroker.broker.server.log import Bucket, NodeLog

WAITING_MAX: Final = 10_000
TEXT_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Where the lines go."""

    file: Path | None = None
    """JSON lines, mode 0640; None: the node's log."""
    file_bytes_max: int = 10 << 20
    """A file of this size makes room for a new one."""
    files_max: int = 5
    """Number of files that are kept, the growing one included."""


class Audit:
    """`done` and `refused`; `close` in the end."""

    def __init__(
        self, node: str, options: AuditOptions, log: NodeLog, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._node = node
        self._options = options
        self._log = log
        self._now_s = now_s
        self._buckets: dict[bool, Bucket] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._lost = 0
        self._failed = ""
        self._lock = Lock()

    def done(self, **facts: Any) -> None:
        """An operation that was carried out."""
        self._emit({**facts, "outcome": "done"})

    def refused(self, **facts: Any) -> None:
        """An operation that was refused. Refusals without a user have a bucket of their own."""
        bucket = self._buckets.setdefault(bool(facts.get("user")), Bucket(self._now_s()))
        if not bucket.passes(self._now_s()):
            return
        if bucket.held_back:
            facts["held_back"], bucket.held_back = bucket.held_back, 0
        self._emit({**facts, "outcome": "refused"})

    def _emit(self, facts: dict[str, Any]) -> None:
        facts = {name: _short(value) for name, value in facts.items()}
        if self._options.file is None:
            self._log.always("audit", **facts)
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"at": at, "node": self._node, **facts}, default=str).encode() + b"\n"
        with self._lock:
            if self._waiting >= WAITING_MAX:
                self._lost += 1
                return
            self._waiting += 1
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "audit")
        self._thread.submit(self._write, line)

    def _write(self, line: bytes) -> None:
        """On the thread."""
        why = ""
        try:
            append(self._options, line)
        except OSError as error:
            why = str(error)
        with self._lock:
            self._waiting -= 1
            lost, self._lost = self._lost, 0
            before, self._failed = self._failed, why
        if why and why != before:
            self._log.emit("error", "audit.failed", file=str(self._options.file), why=why)
        if lost:
            self._log.emit("error", "audit.lost", file=str(self._options.file), lines=lost)

    def close(self) -> None:
        """Returns when all lines are written."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def append(options: AuditOptions, line: bytes) -> None:
    """Appends one line, atomically among processes. Raises OSError."""
    file = options.file
    assert file is not None, "there is a file to write to"
    lock = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            size = file.stat().st_size
            if size and size + len(line) > options.file_bytes_max:
                _rotate(file, options.files_max)
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)
    finally:
        os.close(lock)


def _rotate(file: Path, files_max: int) -> None:
    for number in range(files_max - 1, 0, -1):
        younger = file if number == 1 else file.with_name(f"{file.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            younger.replace(file.with_name(f"{file.name}.{number}"))
    if files_max == 1:
        file.unlink()


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, dict):
        return {str(name): _short(inner) for name, inner in value.items()}
    return value


__all__ = ["Audit", "AuditOptions", "append"]
