"""The stored bytes: what is written comes back, what is damaged stops with its place, newer formats are refused."""

from pathlib import Path

import lmdb
import pytest

from clusterbroker.cluster.errors import DamagedLog, DiskFull, FormatTooNew
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.log_store import FORMAT, LogStore
from clusterbroker.cluster.wiring import commands as c
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.entities import VhostLimits
from clusterbroker.cluster.wiring.map import ClusterMap
from clusterbroker.cluster.wiring.snapshot import Snapshot


def entry(index: int) -> tuple[LogIndex, bytes]:
    return LogIndex(index), c.encode(c.DeclareQueue(vhost="/", name=f"q{index}", durable=True))


def change(directory: Path, database: bytes, key: bytes, value: bytes | None) -> None:
    with lmdb.open(str(directory), max_dbs=8) as env:
        db = env.open_db(database, create=False)
        with env.begin(write=True) as txn:
            if value is None:
                txn.delete(key, db=db)
            else:
                txn.put(key, value, db=db)


def stored_value(directory: Path, database: bytes, key: bytes) -> bytes:
    with lmdb.open(str(directory), max_dbs=8) as env, env.begin() as txn:
        value = txn.get(key, db=env.open_db(database, txn=txn, create=False))
        assert isinstance(value, bytes)
        return value


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    directory = tmp_path / "wiring"
    store = LogStore(directory)
    map_ = ClusterMap()
    store.write_snapshot(LogIndex(2), snapshot.encode(map_.snapshot()))
    store.append([entry(3), entry(300)], reserved=LogIndex(1000))
    store.close()
    return directory


def test_empty(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "a" / "wiring")
    stored = store.load()
    assert (stored.snapshot, stored.entries, stored.next_index) == (None, [], 1)
    store.close()


def test_written_and_back(filled: Path) -> None:
    store = LogStore(filled)
    stored = store.load()
    assert stored.snapshot is not None
    assert ClusterMap.restored(stored.snapshot).digest() == ClusterMap().digest()
    assert [(index, command.name) for index, command in stored.entries] == [(3, "q3"), (300, "q300")]  # type: ignore[union-attr]
    assert stored.next_index == 1000
    store.close()


def test_the_map_is_folded_from_snapshot_and_log(filled: Path) -> None:
    store = LogStore(filled)
    folded = store.fold()
    assert [queue.name for queue in folded.map.queues()] == ["q3", "q300"]
    assert (folded.commands, folded.next_index, folded.map.applied) == (2, 1000, 300)
    store.close()


def test_a_snapshot_that_contradicts_itself_is_damage(filled: Path) -> None:
    store = LogStore(filled)
    store.write_snapshot(LogIndex(2), snapshot.encode(Snapshot(LogIndex(2), limits=[VhostLimits("gone")])))
    with pytest.raises(DamagedLog, match="the snapshot contradicts itself") as caught:
        store.fold()
    assert "Restore this directory" in str(caught.value)
    store.close()


def test_a_snapshot_trims_the_log(filled: Path) -> None:
    store = LogStore(filled)
    store.write_snapshot(LogIndex(3), snapshot.encode(ClusterMap().snapshot()))
    assert [index for index, _ in store.load().entries] == [300]
    store.write_snapshot(LogIndex(300), snapshot.encode(ClusterMap().snapshot()))
    assert store.load().entries == []
    assert store.load().next_index == 1000
    store.close()


def test_entries_only_go_to_the_end(filled: Path) -> None:
    store = LogStore(filled)
    with pytest.raises(AssertionError):
        store.append([entry(301), entry(299)])
    assert [index for index, _ in store.load().entries] == [3, 300], "nothing of it was written"
    store.close()


@pytest.mark.parametrize(
    "database, key, what",
    [
        (b"log", (3).to_bytes(8, "big"), "log entry 3"),
        (b"snapshot", (0).to_bytes(4, "big"), "chunk 0 of the snapshot"),
        (b"meta", b"snapshot", "snapshot's place"),
        (b"meta", b"reserved", "reserved index"),
    ],
)
def test_one_changed_bit_is_found(filled: Path, database: bytes, key: bytes, what: str) -> None:
    value = bytearray(stored_value(filled, database, key))
    value[-1] ^= 4
    change(filled, database, key, bytes(value))
    store = LogStore(filled)
    with pytest.raises(DamagedLog) as caught:
        store.load()
    text = str(caught.value)
    assert str(filled / "data.mdb") in text
    assert f"{what} does not match its checksum" in text
    assert "Restore this directory" in text
    store.close()


def test_an_entry_in_anothers_place_is_found(filled: Path) -> None:
    change(filled, b"log", (4).to_bytes(8, "big"), stored_value(filled, b"log", (3).to_bytes(8, "big")))
    store = LogStore(filled)
    with pytest.raises(DamagedLog, match="log entry 4"):
        store.load()
    store.close()


def test_a_missing_chunk_is_found(filled: Path) -> None:
    change(filled, b"snapshot", (1).to_bytes(4, "big"), None)
    store = LogStore(filled)
    with pytest.raises(DamagedLog, match="chunk 1 of the snapshot is missing"):
        store.load()
    store.close()


def test_a_newer_format_is_refused_in_one_line(filled: Path) -> None:
    import struct
    import zlib

    payload = struct.pack("<I", FORMAT + 1)
    change(filled, b"meta", b"format", struct.pack("<I", zlib.crc32(payload, zlib.crc32(b"format"))) + payload)
    with pytest.raises(FormatTooNew) as caught:
        LogStore(filled)
    assert "\n" not in str(caught.value)
    assert f"format {FORMAT + 1}" in str(caught.value)


def test_a_file_that_is_no_environment(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not lmdb" * 4096)
    with pytest.raises(DamagedLog, match=r"data\.mdb"):
        LogStore(tmp_path)


def test_no_room_rolls_back_and_goes_on(tmp_path: Path) -> None:
    store = LogStore(tmp_path, map_bytes=1 << 17)
    store.append([entry(1)])
    with pytest.raises(DiskFull):
        store.append([entry(index) for index in range(2, 5000)])
    assert [index for index, _ in store.load().entries] == [1]
    store.append([entry(2)])
    assert [index for index, _ in store.load().entries] == [1, 2]
    store.close()
