"""Snapshots of a Raft log: the map behind one entry, voters, and the numbers of each origin.

    file    u32 magic | u32 crc32 of what follows | msgpack StoredSnapshot      version 1

The lowest byte of the magic is the version, as a digit. The head stays in every later version, and its checksum
covers the magic too, which separates a file of a newer release from a damaged one.

A snapshot is written in one piece, synced and renamed into place. One with a wrong checksum is never loaded, neither
from disk (DamagedLog) nor from a leader (dropped). `Snapshots` has the methods of pysyncobj's Serializer, and takes
its place: no fork, no pickle, no thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from clusterbroker.cluster.errors import DamagedLog, FormatTooNew, NewerRelease

from .disk import REMEDY, FileDisk
from .messages import Entry

FILE: Final = "snapshot"
PIECE_BYTES: Final = 1 << 20
_HEAD: Final = struct.Struct("<II")
_MAGIC: Final = 0x52465331
FORMAT: Final = 1
_MAGIC_BYTES: Final = 4
_NOT_SERIALIZING, _SUCCESS = 0, 2


class StoredSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """What is in the file."""

    previous: Entry
    """The entry before the last one that is contained."""
    last: Entry
    voters: tuple[str, ...]
    """Raft ids, sorted."""
    origins: tuple[tuple[str, int, int], ...]
    """(origin, session, last number applied), sorted."""
    applied: int
    """Index of the last command that the map has seen; at most that of `last`."""
    chunks: tuple[bytes, ...]
    """The map, see cluster/wiring/snapshot.py."""


_DECODER: Final = msgspec.msgpack.Decoder(StoredSnapshot)


def encode(snapshot: StoredSnapshot) -> bytes:
    """The file."""
    body = msgspec.msgpack.encode(snapshot)
    return _HEAD.pack(_MAGIC, zlib.crc32(body)) + body


def decode(data: bytes) -> StoredSnapshot:
    """The snapshot in the bytes; ValueError when it is damaged, NewerRelease when it is of a later version."""
    if len(data) < _HEAD.size:
        raise ValueError("it is cut short")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    version = FORMAT + magic - _MAGIC
    if FORMAT < version < 10 and zlib.crc32(body, zlib.crc32(data[:_MAGIC_BYTES])) == crc:
        raise NewerRelease(f"it has format {version}; this release reads format {FORMAT}")
    if magic != _MAGIC or zlib.crc32(body) != crc:
        raise ValueError("it does not match its checksum")
    return _DECODER.decode(body)


class Snapshots:
    """The snapshot on the disk: written by this node, sent to others in pieces, put together from a leader's."""

    def __init__(
        self, disk: FileDisk, dump: Callable[[Entry, Entry], StoredSnapshot], stored: StoredSnapshot | None = None
    ) -> None:
        """`dump(previous, last)` makes a snapshot of what is applied now; `stored` is what was read of the file."""
        self._disk = disk
        self._dump = dump
        self._written: int | None = None
        self._sending: dict[Any, tuple[bytes, int]] = {}
        self._arriving: bytearray | None = None
        self.index = 0 if stored is None else stored.last[1]
        """The last entry that the file contains; 0: there is no file."""

    @property
    def arriving_bytes(self) -> int:
        """Of the snapshot that a leader is sending, so far."""
        return len(self._arriving or b"")

    def load(self) -> StoredSnapshot | None:
        """The snapshot; None: there is none. Raises DamagedLog, FormatTooNew."""
        data = self._disk.read(FILE)
        if data is None:
            return None
        snapshot = self._decoded(data)
        self.index = snapshot.last[1]
        return snapshot

    def _decoded(self, data: bytes) -> StoredSnapshot:
        try:
            return decode(data)
        except NewerRelease as error:
            raise self._newer(error) from error
        except ValueError as error:
            raise DamagedLog(f"{self._disk.path}/{FILE}: {error}", REMEDY) from error

    def write(self, snapshot: StoredSnapshot) -> None:
        """Put it on the disk, durably."""
        self._disk.replace(FILE, encode(snapshot))
        self.index = snapshot.last[1]

    def write_anew(self, previous: Entry, last: Entry) -> None:
        """Write a snapshot of what is applied; `last` is the last applied entry, `previous` the one before."""
        self.write(self._dump(previous, last))

    def _newer(self, error: NewerRelease) -> FormatTooNew:
        return FormatTooNew(f"{self._disk.path}/{FILE}: {error}: it comes from a newer release; start that one")

    # ---- what pysyncobj asks of its serializer ----

    def serialize(self, data: tuple[Any, Entry, Entry, Any], id_: int) -> None:
        """Write a snapshot of what is applied."""
        _, last, previous, _ = data
        self.write_anew(previous, last)
        self._written = id_

    def checkSerializing(self) -> tuple[int, int | None]:  # noqa: N802
        """Once, that a snapshot was written, so that the log before it is forgotten."""
        written, self._written = self._written, None
        if written is None:
            return _NOT_SERIALIZING, None
        self._sending.clear()
        return _SUCCESS, written

    def getTransmissionData(self, node: Any) -> tuple[bytes, bool, bool] | None:  # noqa: N802
        """The next piece for a node: (bytes, first, last); the last one is empty. Raises DamagedLog, FormatTooNew:
        followers would drop such a file, and get it again with each heartbeat."""
        data, at = self._sending.get(node) or (self._disk.read(FILE) or b"", 0)
        if not data:
            return None
        if not at:
            self._decoded(data)
        piece = data[at : at + PIECE_BYTES]
        if piece:
            self._sending[node] = (data, at + len(piece))
        else:
            self._sending.pop(node)
        return piece, at == 0, not piece

    def setTransmissionData(self, data: tuple[bytes, bool, bool] | None) -> bool:  # noqa: N802
        """A piece from the leader; True: a whole sound snapshot is on the disk now. Raises FormatTooNew."""
        if data is None:
            return False
        piece, first, last = data
        if first:
            self._arriving = bytearray()
        if self._arriving is None:
            return False
        self._arriving += piece
        if not last:
            return False
        whole, self._arriving = bytes(self._arriving), None
        try:
            snapshot = decode(whole)
        except NewerRelease as error:
            raise self._newer(error) from error
        except ValueError:
            return False
        self._disk.replace(FILE, whole)
        self.index = snapshot.last[1]
        return True

    def cancelTransmisstion(self, node: Any) -> None:  # noqa: N802
        """A node is no longer there."""
        self._sending.pop(node, None)
