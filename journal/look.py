"""A look at LMDB environments by a process that may die of it (waits).

LMDB trusts its pages. One that a disk has lost (it is as it was some commits ago) can make LMDB end its process with a
signal, at a read or at the next write. A start that follows an end without order therefore lets another process read
all of them first, and try a write, which is not committed; what kills that one is damage, told like any other.

It costs a quarter of what a start costs anyway, and nothing at all after an end in order. What a disk has lost since
then ends the first start with the signal, and the next one tells it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import lmdb

PROGRAM = """
import sys
sys.path[:0] = [sys.argv[1]]
import lmdb
for path in sys.argv[2:]:
    print(path, flush=True)
    options = dict(map_size=1 << 40, max_dbs=16)
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


def look(environments: Sequence[Path]) -> Deadly | None:
    """The first of these directories that kills its reader; those without a data file are passed over. None as well
    where no interpreter can be started: inside a frozen program, or without memory for a process."""
    there = [str(path) for path in environments if (path / "data.mdb").exists()]
    if not there or not sys.executable or getattr(sys, "frozen", False):
        return None
    where = str(Path(lmdb.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, where, *there]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - ours
    except OSError:
        return None
    if done.returncode >= 0:
        return None
    at = done.stdout.decode(errors="surrogateescape").splitlines()
    return Deadly(Path(at[-1] if at else there[0]), signal.Signals(-done.returncode).name)
