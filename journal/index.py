"""Each queue's journal index: key ranges in one node-wide LMDB environment (waits).

    database "queues"   key  queue id u64                      meta, a msgpack map
                        key  queue id u64 | first seq u64      run of layout.RUN_ENTRY entries, see packed_run.py
    database "sums"     key  queue id u64                      what "queues" has of it, see sums.py
    database "journal"  key  "format"                          msgpack {"version": 3}
                        key  "ckpt"                            msgpack [segment, offset, lsn], and the sum of all sums
                                                               (a lost page may hide them all) if it is known
                        key  "stamp"                           see stamp.py

Keys are big endian, so that a queue is one range that starts with its meta. Every value begins with the crc32c of
key and payload as they are stored, little endian: LMDB itself checks nothing, and a page that was lost shows here
(py-lmdb #161).

Version 2 had no sums: they are written after a start that has read all of it (`keep_sums`). Version 1 stored runs as
they are. It was never released, so nothing reads it any more.

Default sync flags and no writemap: one checkpoint is one transaction with two flushes, and a full disk is an error
instead of a signal. Reading needs no lock that a writer wants, but an open read transaction keeps pages from
being used again, so nobody holds one for longer than a slice of runs. Every page that was ever read stays in the
process's resident memory until the map goes: whoever reads all of the index calls `reopen` on the way.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import lmdb
import msgspec

from clusterbroker.journal.errors import DamagedJournal, ForeignJournal, JournalFailed, JournalFull
from clusterbroker.journal.look import fits, look
from clusterbroker.journal.packed_run import pack_run, unpack_run
from clusterbroker.journal.platform import NO_SPACE
from clusterbroker.journal.record import checksum
from clusterbroker.journal.segments import Position
from clusterbroker.journal.stamp import Stamp, packed, unpacked
from clusterbroker.journal.sums import NONE, Sum, Sums
from clusterbroker.journal.sums import STORED_BYTES as SUM_BYTES
from clusterbroker.journal.sums import packed as packed_sum
from clusterbroker.journal.sums import unpacked as unpacked_sum

FORMAT_VERSION = 3
WITHOUT_SUMS = 2
NEARLY_FULL_BYTES = 64 << 20
RUN_KEY = struct.Struct(">QQ")
META_KEY = struct.Struct(">Q")
CRC = struct.Struct("<I")
LAST = 2**64 - 1

Run = tuple[int, int, bytes]
"""queue id, first seq, entries; b"" for "there is no such run any more"."""

OnHurt = Callable[[DamagedJournal], object] | None


def _is_meta(payload: bytes) -> bool:
    try:
        meta = msgspec.msgpack.decode(payload)
    except msgspec.DecodeError:
        return False
    return isinstance(meta, dict)


Change = tuple[bytes, bytes | None, bytes | None]
"""key, value before, value after"""


class Follower(Protocol):
    """Of an index that changes."""

    def changed(self, forgotten: Iterable[int], changes: Iterable[Change]) -> None:
        """A checkpoint did this, in this order."""


class Index:
    def __init__(self, directory: Path, map_bytes: int = 1 << 40, readonly: bool = False, lock: bool = True):
        """Opens or makes `directory/index`. Raises ForeignJournal, DamagedJournal, FileNotFoundError."""
        self.directory = directory
        self.path = directory / "index"
        if not readonly:
            self.path.mkdir(mode=0o750, parents=True, exist_ok=True)
        elif not (self.path / "data.mdb").exists():
            raise FileNotFoundError(errno.ENOENT, "no journal is here", str(self.path))
        elif not lock and not fits(self.path) and (deadly := look((self.path,), only_read=True)):
            raise self.damaged(deadly.what)
        self._options: dict[str, Any] = {"map_size": map_bytes, "max_dbs": 8, "readonly": readonly, "lock": lock}
        self._recount = False  # the sum of all sums is not believed any more
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
            self._sums = self._env.open_db(b"sums") if create or self._has(b"sums") else None
        except lmdb.DiskError as error:
            raise JournalFull(f"{self.path}: {error}") from error
        except lmdb.Error as error:
            raise self.damaged(f"LMDB cannot open it: {error}") from error

    def reopen(self) -> None:
        """Gives back the memory of pages that were read. For the thread that opened it, while no other uses it;
        a `scan` under way goes on. Raises DamagedJournal."""
        self._env.close()
        self._open()

    def _has(self, database: bytes) -> bool:
        with self._env.begin() as txn:
            return txn.get(database) is not None

    def _check_format(self, readonly: bool) -> None:
        found = self._get_journal(b"format")
        version = FORMAT_VERSION if found is None else found.get("version")
        if found is None and not readonly:
            with self._env.begin(write=True) as txn:
                self._put_format(txn)
        elif version not in (WITHOUT_SUMS, FORMAT_VERSION):
            self.close()
            raise ForeignJournal(f"{self.path} has format {version}; this version reads format {FORMAT_VERSION}")
        self.summed = version == FORMAT_VERSION
        """Whether it keeps the sums of its queues."""

    def _put_format(self, txn: Any) -> None:
        self._put(txn, self._journal, b"format", msgspec.msgpack.encode({"version": FORMAT_VERSION}))

    def close(self) -> None:
        self._env.close()

    def damaged(self, what: str, queue_id: int | None = None) -> DamagedJournal:
        return DamagedJournal(self.directory, "index/data.mdb", None, what, queue_id)

    @contextmanager
    def _read(self, database: Any) -> Iterator[Any]:
        """Raises DamagedJournal for what LMDB itself finds wrong."""
        try:
            with self._env.begin(database) as txn:
                yield txn
        except lmdb.Error as error:
            raise self.damaged(f"LMDB cannot read it: {error}") from error

    def _get_journal(self, key: bytes) -> Any:
        with self._read(self._journal) as txn:
            value = txn.get(key)
        return None if value is None else msgspec.msgpack.decode(self.verified(key, value))

    def verified(self, key: bytes, value: bytes) -> bytes:
        """The payload. Raises DamagedJournal."""
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
        return None if found is None else Position(*found[: len(Position._fields)])

    @property
    def stamp(self) -> Stamp | None:
        """Whose this journal is; None: nobody has said so yet. Raises DamagedJournal."""
        with self._read(self._journal) as txn:
            value = txn.get(b"stamp")
        return None if value is None else unpacked(self.verified(b"stamp", value))

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
            full = any(os.strerror(code) in str(error) for code in NO_SPACE)
            if full or (os.strerror(errno.EIO) in str(error) and self._is_nearly_full()):
                raise JournalFull(f"{self.path}: {error}") from error
            raise JournalFailed(f"{self.path}: {error}") from error

    def _is_nearly_full(self) -> bool:
        """LMDB says EIO when the system writes less than it was given, as it does when space ends in the middle.
        Nothing has happened then: the commit may be tried again."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize < NEARLY_FULL_BYTES

    def commit(
        self,
        runs: Iterable[Run],
        metas: Iterable[tuple[int, dict[str, Any]]],
        forgotten: Iterable[int],
        position: Position,
        follower: Follower | None = None,
    ) -> None:
        """One durable transaction: all of it or nothing. Queues are forgotten before anything is put. A durable one
        is told to `follower`. Raises JournalFull (nothing happened, try again), JournalFailed.
        """
        changes, forgotten = Sums(), tuple(forgotten)
        changed: list[Change] | None = None if follower is None else []
        with self._written() as txn:
            total = self._noted(txn) if self.summed and not self._recount else None
            for queue_id in forgotten:
                lost = self._forget(txn, queue_id)
                total = None if total is None or lost is None else total.less(lost)
            for queue_id, first_seq, entries in runs:
                key = RUN_KEY.pack(queue_id, first_seq)
                self._change(txn, changes, changed, key, pack_run(entries) if entries else None)
            for queue_id, meta in metas:
                self._change(txn, changes, changed, META_KEY.pack(queue_id), msgspec.msgpack.encode(meta))
            if self.summed:
                self._sum_up(txn, changes)
                total = self._counted(txn) if total is None else total.plus(changes.total)
            noted = () if total is None else total
            self._put(txn, self._journal, b"ckpt", msgspec.msgpack.encode((*position, *noted)))
        self._recount = False
        if follower is not None and changed is not None:
            follower.changed(forgotten, changed)

    def _change(self, txn: Any, changes: Sums, changed: list[Change] | None, key: bytes, payload: bytes | None) -> None:
        value = None
        if payload is None:
            before = txn.pop(key, db=self._queues)
        else:
            value = CRC.pack(checksum(key + payload)) + payload
            before = txn.replace(key, value, db=self._queues)
            changes.add(key, value)
        if before is not None:
            changes.remove(key, before)
        if changed is not None:
            changed.append((key, before, value))

    def _sum_up(self, txn: Any, changes: Sums) -> None:
        for queue_id in changes.by_queue:
            change = changes.of(queue_id)
            key = META_KEY.pack(queue_id)
            stored = txn.get(key, db=self._sums)
            before = NONE if stored is None else unpacked_sum(self.verified(key, stored))
            after = before.plus(change)
            if after == NONE:
                txn.delete(key, db=self._sums)
            elif after.values <= 0:
                raise self.damaged(
                    f"it had {before.values} values, and {-change.values} of them were taken out", queue_id
                )
            else:
                self._put(txn, self._sums, key, packed_sum(after))

    def _noted(self, txn: Any) -> Sum | None:
        """The sum of all sums, as the checkpoint has it; None: it was not known, or an earlier release wrote that."""
        value = txn.get(b"ckpt", db=self._journal)
        noted = () if value is None else msgspec.msgpack.decode(self.verified(b"ckpt", value))[len(Position._fields) :]
        return Sum(*noted) if noted else None

    def _counted(self, txn: Any) -> Sum | None:
        """The same, added up; None: one of them is damaged, whose queue will be forgotten some day."""
        total = NONE
        try:
            with txn.cursor(self._sums) as cursor:
                for key, value in cursor:
                    total = total.plus(self._sum_of(key, value))
        except DamagedJournal:
            return None
        return total

    def keep_sums(self, sums: Sums) -> None:
        """Of an index that had none, all of which was just read; durable. Raises JournalFull, JournalFailed."""
        with self._written() as txn:
            txn.drop(self._sums, delete=False)
            for queue_id in sums.by_queue:
                self._put(txn, self._sums, META_KEY.pack(queue_id), packed_sum(sums.of(queue_id)))
            self._put_format(txn)
        self.summed = True

    def prove(self, sums: Sums, hurt: OnHurt = None) -> None:
        """`sums` are those of all that was read. Raises DamagedJournal; with `hurt`, what is a queue's goes there, but
        not that sums are missing: whose they are is not known."""
        if not self.summed:
            return

        def told(damage: DamagedJournal) -> None:
            if hurt is None:
                raise damage
            self._recount = True  # what is wrong with a queue goes with it, by a number that nobody knows
            hurt(damage)

        assert self._sums is not None, "an index with sums has a place for them"
        left, total = set(sums.by_queue), NONE
        with self._read(self._sums) as txn, txn.cursor() as cursor:
            for key, value in cursor:
                if len(key) != META_KEY.size:
                    raise self.damaged(f"key {key.hex()} is no sum")
                queue_id = META_KEY.unpack(key)[0]
                left.discard(queue_id)
                try:
                    stored, found = self._sum_of(key, value), sums.of(queue_id)
                except DamagedJournal as damage:
                    told(damage)
                    continue
                total = total.plus(stored)
                if stored != found:
                    told(self.damaged(self._difference(stored, found), queue_id))
            for queue_id in sorted(left):
                told(self.damaged(self._difference(NONE, sums.of(queue_id)), queue_id))
            noted = self._noted(txn)
            if not self._recount and noted is not None and total != noted:
                raise self.damaged(f"{total.values} values are summed up, {noted.values} were written: pages were lost")

    def prove_one(self, txn: Any, queue_id: int, sums: Sums) -> None:
        """`sums` has that of all values of the queue. Raises DamagedJournal."""
        if self.summed:
            key = META_KEY.pack(queue_id)
            value = txn.get(key, db=self._sums)
            stored = NONE if value is None else self._sum_of(key, value)
            if stored != sums.of(queue_id):
                raise self.damaged(self._difference(stored, sums.of(queue_id)), queue_id)

    @contextmanager
    def values(self) -> Iterator[tuple[Any, Any]]:
        """A transaction and its cursor in database "queues". Raises DamagedJournal for what LMDB finds wrong."""
        with self._read(self._queues) as txn, txn.cursor() as cursor:
            yield txn, cursor

    def summed_queues(self, txn: Any, first: bytes, count_max: int) -> list[bytes]:
        """Keys of database "sums" from `first` on."""
        with txn.cursor(self._sums) as cursor:
            found = cursor.set_range(first) if first else cursor.first()
            return list(islice(cursor.iternext(values=False), count_max)) if found else []

    def _sum_of(self, key: bytes, value: bytes) -> Sum:
        payload = self.verified(key, value)
        if len(payload) != SUM_BYTES:
            raise self.damaged(f"key {key.hex()} is no sum", META_KEY.unpack(key)[0])
        return unpacked_sum(payload)

    @staticmethod
    def _difference(stored: Sum, found: Sum) -> str:
        if stored.values != found.values:
            return f"{found.values} values of the queue are there, {stored.values} were written: pages were lost"
        return f"of the {found.values} values of the queue some are not the last that were written: pages were lost"

    def _forget(self, txn: Any, queue_id: int) -> Sum | None:
        """What the sum of all sums loses by it; None: that cannot be read."""
        first = META_KEY.pack(queue_id)
        with txn.cursor(self._queues) as cursor:
            found = cursor.set_range(first)
            while found and cursor.key().startswith(first):
                found = cursor.delete()
        before = txn.pop(first, db=self._sums) if self.summed else None
        try:
            return NONE if before is None else self._sum_of(first, before)
        except DamagedJournal:
            return None

    def scan(
        self,
        start: bytes = b"",
        slice_length: int = 256,
        last: bytes = b"",
        sums: Sums | None = None,
        hurt: OnHurt = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """(key, meta or entries) of database "queues" from `start` on, up to `last` if that is not empty, in key order,
        verified; a slice a transaction. What is read is added to `sums`. With `hurt`, a value that is damaged and says
        whose it is goes there, and is passed over."""
        while True:
            slice_: list[tuple[bytes, bytes]] = []
            with self._read(self._queues) as txn, txn.cursor() as cursor:
                if cursor.set_range(start) if start else cursor.first():
                    for item in cursor.iternext():
                        if last and item[0] > last:
                            break
                        slice_.append(item)
                        if len(slice_) == slice_length:
                            break
            for key, value in slice_:
                try:
                    payload = self._proved(key, value)
                except DamagedJournal as damage:
                    if hurt is None or damage.queue_id is None:
                        raise
                    hurt(damage)
                    continue
                if sums is not None:
                    sums.add(key, value)
                yield key, payload
            if len(slice_) < slice_length:
                return
            start = slice_[-1][0] + b"\0"

    def _proved(self, key: bytes, value: bytes) -> bytes:
        """A meta, or a run's entries. Raises DamagedJournal."""
        payload = self.verified(key, value)
        if len(key) == RUN_KEY.size:
            try:
                return unpack_run(payload)
            except ValueError as error:
                owner = META_KEY.unpack_from(key)[0]
                raise self.damaged(f"the run of key {key.hex()}: {error}", owner) from error
        if len(key) != META_KEY.size:
            raise self.damaged(f"key {key.hex()} belongs to nothing")
        if not _is_meta(payload):  # a checksum does not say of which database a value is
            raise self.damaged(
                f"the value of key {key.hex()} is another database's: pages were lost", META_KEY.unpack(key)[0]
            )
        return payload

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
