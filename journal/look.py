"""A look at LMDB environments by a process that may die of it (waits).

LMDB trusts its pages. One that a disk has lost (it is as it was some commits ago) can make LMDB end its process with a
signal, at a read or at the next write. A start that follows an end without order therefore lets another process read
all of them first, and try a write, which is not committed; what kills that one is damage, told like any other.

It costs a quarter of what a start costs anyway, and nothing at all after an end in order whose file is as long as it
says (`fits`): LMDB maps the file, and a page behind its end kills the reader. A page that a disk has lost since then
ends the first start with the signal, and the next one tells it. Tools that only read look where it does not fit.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
import lmdb
only_read = sys.argv[2] == "only read"
for path in sys.argv[3:]:
    print(path, flush=True)
    options = dict(map_size=1 << 40, max_dbs=16, readonly=only_read, lock=not only_read)
    try:
        try:
            env = lmdb.open(path, lib_version=0, **options)
        except TypeError:
            env = lmdb.open(path, **options)
        with env.begin() as txn:
            names = [name for name in txn.cursor().iternext(values=False)]
        bases = [env.open_db(bytes(name), create=False) for name in names]
        with env.begin(buffers=True) as txn:
            for base in bases:
                for key, value in txn.cursor(base).iternext():
                    pass
        if not only_read:
            with env.begin(write=True) as txn:
                for base in bases:
                    txn.put(b"look", bytes(64 << 10), db=base)
                txn.abort()
        env.close()
    except lmdb.Error:
        pass
print("", flush=True)
"""
"""What can be told as an exception its own process will meet as well."""


class Deadly(NamedTuple):
    """The environment that nobody can read."""

    path: Path
    signal: str

    @property
    def what(self) -> str:
        return f"LMDB ended the process that looked at it ({self.signal}): pages of it were lost"


_META: Final = struct.Struct("=IIQQIHHQQQQQ48xQQ")
"""Behind a page's header: magic, version, address, size of the map, the free list's tree (its first field: size of a
page), the main tree, last page, number of the transaction."""
_META_AT, _MAGIC, _VERSION = 16, 0xBEEFC0DE, 1


def fits(environment: Path) -> bool:
    """Whether the data file has all pages that its newer meta page counts; True where there is no file. False is no
    proof of damage: LMDB may count pages at the end that it never wrote, for they were free again. Raises OSError."""
    try:
        with open(environment / "data.mdb", "rb") as file:
            metas = [_meta(file.read(_META_AT + _META.size))]
            if metas[0] is not None:
                file.seek(metas[0][1])
                metas.append(_meta(file.read(_META_AT + _META.size)))
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return True
    if None in metas:
        return False
    _, page_bytes, last_page = max(meta for meta in metas if meta is not None)
    return size >= (last_page + 1) * page_bytes


def _meta(page: bytes) -> tuple[int, int, int] | None:
    """(transaction, bytes of a page, last page)."""
    if len(page) < _META_AT + _META.size:
        return None
    magic, version, _, _, page_bytes, *_, last_page, transaction = _META.unpack_from(page, _META_AT)
    return (transaction, page_bytes, last_page) if (magic, version) == (_MAGIC, _VERSION) else None


def look(environments: Sequence[Path], only_read: bool = False) -> Deadly | None:
    """The first of these directories that kills its reader; those without a data file are passed over. None as well
    where no interpreter can be started: inside a frozen program, or without memory for a process. `only_read`: no lock
    file is touched; not beside a process that writes."""
    there = [str(path) for path in environments if (path / "data.mdb").exists()]
    if not there or not sys.executable or getattr(sys, "frozen", False):
        return None
    where = str(Path(lmdb.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, where, "only read" if only_read else "", *there]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - ours
    except OSError:
        return None
    if done.returncode >= 0:
        return None
    at = done.stdout.decode(errors="surrogateescape").splitlines()
    return Deadly(Path(at[-1] if at else there[0]), signal.Signals(-done.returncode).name)
