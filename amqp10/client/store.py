"""What a client keeps of its unsettled deliveries, so that it may be killed as well.

    sender link     a message, before it is sent; its outcome; forgotten when it is settled
    receiver link   the outcome that the program gave, before the peer hears of it; forgotten when the peer has settled

A record is safe when the work of `take` is done; the shell writes no bytes to the socket before that.
A link is known by the container's id, its name and its role.

A file is a run of records; the last state of a tag counts. What a crash has left of the last record is cut off.

    record | length u32 | CRC-32 of the rest u32 | list: kind, container, name, role, tag, state, payload |
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from clusterbroker.amqp10.client.errors import StoreError
from clusterbroker.amqp10.client.resuming import State
from clusterbroker.broker.wire.amqp10.performatives import composed
from clusterbroker.broker.wire.amqp10.types import DecodeError, decode, decode_all, encode

_HEAD: Final = struct.Struct(">II")
MAGIC: Final = b"cb10uns1"
COMPACT_BYTES: Final = 1 << 20
COMPACT_FACTOR: Final = 4
"""A file is written anew when it has so many bytes, and so often what was alive when it was written anew before."""


class LinkId(NamedTuple):
    container: str
    name: str
    role: bool


class Kept(NamedTuple):
    """One delivery. `payload` is empty on receiver links."""

    state: State
    payload: bytes


class Store(Protocol):
    """All calls return at once; only the work that `take` hands out waits for a disk."""

    def load(self, link: LinkId) -> dict[bytes, Kept] | None:
        """What is unsettled, in the order in which it was put; None: the link was never here."""

    def open(self, link: LinkId) -> None:
        """The link is attached: from now on it is resumed."""

    def put(self, link: LinkId, tag: bytes, state: State, payload: bytes) -> None: ...

    def forget(self, link: LinkId, tag: bytes) -> None: ...

    def close_link(self, link: LinkId) -> None:
        """Nothing of the link is needed any more."""

    def take(self) -> Callable[[], None] | None:
        """The work that makes safe all that was put so far; it may run in a thread, one at a time. None: no work."""

    def close(self) -> None: ...


class MemoryStore:
    """Keeps nothing beyond the program: links themselves know what is unsettled."""

    def load(self, link: LinkId) -> dict[bytes, Kept] | None:  # noqa: ARG002 - of `Store`
        return None

    def open(self, link: LinkId) -> None: ...

    def put(self, link: LinkId, tag: bytes, state: State, payload: bytes) -> None: ...

    def forget(self, link: LinkId, tag: bytes) -> None: ...

    def close_link(self, link: LinkId) -> None: ...

    def take(self) -> Callable[[], None] | None:
        return None

    def close(self) -> None: ...


PUT, FORGET, OPEN, CLOSE = 0, 1, 2, 3


class FileStore:
    """A file that one program at a time has open. Raises StoreError for one that is in use, or is no such file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._links: dict[LinkId, dict[bytes, Kept]] = {}
        self._pending: list[bytes] = []
        self._is_torn = False
        """Something was not written, or not as a whole: what came behind it would not be read."""
        self._file = self._opened()
        self._bytes = self._read()
        self._compact_at = COMPACT_BYTES

    def _opened(self) -> int:
        try:
            found = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}") from None
        try:
            flock(found, LOCK_EX | LOCK_NB)
        except OSError:
            os.close(found)
            raise StoreError(f"{self.path} is in use by another process") from None
        return found

    def _read(self) -> int:
        data = self.path.read_bytes()
        if not data:
            os.write(self._file, MAGIC)
            os.fsync(self._file)
            _sync_folder(self.path.parent)
            return len(MAGIC)
        if data[: len(MAGIC)] != MAGIC[: len(data)]:
            raise StoreError(f"{self.path} is no file of unsettled deliveries")
        at = len(MAGIC)
        while (found := _record(data, at)) is not None:
            fields, at = found
            self._apply(fields)
        if at != len(data):
            os.ftruncate(self._file, max(at, len(MAGIC)) if len(data) >= len(MAGIC) else 0)
            if len(data) < len(MAGIC):
                os.write(self._file, MAGIC)
        return at

    def _apply(self, fields: list[Any]) -> None:
        kind, container, name, role, tag, state, payload = fields
        link = LinkId(container, name, role)
        if kind == CLOSE:
            self._links.pop(link, None)
            return
        known = self._links.setdefault(link, {})
        if kind == PUT:
            before = known.get(tag)
            known[tag] = Kept(composed(state), payload or (b"" if before is None else before.payload))
        elif kind == FORGET:
            known.pop(tag, None)

    def load(self, link: LinkId) -> dict[bytes, Kept] | None:
        found = self._links.get(link)
        return None if found is None else dict(found)

    def _note(self, kind: int, link: LinkId, tag: bytes = b"", state: State = None, payload: bytes = b"") -> None:
        self._pending.append(_packed(kind, link, tag, state, payload))
        self._apply([kind, *link, tag, _described(state), payload])

    def open(self, link: LinkId) -> None:
        if link not in self._links:
            self._note(OPEN, link)

    def put(self, link: LinkId, tag: bytes, state: State, payload: bytes) -> None:
        before = self._links.get(link, {}).get(tag)
        same = before is not None and before.payload == payload
        self._note(PUT, link, tag, state, b"" if same else payload)

    def forget(self, link: LinkId, tag: bytes) -> None:
        if tag in self._links.get(link, ()):
            self._note(FORGET, link, tag)

    def close_link(self, link: LinkId) -> None:
        if link in self._links:
            self._note(CLOSE, link)

    def take(self) -> Callable[[], None] | None:
        if not (self._pending or self._is_torn):
            return None
        pending, self._pending = self._pending, []
        if self._is_torn or self._bytes > self._compact_at:
            return partial(self._replace, self._alive())
        return partial(self._append, b"".join(pending))

    def _append(self, data: bytes) -> None:
        """Raises StoreError: nothing that depends on it may be sent."""
        try:
            _write(self._file, data)
            os.fsync(self._file)
        except OSError as error:
            self._is_torn = True
            raise StoreError(f"{self.path} cannot be written: {error.strerror}") from None
        self._bytes += len(data)

    def _alive(self) -> bytes:
        """What the file would be, had only those records been written that still matter."""
        parts = [MAGIC]
        for link, known in self._links.items():
            parts.append(_packed(OPEN, link))
            parts += [_packed(PUT, link, tag, kept.state, kept.payload) for tag, kept in known.items()]
        return b"".join(parts)

    def _replace(self, data: bytes) -> None:
        """Raises StoreError; the file in its place is a whole one then too."""
        fresh, made = self.path.with_name(self.path.name + ".new"), -1
        self._is_torn = True
        try:
            made = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            flock(made, LOCK_EX | LOCK_NB)
            _write(made, data)
            os.fsync(made)
            fresh.replace(self.path)
            made, self._file, self._bytes = self._file, made, len(data)  # whichever is not this one's any more
            _sync_folder(self.path.parent)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written anew: {error.strerror}") from None
        finally:
            if made >= 0:
                os.close(made)
        self._is_torn = False
        self._compact_at = max(COMPACT_BYTES, COMPACT_FACTOR * len(data))

    def close(self) -> None:
        """Makes safe what is pending. Raises StoreError; the file is free all the same."""
        if self._file < 0:
            return
        try:
            work = self.take()
            if work is not None:
                work()
        finally:
            os.close(self._file)
            self._file = -1


def _packed(kind: int, link: LinkId, tag: bytes = b"", state: State = None, payload: bytes = b"") -> bytes:
    record = encode([kind, *link, tag, _described(state), payload])
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def _described(state: State) -> Any:
    return None if state is None else decode(state.encoded())[0]


def _record(data: bytes, at: int) -> tuple[list[Any], int] | None:
    """The record there and where the next begins; None: no whole one."""
    if at + _HEAD.size > len(data):
        return None
    length, checksum = _HEAD.unpack_from(data, at)
    start = at + _HEAD.size
    record = data[start : start + length]
    if len(record) < length or zlib.crc32(record) != checksum:
        return None
    try:
        fields = decode_all(record)
    except DecodeError:
        return None
    return (fields, start + length) if isinstance(fields, list) and len(fields) == len(_FIELDS) else None


_FIELDS: Final = ("kind", "container", "name", "role", "tag", "state", "payload")


def _write(file: int, data: bytes) -> None:
    at = 0
    while at < len(data):
        at += os.write(file, data[at:])


def _sync_folder(folder: Path) -> None:
    found = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(found)
    finally:
        os.close(found)
