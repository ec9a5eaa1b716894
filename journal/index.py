"""Each queue's journal index: key ranges in one node-wide LMDB environment (waits).

    database "queues"   key  queue id u64                      meta, a msgpack map
                        key  queue id u64 | first seq u64      run of layout.RUN_ENTRY entries, see packed_run.py
    database "journal"  key  "format"                          msgpack {"version": 2}
                        key  "ckpt"                            msgpack [segment, offset, lsn]
                        key  "stamp"                           see stamp.py

Keys are big endian, so that a queue is one range that starts with its meta. Every value begins with the crc32c of
key and payload as they are stored, little endian: LMDB itself checks nothing, and a page that was lost shows here
(py-lmdb #161).

Version 1 stored runs as they are. It was never released, so nothing reads it any more.

Default sync flags and no writemap: one checkpoint is one transaction with two flushes, and a full disk is an error
instead of a signal. Reading needs no lock that a writer wants, but an open read transaction keeps pages from
being used again, so nobody holds one for longer than a slice of runs. Every page that was ever read stays in the
process's resident memory until the map goes: whoever reads all of the index calls `reopen` on the way.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from journal.errors import DamagedJournal, ForeignJournal, JournalFailed, JournalFull
from journal.packed_run import pack_run, unpack_run
from journal.record import checksum
from journal.segments import Position
from journal.stamp import Stamp, packed, unpacked

FORMAT_VERSION = 2
RUN_KEY = struct.Struct(">QQ")
META_KEY = struct.Struct(">Q")
CRC = struct.Struct("<I")
LAST = 2**64 - 1

Run = tuple[int, int, bytes]
"""queue id, first seq, entries; b"" for "there is no such run any more"."""


class Index:
    def __init__(self, directory: Path, map_bytes: int = 1 << 40, readonly: bool = False, lock: bool = True):
        """Opens or makes `directory/index`. Raises ForeignJournal, DamagedJournal, FileNotFoundError."""
        self.directory = directory
        self.path = directory / "index"
        if not readonly:
            self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        elif not (self.path / "data.mdb").exists():
            raise FileNotFoundError(errno.ENOENT, "no journal is here", str(self.path))
        self._options: dict[str, Any] = {"map_size": map_bytes, "max_dbs": 8, "readonly": readonly, "lock": lock}
        self._open()
        self._check_format(readonly)

    def _open(self) -> None:
        create = not self._options["readonly"]
        try:
            try:
                # engine 0.9 writes the format that every py-lmdb reads
                self._env = lmdb.open(str(self.path), lib_version=0, **self._options)
            except TypeError:
                self._env = lmdb.open(str(self.path), **self._options)
            self._queues = self._env.open_db(b"queues", create=create)
            self._journal = self._env.open_db(b"journal", create=create)
        except lmdb.DiskError as error:
            raise JournalFull(f"{self.path}: {error}") from error
        except lmdb.Error as error:
            raise self.damaged(f"LMDB cannot open it: {error}") from error

    def reopen(self) -> None:
        """Gives back the memory of pages that were read. For the thread that opened it, while no other uses it;
        a `scan` under way goes on. Raises DamagedJournal."""
        self._env.close()
        self._open()

    def _check_format(self, readonly: bool) -> None:
        found = self._get_journal(b"format")
        if found is None:
            if not readonly:
                with self._env.begin(write=True) as txn:
                    self._put(txn, self._journal, b"format", msgspec.msgpack.encode({"version": FORMAT_VERSION}))
        elif found.get("version") != FORMAT_VERSION:
            self.close()
            raise ForeignJournal(
                f"{self.path} has format {found.get('version')}; this version reads format {FORMAT_VERSION}"
            )

    def close(self) -> None:
        self._env.close()

    def damaged(self, what: str, queue_id: int | None = None) -> DamagedJournal:
        return DamagedJournal(self.directory, "index/data.mdb", None, what, queue_id)

    def _get_journal(self, key: bytes) -> Any:
        with self._env.begin(self._journal) as txn:
            value = txn.get(key)
        return None if value is None else msgspec.msgpack.decode(self._verified(key, value))

    def _verified(self, key: bytes, value: bytes) -> bytes:
        if len(value) < CRC.size or CRC.unpack_from(value)[0] != checksum(key + value[CRC.size :]):
            queue_id = META_KEY.unpack_from(key)[0] if len(key) in (META_KEY.size, RUN_KEY.size) else None
            raise self.damaged(f"the value of key {key.hex()} has a wrong checksum", queue_id)
        return value[CRC.size :]

    def _put(self, txn: Any, database: Any, key: bytes, payload: bytes) -> None:
        txn.put(key, CRC.pack(checksum(key + payload)) + payload, db=database)

    @property
    def checkpoint(self) -> Position | None:
        """Where the log goes on from what the index knows; None before the first checkpoint."""
        found = self._get_journal(b"ckpt")
        return None if found is None else Position(*found)

    @property
    def stamp(self) -> Stamp | None:
        """Whose this journal is; None: nobody has said so yet. Raises DamagedJournal."""
        with self._env.begin(self._journal) as txn:
            value = txn.get(b"stamp")
        return None if value is None else unpacked(self._verified(b"stamp", value))

    def put_stamp(self, stamp: Stamp) -> None:
        """Durable on return. Raises JournalFull, JournalFailed."""
        with self._written() as txn:
            self._put(txn, self._journal, b"stamp", packed(stamp))

    @contextmanager
    def _written(self) -> Iterator[Any]:
        """One durable transaction: all of it or nothing. Raises JournalFull (nothing happened), JournalFailed."""
        try:
            with self._env.begin(write=True) as txn:
                yield txn
        except (lmdb.DiskError, lmdb.MapFullError) as error:
            raise JournalFull(f"{self.path}: {error}") from error
        except lmdb.Error as error:
            if os.strerror(errno.EDQUOT) in str(error) or os.strerror(errno.ENOSPC) in str(error):
                raise JournalFull(f"{self.path}: {error}") from error
            raise JournalFailed(f"{self.path}: {error}") from error

    def commit(
        self,
        runs: Iterable[Run],
        metas: Iterable[tuple[int, dict[str, Any]]],
        forgotten: Iterable[int],
        position: Position,
    ) -> None:
        """One durable transaction: all of it or nothing. Queues are forgotten before anything is put.

        Raises JournalFull (nothing happened, try again), JournalFailed.
        """
        with self._written() as txn:
            for queue_id in forgotten:
                self._forget(txn, queue_id)
            for queue_id, first_seq, entries in runs:
                key = RUN_KEY.pack(queue_id, first_seq)
                if entries:
                    self._put(txn, self._queues, key, pack_run(entries))
                else:
                    txn.delete(key, db=self._queues)
            for queue_id, meta in metas:
                self._put(txn, self._queues, META_KEY.pack(queue_id), msgspec.msgpack.encode(meta))
            self._put(txn, self._journal, b"ckpt", msgspec.msgpack.encode(tuple(position)))

    def _forget(self, txn: Any, queue_id: int) -> None:
        first = META_KEY.pack(queue_id)
        with txn.cursor(self._queues) as cursor:
            found = cursor.set_range(first)
            while found and cursor.key().startswith(first):
                found = cursor.delete()

    def scan(self, start: bytes = b"", slice_length: int = 256, last: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """(key, meta or entries) of database "queues" from `start` on, up to `last` if that is not empty, in key order,
        verified; a slice a transaction."""
        while True:
            slice_: list[tuple[bytes, bytes]] = []
            with self._env.begin(self._queues) as txn, txn.cursor() as cursor:
                if cursor.set_range(start) if start else cursor.first():
                    for item in cursor.iternext():
                        if last and item[0] > last:
                            break
                        slice_.append(item)
                        if len(slice_) == slice_length:
                            break
            for key, value in slice_:
                payload = self._verified(key, value)
                if len(key) == RUN_KEY.size:
                    try:
                        payload = unpack_run(payload)
                    except ValueError as error:
                        owner = META_KEY.unpack_from(key)[0]
                        raise self.damaged(f"the run of key {key.hex()}: {error}", owner) from error
                elif len(key) != META_KEY.size:
                    raise self.damaged(f"key {key.hex()} belongs to nothing")
                yield key, payload
            if len(slice_) < slice_length:
                return
            start = slice_[-1][0] + b"\0"

    def metas(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for key, payload in self.scan():
            if len(key) == META_KEY.size:
                yield META_KEY.unpack(key)[0], msgspec.msgpack.decode(payload)

    def runs(self, queue_id: int, first: int = 0, last: int = LAST) -> Iterator[tuple[int, bytes]]:
        """(first seq, entries) of the queue's runs whose key lies in first..last."""
        for key, payload in self.scan(RUN_KEY.pack(queue_id, first), last=RUN_KEY.pack(queue_id, last)):
            if len(key) == RUN_KEY.size:
                yield RUN_KEY.unpack(key)[1], payload

    def copy(self, directory: Path) -> None:
        """A compact copy without free pages into an empty directory."""
        self._env.copy(str(directory), compact=True)
