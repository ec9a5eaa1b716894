"""The stored bytes of the wiring log, in an LMDB environment of its own (`wiring/` in the node's directory).

    meta       "format"    -> u32   this layout: 1
               "reserved"  -> u64   every index below it may have been given out; a start continues from here
               "snapshot"  -> u64 index, u32 number of chunks
               "stamp"     -> whose it is (journal/stamp.py)
    log        u64 index   -> a stored command (commands.py)
    snapshot   u32 number  -> a chunk of the snapshot (snapshot.py)

Keys are big endian, so that LMDB's order is the log's. Every value is `u32 crc32 of key and payload |
payload`, numbers in it little endian. What a crash leaves is what the last commit left: LMDB's commits are
atomic and, with `sync`, durable when they return. A snapshot and the trimming of the log behind it are one
commit. Nothing is ever repaired silently.

One thread at a time may write; all methods block on the disk.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb

from clusterbroker.journal.stamp import Stamp, packed, unpacked

from .errors import DamagedLog, DiskFailed, DiskFull, FormatTooNew, NewerRelease
from .ids import LogIndex
from .wiring import commands, snapshot
from .wiring.map import ClusterMap

FORMAT: Final = 1
MAP_BYTES_MAX: Final = 1 << 38
"""Address space, not disk: 256 GiB."""
DATABASES_MAX: Final = 8

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_SNAPSHOT_META: Final = struct.Struct("<QI")
_INDEX_KEY: Final = struct.Struct(">Q")
_CHUNK_KEY: Final = struct.Struct(">I")
_WHAT_TO_DO: Final = (
    "Nothing was changed. Restore this directory from a backup; or save the messages (clusterbroker journal export), "
    "and give the node an empty data directory."
)

Entry = tuple[LogIndex, bytes]


class Stored(NamedTuple):
    """What a directory holds."""

    snapshot: snapshot.Snapshot | None
    entries: list[tuple[LogIndex, commands.AnyCommand]]
    """The tail of the log behind the snapshot, in order."""
    next_index: LogIndex
    """The first index that was surely never given out."""


class Folded(NamedTuple):
    """The wiring that a directory holds."""

    map: ClusterMap
    commands: int
    """Number of commands behind the snapshot."""
    next_index: LogIndex
    """As of `Stored`."""


class LogStore:
    """One open directory of a wiring log."""

    __slots__ = ("_env", "_log", "_meta", "_snapshot", "path")

    def __init__(
        self, directory: Path, *, sync: bool = True, read_only: bool = False, map_bytes: int = MAP_BYTES_MAX
    ) -> None:
        """Open or create it.

        `sync=False` leaves flushing to the system: a crash of the machine may lose or damage the log.
        Raises DamagedLog, FormatTooNew, DiskFull or DiskFailed, each with the path and what to do.
        """
        self.path = directory
        if not read_only:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        options: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}
        try:
            self._env = lmdb.open(
                str(directory),
                map_size=map_bytes,
                max_dbs=DATABASES_MAX,
                sync=sync,
                metasync=sync,
                readonly=read_only,
                mode=0o600,
                **options,
            )
            self._meta = self._env.open_db(b"meta", create=not read_only)
            self._log = self._env.open_db(b"log", create=not read_only)
            self._snapshot = self._env.open_db(b"snapshot", create=not read_only)
        except lmdb.Error as error:
            raise self._failure(error) from error
        self._check_format(read_only)

    def close(self) -> None:
        """Close the environment; nothing may be read or written after it."""
        self._env.close()

    def load(self) -> Stored:
        """Read and check everything; raises DamagedLog at the first value that is not what was written."""
        with self._transaction() as txn:
            restored = self._load_snapshot(txn)
            entries = self._load_entries(txn, restored.index if restored else LogIndex(0))
            raw = self._get(txn, self._meta, b"reserved", "reserved index")
        reserved = _U64.unpack(raw)[0] if raw is not None else 1
        last = entries[-1][0] if entries else restored.index if restored else 0
        return Stored(restored, entries, LogIndex(max(reserved, last + 1)))

    def fold(self) -> Folded:
        """The map, as snapshot and log say. Raises as `load`, and DamagedLog for a snapshot that contradicts itself."""
        stored = self.load()
        try:
            map_ = ClusterMap() if stored.snapshot is None else ClusterMap.restored(stored.snapshot)
        except ValueError as error:
            raise self._damaged("the snapshot", str(error)) from error
        for index, command in stored.entries:
            map_.apply(index, command)
        return Folded(map_, len(stored.entries), stored.next_index)

    @property
    def stamp(self) -> Stamp | None:
        """Whose this log is; None: not stamped yet. Raises DamagedLog, DiskFailed."""
        with self._transaction() as txn:
            raw = self._get(txn, self._meta, b"stamp", "stamp")
        return None if raw is None else unpacked(raw)

    def put_stamp(self, stamp: Stamp) -> None:
        """Durable on return; errors as in `append`."""
        with self._transaction(write=True) as txn:
            self._put(txn, b"stamp", packed(stamp))

    def append(self, entries: Sequence[Entry], *, reserved: LogIndex | None = None) -> None:
        """Write entries in one commit; durable on return. DiskFull: nothing was written; DiskFailed: unknown."""
        with self._transaction(write=True) as txn:
            for index, payload in entries:
                key = _INDEX_KEY.pack(index)
                added = txn.put(key, _sealed(key, payload), db=self._log, append=True)
                assert added, f"log entry {index} comes after all others"
            if reserved is not None:
                self._put(txn, b"reserved", _U64.pack(reserved))

    def write_snapshot(self, index: LogIndex, chunks: Iterable[bytes]) -> None:
        """Replace the snapshot and trim the log up to `index`, in one commit; errors as in `append`."""
        with self._transaction(write=True) as txn:
            txn.drop(self._snapshot, delete=False)
            count = 0
            for chunk in chunks:
                key = _CHUNK_KEY.pack(count)
                txn.put(key, _sealed(key, chunk), db=self._snapshot, append=True)
                count += 1
            self._put(txn, b"snapshot", _SNAPSHOT_META.pack(index, count))
            with txn.cursor(db=self._log) as cursor:
                cursor.first()
                # behind the last entry the key is empty
                while (found := cursor.key()) and _INDEX_KEY.unpack(found)[0] <= index:
                    cursor.delete()

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[lmdb.Transaction]:
        """One transaction, with this floor's errors."""
        try:
            with self._env.begin(write=write) as txn:
                yield txn
        except lmdb.Error as error:
            raise self._failure(error) from error

    def _check_format(self, read_only: bool) -> None:
        with self._env.begin() as txn:
            raw = self._get(txn, self._meta, b"format", "format version")
        if raw is None:
            if not read_only:
                with self._transaction(write=True) as txn:
                    self._put(txn, b"format", _U32.pack(FORMAT))
            return
        version = _U32.unpack(raw)[0]
        if version > FORMAT:
            raise FormatTooNew(
                f"{self.path}: written in format {version} by a newer release, this one knows formats up to {FORMAT}: "
                "start that release again"
            )

    def _load_snapshot(self, txn: lmdb.Transaction) -> snapshot.Snapshot | None:
        raw = self._get(txn, self._meta, b"snapshot", "snapshot's place")
        if raw is None:
            return None
        index, count = _SNAPSHOT_META.unpack(raw)
        chunks: list[bytes] = []
        for number in range(count):
            what = f"chunk {number} of the snapshot"
            chunk = self._get(txn, self._snapshot, _CHUNK_KEY.pack(number), what)
            if chunk is None:
                raise self._damaged(what, "is missing")
            chunks.append(chunk)
        try:
            return snapshot.decode(LogIndex(index), chunks)
        except NewerRelease as error:
            raise self._newer("the snapshot", error) from error
        except ValueError as error:
            raise self._damaged("the snapshot", str(error)) from error

    def _load_entries(self, txn: lmdb.Transaction, after: LogIndex) -> list[tuple[LogIndex, commands.AnyCommand]]:
        entries: list[tuple[LogIndex, commands.AnyCommand]] = []
        with txn.cursor(db=self._log) as cursor:
            for key, value in cursor:
                if len(key) != _INDEX_KEY.size:
                    raise self._damaged(f"log key {bytes(key).hex()}", "is no index")
                index = LogIndex(_INDEX_KEY.unpack(key)[0])
                what = f"log entry {index}"
                if index <= after:
                    raise self._damaged(what, f"is older than the snapshot at {after}")
                try:
                    entries.append((index, commands.decode(self._opened(key, value, what))))
                except NewerRelease as error:
                    raise self._newer(what, error) from error
                except ValueError as error:
                    raise self._damaged(what, str(error)) from error
        return entries

    def _put(self, txn: lmdb.Transaction, key: bytes, payload: bytes) -> None:
        txn.put(key, _sealed(key, payload), db=self._meta)

    def _get(self, txn: lmdb.Transaction, db: Any, key: bytes, what: str) -> bytes | None:
        value = txn.get(key, db=db)
        return None if value is None else self._opened(key, value, what)

    def _opened(self, key: bytes | memoryview, value: bytes | memoryview, what: str) -> bytes:
        if len(value) < _U32.size or _U32.unpack_from(value)[0] != zlib.crc32(value[4:], zlib.crc32(key)):
            raise self._damaged(what, "does not match its checksum")
        return bytes(value[4:])

    def _damaged(self, what: str, problem: str) -> DamagedLog:
        return DamagedLog(f"{self.path / 'data.mdb'}: {what} {problem}. {_WHAT_TO_DO}")

    def _newer(self, what: str, error: NewerRelease) -> FormatTooNew:
        return FormatTooNew(
            f"{self.path}: {what} was written by a newer release, this one cannot read it ({error}): start that "
            "release again"
        )

    def _failure(self, error: lmdb.Error) -> DamagedLog | DiskFull | DiskFailed:
        """What an LMDB error means for the node."""
        if isinstance(error, (lmdb.MapFullError, lmdb.DiskError)) or _says(error, errno.ENOSPC, errno.EDQUOT):
            return DiskFull(f"{self.path}: no room for the metadata log ({error})")
        if isinstance(
            error, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
        ):
            return self._damaged("the file", f"is not a sound LMDB environment ({error})")
        return DiskFailed(f"{self.path}: the metadata log cannot be read or written ({error}); the node must stop")


def _sealed(key: bytes, payload: bytes) -> bytes:
    return _U32.pack(zlib.crc32(payload, zlib.crc32(key))) + payload


def _says(error: lmdb.Error, *codes: int) -> bool:
    """Whether LMDB's error text carries one of the system's error texts (it has no other place for the code)."""
    return any(os.strerror(code) in str(error) for code in codes)
