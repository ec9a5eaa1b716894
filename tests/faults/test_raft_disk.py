"""A disk that others fill does not end the wiring log at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterbroker.broker.trial.faults import empty, fill, mount_small_disk, unmount
from clusterbroker.cluster.errors import DiskFull
from clusterbroker.cluster.raft.disk import AHEAD_BYTES, FileDisk
from clusterbroker.cluster.raft.journal import Journal


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "small"
    if refused := mount_small_disk(directory, 8):
        pytest.skip(refused)
    yield directory
    unmount(directory)


def test_the_log_goes_on_for_a_while_on_a_full_disk_and_keeps_all_of_it(small: Path) -> None:
    disk = FileDisk(small / "raft")
    journal = Journal(disk)
    journal.align((b"\x01", 2, 0), (b"\x01", 3, 0))
    journal.add(b"before", 4, 1)
    journal.sync()
    fill(small)
    synced = 4
    with pytest.raises(DiskFull):
        while synced < 10_000:
            journal.add(bytes(1000), synced + 1, 1)
            journal.sync()
            synced += 1
    assert (synced - 4) * 1000 > AHEAD_BYTES // 3
    disk.close()
    empty(small)
    again = Journal(FileDisk(small / "raft"))
    assert len(again) - 2 in (synced - 3, synced - 2)  # the last one was refused, perhaps after it was whole
    again.add(b"after", again[-1][1] + 1, 1)
    again.sync()
    assert Journal(FileDisk(small / "raft"))[-1][0] == b"after"
