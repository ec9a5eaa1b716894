"""An LMDB file that is shorter than it says: known before it is mapped, for a page behind its end ends the reader."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import pytest

from clusterbroker.journal.errors import DamagedJournal
from clusterbroker.journal.index import Index
from clusterbroker.journal.look import fits, look

PAGE = 4096


def filled(directory: Path, count: int) -> Path:
    """Some transactions, of which only the newer meta page knows all pages."""
    env = lmdb.open(str(directory), map_size=1 << 28, max_dbs=4)
    base = env.open_db(b"base")
    for number in range(count):
        with env.begin(write=True) as txn:
            for at in range(20):
                txn.put(b"%d/%d" % (number, at), os.urandom(900), db=base)
    env.close()
    return directory / "data.mdb"


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_cut_of_an_environment_is_seen(tmp_path: Path, count: int) -> None:
    data = filled(tmp_path, count)
    assert fits(tmp_path)
    size = data.stat().st_size
    with data.open("ab") as file:
        file.write(bytes(PAGE))
    assert fits(tmp_path), "longer is no harm"
    for shorter in (size - 1, size - PAGE, size // 2, 2 * PAGE, PAGE, 100, 0):
        os.truncate(data, shorter)
        assert not fits(tmp_path), shorter
    data.unlink()
    assert fits(tmp_path), "nothing is there"


def test_the_look_dies_of_what_does_not_fit_and_writes_nothing_where_it_only_reads(tmp_path: Path) -> None:
    data = filled(tmp_path, 5)
    (tmp_path / "lock.mdb").unlink()
    assert look((tmp_path,), only_read=True) is None
    os.truncate(data, 3 * PAGE)
    found = look((tmp_path,), only_read=True)
    assert found is not None
    assert (found.path, found.signal) == (tmp_path, "SIGBUS")
    assert [path.name for path in tmp_path.iterdir()] == ["data.mdb"]


def test_who_looks_at_a_cut_index_from_outside_is_told(tmp_path: Path) -> None:
    """`journal check` ended with SIGBUS, without a line."""
    index = Index(tmp_path, map_bytes=1 << 28)
    index.close()
    os.truncate(index.path / "data.mdb", 2 * PAGE)
    with pytest.raises(DamagedJournal, match="LMDB ended the process that looked at it"):
        Index(tmp_path, readonly=True, lock=False)
