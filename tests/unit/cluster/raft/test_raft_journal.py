"""The journal of Raft over real files: what a crash may leave, and what it may not."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterbroker.cluster.errors import DamagedLog
from clusterbroker.cluster.raft.disk import AHEAD_BYTES, FileDisk
from clusterbroker.cluster.raft.journal import FILE, KEPT_BYTES_MAX, NO_OP, Journal
from tests.simulation.raft.sim_disk import SimDisk


def filled(directory: Path, entries: int = 5) -> Journal:
    """Every entry in a batch of its own."""
    disk = FileDisk(directory)
    journal = Journal(disk)
    journal.align((NO_OP, 2, 0), (NO_OP, 3, 0))
    for index in range(4, 4 + entries):
        journal.add(b"\x00entry %d" % index, index, 1)
        journal.sync()
    disk.close()
    return journal


def test_what_was_synced_is_there_again(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.setCurrentTerm(7, "a/1")
    journal.setRaftCommitIndex(6)
    journal.deleteEntriesFrom(5)
    journal.sync()
    again = Journal(FileDisk(tmp_path))
    assert again[:] == journal[:]
    assert [entry[1] for entry in again[:]] == [2, 3, 4, 5, 6]
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.getRaftCommitIndex()) == (7, "a/1", 6)


def test_what_was_not_synced_is_not_in_the_file(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.add(b"\x00late", 9, 1)
    assert journal.dirty
    assert len(Journal(FileDisk(tmp_path))) == len(journal) - 1


def test_one_sync_for_all_entries_of_a_turn(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    before = journal.syncs
    for index in range(9, 40):
        journal.add(b"\x00", index, 1)
    journal.sync()
    journal.sync()
    assert journal.syncs == before + 1


@pytest.mark.parametrize("lost", [1, 5, 20, 30])
def test_a_torn_end_is_cut(tmp_path: Path, lost: int) -> None:
    entries = len(filled(tmp_path))
    file = tmp_path / FILE
    whole = file.read_bytes()
    file.write_bytes(whole[:-lost])
    again = Journal(FileDisk(tmp_path))
    assert len(again) == entries - 1
    again.add(b"\x00other", 8, 2)
    again.sync()
    assert Journal(FileDisk(tmp_path))[-1] == (b"\x00other", 8, 2)


def test_space_ahead_of_the_end_is_no_part_of_the_log(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    journal = Journal(disk)
    journal.align((NO_OP, 2, 0), (NO_OP, 3, 0))
    journal.add(b"\x00entry", 4, 1)
    journal.sync()
    whole = (tmp_path / FILE).read_bytes()
    assert len(whole) > AHEAD_BYTES
    assert whole.endswith(bytes(AHEAD_BYTES // 2))
    again = Journal(FileDisk(tmp_path))
    assert again[:] == journal[:]
    again.add(b"\x00next", 5, 1)
    again.sync()
    assert Journal(FileDisk(tmp_path))[-1] == (b"\x00next", 5, 1)


def test_damage_below_what_was_durable_refuses_to_start(tmp_path: Path) -> None:
    filled(tmp_path)
    file = tmp_path / FILE
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(DamagedLog, match=rf"{tmp_path}/{FILE}: the bytes from \d+ on .* restore this node's disk"):
        Journal(FileDisk(tmp_path))


def test_a_damaged_beginning_is_never_torn(tmp_path: Path) -> None:
    filled(tmp_path, entries=0)
    file = tmp_path / FILE
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedLog):
        Journal(FileDisk(tmp_path))


def test_compaction_leaves_one_batch_and_the_tail(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    size = (tmp_path / FILE).stat().st_size
    journal.setRaftCommitIndex(7)
    journal.deleteEntriesTo(4)
    assert (tmp_path / FILE).stat().st_size < size
    assert [entry[1] for entry in Journal(FileDisk(tmp_path))[:]] == [6, 7, 8]
    assert not (tmp_path / f"{FILE}.new").exists()


def test_some_entries_stay_behind_a_snapshot_if_they_are_small(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    journal = Journal(disk, kept=3)
    journal.align((NO_OP, 2, 0), (NO_OP, 3, 0))
    for index in range(4, 20):
        journal.add(bytes(KEPT_BYTES_MAX // 2 - 1 if index == 12 else 1), index, 1)
    journal.setRaftCommitIndex(19)
    journal.sync()
    journal.align(journal[8], journal[9])  # the entries 10 and 11
    assert journal[0][1] == 7
    again = Journal(FileDisk(tmp_path), kept=3)
    assert again[:] == journal[:]
    again.align(again[3], again[4])
    assert again[:] == journal[:]
    again.deleteEntriesTo(again[:].index(journal[-2]))  # the entries 18 and 19
    assert again[0][1] == 15
    again.add(bytes(KEPT_BYTES_MAX), 20, 1)
    again.add(NO_OP, 21, 1)
    again.add(NO_OP, 22, 1)
    again.add(NO_OP, 23, 1)
    again.deleteEntriesTo(len(again) - 2)
    assert again[0][1] == 21


def test_the_commit_index_of_a_log_that_rests_is_stored_once(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    assert not journal.note_commit() or journal.getRaftCommitIndex() == 3
    journal.setRaftCommitIndex(6)
    assert journal.note_commit()
    assert not journal.note_commit()
    assert Journal(FileDisk(tmp_path)).getRaftCommitIndex() == 6


def test_a_snapshot_within_the_log_keeps_what_follows_it(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.align(journal[3], journal[4])
    assert [entry[1] for entry in journal[:]] == [5, 6, 7, 8]
    journal.align((b"\x00other", 6, 3), (b"\x00other", 7, 3))
    assert [entry[1] for entry in Journal(FileDisk(tmp_path))[:]] == [6, 7]


def test_what_is_committed_is_never_cut(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.setRaftCommitIndex(6)
    with pytest.raises(AssertionError, match="committed"):
        journal.deleteEntriesFrom(4)


def test_one_vote_in_a_term(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.setCurrentTerm(3, "a/1")
    with pytest.raises(AssertionError, match="one vote"):
        journal.setCurrentTerm(3, "b/1")


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(0, 400), st.randoms(use_true_random=False))
def test_any_prefix_of_the_file_gives_a_prefix_of_the_log(payloads: list[bytes], lost: int, rng: object) -> None:
    disk = SimDisk("disk", rng)  # type: ignore[arg-type]
    journal = Journal(disk)
    journal.align((NO_OP, 2, 0), (NO_OP, 3, 0))
    first = len(disk.read(FILE) or b"")
    for index, payload in enumerate(payloads, start=4):
        journal.add(b"\x00" + payload, index, 1)
        journal.sync()
    whole = disk.read(FILE) or b""
    disk.truncate(FILE, max(first, len(whole) - lost))
    again = Journal(disk)
    assert again[:] == journal[: len(again)]
    assert len(again) >= 2


def test_a_log_that_is_opened_is_written_anew(tmp_path: Path) -> None:
    """What was read may be in the kernel's cache alone, on pages that it calls clean."""
    journal = filled(tmp_path)
    before = (tmp_path / FILE).stat().st_ino
    again = Journal(FileDisk(tmp_path))
    assert (tmp_path / FILE).stat().st_ino != before, "another file has its name, durably"
    assert again[:] == journal[:]
    assert Journal(FileDisk(tmp_path))[:] == journal[:]
