"""A data directory from outside: a problem of its wiring is told, and the journal can be looked at all the same."""

from pathlib import Path

from clusterbroker.cluster.data_directory import DataDirectory
from clusterbroker.cluster.ids import LogIndex
from clusterbroker.cluster.log_store import LogStore
from clusterbroker.cluster.wiring import snapshot
from clusterbroker.cluster.wiring.entities import VhostLimits
from clusterbroker.cluster.wiring.snapshot import Snapshot


def test_a_wiring_that_contradicts_itself_is_a_problem_that_is_told(tmp_path: Path) -> None:
    journal = tmp_path / "journal" / "index" / "data.mdb"
    journal.parent.mkdir(parents=True)
    journal.touch()
    store = LogStore(tmp_path / "wiring")
    store.write_snapshot(LogIndex(2), snapshot.encode(Snapshot(LogIndex(2), limits=[VhostLimits("gone")])))
    store.close()
    directory = DataDirectory(tmp_path)
    assert directory.wiring is None
    assert "the snapshot contradicts itself" in directory.wiring_problem
